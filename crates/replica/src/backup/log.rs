//! The log from a backup's buffers to its device (RP4).

use std::time::Instant;

use farleaf_fabric::Endpoint;
use farleaf_lsm::LsmError;
use farleaf_lsm::log::record::SEGMENT_HEADER_SIZE_BYTES;
use farleaf_lsm::place::{LogNumber, LogPosition, SEGMENT_SIZE_BYTES};

use super::counts::add_time;
use super::{Backup, State};
use crate::error::ReplicaError;
use crate::layout::{CLOSED_SIZE_WORDS, STATUS_SIZE_WORDS, WISH_SIZE_WORDS, bytes_of};
use crate::receipt;

/// How much of the log is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// One segment into which nothing more comes, if there is one.
    OneSegment,
    /// Everything that is there.
    All,
}

impl<E: Endpoint> Backup<E> {
    /// What the primary has written of itself: up to where the log is in the buffers, and is to be
    /// durable.
    pub(super) fn wishes(&mut self) -> Result<(LogPosition, LogPosition), ReplicaError> {
        self.batch.clear();
        let slot = self.batch.read(self.layout.wishes(), WISH_SIZE_WORDS);
        self.execute()?;
        let [log_end, sync_wanted] = *self.batch.words(slot) else {
            unreachable!("so many were read");
        };
        Ok((LogPosition(log_end), LogPosition(sync_wanted)))
    }

    /// Writes full segments, and syncs if that is wished for; false: there was nothing to do.
    pub(super) fn follow_log(&mut self) -> Result<bool, ReplicaError> {
        let State::Following(follower) = &self.state else {
            return Ok(false);
        };
        let synced_to = follower.synced_to();
        let (_, sync_wanted) = self.wishes()?;
        if sync_wanted <= synced_to {
            return self.take_log(Extent::OneSegment);
        }
        self.take_log(Extent::All)?;
        let since = Instant::now();
        if let State::Following(follower) = &mut self.state {
            if sync_wanted > follower.written_to() {
                let how =
                    format!("the log is to be durable up to {sync_wanted}, which is not there");
                return Err(LsmError::CannotFollow { how }.into());
            }
            follower.sync_log()?;
            self.counts.sync_count += 1;
        }
        add_time(&mut self.counts.log_time_ns, since);
        self.tell()?;
        Ok(true)
    }

    /// Writes to the device what is in the buffers; false: there was nothing.
    pub(super) fn take_log(&mut self, extent: Extent) -> Result<bool, ReplicaError> {
        let (log_end, _) = self.wishes()?;
        let mut has_taken = false;
        loop {
            let State::Following(follower) = &self.state else {
                return Ok(false);
            };
            let at = follower.written_to();
            self.check_end(at, log_end)?;
            let is_closed = at.number() < log_end.number();
            if !is_closed && (extent == Extent::OneSegment || at >= log_end) {
                return Ok(has_taken);
            }
            let end = if is_closed {
                self.closed_end(at)?
            } else {
                log_end.offset()
            };
            self.take_part(at, end, is_closed)?;
            has_taken = true;
            if extent == Extent::OneSegment {
                return Ok(true);
            }
        }
    }

    /// RP2: the primary's word leads into the buffers.
    fn check_end(&self, at: LogPosition, log_end: LogPosition) -> Result<(), ReplicaError> {
        let behind = LogNumber(at.number().0 + self.layout.slot_count()).start();
        // Before the first record it is 0.
        if log_end <= behind {
            return Ok(());
        }
        let how = format!("the log is said to end at {log_end}, and was written up to {at}");
        Err(LsmError::CannotFollow { how }.into())
    }

    /// How many bytes a segment has into which nothing more comes, as its primary says (RP2).
    fn closed_end(&mut self, at: LogPosition) -> Result<usize, ReplicaError> {
        self.batch.clear();
        let closed = self.layout.closed(at.number());
        let slot = self.batch.read(closed, CLOSED_SIZE_WORDS);
        self.execute()?;
        let [number, size_bytes] = *self.batch.words(slot) else {
            unreachable!("so many were read");
        };
        let sizes = at.offset().max(SEGMENT_HEADER_SIZE_BYTES) as u64..=SEGMENT_SIZE_BYTES;
        if number == at.number().0 && sizes.contains(&size_bytes) {
            return Ok(size_bytes as usize);
        }
        let how = format!(
            "log segment {} is closed, and the primary says that segment {number} ends after \
             {size_bytes} bytes; it was written up to {at}",
            at.number().0
        );
        Err(LsmError::CannotFollow { how }.into())
    }

    /// Writes what a segment's buffer has from a place on, up to an offset.
    fn take_part(
        &mut self,
        at: LogPosition,
        end: usize,
        is_closed: bool,
    ) -> Result<(), ReplicaError> {
        let since = Instant::now();
        let from = LogPosition(at.0 & !7);
        let word_count = end.div_ceil(8) - from.offset() / 8;
        self.batch.clear();
        let slot = self.batch.read(self.layout.log_word(from), word_count);
        self.execute()?;
        let bytes = bytes_of(self.batch.words(slot), &mut self.bytes);
        let part = &bytes[at.offset() - from.offset()..end - from.offset()];
        let State::Following(follower) = &mut self.state else {
            unreachable!("who asks has looked");
        };
        follower.write_log(at, part, is_closed)?;
        let closed = follower.closed_sum().filter(|_| is_closed);
        self.counts.log_received_size_bytes += part.len() as u64;
        add_time(&mut self.counts.log_time_ns, since);
        self.batch.clear();
        if let Some(closed) = closed {
            let at = self.layout.receipt(closed.number);
            self.batch.write(at, &receipt::encode(closed));
        }
        self.tell_behind()
    }

    /// Tells the primary how far it is.
    pub(super) fn tell(&mut self) -> Result<(), ReplicaError> {
        self.batch.clear();
        self.tell_behind()
    }

    /// The same, behind what is in the batch.
    fn tell_behind(&mut self) -> Result<(), ReplicaError> {
        let State::Following(follower) = &self.state else {
            return Ok(());
        };
        let mut words = [0; STATUS_SIZE_WORDS];
        words[0] = follower.written_to().0;
        words[2..].copy_from_slice(&receipt::encode(follower.synced_sum()));
        self.batch.write(self.layout.status(), &words);
        self.execute()
    }

    /// RP6: tells the primary that it cannot go on.
    pub(super) fn tell_failed(&mut self) -> Result<(), ReplicaError> {
        self.batch.clear();
        self.batch.write_word(self.layout.failed(), 1);
        self.execute()
    }
}
