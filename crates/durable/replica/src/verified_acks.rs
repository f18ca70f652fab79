//! How far a backup has acknowledged the log, and that it wrote what its primary wrote (RP15).

use std::collections::VecDeque;

use farleaf_lsm::follow::SegmentSum;
use farleaf_lsm::log::ValueLog;
use farleaf_lsm::place::{LogNumber, LogPosition};

use crate::log_way::WayError;
use crate::mismatch::{ComparedPart, Mismatch};

/// So many receipts are read at a time.
const READ_COUNT_MAX: usize = 8;

/// What a backup has acknowledged, as far as it is verified: nothing counts as written behind a
/// segment whose checksum is not the primary's own.
#[derive(Debug)]
pub(crate) struct Agreement {
    /// Segments that the backup has all of, and whose receipts have not come yet, with their
    /// lengths.
    closed: VecDeque<(LogNumber, u32)>,
    sent_to: LogPosition,
    /// The backup has no more than that, whatever became of the last batch.
    sent_to_max: LogPosition,
    written_to: LogPosition,
    synced_to: LogPosition,
}

/// What was read of a backup's words.
#[derive(Clone, Debug, Default)]
pub(crate) struct Acknowledged {
    pub(crate) written_to: LogPosition,
    /// What was synced, of the segment that is being filled.
    pub(crate) synced: Option<SegmentSum>,
    /// Receipts of closed segments, in the order in which they were asked for.
    pub(crate) closed: Vec<Option<SegmentSum>>,
}

impl Agreement {
    /// With a backup that has everything before a place, where a segment begins.
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

    /// The log is about to be sent up to a place.
    pub(crate) fn note_sending(&mut self, to: LogPosition) {
        self.sent_to_max = self.sent_to_max.max(to);
    }

    /// The log was sent up to a place; and if that closed a segment, which one, and its length.
    pub(crate) fn note_sent(&mut self, to: LogPosition, closed: Option<(LogNumber, u32)>) {
        self.sent_to = to;
        self.closed.extend(closed);
    }

    /// The segments whose receipts are to be read next.
    pub(crate) fn asked(&self) -> impl Iterator<Item = LogNumber> {
        let asked = self.closed.iter().take(READ_COUNT_MAX);
        asked.map(|(number, _)| *number)
    }

    /// Takes what a backup says, and compares it with what was written here. What it says of
    /// segments whose receipts have not come yet counts for nothing so far.
    ///
    /// # Errors
    /// [`WayError::Mismatch`]: it wrote something else. [`WayError::Beyond`]: it says that it wrote
    /// more than it was sent. Or this log cannot be read.
    pub(crate) fn take(&mut self, log: &ValueLog, said: &Acknowledged) -> Result<(), WayError> {
        for receipt in &said.closed {
            let Some((number, size_bytes)) = self.closed.front().copied() else {
                break;
            };
            let Some(receipt) = receipt.filter(|it| it.number == number) else {
                break;
            };
            let own = log.sum_of(number, size_bytes)?;
            let part = ComparedPart::LogSegment(number);
            Mismatch::check(part, (own, receipt.written))?;
            self.closed.pop_front();
        }
        if said.written_to > self.sent_to_max {
            return Err(WayError::Beyond(said.written_to, self.sent_to_max));
        }
        let verified = self.verified();
        let is_verified = said.written_to.number() <= verified;
        let written_to = if is_verified {
            said.written_to
        } else {
            verified.start()
        };
        // Words that race are each whole; and neither goes back.
        self.written_to = self.written_to.max(written_to);
        match said.synced {
            Some(synced) => self.take_synced(log, synced),
            None => Ok(()),
        }
    }

    /// All segments before this one are verified.
    pub(crate) fn verified(&self) -> LogNumber {
        let waiting = self.closed.front();
        waiting.map_or_else(|| self.sent_to.number(), |(number, _)| *number)
    }

    fn take_synced(&mut self, log: &ValueLog, synced: SegmentSum) -> Result<(), WayError> {
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
            return Err(WayError::Beyond(to, self.sent_to_max));
        }
        // Of a segment that is verified as a whole, each part is.
        if number == verified {
            let own = log.sum_of(number, end)?;
            Mismatch::check(ComparedPart::LogSegment(number), (own, written))?;
        }
        self.synced_to = to;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use farleaf_fabric::fuzzing::run;
    use farleaf_lsm::storage::CrashStorage;
    use farleaf_lsm::written::WrittenSum;
    use farleaf_lsm::{Durability, Engine, EngineOptions};

    use super::*;

    /// An engine whose log has three closed segments and a beginning.
    fn engine() -> Engine {
        let storage = Arc::new(CrashStorage::new(1));
        let engine = Engine::open(storage, EngineOptions::new()).expect("a new one");
        for number in 0..4_u8 {
            let put = engine.put(&[number], &vec![number; 1_200_000], Durability::Memory);
            put.expect("there is room");
        }
        engine
    }

    /// An agreement with a backup that was sent all of it.
    fn sent(log: &ValueLog) -> Agreement {
        let mut agreement = Agreement::new(LogNumber(0).start());
        agreement.note_sending(log.end());
        for number in (0..3).map(LogNumber) {
            let closed = (number, receipt(log, number.0, u32::MAX).end);
            agreement.note_sent(number.next().start(), Some(closed));
        }
        agreement.note_sent(log.end(), None);
        agreement
    }

    /// What a backup says that wrote what it was sent.
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

    /// Promise: nothing counts as written or synced from a segment on whose receipt has not come,
    /// whatever else has; what is synced of a segment that is verified needs no comparison.
    #[test]
    fn what_is_not_verified_does_not_count() {
        let engine = engine();
        let log = engine.log();
        let mut agreement = sent(log);
        assert_eq!(agreement.asked().count(), 3);
        let whole = |number| Some(receipt(log, number, u32::MAX));
        let mut take = |written_to, synced: SegmentSum, closed: &[Option<SegmentSum>]| {
            let said = Acknowledged {
                written_to,
                synced: Some(synced),
                closed: closed.to_vec(),
            };
            agreement
                .take(log, &said)
                .expect("it wrote what it was sent");
            (agreement.written_to(), agreement.synced_to())
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

    /// Promise: what a backup did not write as it was sent is a mismatch; that it has more than it
    /// was sent is an error, too; whatever it says, nothing counts that is not so.
    #[test]
    fn what_a_backup_says_is_not_believed() {
        let engine = engine();
        let log = engine.log();
        let take = |written_to, synced, closed: &[Option<SegmentSum>]| {
            let mut agreement = sent(log);
            let said = Acknowledged {
                written_to,
                synced,
                closed: closed.to_vec(),
            };
            let taken = agreement.take(log, &said);
            assert!(taken.is_ok() || agreement.synced_to() == at(0, 0));
            taken
        };
        let mut short = receipt(log, 0, 100);
        short.end = receipt(log, 0, u32::MAX).end;
        let found = take(at(1, 0), None, &[Some(short)]);
        assert!(matches!(found, Err(WayError::Mismatch(_))), "{found:?}");
        short.end = 101;
        let found = take(at(0, 101), Some(short), &[]);
        assert!(matches!(found, Err(WayError::Mismatch(_))), "{found:?}");
        let end = log.end();
        take(end, None, &[]).expect("no more than it was sent");
        let beyond = take(end.plus(1), None, &[]);
        assert!(matches!(beyond, Err(WayError::Beyond(..))), "{beyond:?}");
        run("what a backup says", |random| {
            let receipt = |random: &mut farleaf_fabric::fuzzing::Random| SegmentSum {
                number: LogNumber(random.below(5)),
                end: random.below(1 << 21) as u32,
                written: WrittenSum::of(&[random.next() as u8]),
            };
            let closed = [0; 3].map(|_| Some(receipt(random)));
            let written_to = LogPosition(random.below(end.0 + 9));
            let synced = Some(receipt(random)).filter(|it| it.end > 1);
            let _ = take(written_to, synced, &closed);
        });
    }
}
