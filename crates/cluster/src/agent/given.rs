//! CP23: whether the coordinator has ever heard of a region that has no record.

use std::fmt::Debug;

use super::Agent;
use super::host::RegionHost;
use crate::coordinator::Coordinator;
use crate::ids::RegionId;
use crate::record::table::{SKIPPED_RANGE_COUNT_MAX, SkippedRegions};
use crate::record::{IDS_KEY, Ids};

/// Why a copy is kept that no record names.
pub(super) const FORGOTTEN: &str = "the coordinator has never heard of this region";

/// What the coordinator says of numbers of regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Given {
    /// Of no region is it to be known: all that are here have records.
    NotAsked,
    /// It has given away those before this one, but for those that it skipped.
    Before(RegionId, [Option<SkippedRegions>; SKIPPED_RANGE_COUNT_MAX]),
    /// It does not say.
    Unknown,
}

impl Given {
    /// Whether a region without a record was one that has gone. `None`: nobody knows.
    pub(super) fn have(self, region: RegionId) -> Option<bool> {
        match self {
            Self::NotAsked => Some(true),
            Self::Before(next, skipped) => {
                let mut skipped = skipped.iter().flatten();
                let is_skipped = skipped.any(|it| (it.from..it.to).contains(&region));
                Some(region < next && !is_skipped)
            }
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
        if let Some((at, given)) = self.given_at
            && at == revision
        {
            return given;
        }
        let given = self.ask_for_given();
        self.given_at = (given != Given::Unknown).then_some((revision, given));
        given
    }

    fn ask_for_given(&self) -> Given {
        match crate::admin::read::<Ids>(&self.coordinator, IDS_KEY) {
            Ok(Some(seen)) => {
                let mut skipped = [None; SKIPPED_RANGE_COUNT_MAX];
                for (to, from) in skipped.iter_mut().zip(seen.record.skipped) {
                    *to = Some(from);
                }
                Given::Before(seen.record.next_region, skipped)
            }
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

    /// Promise (CP23, ID5): a copy of a region whose number was skipped, as lost records may have
    /// given it away, is none of a region that has gone.
    #[test]
    fn skipped_numbers_were_not_given() {
        let mut skipped = [None; SKIPPED_RANGE_COUNT_MAX];
        skipped[3] = Some(SkippedRegions {
            from: RegionId(5),
            to: RegionId(9),
        });
        let given = Given::Before(RegionId(10), skipped);
        let have = |number| given.have(RegionId(number)) == Some(true);
        let given: Vec<u64> = (1..12).filter(|number| have(*number)).collect();
        assert_eq!(given, [1, 2, 3, 4, 9]);
    }
}
