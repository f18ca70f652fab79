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
    fn verified(&self) -> LogNumber {
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
