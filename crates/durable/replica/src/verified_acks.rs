//! Log positions that a backup has acknowledged, and verification that it wrote what its primary
//! wrote (REPLICATION-15).

use std::collections::VecDeque;

use farleaf_lsm::follow::SegmentSum;
use farleaf_lsm::log::ValueLog;
use farleaf_lsm::place::{LogNumber, LogPosition};

use crate::log_connection::LogConnectionError;
use crate::mismatch::{ComparedPart, Mismatch};

/// Highest number of receipts that one batch reads.
const READ_COUNT_MAX: usize = 8;

/// Verified acknowledgements of a backup. Nothing behind a segment counts as written until the
/// checksum of that segment matches the primary's own.
#[derive(Debug)]
pub(crate) struct VerifiedAcks {
    /// Closed segments that the backup has completely and whose receipts are missing, with their
    /// lengths.
    closed: VecDeque<(LogNumber, u32)>,
    sent_to: LogPosition,
    /// Upper bound of the log that the backup has, whatever the outcome of the last batch.
    sent_to_max: LogPosition,
    written_to: LogPosition,
    synced_to: LogPosition,
}

/// Status words read from a backup.
#[derive(Clone, Debug, Default)]
pub(crate) struct BackupAck {
    pub(crate) written_to: LogPosition,
    /// Receipt for the synced part of the open segment.
    pub(crate) synced: Option<SegmentSum>,
    /// Receipts of closed segments, in the order of the requested segments.
    pub(crate) closed: Vec<Option<SegmentSum>>,
}

impl VerifiedAcks {
    /// Creates the state for a backup that has everything before `from`, which is the start of a
    /// segment.
    pub(crate) fn new(from: LogPosition) -> Self {
        Self {
            closed: VecDeque::new(),
            sent_to: from,
            sent_to_max: from,
            written_to: from,
            synced_to: from,
        }
    }

    pub(crate) const fn sent_to(&self) -> LogPosition {
        self.sent_to
    }

    pub(crate) const fn written_to(&self) -> LogPosition {
        self.written_to
    }

    pub(crate) const fn synced_to(&self) -> LogPosition {
        self.synced_to
    }

    /// Notes that the log is about to be sent up to `to`.
    pub(crate) fn note_sending(&mut self, to: LogPosition) {
        self.sent_to_max = self.sent_to_max.max(to);
    }

    /// Notes that the log was sent up to `to`, and the number and length of the segment that this
    /// closed, if any.
    pub(crate) fn note_sent(&mut self, to: LogPosition, closed: Option<(LogNumber, u32)>) {
        self.sent_to = to;
        self.closed.extend(closed);
    }

    /// Returns the segments whose receipts are read next.
    pub(crate) fn requested(&self) -> impl Iterator<Item = LogNumber> {
        let requested = self.closed.iter().take(READ_COUNT_MAX);
        requested.map(|(number, _)| *number)
    }

    /// Takes a backup's acknowledgement and compares its receipts with what was written here.
    /// Positions in segments without a receipt do not count yet.
    ///
    /// # Errors
    /// - [`LogConnectionError::Mismatch`]: the backup wrote something else.
    /// - [`LogConnectionError::Beyond`]: the backup claims to have written more than it was sent.
    /// - The engine's error if the primary's log cannot be read.
    pub(crate) fn take(
        &mut self,
        log: &ValueLog,
        said: &BackupAck,
    ) -> Result<(), LogConnectionError> {
        for receipt in &said.closed {
            let Some((number, size_bytes)) = self.closed.front().copied() else {
                break;
            };
            let Some(receipt) = receipt.filter(|it| it.number == number) else {
                break;
            };
            let own = log.sum_of(number, size_bytes)?;
            let part = ComparedPart::LogSegment(number);
            Mismatch::check(part, own, receipt.written)?;
            self.closed.pop_front();
        }
        if said.written_to > self.sent_to_max {
            return Err(LogConnectionError::Beyond(
                said.written_to,
                self.sent_to_max,
            ));
        }
        let verified = self.verified();
        let is_verified = said.written_to.number() <= verified;
        let written_to = if is_verified {
            said.written_to
        } else {
            verified.start()
        };
        // In a race each word is read whole, and neither position goes back.
        self.written_to = self.written_to.max(written_to);
        match said.synced {
            Some(synced) => self.take_synced(log, synced),
            None => Ok(()),
        }
    }

    /// Returns the first segment that is not verified; all segments before it are.
    pub(crate) fn verified(&self) -> LogNumber {
        let waiting = self.closed.front();
        waiting.map_or_else(|| self.sent_to.number(), |(number, _)| *number)
    }

    fn take_synced(
        &mut self,
        log: &ValueLog,
        synced: SegmentSum,
    ) -> Result<(), LogConnectionError> {
        let SegmentSum {
            number,
            end,
            written,
        } = synced;
        let to = number.start().plus(u64::from(end));
        let verified = self.verified();
        if to <= self.synced_to || number > verified {
            return Ok(());
        }
        if to > self.sent_to_max {
            return Err(LogConnectionError::Beyond(to, self.sent_to_max));
        }
        // If a segment is verified as a whole, each part of it is.
        if number == verified {
            let own = log.sum_of(number, end)?;
            Mismatch::check(ComparedPart::LogSegment(number), own, written)?;
        }
        self.synced_to = to;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use farleaf_base::fuzzing::run;
    use farleaf_lsm::storage::CrashStorage;
    use farleaf_lsm::written::WrittenSum;
    use farleaf_lsm::{Durability, Engine, EngineOptions};

    use super::*;

    /// Creates an engine whose log has three closed segments and part of another.
    fn engine() -> Engine {
        let storage = Arc::new(CrashStorage::new(1));
        let engine = Engine::open(storage, EngineOptions::new()).expect("a new one");
        for number in 0..4_u8 {
            let put = engine.put(&[number], &vec![number; 1_200_000], Durability::Memory);
            put.expect("there is room");
        }
        engine
    }

    /// Creates the state for a backup that was sent the whole log.
    fn sent(log: &ValueLog) -> VerifiedAcks {
        let mut verified_acks = VerifiedAcks::new(LogNumber(0).start());
        verified_acks.note_sending(log.end());
        for number in (0..3).map(LogNumber) {
            let closed = (number, receipt(log, number.0, u32::MAX).end);
            verified_acks.note_sent(number.next().start(), Some(closed));
        }
        verified_acks.note_sent(log.end(), None);
        verified_acks
    }

    /// Returns the receipt of a backup that wrote what it was sent.
    fn receipt(log: &ValueLog, number: u64, end: u32) -> SegmentSum {
        let written = log.sum_of(LogNumber(number), end).expect("it is there");
        SegmentSum {
            number: LogNumber(number),
            end: written.size_bytes,
            written,
        }
    }

    fn at(number: u64, offset: u64) -> LogPosition {
        LogNumber(number).start().plus(offset)
    }

    /// Nothing from a segment without a receipt on counts as written or synced, whatever other
    /// receipts arrived. A synced position in a verified segment needs no comparison.
    #[test]
    fn what_is_not_verified_does_not_count() {
        let engine = engine();
        let log = engine.log();
        let mut verified_acks = sent(log);
        assert_eq!(verified_acks.requested().count(), 3);
        let whole = |number| Some(receipt(log, number, u32::MAX));
        let mut take = |written_to, synced: SegmentSum, closed: &[Option<SegmentSum>]| {
            let said = BackupAck {
                written_to,
                synced: Some(synced),
                closed: closed.to_vec(),
            };
            verified_acks
                .take(log, &said)
                .expect("it wrote what it was sent");
            (verified_acks.written_to(), verified_acks.synced_to())
        };
        let nothing = at(0, 0);
        let open = receipt(log, 3, 50);
        assert_eq!(
            take(at(3, 9), open, &[None, whole(1), whole(2)]),
            (nothing, nothing)
        );
        assert_eq!(
            take(at(0, 77), receipt(log, 0, 60), &[]),
            (at(0, 77), at(0, 60))
        );
        assert_eq!(
            take(at(3, 9), open, &[whole(0), None]),
            (at(1, 0), at(0, 60))
        );
        let part = SegmentSum {
            number: LogNumber(0),
            end: 90,
            written: WrittenSum::of(b"of no segment"),
        };
        assert_eq!(take(at(3, 9), part, &[]), (at(1, 0), at(0, 90)));
        assert_eq!(
            take(at(3, 9), open, &[whole(1), whole(2)]),
            (at(3, 9), at(3, 50))
        );
        assert_eq!(
            take(at(2, 0), receipt(log, 1, 5), &[]),
            (at(3, 9), at(3, 50))
        );
    }

    /// A backup that did not write what it was sent is a mismatch, and one that claims more than it
    /// was sent is an error. Whatever it claims, no false position counts.
    #[test]
    fn what_a_backup_says_is_not_believed() {
        let engine = engine();
        let log = engine.log();
        let take = |written_to, synced, closed: &[Option<SegmentSum>]| {
            let mut verified_acks = sent(log);
            let said = BackupAck {
                written_to,
                synced,
                closed: closed.to_vec(),
            };
            let taken = verified_acks.take(log, &said);
            assert!(taken.is_ok() || verified_acks.synced_to() == at(0, 0));
            taken
        };
        let mut short = receipt(log, 0, 100);
        short.end = receipt(log, 0, u32::MAX).end;
        let found = take(at(1, 0), None, &[Some(short)]);
        assert!(
            matches!(found, Err(LogConnectionError::Mismatch(_))),
            "{found:?}"
        );
        short.end = 101;
        let found = take(at(0, 101), Some(short), &[]);
        assert!(
            matches!(found, Err(LogConnectionError::Mismatch(_))),
            "{found:?}"
        );
        let end = log.end();
        take(end, None, &[]).expect("no more than it was sent");
        let beyond = take(end.plus(1), None, &[]);
        assert!(
            matches!(beyond, Err(LogConnectionError::Beyond(..))),
            "{beyond:?}"
        );
        run("what a backup says", |random| {
            let receipt = |random: &mut farleaf_base::random::Random| SegmentSum {
                number: LogNumber(random.below(5)),
                end: random.below(1 << 21) as u32,
                written: WrittenSum::of(&[random.bits() as u8]),
            };
            let closed = [0; 3].map(|_| Some(receipt(random)));
            let written_to = LogPosition(random.below(end.0 + 9));
            let synced = Some(receipt(random)).filter(|it| it.end > 1);
            let _ = take(written_to, synced, &closed);
        });
    }
}
