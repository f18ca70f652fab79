//! Replicas that have broken here: for how long their regions are let alone, and what of them can
//! go on when there is room (RS10, CP16).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use farleaf_cluster::ids::{RegionId, ReplicaNumber};
use farleaf_cluster::record::CopyReport;

use crate::place::{ReplicaPlace, is_damage};

/// How long a region that has failed here is let alone: at first, and at the most. Each failure
/// doubles it, until none has come for long.
const LET_ALONE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(8));
const FORGIVEN: Duration = Duration::from_mins(1);

/// When a region has failed here, and for how long it is let alone.
struct Failed {
    at: Instant,
    rest: Duration,
}

/// What has broken here.
#[derive(Default)]
pub(crate) struct Broken {
    failed: BTreeMap<RegionId, Failed>,
    /// What copies say that were looked at since; none: they are damaged, or are no copies.
    copies: BTreeMap<(RegionId, ReplicaNumber), Option<CopyReport>>,
}

impl Broken {
    /// A disk that fails is not tried all the time: each time the coordinator writes, and the
    /// primary reads.
    pub(crate) fn note(&mut self, region: RegionId) {
        let at = Instant::now();
        let before = self.failed.get(&region);
        let before = before.filter(|it| at - it.at < FORGIVEN);
        let rest = before.map_or(LET_ALONE.0, |it| (it.rest * 2).min(LET_ALONE.1));
        self.failed.insert(region, Failed { at, rest });
    }

    /// Until when a region is let alone, if it has failed.
    pub(crate) fn rests_until(&self, region: RegionId) -> Option<Instant> {
        let failed = self.failed.get(&region)?;
        Some(failed.at + failed.rest)
    }

    /// The copy of a replica that nobody has open any more, looked at once.
    pub(crate) fn copy(
        &mut self,
        (region, replica): (RegionId, ReplicaNumber),
        place: &ReplicaPlace,
    ) -> Option<CopyReport> {
        if let Some(copy) = self.copies.get(&(region, replica)) {
            return *copy;
        }
        let copy = match place.copy() {
            Ok(copy) => copy,
            Err(error) => {
                tracing::error!(%error, "what {region} has left here cannot go on by itself");
                if !is_damage(&error) {
                    // What passes is looked at again, when the region has rested.
                    self.note(region);
                    return None;
                }
                None
            }
        };
        self.copies.insert((region, replica), copy);
        copy
    }

    /// The next life looks at all of them.
    pub(crate) fn forget_all_copies(&mut self) {
        self.copies.clear();
    }

    /// The region's copies are not as they were any more.
    pub(crate) fn forget_copies(&mut self, region: RegionId) {
        self.copies.retain(|(of, _), _| *of != region);
    }
}
