//! Writes the ends of all logs to their disks, without a sync, so that acknowledged writes survive
//! the end of the server's process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::open_replicas::OpenReplicas;

/// Time from the beginning of one round to the beginning of the next. Three rounds take less than
/// 200 ms, within which an acknowledged write is to be written.
const INTERVAL: Duration = Duration::from_millis(50);
/// Longest sleep between rounds.
const REST_MAX: Duration = Duration::from_secs(1);

/// Visits all replicas, as long as the server runs.
pub(crate) fn write_log_ends(replicas: &Arc<OpenReplicas>, is_over: &AtomicBool) {
    let mut buffer = Vec::new();
    while !is_over.load(Ordering::Acquire) {
        let since = Instant::now();
        for replica in replicas.all() {
            replica.write_log_end(&mut buffer);
        }
        std::thread::sleep(rest_after(since.elapsed()));
    }
}

/// Returns the sleep after a round. A disk that many regions keep busy is left to other work for
/// half of the time.
fn rest_after(round_time: Duration) -> Duration {
    let rest = INTERVAL.saturating_sub(round_time);
    rest.max(round_time).min(REST_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three rounds take less than 200 ms, if visiting all replicas takes at most 33 ms. Half of
    /// the time, up to a second, is left to other work.
    #[test]
    fn rounds_leave_time_to_others() {
        let rest_ms = |round_ms| rest_after(Duration::from_millis(round_ms)).as_millis() as u64;
        for round_ms in 0..=33 {
            assert!(3 * (rest_ms(round_ms) + round_ms) < 200, "{round_ms}");
        }
        assert_eq!([0, 30, 80, 400, 5000].map(rest_ms), [50, 30, 80, 400, 1000]);
    }
}
