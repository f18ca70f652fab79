//! Reading a record of the log.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::ValueLog;
use super::cached::{FOUND_SIZE_BYTES_MAX, KEEPING_SIZE_BYTES_MAX, block_of};
use super::record::{
    PAYLOAD_SIZE_BYTES, RECORD_HEADER_SIZE_BYTES, RecordHeader, RecordKind, RecordView,
    SEGMENT_HEADER_SIZE_BYTES,
};
use crate::error::LsmError;
use crate::head::KeySource;
use crate::place::{BLOCK_SIZE_BYTES, BlockNumber, LogNumber, LogPosition, SEGMENT_SIZE_BYTES};
use crate::prefetch::Span;

/// Minimum and maximum size in bytes of the first read of a record.
const FIRST_READ_SIZE_BYTES_MIN: usize = 256;
const FIRST_READ_SIZE_BYTES_MAX: usize = 64 << 10;
/// Maximum size in bytes that is prefetched. The hardware prefetches the rest of a larger record,
/// since it is read sequentially.
const PREFETCHED_SIZE_BYTES_MAX: usize = 512;

/// Record of the log, in a buffer that holds all of it.
#[derive(Debug, Default)]
pub struct Record {
    bytes: Vec<u8>,
    key_size_bytes: usize,
}

impl Record {
    /// Returns the key.
    pub fn key(&self) -> &[u8] {
        &self.bytes[RECORD_HEADER_SIZE_BYTES..][..self.key_size_bytes]
    }

    /// Returns the value.
    pub fn value(&self) -> &[u8] {
        &self.bytes[RECORD_HEADER_SIZE_BYTES + self.key_size_bytes..]
    }

    /// Converts the buffer into the value, without another allocation.
    pub fn into_value(mut self) -> Vec<u8> {
        self.bytes
            .drain(..RECORD_HEADER_SIZE_BYTES + self.key_size_bytes);
        self.bytes
    }

    /// Returns the size of the record in the log, in bytes.
    pub fn size_bytes(&self) -> usize {
        self.bytes.len()
    }
}

impl ValueLog {
    /// Reads the record at a referenced position, into a reusable buffer.
    ///
    /// Costs one read of the device if the record is not much larger than recent ones, otherwise
    /// two. A record larger than a segment costs one per segment. Records in the open segment, in
    /// recent segments in memory, or in kept blocks cost none.
    ///
    /// # Errors
    /// [`LsmError::CorruptLog`] if no valid record is there, or the log cannot be read.
    pub fn read(&self, position: LogPosition, record: &mut Record) -> Result<(), LsmError> {
        if self.read_from_memory(position, record) {
            return Ok(());
        }
        let (first, _) = block_of(position);
        // Reads the block instead of the record, if recent records were small enough.
        let is_asked = self.mean_size_bytes() <= KEEPING_SIZE_BYTES_MAX;
        if is_asked
            && self.keep_block(position.number(), first)
            && self.read_from_memory(position, record)
        {
            return Ok(());
        }
        self.read_in_parts(position, record)?;
        let asked_count = u32::from(is_asked);
        self.keep_blocks(position, asked_count, record.bytes.len());
        Ok(())
    }

    /// Reads a record like [`read`](Self::read), but keeps no blocks: for callers that read each
    /// record once.
    ///
    /// # Errors
    /// Same as [`Self::read`].
    pub fn read_once(&self, position: LogPosition, record: &mut Record) -> Result<(), LsmError> {
        if self.read_from_memory(position, record) {
            return Ok(());
        }
        self.read_in_parts(position, record)
    }

    /// Reads the record from memory; returns true if it is present and valid.
    fn read_from_memory(&self, position: LogPosition, record: &mut Record) -> bool {
        record.bytes.clear();
        let Some(header) = self.copy_from_memory(position, &mut record.bytes) else {
            return false;
        };
        record.key_size_bytes = header.key_size_bytes;
        self.check(position, record).is_ok()
    }

    /// Returns the memory range of a record, if it is in memory. It does not look at the record,
    /// and assumes the average size.
    pub(crate) fn span(&self, position: LogPosition) -> Span {
        if position.number() >= LogNumber(self.tail_number.load(Ordering::Acquire)) {
            return Span::EMPTY;
        }
        let size_bytes = self.mean_size_bytes().min(PREFETCHED_SIZE_BYTES_MAX);
        let span = |bytes: &[u8]| Span::of(&bytes[..bytes.len().min(size_bytes)]);
        let span = self
            .recent
            .look(position.number(), position.offset(), span)
            .or_else(|| self.cached.look(position, span));
        span.unwrap_or(Span::EMPTY)
    }

    /// Reads the record from the open segment or from the device.
    fn read_in_parts(&self, position: LogPosition, record: &mut Record) -> Result<(), LsmError> {
        record.bytes.clear();
        let end = self.read_some(position, self.first_read_size_bytes(), &mut record.bytes)?;
        let Some(header) = record_header(&record.bytes) else {
            return Err(damaged(position, "no record begins there"));
        };
        let size_bytes = header.record_size_bytes();
        if size_bytes > PAYLOAD_SIZE_BYTES {
            self.read_large(position, size_bytes, &mut record.bytes)?;
        } else if let Some(more) = size_bytes.checked_sub(record.bytes.len())
            && more > 0
        {
            self.read_some(end, more, &mut record.bytes)?;
        }
        record.bytes.truncate(size_bytes);
        record.key_size_bytes = header.key_size_bytes;
        self.check(position, record)
    }

    fn check(&self, position: LogPosition, record: &Record) -> Result<(), LsmError> {
        match RecordView::decode(&record.bytes, self.segments.engine, position) {
            Some(_) => Ok(()),
            None => Err(damaged(position, "the record's checksum does not match")),
        }
    }

    /// Appends a complete record from recent segments or kept blocks to a buffer, and returns its
    /// header. If it returns `None`, the appended bytes are undefined.
    fn copy_from_memory(&self, position: LogPosition, to: &mut Vec<u8>) -> Option<RecordHeader> {
        if position.number() >= LogNumber(self.tail_number.load(Ordering::Acquire)) {
            return None;
        }
        if let Some(header) = self
            .recent
            .read_record(position.number(), position.offset(), to)
        {
            return Some(header);
        }
        // Takes the part of the record in its first block.
        self.cached.look(position, |bytes| {
            let size_bytes = match bytes.len() {
                RECORD_HEADER_SIZE_BYTES.. => record_header(bytes)?.record_size_bytes(),
                _ => RECORD_HEADER_SIZE_BYTES,
            };
            if size_bytes > FOUND_SIZE_BYTES_MAX {
                return None;
            }
            to.extend_from_slice(&bytes[..bytes.len().min(size_bytes)]);
            Some(())
        })??;
        if !self.append_kept(position, RECORD_HEADER_SIZE_BYTES, to) {
            return None;
        }
        let header = record_header(to)?;
        let size_bytes = header.record_size_bytes();
        self.append_kept(position, size_bytes, to).then_some(header)
    }

    /// Appends kept bytes until the buffer has this many of the record; returns false if a block is
    /// not kept.
    fn append_kept(&self, position: LogPosition, size_bytes: usize, to: &mut Vec<u8>) -> bool {
        if size_bytes > FOUND_SIZE_BYTES_MAX {
            return false;
        }
        while to.len() < size_bytes {
            let next = position.plus(to.len() as u64);
            if next.number() != position.number() {
                return false;
            }
            let rest = size_bytes - to.len();
            let appended = self.cached.look(next, |bytes| {
                to.extend_from_slice(&bytes[..bytes.len().min(rest)]);
            });
            if appended.is_none() {
                return false;
            }
        }
        true
    }

    /// Keeps the blocks of a record that was read from the device, if they were requested before.
    /// The first `asked_count` blocks are skipped. Costs one read per kept block.
    fn keep_blocks(&self, position: LogPosition, asked_count: u32, size_bytes: usize) {
        if size_bytes > KEEPING_SIZE_BYTES_MAX {
            return;
        }
        let (first, offset) = block_of(position);
        let count = (offset + size_bytes).div_ceil(BLOCK_SIZE_BYTES) as u32;
        for index in asked_count..count {
            self.keep_block(position.number(), BlockNumber(first.0 + index));
        }
    }

    /// Reads a block and keeps it, if it was requested before; returns false if it was not, or
    /// cannot be read.
    fn keep_block(&self, segment: LogNumber, number: BlockNumber) -> bool {
        let is_open = segment >= LogNumber(self.tail_number.load(Ordering::Acquire));
        if is_open || !self.cached.is_wanted(segment, number) {
            return false;
        }
        let start = number.0 as usize * BLOCK_SIZE_BYTES;
        let mut block = [0; BLOCK_SIZE_BYTES];
        let read = self.segments.place(segment).and_then(|place| {
            let device = &self.segments.device;
            device.read(place, start as u64, &mut block)
        });
        // On an error, the read of the record itself fails and reports it.
        if read.is_ok() {
            self.cached.keep(segment, number, &Arc::new(block));
        }
        read.is_ok()
    }

    /// Returns the average size of recent records in bytes.
    fn mean_size_bytes(&self) -> usize {
        self.record_size_bytes.load(Ordering::Relaxed) as usize
    }

    fn first_read_size_bytes(&self) -> usize {
        (2 * self.mean_size_bytes()).clamp(FIRST_READ_SIZE_BYTES_MIN, FIRST_READ_SIZE_BYTES_MAX)
    }

    /// Appends up to this many bytes from a position to a buffer, within its segment; returns the
    /// position behind them.
    fn read_some(
        &self,
        position: LogPosition,
        size_bytes: usize,
        to: &mut Vec<u8>,
    ) -> Result<LogPosition, LsmError> {
        let remaining_size_bytes = SEGMENT_SIZE_BYTES as usize - position.offset();
        let wanted = size_bytes.min(remaining_size_bytes);
        // A segment is on the device before the next one is opened.
        if position.number() >= LogNumber(self.tail_number.load(Ordering::Acquire)) {
            let tail = self.tail();
            if let Some(bytes) = tail.bytes_from(position) {
                let bytes = &bytes[..bytes.len().min(wanted)];
                to.extend_from_slice(bytes);
                return Ok(position.plus(bytes.len() as u64));
            }
        }
        let place = self.segments.place(position.number())?;
        let start = to.len();
        to.resize(start + wanted, 0);
        let device = &self.segments.device;
        device.read(place, position.offset() as u64, &mut to[start..])?;
        Ok(position.plus(wanted as u64))
    }

    /// Reads the rest of a record that continues in the next segments.
    fn read_large(
        &self,
        position: LogPosition,
        size_bytes: usize,
        to: &mut Vec<u8>,
    ) -> Result<(), LsmError> {
        to.clear();
        to.reserve_exact(size_bytes);
        let mut at = position;
        while to.len() < size_bytes {
            let before = to.len();
            at = self.read_some(at, size_bytes - before, to)?;
            if to.len() == before {
                return Err(damaged(position, "the record is incomplete"));
            }
            if at.offset() == 0 {
                at = at.plus(SEGMENT_HEADER_SIZE_BYTES as u64);
            }
        }
        Ok(())
    }
}

/// Decodes the header of a record to which something can refer.
pub(super) fn record_header(bytes: &[u8]) -> Option<RecordHeader> {
    let header = RecordHeader::decode(bytes.first_chunk()?);
    header.map(|(_, it)| it).filter(|it| is_referable(it.kind))
}

/// Returns true if trees and L0 can refer to records of this kind. Marks and ends are only for
/// recovery.
const fn is_referable(kind: RecordKind) -> bool {
    matches!(
        kind,
        RecordKind::Put | RecordKind::Delete | RecordKind::Moved
    )
}

pub(crate) fn damaged(position: LogPosition, how: impl Into<String>) -> LsmError {
    LsmError::CorruptLog {
        position,
        how: how.into(),
    }
}

impl KeySource for ValueLog {
    fn append_key(&self, position: LogPosition, to: &mut Vec<u8>) -> Result<(), LsmError> {
        let mut record = Record::default();
        self.read(position, &mut record)?;
        to.extend_from_slice(record.key());
        Ok(())
    }
}
