//! Finds backups that hang: they answer, but make no progress. The thread that sends them something
//! waits for them, and cannot check itself.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use farleaf_cluster::ids::RegionId;
use farleaf_replica::{BackupId, LinkStatus, PrimaryStatus};

use crate::open_replicas::OpenReplicas;

/// Interval of checks.
const INTERVAL: Duration = Duration::from_millis(250);

/// Counters of a backup that change as long as it makes progress.
type Progress = [u64; 5];

/// Checks all backups, as long as the server runs.
pub(crate) fn watch(replicas: &Arc<OpenReplicas>, patience: Duration, is_over: &AtomicBool) {
    let mut seen: BTreeMap<(RegionId, BackupId), (Progress, Instant)> = BTreeMap::new();
    while !is_over.load(Ordering::Acquire) {
        std::thread::sleep(INTERVAL);
        let mut now_seen = BTreeMap::new();
        for replica in replicas.all() {
            let Some(served) = replica.served() else {
                continue;
            };
            let status = served.primary.status();
            for link in status.backups.iter().filter(|link| is_asked(&status, link)) {
                let key = (replica.region, link.backup);
                let progress = progress(link);
                let before = seen.get(&key).filter(|before| before.0 == progress);
                let since = before.map_or_else(Instant::now, |before| before.1);
                if since.elapsed() > patience {
                    let how = format!("no progress for {patience:?}");
                    let region = replica.region;
                    tracing::warn!("{} of {region} does not respond: {how}", link.backup);
                    served.primary.lose_backup(link.backup, &how);
                    replica.wake();
                    continue;
                }
                now_seen.insert(key, (progress, since));
            }
        }
        seen = now_seen;
    }
}

/// Returns whether the backup has pending work. Log that no thread waits for, such as marks of
/// syncs, is sent with the next writes and does not count.
fn is_asked(status: &PrimaryStatus, link: &LinkStatus) -> bool {
    let lacks_log = link.sent_to < status.replicating_to;
    let lacks_sync = link.synced_to < status.sync_wanted;
    link.lost.is_none() && (lacks_log || lacks_sync || link.has_pending_request)
}

fn progress(link: &LinkStatus) -> Progress {
    [
        link.sent_to.0,
        link.written_to.0,
        link.synced_to.0,
        link.request_count,
        link.index_size_bytes,
    ]
}
