//! The records of a log that comes in pieces (FO7), for a follower that makes its trees itself.

use crate::error::LsmError;
use crate::log::record::{
    EngineId, PAYLOAD_SIZE_BYTES, RECORD_HEADER_SIZE_BYTES, RecordHeader, RecordKind, RecordView,
    SEGMENT_HEADER_SIZE_BYTES,
};
use crate::log::replay::ReplayedRecord;
use crate::place::{LogPosition, SEGMENT_SIZE_BYTES};

/// Takes a record, and where the next one begins.
pub(super) type Take<'t> = dyn FnMut(ReplayedRecord<'_>, LogPosition) + 't;

/// Where the next record begins, and what has come of one that is not whole.
#[derive(Debug)]
pub(super) struct Feed {
    engine: EngineId,
    /// Everything before has been handed out.
    fed_to: LogPosition,
    /// What has come from there on, without the headers of segments.
    pending: Vec<u8>,
    /// VL3: how many bytes the record has that goes on in the next segments.
    large_size_bytes: Option<usize>,
}

impl Feed {
    /// Of a log of which everything before a segment has been read.
    pub(super) const fn new(engine: EngineId, from: LogPosition) -> Self {
        Self {
            engine,
            fed_to: from,
            pending: Vec::new(),
            large_size_bytes: None,
        }
    }

    /// Takes in the bytes from a place on, which are side by side with those before, and hands out
    /// puts and deletes that are whole. `is_closed`: nothing more comes into this segment.
    ///
    /// # Errors
    /// [`LsmError::CannotFollow`]: no record is there.
    pub(super) fn take(
        &mut self,
        at: LogPosition,
        bytes: &[u8],
        is_closed: bool,
        take: &mut Take<'_>,
    ) -> Result<(), LsmError> {
        if at.number() < self.fed_to.number() {
            // VL3: behind a record that no segment is large enough for, its last one has nothing.
            return Ok(());
        }
        let skipped = SEGMENT_HEADER_SIZE_BYTES.saturating_sub(at.offset());
        if skipped > 0 && self.large_size_bytes.is_none() {
            self.fed_to = at.number().start().plus(SEGMENT_HEADER_SIZE_BYTES as u64);
        }
        let bytes = bytes.get(skipped..).unwrap_or_default();
        self.pending.extend_from_slice(bytes);
        if let Some(size_bytes) = self.large_size_bytes {
            if self.pending.len() < size_bytes {
                return Ok(());
            }
            self.pending.truncate(size_bytes);
            self.take_whole((0, at.number().next().start()), take)?;
            self.close(at);
            return Ok(());
        }
        let mut passed = 0;
        while let Some(size_bytes) = self.take_next(passed, take)? {
            passed += size_bytes;
            self.fed_to = self.fed_to.plus(size_bytes as u64);
        }
        self.pending.drain(..passed);
        if self.large_size_bytes.is_none() && is_closed {
            self.close(at);
        }
        Ok(())
    }

    /// Nothing more is in this segment.
    fn close(&mut self, at: LogPosition) {
        self.pending.clear();
        self.large_size_bytes = None;
        self.fed_to = at.number().next().start();
    }

    /// Hands out the record that the pending bytes have at a place; its size. `None`: none is
    /// whole, or none comes.
    fn take_next(&mut self, at: usize, take: &mut Take<'_>) -> Result<Option<usize>, LsmError> {
        let bytes = &self.pending[at..];
        let Some(first) = bytes.first_chunk::<RECORD_HEADER_SIZE_BYTES>() else {
            return Ok(None);
        };
        let Some((_, header)) = RecordHeader::decode(first) else {
            return Err(self.broken());
        };
        let size_bytes = header.record_size_bytes();
        if size_bytes > PAYLOAD_SIZE_BYTES {
            if at > 0 || self.fed_to.offset() != SEGMENT_HEADER_SIZE_BYTES {
                return Err(self.broken());
            }
            self.large_size_bytes = Some(size_bytes);
            return Ok(None);
        }
        if size_bytes > SEGMENT_SIZE_BYTES as usize - self.fed_to.offset() {
            return Err(self.broken());
        }
        if bytes.len() < size_bytes || header.kind == RecordKind::End {
            return Ok(None);
        }
        let end = self.fed_to.plus(size_bytes as u64);
        self.take_whole((at, end), take)?;
        Ok(Some(size_bytes))
    }

    fn take_whole(
        &self,
        (at, end): (usize, LogPosition),
        take: &mut Take<'_>,
    ) -> Result<(), LsmError> {
        let view = RecordView::decode(&self.pending[at..], self.engine, self.fed_to);
        let view = view.ok_or_else(|| self.broken())?;
        // What was moved has its old place in the trees of this directory.
        if matches!(view.kind, RecordKind::Put | RecordKind::Delete) {
            let record = ReplayedRecord {
                position: self.fed_to,
                key: view.key,
                is_delete: view.kind == RecordKind::Delete,
                size_bytes: view.size_bytes() as u64,
            };
            take(record, end);
        }
        Ok(())
    }

    fn broken(&self) -> LsmError {
        LsmError::CannotFollow {
            how: format!("no record is whole at {}", self.fed_to),
        }
    }
}
