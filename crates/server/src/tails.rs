//! Writes the ends of all logs to their disks, without a sync (RS13): what a server has
//! acknowledged outlives its process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::open_replicas::OpenReplicas;

/// How long it rests between two rounds, from the beginning of one to the beginning of the next.
const INTERVAL: Duration = Duration::from_millis(100);
/// The longest rest.
const REST_MAX: Duration = Duration::from_secs(1);

/// Goes through all replicas, as long as the server runs.
pub(crate) fn write_tails(replicas: &Arc<OpenReplicas>, is_over: &AtomicBool) {
    let mut buffer = Vec::new();
    while !is_over.load(Ordering::Acquire) {
        let since = Instant::now();
        for replica in replicas.all() {
            replica.write_tail(&mut buffer);
        }
        std::thread::sleep(rest_after(since.elapsed()));
    }
}

/// A disk that many regions keep busy is left to others for half of the time.
fn rest_after(round_time: Duration) -> Duration {
    let rest = INTERVAL.saturating_sub(round_time);
    rest.max(round_time).min(REST_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise (RS13): what is written just behind a round is on the disk within 200 ms, if a round
    /// takes 100 ms at the most; and half of the time the disk is others', up to a second.
    #[test]
    fn rounds_leave_time_to_others() {
        let rest_ms = |round_ms| rest_after(Duration::from_millis(round_ms)).as_millis() as u64;
        for round_ms in 0..=100 {
            assert!(rest_ms(round_ms) + round_ms <= 200, "{round_ms}");
        }
        assert_eq!(
            [0, 30, 80, 400, 5000].map(rest_ms),
            [100, 70, 80, 400, 1000]
        );
    }
}
