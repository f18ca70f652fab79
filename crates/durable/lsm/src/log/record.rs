//! Encoding and decoding of log segments' headers and of records.
//!
//! `docs/explanation/lsm.md` describes the layout under *Log format*.

use std::io;

use crc_fast::{CrcAlgorithm, Digest, crc32_iscsi};
use farleaf_base::limits::{KEY_SIZE_BYTES_MAX, VALUE_SIZE_BYTES_MAX};

use crate::place::{LogNumber, LogPosition, SEGMENT_SIZE_BYTES};

/// Size of a segment's header in bytes.
pub const SEGMENT_HEADER_SIZE_BYTES: usize = 32;
/// Size of a record's header in bytes.
pub const RECORD_HEADER_SIZE_BYTES: usize = 12;
/// Size of the checksum at the start of a record's header, in bytes.
pub const SUM_SIZE_BYTES: usize = 4;
/// Number of bytes in a segment behind its header.
pub const PAYLOAD_SIZE_BYTES: usize = SEGMENT_SIZE_BYTES as usize - SEGMENT_HEADER_SIZE_BYTES;
/// Size of a mark's value in bytes.
pub const MARK_SIZE_BYTES: usize = 16;

const MAGIC: [u8; 4] = *b"FLSG";
const FORMAT_VERSION: u16 = 1;
const KEY_SIZE_BITS: u32 = 13;

const _: () = assert!(KEY_SIZE_BYTES_MAX < 1 << KEY_SIZE_BITS);
const _: () = assert!(VALUE_SIZE_BYTES_MAX <= u32::MAX as usize);

/// Identity of an engine, drawn at random when its directory is created. Checksums include it, so
/// that data of another engine never passes for this one's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct EngineId(pub u64);

impl EngineId {
    /// Draws an id from 64 random bits of the system.
    ///
    /// # Errors
    /// The system cannot provide random bits.
    pub fn draw() -> io::Result<Self> {
        let mut bytes = [0; 8];
        let flags = rustix::rand::GetRandomFlags::empty();
        // Requests of up to 256 bytes return all bytes or fail.
        rustix::io::retry_on_intr(|| rustix::rand::getrandom(&mut bytes, flags))?;
        Ok(Self(u64::from_le_bytes(bytes)))
    }
}

/// Kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordKind {
    /// Sets the value of a key.
    Put = 1,
    /// Deletes a key.
    Delete = 2,
    /// Copy of a record made by garbage collection; only a tree refers to it.
    Moved = 3,
    /// Mark: up to where the log was durable.
    Mark = 4,
    /// End of a segment: no record follows in it.
    End = 5,
}

impl RecordKind {
    const fn of(number: u16) -> Option<Self> {
        Some(match number {
            1 => Self::Put,
            2 => Self::Delete,
            3 => Self::Moved,
            4 => Self::Mark,
            5 => Self::End,
            _ => return None,
        })
    }
}

/// Header of a record, without its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// Kind of the record.
    pub kind: RecordKind,
    /// Size of the key in bytes.
    pub key_size_bytes: usize,
    /// Size of the value in bytes.
    pub value_size_bytes: usize,
}

impl RecordHeader {
    /// Returns the size of the whole record in bytes.
    pub const fn record_size_bytes(&self) -> usize {
        RECORD_HEADER_SIZE_BYTES + self.key_size_bytes + self.value_size_bytes
    }

    /// Encodes bytes 4 to 11 of the record.
    fn encode(self) -> [u8; 8] {
        let mut bytes = [0; 8];
        let first = self.key_size_bytes as u16 | (self.kind as u16) << KEY_SIZE_BITS;
        bytes[..2].copy_from_slice(&first.to_le_bytes());
        bytes[4..].copy_from_slice(&(self.value_size_bytes as u32).to_le_bytes());
        bytes
    }

    /// Decodes any bytes to the checksum and header; returns `None` if they are not a record's
    /// header.
    pub fn decode(bytes: &[u8; RECORD_HEADER_SIZE_BYTES]) -> Option<(u32, Self)> {
        let [c0, c1, c2, c3, f0, f1, 0, 0, v0, v1, v2, v3] = *bytes else {
            return None;
        };
        let first = u16::from_le_bytes([f0, f1]);
        let header = Self {
            kind: RecordKind::of(first >> KEY_SIZE_BITS)?,
            key_size_bytes: usize::from(first & ((1 << KEY_SIZE_BITS) - 1)),
            value_size_bytes: u32::from_le_bytes([v0, v1, v2, v3]) as usize,
        };
        let (key, value) = (header.key_size_bytes, header.value_size_bytes);
        let can_be = match header.kind {
            RecordKind::Put | RecordKind::Moved => {
                key <= KEY_SIZE_BYTES_MAX && value <= VALUE_SIZE_BYTES_MAX
            }
            RecordKind::Delete => key <= KEY_SIZE_BYTES_MAX && value == 0,
            RecordKind::Mark => key == 0 && value == MARK_SIZE_BYTES,
            RecordKind::End => key == 0 && value == 0,
        };
        can_be.then_some((u32::from_le_bytes([c0, c1, c2, c3]), header))
    }
}

/// Checksum of a record, computed over everything that does not depend on its position.
#[derive(Clone, Copy, Debug)]
pub struct RecordSum(Digest);

impl RecordSum {
    /// Returns the header of a record of this kind, and its checksum without the position.
    pub fn of(kind: RecordKind, key: &[u8], value: &[u8]) -> (RecordHeader, Self) {
        let header = RecordHeader {
            kind,
            key_size_bytes: key.len(),
            value_size_bytes: value.len(),
        };
        let mut sum = Self::begin(header);
        sum.add(key);
        sum.add(value);
        (header, sum)
    }

    /// Begins a checksum with bytes 4 to 11.
    pub(crate) fn begin(header: RecordHeader) -> Self {
        let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
        digest.update(&header.encode());
        Self(digest)
    }

    /// Adds the key, the value, or a part of them.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the checksum of the record at this position.
    pub fn at(&self, engine: EngineId, position: LogPosition) -> u32 {
        let mut digest = self.0;
        digest.update(&engine.0.to_le_bytes());
        digest.update(&position.0.to_le_bytes());
        digest.finalize() as u32
    }
}

/// Encodes the header of a record.
pub fn encode_record_header(header: RecordHeader, sum: u32) -> [u8; RECORD_HEADER_SIZE_BYTES] {
    let mut bytes = [0; RECORD_HEADER_SIZE_BYTES];
    bytes[..4].copy_from_slice(&sum.to_le_bytes());
    bytes[4..].copy_from_slice(&header.encode());
    bytes
}

/// Encodes the header of a segment.
pub fn encode_segment_header(
    engine: EngineId,
    number: LogNumber,
) -> [u8; SEGMENT_HEADER_SIZE_BYTES] {
    let mut bytes = [0; SEGMENT_HEADER_SIZE_BYTES];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..6].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    bytes[8..16].copy_from_slice(&engine.0.to_le_bytes());
    bytes[16..24].copy_from_slice(&number.0.to_le_bytes());
    let sum = crc32_iscsi(&bytes[..28]);
    bytes[28..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// Returns the number of the segment with this header, if it belongs to this engine's log.
pub fn segment_number(
    header: &[u8; SEGMENT_HEADER_SIZE_BYTES],
    engine: EngineId,
) -> Option<LogNumber> {
    let number = LogNumber(u64::from_le_bytes(*header[16..].first_chunk()?));
    (*header == encode_segment_header(engine, number)).then_some(number)
}

/// Mark record: the data that was durable before the mark was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Position up to which the log was durable.
    pub synced_to: LogPosition,
    /// Number of edits of the manifest.
    pub edit_count: u64,
}

impl Mark {
    /// Encodes the mark as the value of a record.
    pub fn encode(self) -> [u8; MARK_SIZE_BYTES] {
        let mut bytes = [0; MARK_SIZE_BYTES];
        bytes[..8].copy_from_slice(&self.synced_to.0.to_le_bytes());
        bytes[8..].copy_from_slice(&self.edit_count.to_le_bytes());
        bytes
    }

    /// Decodes the value of a mark record.
    pub fn decode(bytes: [u8; MARK_SIZE_BYTES]) -> Self {
        let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
        Self {
            synced_to: LogPosition(word(0)),
            edit_count: word(8),
        }
    }
}

/// Record with a valid checksum, borrowed from bytes that begin with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordView<'b> {
    /// Kind of the record.
    pub kind: RecordKind,
    /// Key of the record.
    pub key: &'b [u8],
    /// Value of the record.
    pub value: &'b [u8],
}

impl<'b> RecordView<'b> {
    /// Decodes the record at the start of bytes; returns `None` if no complete, valid record is
    /// there.
    pub fn decode(bytes: &'b [u8], engine: EngineId, position: LogPosition) -> Option<Self> {
        let (sum, header) = RecordHeader::decode(bytes.first_chunk()?)?;
        let rest = &bytes[RECORD_HEADER_SIZE_BYTES..];
        let size_bytes = header.key_size_bytes + header.value_size_bytes;
        let body = rest.get(..size_bytes)?;
        let (key, value) = body.split_at(header.key_size_bytes);
        let (_, right) = RecordSum::of(header.kind, key, value);
        (right.at(engine, position) == sum).then_some(Self {
            kind: header.kind,
            key,
            value,
        })
    }

    /// Returns the size of the record in bytes, including the header.
    pub const fn size_bytes(&self) -> usize {
        RECORD_HEADER_SIZE_BYTES + self.key.len() + self.value.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ENGINE: EngineId = EngineId(7);

    pub(super) fn record(kind: RecordKind, key: &[u8], value: &[u8], at: LogPosition) -> Vec<u8> {
        let (header, sum) = RecordSum::of(kind, key, value);
        let mut bytes = encode_record_header(header, sum.at(ENGINE, at)).to_vec();
        bytes.extend(key);
        bytes.extend(value);
        bytes
    }

    /// Promise: the layout has exactly these bytes.
    #[test]
    fn golden_bytes() {
        let at = LogPosition(0x20_0020);
        let bytes = record(RecordKind::Put, b"key", b"value", at);
        let golden = [
            0x03, 0x20, 0, 0, 5, 0, 0, 0, b'k', b'e', b'y', b'v', b'a', b'l', b'u', b'e',
        ];
        assert_eq!(bytes[4..], golden);
        let mut summed = golden.to_vec();
        summed.extend(ENGINE.0.to_le_bytes());
        summed.extend(at.0.to_le_bytes());
        assert_eq!(bytes[..4], crc32_iscsi(&summed).to_le_bytes());

        let header = encode_segment_header(ENGINE, LogNumber(0x102));
        let golden = [
            b'F', b'L', b'S', b'G', 1, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0,
            0, 0, 0,
        ];
        assert_eq!(header[..28], golden);
    }

    /// Promise: a record is invalid at another position, for another engine, or with a flipped bit.
    #[test]
    fn only_what_was_written_there_is_a_record() {
        let at = LogPosition(77);
        let bytes = record(RecordKind::Delete, b"gone", b"", at);
        let view = RecordView::decode(&bytes, ENGINE, at).expect("it is whole");
        assert_eq!((view.kind, view.key), (RecordKind::Delete, &b"gone"[..]));
        assert_eq!(RecordView::decode(&bytes, ENGINE, at.plus(1)), None);
        assert_eq!(RecordView::decode(&bytes, EngineId(8), at), None);
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(RecordView::decode(&flipped, ENGINE, at), None, "bit {bit}");
        }
        assert_eq!(
            RecordView::decode(&bytes[..bytes.len() - 1], ENGINE, at),
            None
        );
    }

    proptest! {
        /// Promise: decoding any bytes does not panic.
        #[test]
        fn any_bytes_are_decoded(bytes: Vec<u8>, position: u64) {
            let _ = RecordView::decode(&bytes, ENGINE, LogPosition(position));
        }

        /// Promise: encoded records decode to the same contents.
        #[test]
        fn records_are_read_back(key: Vec<u8>, value: Vec<u8>, more: Vec<u8>, position: u64) {
            let at = LogPosition(position);
            let mut bytes = record(RecordKind::Moved, &key, &value, at);
            bytes.extend(more);
            let view = RecordView::decode(&bytes, ENGINE, at).expect("it is whole");
            prop_assert_eq!((view.key, view.value), (&key[..], &value[..]));
        }
    }
}
