//! Writes the ends of all logs to their disks, without a sync (RS13): what a server has
//! acknowledged outlives its process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use farleaf_fabric::mapped::MappedEndpoint;
use farleaf_lsm::place::LogPosition;
use farleaf_replica::{BackupTail, ReplicaError};

use crate::open_replicas::OpenReplicas;
use crate::served::Served;

/// From the beginning of one round to the beginning of the next. Three of them are less than the
/// 200 ms of RS13.
const INTERVAL: Duration = Duration::from_millis(50);
/// The longest rest.
const REST_MAX: Duration = Duration::from_secs(1);

/// Goes through all replicas, as long as the server runs.
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

/// A disk that many regions keep busy is left to others for half of the time.
fn rest_after(round_time: Duration) -> Duration {
    let rest = INTERVAL.saturating_sub(round_time);
    rest.max(round_time).min(REST_MAX)
}

/// Writes the end of a replica's log to its disk.
#[derive(Debug, Default)]
pub(crate) struct LogEnd {
    /// What the last round saw, and did not write.
    seen: SeenEnd,
    /// Of a backup.
    backup: Option<BackupTail<MappedEndpoint>>,
}

impl LogEnd {
    /// From now on it is that of this backup.
    pub(crate) fn begin(&mut self, backup: BackupTail<MappedEndpoint>) {
        self.backup = Some(backup);
    }

    /// Writes it if it is due: that of a primary, if it is one, or else that of the backup.
    ///
    /// # Errors
    /// A backup's cannot be written. What becomes of a primary's is noted there.
    pub(crate) fn write(
        &mut self,
        primary: Option<&Served>,
        buffer: &mut Vec<u8>,
    ) -> Result<(), ReplicaError> {
        // The memory of a backup that is gone is not kept.
        self.backup.take_if(|backup| backup.is_over());
        if let Some(primary) = primary {
            self.write_primary(primary, buffer);
            return Ok(());
        }
        let Some(backup) = &mut self.backup else {
            return Ok(());
        };
        if self.seen.is_due(backup.unwritten_from()?) {
            backup.write()?;
        }
        Ok(())
    }

    fn write_primary(&mut self, primary: &Served, buffer: &mut Vec<u8>) {
        let log = primary.primary.engine().log();
        // RS10: as long as its disk is full, its own thread tries.
        if primary.no_room().is_none()
            && self.seen.is_due(log.unwritten_from())
            && let Err(error) = log.write_tail(buffer)
            // What is in memory stays there, and its next sync finds the disk full.
            && !error.is_no_room()
        {
            primary.note_engine(&error);
        }
    }
}

/// Where the end of a log that was in memory alone began in the last round. Where much is written,
/// segments are filled, and so written, between two rounds: nothing is written twice then.
#[derive(Debug, Default)]
struct SeenEnd(Option<LogPosition>);

impl SeenEnd {
    /// Whether to write what is in memory alone: what begins there began there in the last round.
    fn is_due(&mut self, unwritten_from: Option<LogPosition>) -> bool {
        let is_due = unwritten_from.is_some() && self.0 == unwritten_from;
        self.0 = unwritten_from.filter(|_| !is_due);
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise (RS13): three rounds take less than 200 ms, if going through all replicas takes 33
    /// ms at the most; and half of the time the disk is others', up to a second.
    #[test]
    fn rounds_leave_time_to_others() {
        let rest_ms = |round_ms| rest_after(Duration::from_millis(round_ms)).as_millis() as u64;
        for round_ms in 0..=33 {
            assert!(3 * (rest_ms(round_ms) + round_ms) < 200, "{round_ms}");
        }
        assert_eq!([0, 30, 80, 400, 5000].map(rest_ms), [50, 30, 80, 400, 1000]);
    }

    /// Promise (RS13): what is in memory alone in two rounds in turn is due in the second one; what
    /// others have written meanwhile is not, and what came behind it is seen anew.
    #[test]
    fn what_two_rounds_see_is_due() {
        let mut seen = SeenEnd::default();
        let rounds = [None, Some(8), Some(8), Some(40), Some(64), Some(64), None];
        let due = rounds.map(|from| seen.is_due(from.map(LogPosition)));
        assert_eq!(due, [false, false, true, false, false, true, false]);
        // When it was written, what comes next may begin at the same place: it could not be.
        assert_eq!(
            [8, 8, 8, 8].map(|it| seen.is_due(Some(LogPosition(it)))),
            [false, true, false, true]
        );
    }
}
