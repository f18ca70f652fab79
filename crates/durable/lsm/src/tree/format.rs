//! Blocks of trees: their common header, and the checksum over contents and place.

use crc_fast::{CrcAlgorithm, Digest};

use crate::error::LsmError;
use crate::place::{BLOCK_SIZE_BYTES, BlockNumber, TreeId};
use crate::tree::{filter, inner, leaf, references};

/// Size of a block's header in bytes.
pub(super) const HEADER_SIZE_BYTES: usize = 32;
/// Number of bytes in a block behind the header.
pub(super) const BODY_SIZE_BYTES: usize = BLOCK_SIZE_BYTES - HEADER_SIZE_BYTES;
/// Maximum number of inner levels: no tree of 2^32 blocks has more, as asserted below.
pub(super) const HEIGHT_MAX: u8 = 9;

const CHECKSUM_SIZE_BYTES: usize = 4;
const KIND_OFFSET: usize = CHECKSUM_SIZE_BYTES;
const HEIGHT_OFFSET: usize = KIND_OFFSET + 1;
const COUNT_OFFSET: usize = HEIGHT_OFFSET + 1;
const PLACE_OFFSET: usize = COUNT_OFFSET + 2;
const HEAD_SIZE_OFFSET: usize = PLACE_OFFSET + 2;
const ZEROS_OFFSET: usize = HEAD_SIZE_OFFSET + 1;

const _: () = assert!(ZEROS_OFFSET == 11 && ZEROS_OFFSET < HEADER_SIZE_BYTES);
// Offsets in a block, and the one behind it, fit into 16 bits.
const _: () = assert!(BLOCK_SIZE_BYTES <= u16::MAX as usize);
// An inner block is closed when it has no space for another child, so it has at least this many.
const _: () = assert!(inner::CHILD_COUNT_MIN.pow(HEIGHT_MAX as u32) as u64 >= 1 << 32);

/// Kind of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Leaf = 1,
    Inner = 2,
    Filter = 3,
    References = 4,
}

impl Kind {
    const fn of(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Leaf),
            2 => Some(Self::Inner),
            3 => Some(Self::Filter),
            4 => Some(Self::References),
            _ => None,
        }
    }
}

/// Decoded header of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    /// Height above the leaves.
    pub(super) height: u8,
    /// Number of entries; in a filter, number of probes per hash.
    pub(super) count: u16,
    /// Leaf: size of the prefix in bytes. Inner block: offset of the separators. Otherwise 0.
    pub(super) place: u16,
    /// Leaf: size of the heads in bytes. Otherwise 0.
    pub(super) head_size_bytes: u8,
}

/// Verified block of a tree: its checksum is right, and all offsets in it are inside it. So readers
/// need no more checks.
pub struct Block {
    bytes: Box<[u8; BLOCK_SIZE_BYTES]>,
    header: Header,
}

impl std::fmt::Debug for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.header.fmt(f)
    }
}

impl Block {
    /// Verifies bytes that were read as a block of a tree.
    ///
    /// # Errors
    /// [`LsmError::CorruptTree`] if they are not the bytes that were written there.
    pub(super) fn open(
        bytes: Box<[u8; BLOCK_SIZE_BYTES]>,
        tree: TreeId,
        number: BlockNumber,
    ) -> Result<Self, LsmError> {
        let header = check_block(&bytes, tree, number)?;
        Ok(Self { bytes, header })
    }

    /// Copies and verifies a block, like [`Self::open`].
    pub(super) fn open_copy(
        bytes: &[u8; BLOCK_SIZE_BYTES],
        tree: TreeId,
        number: BlockNumber,
    ) -> Result<Self, LsmError> {
        Self::open(Box::new(*bytes), tree, number)
    }

    /// Returns all bytes of the block.
    pub(super) const fn bytes(&self) -> &[u8; BLOCK_SIZE_BYTES] {
        &self.bytes
    }

    /// Returns the decoded header.
    pub(super) const fn header(&self) -> Header {
        self.header
    }
}

/// Verifies a block in place, like [`Block::open`].
pub(super) fn check_block(
    bytes: &[u8; BLOCK_SIZE_BYTES],
    tree: TreeId,
    number: BlockNumber,
) -> Result<Header, LsmError> {
    check(bytes, tree, number).map_err(|how| damaged(tree, number, how))
}

/// Returns the error for an invalid block.
pub(super) fn damaged(tree: TreeId, number: BlockNumber, how: &str) -> LsmError {
    LsmError::CorruptTree {
        tree,
        block: number.0,
        how: how.to_owned(),
    }
}

/// Writes the header and checksum of a block with a complete body.
pub(super) fn seal(
    bytes: &mut [u8; BLOCK_SIZE_BYTES],
    header: Header,
    tree: TreeId,
    number: BlockNumber,
) {
    bytes[..HEADER_SIZE_BYTES].fill(0);
    bytes[KIND_OFFSET] = header.kind as u8;
    bytes[HEIGHT_OFFSET] = header.height;
    bytes[COUNT_OFFSET..PLACE_OFFSET].copy_from_slice(&header.count.to_le_bytes());
    bytes[PLACE_OFFSET..HEAD_SIZE_OFFSET].copy_from_slice(&header.place.to_le_bytes());
    bytes[HEAD_SIZE_OFFSET] = header.head_size_bytes;
    stamp(bytes, tree, number);
}

/// Writes the checksum of a block that is otherwise complete.
pub(super) fn stamp(bytes: &mut [u8; BLOCK_SIZE_BYTES], tree: TreeId, number: BlockNumber) {
    let sum = checksum(bytes, tree, number);
    bytes[..CHECKSUM_SIZE_BYTES].copy_from_slice(&sum.to_le_bytes());
}

fn check(
    bytes: &[u8; BLOCK_SIZE_BYTES],
    tree: TreeId,
    number: BlockNumber,
) -> Result<Header, &'static str> {
    if u32_at(bytes, 0) != checksum(bytes, tree, number) {
        return Err("checksum mismatch");
    }
    if bytes[ZEROS_OFFSET..HEADER_SIZE_BYTES]
        .iter()
        .any(|it| *it != 0)
    {
        return Err("reserved bytes of its header are not zero");
    }
    let header = Header {
        kind: Kind::of(bytes[KIND_OFFSET]).ok_or("unknown kind of block")?,
        height: bytes[HEIGHT_OFFSET],
        count: u16_at(bytes, COUNT_OFFSET),
        place: u16_at(bytes, PLACE_OFFSET),
        head_size_bytes: bytes[HEAD_SIZE_OFFSET],
    };
    if (header.kind == Kind::Inner) != (header.height > 0) || header.height > HEIGHT_MAX {
        return Err("its height is invalid for its kind");
    }
    if header.kind != Kind::Leaf && header.head_size_bytes > 0 {
        return Err("it has heads, but is not a leaf");
    }
    match header.kind {
        Kind::Leaf => leaf::check(bytes, header)?,
        Kind::Inner => inner::check(bytes, header, number)?,
        Kind::Filter => filter::check(header)?,
        Kind::References => references::check(header)?,
    }
    Ok(header)
}

fn checksum(bytes: &[u8; BLOCK_SIZE_BYTES], tree: TreeId, number: BlockNumber) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(&bytes[CHECKSUM_SIZE_BYTES..]);
    let mut place = [0; 12];
    place[..8].copy_from_slice(&tree.0.to_le_bytes());
    place[8..].copy_from_slice(&number.0.to_le_bytes());
    digest.update(&place);
    digest.finalize() as u32
}

/// Reads 16 bits at a valid offset.
pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array_at(bytes, at))
}

/// Reads 32 bits at a valid offset.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, at))
}

/// Reads 64 bits at a valid offset.
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, at))
}

fn array_at<const SIZE: usize>(bytes: &[u8], at: usize) -> [u8; SIZE] {
    let mut array = [0; SIZE];
    array.copy_from_slice(&bytes[at..at + SIZE]);
    array
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: TreeId = TreeId(7);
    const NUMBER: BlockNumber = BlockNumber(3);

    fn sealed() -> [u8; BLOCK_SIZE_BYTES] {
        let mut bytes = [0; BLOCK_SIZE_BYTES];
        let header = Header {
            kind: Kind::References,
            height: 0,
            count: 1,
            place: 0,
            head_size_bytes: 0,
        };
        bytes[HEADER_SIZE_BYTES..HEADER_SIZE_BYTES + 3].copy_from_slice(b"abc");
        seal(&mut bytes, header, TREE, NUMBER);
        bytes
    }

    /// Promise (format): the header has exactly these bytes and this checksum.
    #[test]
    fn a_header_has_these_bytes() {
        let bytes = sealed();
        assert_eq!(bytes[4..11], [4, 0, 1, 0, 0, 0, 0]);
        let mut summed = bytes[4..].to_vec();
        summed.extend([7, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0]);
        assert_eq!(u32_at(&bytes, 0), crc_fast::crc32_iscsi(&summed));
        assert_eq!(u32_at(&bytes, 0), 0x577a_bd76);
    }

    /// Promise: any flipped bit is found, and so is a block at another place or of another tree.
    #[test]
    fn what_was_not_written_there_is_refused() {
        let bytes = sealed();
        assert!(Block::open_copy(&bytes, TREE, NUMBER).is_ok());
        assert!(Block::open_copy(&bytes, TREE, BlockNumber(4)).is_err());
        let elsewhere = Block::open_copy(&bytes, TreeId(8), NUMBER).unwrap_err();
        assert!(
            elsewhere
                .to_string()
                .starts_with("block 3 of tree 8 is corrupted")
        );
        for at in 0..BLOCK_SIZE_BYTES {
            let mut other = bytes;
            other[at] ^= 1 << (at % 8);
            assert!(Block::open_copy(&other, TREE, NUMBER).is_err(), "byte {at}");
        }
    }
}
