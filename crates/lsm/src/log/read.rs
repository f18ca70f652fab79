//! Reading a record of the log.

use std::sync::atomic::Ordering;

use super::ValueLog;
use super::record::{
    PAYLOAD_SIZE_BYTES, RECORD_HEADER_SIZE_BYTES, RecordHeader, RecordKind, RecordView,
    SEGMENT_HEADER_SIZE_BYTES,
};
use crate::error::LsmError;
use crate::head::KeySource;
use crate::place::{LogNumber, LogPosition, SEGMENT_SIZE_BYTES};

/// What is read at first, at the least and at the most.
const FIRST_READ_SIZE_BYTES_MIN: usize = 256;
const FIRST_READ_SIZE_BYTES_MAX: usize = 64 << 10;

/// A record of the log, in a buffer that holds it whole.
#[derive(Debug, Default)]
pub struct Record {
    bytes: Vec<u8>,
    key_size_bytes: usize,
}

impl Record {
    /// Its key.
    pub fn key(&self) -> &[u8] {
        &self.bytes[RECORD_HEADER_SIZE_BYTES..][..self.key_size_bytes]
    }

    /// Its value.
    pub fn value(&self) -> &[u8] {
        &self.bytes[RECORD_HEADER_SIZE_BYTES + self.key_size_bytes..]
    }

    /// Its value, without copying it elsewhere.
    pub fn into_value(mut self) -> Vec<u8> {
        self.bytes
            .drain(..RECORD_HEADER_SIZE_BYTES + self.key_size_bytes);
        self.bytes
    }

    /// Its size in the log.
    pub fn size_bytes(&self) -> usize {
        self.bytes.len()
    }
}

impl ValueLog {
    /// Reads a record that something leads to, into a buffer that may be used again. One read of
    /// the device if it is not much larger than others of late, else two; for one larger than a
    /// segment, one for each; none if it is in the segment that is being filled.
    ///
    /// # Errors
    /// There is no record there, so the log is damaged; or it cannot be read.
    pub fn read(&self, position: LogPosition, record: &mut Record) -> Result<(), LsmError> {
        record.bytes.clear();
        let end = self.read_some(position, self.first_read_size_bytes(), &mut record.bytes)?;
        let first = record.bytes.first_chunk::<RECORD_HEADER_SIZE_BYTES>();
        let header = first.and_then(RecordHeader::decode);
        let Some((_, header)) = header.filter(|(_, it)| leads_somewhere(it.kind)) else {
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
        if RecordView::decode(&record.bytes, self.segments.engine, position).is_none() {
            return Err(damaged(position, "the record's checksum does not match"));
        }
        Ok(())
    }

    fn first_read_size_bytes(&self) -> usize {
        let mean = self.record_size_bytes.load(Ordering::Relaxed) as usize;
        (2 * mean).clamp(FIRST_READ_SIZE_BYTES_MIN, FIRST_READ_SIZE_BYTES_MAX)
    }

    /// Appends up to so many bytes from a place on, not beyond its segment; the place behind them.
    fn read_some(
        &self,
        position: LogPosition,
        size_bytes: usize,
        to: &mut Vec<u8>,
    ) -> Result<LogPosition, LsmError> {
        let room = SEGMENT_SIZE_BYTES as usize - position.offset();
        let wanted = size_bytes.min(room);
        // A segment is on the device before the next one is the open one.
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

    /// VL3: the rest of a record that goes on in the next segments.
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
                return Err(damaged(position, "the record does not go on"));
            }
            if at.offset() == 0 {
                at = at.plus(SEGMENT_HEADER_SIZE_BYTES as u64);
            }
        }
        Ok(())
    }
}

/// Marks and ends are for who reads the log again: nothing leads to them.
const fn leads_somewhere(kind: RecordKind) -> bool {
    matches!(
        kind,
        RecordKind::Put | RecordKind::Delete | RecordKind::Moved
    )
}

pub(crate) fn damaged(position: LogPosition, how: impl Into<String>) -> LsmError {
    LsmError::DamagedLog {
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
