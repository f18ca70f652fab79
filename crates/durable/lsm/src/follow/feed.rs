//! Decoder of records in a log that arrives in pieces, for a follower that builds its trees.

use crate::error::LsmError;
use crate::log::record::{
    EngineId, PAYLOAD_SIZE_BYTES, RECORD_HEADER_SIZE_BYTES, RecordHeader, RecordKind, RecordView,
    SEGMENT_HEADER_SIZE_BYTES,
};
use crate::log::replay::ReplayedRecord;
use crate::place::{LogPosition, SEGMENT_SIZE_BYTES};

/// Function that receives a record and the position of the next one.
pub(super) type Take<'t> = dyn FnMut(ReplayedRecord<'_>, LogPosition) + 't;

/// Position of the next record, and the received part of an incomplete one.
#[derive(Debug)]
pub(super) struct Feed {
    engine: EngineId,
    /// Position before which all records were passed on.
    fed_to: LogPosition,
    /// Received bytes behind that position, without headers of segments.
    pending: Vec<u8>,
    /// Size of the record that continues in the next segments, in bytes.
    large_size_bytes: Option<usize>,
}

impl Feed {
    /// Creates a feed for a log whose segments before this one have been read.
    pub(super) const fn new(engine: EngineId, from: LogPosition) -> Self {
        Self {
            engine,
            fed_to: from,
            pending: Vec::new(),
            large_size_bytes: None,
        }
    }

    /// Takes the next bytes of the log, and passes complete puts and deletes to a function.
    /// `is_closed` says that the segment has no more bytes.
    ///
    /// # Errors
    /// [`LsmError::CannotFollow`]: the bytes are not a record.
    pub(super) fn take(
        &mut self,
        at: LogPosition,
        bytes: &[u8],
        is_closed: bool,
        take: &mut Take<'_>,
    ) -> Result<(), LsmError> {
        if at.number() < self.fed_to.number() {
            // Nothing follows a record larger than a segment in its last segment.
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
            self.take_whole(0, at.number().next().start(), take)?;
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

    /// Closes the segment.
    fn close(&mut self, at: LogPosition) {
        self.pending.clear();
        self.large_size_bytes = None;
        self.fed_to = at.number().next().start();
    }

    /// Passes on the record at an offset of the pending bytes; returns its size. Returns `None` if
    /// it is incomplete, or none follows.
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
        self.take_whole(at, end, take)?;
        Ok(Some(size_bytes))
    }

    fn take_whole(&self, at: usize, end: LogPosition, take: &mut Take<'_>) -> Result<(), LsmError> {
        let view = RecordView::decode(&self.pending[at..], self.engine, self.fed_to);
        let view = view.ok_or_else(|| self.broken())?;
        // The trees of this directory refer to the old position of a moved record.
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
            how: format!("no valid record at {}", self.fed_to),
        }
    }
}
