//! Writes the end of a replica's log to its disk, without a sync.

use farleaf_fabric::mapped::MappedEndpoint;
use farleaf_lsm::place::LogPosition;
use farleaf_replica::{BackupTail, ReplicaError};

use crate::served::ServedRegion;

/// Writes the end of a replica's log to its disk.
#[derive(Debug, Default)]
pub(super) struct LogEnd {
    /// Unwritten log that the last round saw.
    seen: SeenEnd,
    /// Writer of a backup's log.
    backup: Option<BackupTail<MappedEndpoint>>,
}

impl LogEnd {
    /// Sets the backup whose log is written.
    pub(super) fn begin(&mut self, backup: BackupTail<MappedEndpoint>) {
        self.backup = Some(backup);
    }

    /// Writes the end of the log if it is due: that of a primary, if there is one, otherwise that
    /// of the backup.
    ///
    /// # Errors
    /// If a backup's log cannot be written. Errors of a primary's log are noted there.
    pub(super) fn write(
        &mut self,
        primary: Option<&ServedRegion>,
        buffer: &mut Vec<u8>,
    ) -> Result<(), ReplicaError> {
        // Memory of a backup that is gone is released.
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

    fn write_primary(&mut self, primary: &ServedRegion, buffer: &mut Vec<u8>) {
        let log = primary.primary.engine().log();
        // While the disk is full, the primary's own thread retries.
        if primary.out_of_space().is_none()
            && self.seen.is_due(log.unwritten_from())
            && let Err(error) = log.write_tail(buffer)
            // Data in memory stay there, and the next sync finds the disk full.
            && !error.is_out_of_space()
        {
            primary.note_engine(&error);
        }
    }
}

/// Start of the part of a log that was only in memory in the last round. Under heavy traffic
/// segments are filled, and so written, between two rounds; then nothing is written twice.
#[derive(Debug, Default)]
struct SeenEnd(Option<LogPosition>);

impl SeenEnd {
    /// Returns whether to write the part that is only in memory: it started at the same place in
    /// the last round.
    fn is_due(&mut self, unwritten_from: Option<LogPosition>) -> bool {
        let is_due = unwritten_from.is_some() && self.0 == unwritten_from;
        self.0 = unwritten_from.filter(|_| !is_due);
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A part that is only in memory in two consecutive rounds is due in the second one. A part
    /// written meanwhile is not, and what follows it counts from its first round.
    #[test]
    fn what_two_rounds_see_is_due() {
        let mut seen = SeenEnd::default();
        let rounds = [None, Some(8), Some(8), Some(40), Some(64), Some(64), None];
        let due = rounds.map(|from| seen.is_due(from.map(LogPosition)));
        assert_eq!(due, [false, false, true, false, false, true, false]);
        // After a write, the next unwritten part may begin at the same place if the write failed.
        assert_eq!(
            [8, 8, 8, 8].map(|it| seen.is_due(Some(LogPosition(it)))),
            [false, true, false, true]
        );
    }
}
