//! Replicas that have broken on this server: the back-off of their regions, and copies that can
//! continue when there is space (CONTROL-16).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use farleaf_cluster::ids::{RegionId, ReplicaNumber};
use farleaf_cluster::record::CopyReport;

use crate::place::{ReplicaStore, is_corruption};

/// First and longest back-off of a region that has failed on this server. Each failure doubles it.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(8));
/// Time without a failure after which the back-off starts over.
const BACKOFF_RESET_TIME: Duration = Duration::from_mins(1);

/// Time of a region's failure on this server, and its back-off.
struct FailedRegion {
    at: Instant,
    rest: Duration,
}

/// Replicas that have broken on this server.
#[derive(Default)]
pub(crate) struct BrokenReplicas {
    failed: BTreeMap<RegionId, FailedRegion>,
    /// Reports of copies read since; `None` if a copy is damaged or missing.
    copies: BTreeMap<(RegionId, ReplicaNumber), Option<CopyReport>>,
}

impl BrokenReplicas {
    /// Notes a failure of a region. Retrying a failing disk all the time would cost writes of the
    /// coordinator and reads of the primary.
    pub(crate) fn note(&mut self, region: RegionId) {
        let at = Instant::now();
        let before = self.failed.get(&region);
        let before = before.filter(|it| at - it.at < BACKOFF_RESET_TIME);
        let rest = before.map_or(BACKOFF.0, |it| (it.rest * 2).min(BACKOFF.1));
        self.failed.insert(region, FailedRegion { at, rest });
    }

    /// Returns the end of a region's back-off, if it has failed.
    pub(crate) fn backoff_until(&self, region: RegionId) -> Option<Instant> {
        let failed = self.failed.get(&region)?;
        Some(failed.at + failed.rest)
    }

    /// Returns the report of a replica's copy that nothing has open any more; reads it once.
    pub(crate) fn copy(
        &mut self,
        region: RegionId,
        replica: ReplicaNumber,
        place: &ReplicaStore,
    ) -> Option<CopyReport> {
        if let Some(copy) = self.copies.get(&(region, replica)) {
            return *copy;
        }
        let copy = match place.copy() {
            Ok(copy) => copy,
            Err(error) => {
                tracing::error!(%error, "cannot use the local copy to recover {region}");
                if !is_corruption(&error) {
                    // A temporary error is retried after the region's back-off.
                    self.note(region);
                    return None;
                }
                None
            }
        };
        self.copies.insert((region, replica), copy);
        copy
    }

    /// Forgets all copies: the next life reads them again.
    pub(crate) fn forget_all_copies(&mut self) {
        self.copies.clear();
    }

    /// Forgets the copies of a region, which have changed.
    pub(crate) fn forget_copies(&mut self, region: RegionId) {
        self.copies.retain(|(of, _), _| *of != region);
    }
}
