//! Leaves: prefix, heads, hashes and pointers, as consecutive arrays.

use std::cmp::Ordering;

use crate::error::LsmError;
use crate::head::{KeySource, KnownKey};
use crate::place::BLOCK_SIZE_BYTES;
use crate::tree::format::{BODY_SIZE_BYTES, Block, HEADER_SIZE_BYTES, Header, Kind, u64_at};
use crate::tree::hash::HASH_BITS;
use crate::tree::pointer::{POINTER_SIZE_BYTES, Pointer};

/// Maximum size of a head in bytes.
pub(super) const HEAD_SIZE_BYTES_MAX: usize = 20;
/// Maximum size of a leaf's prefix in bytes.
pub(super) const PREFIX_SIZE_BYTES_MAX: usize = 1024;
/// Maximum number of bytes that a leaf knows of a key.
pub(super) const KNOWN_SIZE_BYTES_MAX: usize = PREFIX_SIZE_BYTES_MAX + HEAD_SIZE_BYTES_MAX;
/// Size of a hash in bytes.
const HASH_SIZE_BYTES: usize = 6;
/// Size of an entry in bytes, without its head.
const ENTRY_REST_SIZE_BYTES: usize = HASH_SIZE_BYTES + POINTER_SIZE_BYTES;
/// Maximum number of entries in a leaf, reached without heads.
pub(super) const ENTRY_COUNT_MAX: usize = BODY_SIZE_BYTES / ENTRY_REST_SIZE_BYTES;

const _: () = assert!(HASH_SIZE_BYTES as u32 * 8 == HASH_BITS);
const _: () = assert!(ENTRY_REST_SIZE_BYTES == 14 && ENTRY_COUNT_MAX == 290);
// Minimum number of entries in a full leaf with the longest heads: with a short prefix, and with
// the longest one.
const _: () = assert!(size_bytes(18, HEAD_SIZE_BYTES_MAX, 119) == BODY_SIZE_BYTES);
const _: () = assert!(size_bytes(PREFIX_SIZE_BYTES_MAX, HEAD_SIZE_BYTES_MAX, 89) < BODY_SIZE_BYTES);

/// Returns the size in bytes of this many entries, with a prefix and heads of these sizes.
pub(super) const fn size_bytes(
    prefix_size_bytes: usize,
    head_size_bytes: usize,
    entry_count: usize,
) -> usize {
    prefix_size_bytes + entry_count * (head_size_bytes + ENTRY_REST_SIZE_BYTES)
}

/// Returns true if this many entries, with such a prefix and heads, fit into a leaf.
pub(super) const fn fits(
    prefix_size_bytes: usize,
    head_size_bytes: usize,
    entry_count: usize,
) -> bool {
    prefix_size_bytes <= PREFIX_SIZE_BYTES_MAX
        && head_size_bytes <= HEAD_SIZE_BYTES_MAX
        && size_bytes(prefix_size_bytes, head_size_bytes, entry_count) <= BODY_SIZE_BYTES
}

/// Offsets of the arrays in a leaf.
#[derive(Clone, Copy)]
struct Places {
    heads: usize,
    hashes: usize,
    pointers: usize,
}

const fn places(header: Header) -> Places {
    let count = header.count as usize;
    let heads = HEADER_SIZE_BYTES + header.place as usize;
    let hashes = heads + count * header.head_size_bytes as usize;
    Places {
        heads,
        hashes,
        pointers: hashes + count * HASH_SIZE_BYTES,
    }
}

/// Checks that a block with this header is a valid leaf.
pub(super) fn check(bytes: &[u8; BLOCK_SIZE_BYTES], header: Header) -> Result<(), &'static str> {
    let (prefix_size_bytes, count) = (header.place as usize, header.count as usize);
    let head_size_bytes = header.head_size_bytes as usize;
    if count == 0 || !fits(prefix_size_bytes, head_size_bytes, count) {
        return Err("its prefix and entries exceed the block");
    }
    let start = places(header).pointers;
    let pointers = &bytes[start..start + count * POINTER_SIZE_BYTES];
    let (words, _) = pointers.as_chunks::<POINTER_SIZE_BYTES>();
    let is_one = |it: &[u8; POINTER_SIZE_BYTES]| {
        let pointer = Pointer::unpack(u64::from_le_bytes(*it));
        pointer.is_some_and(|it| it.head_size_bytes <= head_size_bytes)
    };
    if !words.iter().all(is_one) {
        return Err("a pointer has invalid bits");
    }
    Ok(())
}

/// Entry to be written: the part of its key behind the prefix, hash, and pointer.
pub(super) struct LeafEntry<'k> {
    pub(super) head: &'k [u8],
    pub(super) hash: u64,
    pub(super) pointer: Pointer,
}

/// Writes a leaf's body into a zeroed block; returns its header.
pub(super) fn write<'k>(
    block: &mut [u8; BLOCK_SIZE_BYTES],
    prefix: &[u8],
    head_size_bytes: usize,
    entries: impl ExactSizeIterator<Item = LeafEntry<'k>>,
) -> Header {
    assert!(
        fits(prefix.len(), head_size_bytes, entries.len()),
        "the builder has closed it before"
    );
    let header = Header {
        kind: Kind::Leaf,
        height: 0,
        count: entries.len() as u16,
        place: prefix.len() as u16,
        head_size_bytes: head_size_bytes as u8,
    };
    let places = places(header);
    block[HEADER_SIZE_BYTES..places.heads].copy_from_slice(prefix);
    for (index, entry) in entries.enumerate() {
        assert!(entry.head.len() <= head_size_bytes);
        let head = places.heads + index * head_size_bytes;
        block[head..head + entry.head.len()].copy_from_slice(entry.head);
        let hash = places.hashes + index * HASH_SIZE_BYTES;
        block[hash..hash + HASH_SIZE_BYTES].copy_from_slice(&hash_bytes(entry.hash));
        let pointer = places.pointers + index * POINTER_SIZE_BYTES;
        block[pointer..pointer + POINTER_SIZE_BYTES]
            .copy_from_slice(&entry.pointer.pack().to_le_bytes());
    }
    header
}

/// Encodes a hash for a leaf.
fn hash_bytes(hash: u64) -> [u8; HASH_SIZE_BYTES] {
    assert!(hash >> HASH_BITS == 0, "no hash has more bits");
    let mut bytes = [0; HASH_SIZE_BYTES];
    bytes.copy_from_slice(&hash.to_le_bytes()[..HASH_SIZE_BYTES]);
    bytes
}

/// Entry with the requested hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Match {
    pub(super) pointer: Pointer,
    /// Whether the whole key is known, and matches.
    pub(super) is_certain: bool,
}

/// Block read as a leaf.
#[derive(Clone, Copy)]
pub(super) struct Leaf<'b> {
    bytes: &'b [u8; BLOCK_SIZE_BYTES],
    prefix_size_bytes: usize,
    head_size_bytes: usize,
    count: usize,
    places: Places,
}

impl<'b> Leaf<'b> {
    /// Reads a block that is a leaf.
    pub(super) fn of(block: &'b Block) -> Self {
        let header = block.header();
        assert!(header.kind == Kind::Leaf, "who loads it has looked");
        Self {
            bytes: block.bytes(),
            prefix_size_bytes: header.place as usize,
            head_size_bytes: header.head_size_bytes as usize,
            count: header.count as usize,
            places: places(header),
        }
    }

    /// Returns the number of entries, at least one.
    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// Returns the common prefix of all keys.
    pub(super) fn prefix(&self) -> &'b [u8] {
        &self.bytes[HEADER_SIZE_BYTES..HEADER_SIZE_BYTES + self.prefix_size_bytes]
    }

    /// Returns the known part of a key behind the prefix.
    pub(super) fn head(&self, index: usize) -> KnownKey<'b> {
        let pointer = self.pointer(index);
        let start = self.places.heads + index * self.head_size_bytes;
        KnownKey {
            bytes: &self.bytes[start..start + pointer.head_size_bytes],
            continues: pointer.continues,
        }
    }

    pub(super) fn hash(&self, index: usize) -> u64 {
        let start = self.places.hashes + index * HASH_SIZE_BYTES;
        let mut bytes = [0; 8];
        bytes[..HASH_SIZE_BYTES].copy_from_slice(&self.bytes[start..start + HASH_SIZE_BYTES]);
        u64::from_le_bytes(bytes)
    }

    pub(super) fn pointer(&self, index: usize) -> Pointer {
        assert!(index < self.count);
        let word = u64_at(
            self.bytes,
            self.places.pointers + index * POINTER_SIZE_BYTES,
        );
        Pointer::unpack(word).expect("the block was checked")
    }

    /// Returns the entries that may have a key, by their hashes and the known parts of their keys.
    /// This needs no order, so it never reads the log.
    pub(super) fn matches(self, key: &[u8], hash: u64) -> impl Iterator<Item = Match> {
        let hashes = &self.bytes[self.places.hashes..self.places.pointers];
        let (hashes, _) = hashes.as_chunks::<HASH_SIZE_BYTES>();
        let wanted = hash_bytes(hash);
        let rest = key.strip_prefix(self.prefix());
        let places = hashes
            .iter()
            .enumerate()
            .filter(move |(_, it)| **it == wanted);
        places.filter_map(move |(index, _)| {
            let order = self.head(index).compare(KnownKey::whole(rest?));
            let is_certain = match order {
                Some(Ordering::Equal) => true,
                None => false,
                Some(Ordering::Less | Ordering::Greater) => return None,
            };
            Some(Match {
                pointer: self.pointer(index),
                is_certain,
            })
        })
    }

    /// Returns the index of the first entry whose key is not less than this one, or the number of
    /// entries if there is none; and whether the keys are equal. Reads keys from the log if heads
    /// do not decide, at most eight for 200 entries.
    pub(super) fn lower_bound(
        &self,
        key: &[u8],
        keys: &dyn KeySource,
    ) -> Result<(usize, bool), LsmError> {
        let rest = match key.strip_prefix(self.prefix()) {
            Some(rest) => rest,
            // All keys are on the same side of a key without the prefix.
            None if self.prefix() < key => return Ok((self.count, false)),
            None => return Ok((0, false)),
        };
        let (mut low, mut high) = (0, self.count);
        let mut whole = Vec::new();
        while low < high {
            let middle = low.midpoint(high);
            let known = self.head(middle).compare(KnownKey::whole(rest));
            let order = if let Some(order) = known {
                order
            } else {
                whole.clear();
                keys.append_key(self.pointer(middle).position, &mut whole)?;
                whole.as_slice().cmp(key)
            };
            match order {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Ok((middle, true)),
                Ordering::Greater => high = middle,
            }
        }
        Ok((low, false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::{BlockNumber, LogPosition, TreeId};
    use crate::tree::format::{seal, u32_at};

    const TREE: TreeId = TreeId(1);
    const NUMBER: BlockNumber = BlockNumber(0);

    fn pointer(position: u64, head_size_bytes: usize, continues: bool) -> Pointer {
        Pointer {
            position: LogPosition(position),
            is_delete: false,
            head_size_bytes,
            continues,
        }
    }

    fn bytes() -> [u8; BLOCK_SIZE_BYTES] {
        let mut bytes = [0; BLOCK_SIZE_BYTES];
        let entries = [
            (&b""[..], 5, pointer(1, 0, false)),
            (b"abcdefghijklmnop", 6 << 40, pointer(2, 16, true)),
            (b"abcdefghijklmnop", 7, pointer(3, 16, true)),
            (b"b", 7, pointer(4, 1, false)),
        ];
        let entries = entries.map(|(head, hash, pointer)| LeafEntry {
            head,
            hash,
            pointer,
        });
        let header = write(&mut bytes, b"user", 16, entries.into_iter());
        seal(&mut bytes, header, TREE, NUMBER);
        bytes
    }

    /// Promise (format): a leaf has exactly these bytes.
    #[test]
    fn a_leaf_has_these_bytes() {
        let bytes = bytes();
        assert_eq!(bytes[4..12], [1, 0, 4, 0, 4, 0, 16, 0]);
        assert_eq!(&bytes[32..36], b"user");
        assert_eq!(bytes[36..52], [0; 16]);
        assert_eq!(&bytes[52..68], b"abcdefghijklmnop");
        assert_eq!(&bytes[84..87], b"b\0\0");
        assert_eq!(bytes[100..112], [5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 6]);
        assert_eq!(bytes[112..124], [7, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0]);
        assert_eq!(u64_at(&bytes, 132), 2 | 16 << 55 | 1 << 60);
        assert_eq!(u64_at(&bytes, 148), 4 | 1 << 55);
        assert!(bytes[156..].iter().all(|it| *it == 0));
        assert_eq!(u32_at(&bytes, 0), 0xa5db_2f40);
    }

    /// Promise: matches are found by hash and head, and are certain only if the head has the whole
    /// key.
    #[test]
    fn matches_are_as_certain_as_heads_are() {
        let block = Block::open_copy(&bytes(), TREE, NUMBER).unwrap();
        let matches = |key: &[u8], hash| -> Vec<(u64, bool)> {
            let them = Leaf::of(&block).matches(key, hash);
            them.map(|it| (it.pointer.position.0, it.is_certain))
                .collect()
        };
        assert_eq!(matches(b"user", 5), [(1, true)]);
        assert_eq!(matches(b"userb", 7), [(4, true)]);
        assert_eq!(matches(b"userabcdefghijklmnopq", 7), [(3, false)]);
        assert_eq!(matches(b"userabcdefghijklmnop", 7), []);
        assert_eq!(matches(b"userabcdefghijklmnopq", 8), []);
        assert_eq!(matches(b"use", 5), []);
    }
}
