//! Check whether the number of a region without a record was ever assigned (CONTROL-23).

use std::fmt::Debug;
use std::sync::Arc;

use super::Agent;
use super::host::RegionHost;
use crate::coordinator::Coordinator;
use crate::ids::RegionId;
use crate::record::{IDS_KEY, Ids};

/// Reason why a copy without a record is kept.
pub(super) const NEVER_ASSIGNED: &str = "the region is unknown to the coordinator";

/// The coordinator's assigned region numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AssignedNumbers {
    /// Not needed: all regions on this server have records.
    NotAsked,
    /// The assigned numbers.
    Known(Arc<Ids>),
    /// The coordinator did not answer.
    Unknown,
}

impl AssignedNumbers {
    /// Returns whether a region without a record was assigned its number, and so is removed. `None`
    /// if that is unknown.
    pub(super) fn have(&self, region: RegionId) -> Option<bool> {
        match self {
            Self::NotAsked => Some(true),
            Self::Known(ids) => Some(ids.has_assigned(region)),
            Self::Unknown => None,
        }
    }
}

impl<C: Coordinator + Clone + Debug, H: RegionHost> Agent<C, H> {
    /// Returns the assigned numbers. If a replica or copy belongs to a region without a record,
    /// reads them from the coordinator, once for each revision of the regions: one round trip.
    pub(super) fn assigned(&mut self) -> AssignedNumbers {
        let view = self.mirror.view();
        let ordered = self.ordered.keys().copied();
        let on_disk = self.disk_copies.copies.iter().map(|it| it.region);
        let abandoned = self.abandoned.keys().map(|(region, _)| *region);
        let mut here = ordered.chain(on_disk).chain(abandoned);
        if here.all(|region| view.regions.contains_key(&region)) {
            return AssignedNumbers::NotAsked;
        }
        let revision = view.revision;
        if let Some((at, assigned)) = &self.assigned_at
            && *at == revision
        {
            return assigned.clone();
        }
        let assigned = self.read_assigned();
        self.assigned_at =
            (assigned != AssignedNumbers::Unknown).then(|| (revision, assigned.clone()));
        assigned
    }

    fn read_assigned(&self) -> AssignedNumbers {
        match crate::admin::read::<Ids>(&self.coordinator, IDS_KEY) {
            Ok(Some(seen)) => AssignedNumbers::Known(Arc::new(seen.record)),
            Ok(None) => AssignedNumbers::Unknown,
            Err(error) => {
                tracing::debug!(%error, "cannot read the assigned region numbers");
                AssignedNumbers::Unknown
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::TableId;
    use crate::record::table::SkippedRegions;

    /// A skipped number, which lost records may have assigned, does not count as that of a removed
    /// region (CONTROL-23).
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
        let assigned = AssignedNumbers::Known(Arc::new(ids));
        let have = |number| assigned.have(RegionId(number)) == Some(true);
        let assigned: Vec<u64> = (1..12).filter(|number| have(*number)).collect();
        assert_eq!(assigned, [1, 2, 3, 4, 9]);
    }
}
