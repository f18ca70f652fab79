//! The layout of log segments and records (VL1, VL2): bytes to values and back.

use std::io;

use crc_fast::{CrcAlgorithm, Digest, crc32_iscsi};

use crate::place::{
    KEY_SIZE_BYTES_MAX, LogNumber, LogPosition, SEGMENT_SIZE_BYTES, VALUE_SIZE_BYTES_MAX,
};

/// Size of what a segment begins with (VL1).
pub const SEGMENT_HEADER_SIZE_BYTES: usize = 32;
/// Size of what a record begins with (VL2).
pub const RECORD_HEADER_SIZE_BYTES: usize = 12;
/// Size of the sum that a record's header begins with.
pub const SUM_SIZE_BYTES: usize = 4;
/// Bytes of a segment behind its header.
pub const PAYLOAD_SIZE_BYTES: usize = SEGMENT_SIZE_BYTES as usize - SEGMENT_HEADER_SIZE_BYTES;
/// Size of a mark's value (VL5).
pub const MARK_SIZE_BYTES: usize = 16;

const MAGIC: [u8; 4] = *b"FLSG";
const FORMAT_VERSION: u16 = 1;
const KEY_SIZE_BITS: u32 = 13;

const _: () = assert!(KEY_SIZE_BYTES_MAX < 1 << KEY_SIZE_BITS);
const _: () = assert!(VALUE_SIZE_BYTES_MAX <= u32::MAX as usize);

/// Which engine a log is of: drawn when it is made, so that nothing of another one passes for its
/// own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct EngineId(pub u64);

impl EngineId {
    /// One that no other engine has, as far as 64 random bits of the system can promise it.
    ///
    /// # Errors
    /// The system has none to give.
    pub fn draw() -> io::Result<Self> {
        let mut bytes = [0; 8];
        let flags = rustix::rand::GetRandomFlags::empty();
        // Up to 256 bytes the system gives all or nothing.
        rustix::io::retry_on_intr(|| rustix::rand::getrandom(&mut bytes, flags))?;
        Ok(Self(u64::from_le_bytes(bytes)))
    }
}

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordKind {
    /// A key has this value from now on.
    Put = 1,
    /// A key has none from now on.
    Delete = 2,
    /// The same record is elsewhere, and only a tree leads here (LC5).
    Moved = 3,
    /// How far the log was on the device (VL5).
    Mark = 4,
    /// Nothing more is in this segment.
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

/// What a record begins with, but for its sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// What it is.
    pub kind: RecordKind,
    /// Size of its key.
    pub key_size_bytes: usize,
    /// Size of its value.
    pub value_size_bytes: usize,
}

impl RecordHeader {
    /// Size of the whole record.
    pub const fn record_size_bytes(&self) -> usize {
        RECORD_HEADER_SIZE_BYTES + self.key_size_bytes + self.value_size_bytes
    }

    /// Bytes 4 to 11.
    fn encode(self) -> [u8; 8] {
        let mut bytes = [0; 8];
        let first = self.key_size_bytes as u16 | (self.kind as u16) << KEY_SIZE_BITS;
        bytes[..2].copy_from_slice(&first.to_le_bytes());
        bytes[4..].copy_from_slice(&(self.value_size_bytes as u32).to_le_bytes());
        bytes
    }

    /// Of bytes that may be anything; `None`: no record begins so.
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

/// The sum of a record, begun with what does not depend on where it goes.
#[derive(Clone, Copy, Debug)]
pub struct RecordSum(Digest);

impl RecordSum {
    /// What a record of this kind begins with, and its sum but for the place.
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

    /// Begins with bytes 4 to 11.
    pub(crate) fn begin(header: RecordHeader) -> Self {
        let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
        digest.update(&header.encode());
        Self(digest)
    }

    /// Goes on with the key, or the value, or a part of it.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The sum of the record at this place.
    pub fn at(mut self, engine: EngineId, position: LogPosition) -> u32 {
        self.0.update(&engine.0.to_le_bytes());
        self.0.update(&position.0.to_le_bytes());
        self.0.finalize() as u32
    }
}

/// A record's first bytes.
pub fn encode_record_header(header: RecordHeader, sum: u32) -> [u8; RECORD_HEADER_SIZE_BYTES] {
    let mut bytes = [0; RECORD_HEADER_SIZE_BYTES];
    bytes[..4].copy_from_slice(&sum.to_le_bytes());
    bytes[4..].copy_from_slice(&header.encode());
    bytes
}

/// A segment's first bytes (VL1).
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

/// The number of the segment that begins with these bytes, if it is one of this engine's log.
pub fn segment_number(
    header: &[u8; SEGMENT_HEADER_SIZE_BYTES],
    engine: EngineId,
) -> Option<LogNumber> {
    let number = LogNumber(u64::from_le_bytes(*header[16..].first_chunk()?));
    (*header == encode_segment_header(engine, number)).then_some(number)
}

/// A mark (VL5): what was on the device before it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The log up to there.
    pub synced_to: LogPosition,
    /// So many edits of the manifest.
    pub edit_count: u64,
}

impl Mark {
    /// As a mark's value.
    pub fn encode(self) -> [u8; MARK_SIZE_BYTES] {
        let mut bytes = [0; MARK_SIZE_BYTES];
        bytes[..8].copy_from_slice(&self.synced_to.0.to_le_bytes());
        bytes[8..].copy_from_slice(&self.edit_count.to_le_bytes());
        bytes
    }

    /// Of a mark's value.
    pub fn decode(bytes: [u8; MARK_SIZE_BYTES]) -> Self {
        let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
        Self {
            synced_to: LogPosition(word(0)),
            edit_count: word(8),
        }
    }
}

/// A record whose sum is right, in bytes that begin with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordView<'b> {
    /// What it is.
    pub kind: RecordKind,
    /// Its key.
    pub key: &'b [u8],
    /// Its value.
    pub value: &'b [u8],
}

impl<'b> RecordView<'b> {
    /// The record that bytes begin with; `None`: none is whole there.
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

    /// Its size with header.
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

    /// Promise: the layout is the one of VL1 and VL2, byte by byte.
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

    /// Promise: a record is not taken for one elsewhere, of another engine, or with a bit flipped.
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
        /// Promise: whatever bytes there are, they are decoded without a panic.
        #[test]
        fn any_bytes_are_decoded(bytes: Vec<u8>, position: u64) {
            let _ = RecordView::decode(&bytes, ENGINE, LogPosition(position));
        }

        /// Promise: what is written is read back.
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
