//! CP23: whether the coordinator has ever heard of a region that has no record.

use std::fmt::Debug;
use std::sync::Arc;

use super::Agent;
use super::host::RegionHost;
use crate::coordinator::Coordinator;
use crate::ids::RegionId;
use crate::record::{IDS_KEY, Ids};

/// Why a copy is kept that no record names.
pub(super) const FORGOTTEN: &str = "the coordinator has never heard of this region";

/// What the coordinator says of numbers of regions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Given {
    /// Of no region is it to be known: all that are here have records.
    NotAsked,
    /// What it has given away.
    Known(Arc<Ids>),
    /// It does not say.
    Unknown,
}

impl Given {
    /// Whether a region without a record was one that has gone. `None`: nobody knows.
    pub(super) fn have(&self, region: RegionId) -> Option<bool> {
        match self {
            Self::NotAsked => Some(true),
            Self::Known(ids) => Some(ids.have_given(region)),
            Self::Unknown => None,
        }
    }
}

impl<C: Coordinator + Clone + Debug, H: RegionHost> Agent<C, H> {
    /// What is to be known now. Where a replica or a copy is of a region that has no record, the
    /// coordinator is asked, once for each revision of the regions: one round trip.
    pub(super) fn given(&mut self) -> Given {
        let view = self.mirror.view();
        let held = self.held.keys().copied();
        let found = self.found.copies.iter().map(|it| it.region);
        let left = self.left.keys().map(|(region, _)| *region);
        let mut here = held.chain(found).chain(left);
        if here.all(|region| view.regions.contains_key(&region)) {
            return Given::NotAsked;
        }
        let revision = view.revision;
        if let Some((at, given)) = &self.given_at
            && *at == revision
        {
            return given.clone();
        }
        let given = self.ask_for_given();
        self.given_at = (given != Given::Unknown).then(|| (revision, given.clone()));
        given
    }

    fn ask_for_given(&self) -> Given {
        match crate::admin::read::<Ids>(&self.coordinator, IDS_KEY) {
            Ok(Some(seen)) => Given::Known(Arc::new(seen.record)),
            Ok(None) => Given::Unknown,
            Err(error) => {
                tracing::debug!(%error, "nobody says which regions there were");
                Given::Unknown
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::TableId;
    use crate::record::table::SkippedRegions;

    /// Promise (CP23, ID5): a copy of a region whose number was skipped, as lost records may have
    /// given it away, is none of a region that has gone.
    #[test]
    fn skipped_numbers_were_not_given() {
        let ids = Ids {
            version: 2,
            next_table: TableId(1),
            next_region: RegionId(10),
            skipped: vec![SkippedRegions {
                from: RegionId(5),
                to: RegionId(9),
            }],
        };
        let given = Given::Known(Arc::new(ids));
        let have = |number| given.have(RegionId(number)) == Some(true);
        let given: Vec<u64> = (1..12).filter(|number| have(*number)).collect();
        assert_eq!(given, [1, 2, 3, 4, 9]);
    }
}
