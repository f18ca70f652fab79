//! Pointers: 8 bytes per entry of a leaf, in addition to its head and hash.

use crate::place::LogPosition;
use crate::tree::leaf::HEAD_SIZE_BYTES_MAX;

/// Size of a pointer in bytes.
pub(super) const POINTER_SIZE_BYTES: usize = 8;

const POSITION_BITS: u32 = 54;
const DELETE_SHIFT: u32 = POSITION_BITS;
const HEAD_SIZE_SHIFT: u32 = DELETE_SHIFT + 1;
const HEAD_SIZE_BITS: u32 = 5;
const GOES_ON_SHIFT: u32 = HEAD_SIZE_SHIFT + HEAD_SIZE_BITS;

const _: () = assert!(LogPosition::MAX.0 == (1 << POSITION_BITS) - 1);
const _: () = assert!(HEAD_SIZE_BYTES_MAX < 1 << HEAD_SIZE_BITS);
const _: () = assert!(GOES_ON_SHIFT < 64);

/// Log position of an entry, and how to read its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pointer {
    /// Position of the record.
    pub(super) position: LogPosition,
    /// Whether the record is a delete.
    pub(super) is_delete: bool,
    /// Number of the head's bytes that belong to the key; the others are zeros.
    pub(super) head_size_bytes: usize,
    /// Whether the key continues behind the head.
    pub(super) continues: bool,
}

impl Pointer {
    /// Encodes the pointer for a leaf.
    pub(super) const fn pack(self) -> u64 {
        assert!(self.position.0 <= LogPosition::MAX.0);
        assert!(self.head_size_bytes <= HEAD_SIZE_BYTES_MAX);
        self.position.0
            | (self.is_delete as u64) << DELETE_SHIFT
            | (self.head_size_bytes as u64) << HEAD_SIZE_SHIFT
            | (self.continues as u64) << GOES_ON_SHIFT
    }

    /// Decodes a pointer; returns `None` if [`Self::pack`] cannot have made it.
    pub(super) const fn unpack(word: u64) -> Option<Self> {
        let head_size_bytes = (word >> HEAD_SIZE_SHIFT) as usize & ((1 << HEAD_SIZE_BITS) - 1);
        if word >> (GOES_ON_SHIFT + 1) != 0 || head_size_bytes > HEAD_SIZE_BYTES_MAX {
            return None;
        }
        Some(Self {
            position: LogPosition(word & LogPosition::MAX.0),
            is_delete: word >> DELETE_SHIFT & 1 == 1,
            head_size_bytes,
            continues: word >> GOES_ON_SHIFT & 1 == 1,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: pointers survive encoding, with all bits at their places, and nothing else is
    /// decoded.
    #[test]
    fn pointers_are_packed_and_unpacked() {
        for position in [
            LogPosition(0),
            LogPosition(0x12_3456_789a),
            LogPosition::MAX,
        ] {
            for bits in 0..4 {
                for head_size_bytes in 0..=HEAD_SIZE_BYTES_MAX {
                    let pointer = Pointer {
                        position,
                        is_delete: bits & 1 == 1,
                        head_size_bytes,
                        continues: bits & 2 == 2,
                    };
                    assert_eq!(Pointer::unpack(pointer.pack()), Some(pointer));
                }
            }
        }
        let golden = Pointer {
            position: LogPosition(0x20_0020),
            is_delete: true,
            head_size_bytes: 16,
            continues: true,
        };
        assert_eq!(golden.pack(), 0x1840_0000_0020_0020);
        assert_eq!(Pointer::unpack(21 << 55), None);
        assert_eq!(Pointer::unpack(1 << 61), None);
        assert_eq!(Pointer::unpack(1 << 63), None);
    }
}
