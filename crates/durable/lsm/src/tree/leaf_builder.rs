//! The leaf being filled: which entries it accepts, and when it is full.

use crate::head::KnownKey;
use crate::place::{BLOCK_SIZE_BYTES, LogPosition};
use crate::tree::Entry;
use crate::tree::format::{BODY_SIZE_BYTES, Header};
use crate::tree::leaf::{self, HEAD_SIZE_BYTES_MAX, KNOWN_SIZE_BYTES_MAX, PREFIX_SIZE_BYTES_MAX};
use crate::tree::pointer::Pointer;

/// Entry that waits for its leaf to be complete.
#[derive(Clone, Copy)]
struct PendingEntry {
    start: usize,
    end: usize,
    continues: bool,
    hash: u64,
    position: LogPosition,
    is_delete: bool,
}

/// Sizes that determine the layout of a leaf.
#[derive(Clone, Copy, Default)]
struct Sizes {
    prefix_bytes: usize,
    /// Number of key bytes that distinguish all neighbors that known bytes can distinguish.
    distinguishing_bytes: usize,
    /// Size in bytes of the longest known key.
    longest: usize,
}

impl Sizes {
    /// Returns the size of heads: the known bytes of all keys behind the prefix, up to the limit.
    const fn head_size_bytes(self) -> usize {
        let behind = self.longest - self.prefix_bytes;
        if behind < HEAD_SIZE_BYTES_MAX {
            behind
        } else {
            HEAD_SIZE_BYTES_MAX
        }
    }

    /// Returns true if prefix and heads still distinguish all neighbors that known bytes can
    /// distinguish.
    const fn distinguishes(self) -> bool {
        self.distinguishing_bytes <= self.prefix_bytes + self.head_size_bytes()
    }
}

/// Leaf that is being filled.
///
/// Entries are accepted while they fit, with one exception. A leaf that is at least half full is
/// closed before an entry that would shorten the prefix too much. That is the case if two keys,
/// which prefix and heads distinguish now, could no longer be distinguished.
///
/// So a leaf does not lose the order of its keys to the log because the next table or user begins.
/// No tree has more than twice the leaves that it needs.
#[derive(Default)]
pub(super) struct LeafBuilder {
    /// Known bytes of all keys, one after the other.
    known: Vec<u8>,
    entries: Vec<PendingEntry>,
    sizes: Sizes,
}

impl LeafBuilder {
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the known part of the last key, and the position of its record.
    pub(super) fn last(&self) -> Option<(KnownKey<'_>, LogPosition)> {
        let last = *self.entries.last()?;
        Some((self.known(last), last.position))
    }

    /// Returns true if an entry fits behind the last one.
    pub(super) fn fits_entry(&self, key: KnownKey<'_>) -> bool {
        let (sizes, count) = (self.sizes, self.entries.len());
        let with = self.sizes_with(key);
        if !leaf::fits(with.prefix_bytes, with.head_size_bytes(), count + 1) {
            return false;
        }
        let used_bytes = leaf::size_bytes(sizes.prefix_bytes, sizes.head_size_bytes(), count);
        used_bytes < BODY_SIZE_BYTES / 2 || !sizes.distinguishes() || with.distinguishes()
    }

    /// Adds an entry that fits.
    pub(super) fn add(&mut self, entry: Entry<'_>) {
        self.sizes = self.sizes_with(entry.key);
        let size_bytes = entry.key.bytes.len().min(KNOWN_SIZE_BYTES_MAX);
        let start = self.known.len();
        self.known.extend_from_slice(&entry.key.bytes[..size_bytes]);
        self.entries.push(PendingEntry {
            start,
            end: start + size_bytes,
            continues: entry.key.continues || size_bytes < entry.key.bytes.len(),
            hash: entry.hash,
            position: entry.position,
            is_delete: entry.is_delete,
        });
    }

    /// Writes the leaf into a zeroed block, and starts over.
    pub(super) fn write(&mut self, block: &mut [u8; BLOCK_SIZE_BYTES]) -> Header {
        let prefix_size_bytes = self.sizes.prefix_bytes;
        let head_size_bytes = self.sizes.head_size_bytes();
        let entries = self.entries.iter().map(|entry| {
            let behind = &self.known[entry.start + prefix_size_bytes..entry.end];
            let head = &behind[..behind.len().min(head_size_bytes)];
            leaf::LeafEntry {
                head,
                hash: entry.hash,
                pointer: Pointer {
                    position: entry.position,
                    is_delete: entry.is_delete,
                    head_size_bytes: head.len(),
                    continues: entry.continues || head.len() < behind.len(),
                },
            }
        });
        let prefix = &self.known[..prefix_size_bytes];
        let header = leaf::write(block, prefix, head_size_bytes, entries);
        self.known.clear();
        self.entries.clear();
        self.sizes = Sizes::default();
        header
    }

    /// Returns the sizes with another entry.
    fn sizes_with(&self, key: KnownKey<'_>) -> Sizes {
        let known_size_bytes = key.bytes.len().min(KNOWN_SIZE_BYTES_MAX);
        let Some((last, _)) = self.last() else {
            return Sizes {
                prefix_bytes: known_size_bytes.min(PREFIX_SIZE_BYTES_MAX),
                distinguishing_bytes: 0,
                longest: known_size_bytes,
            };
        };
        // Bytes that all keys share with the last one, and the last one with this one. A shorter
        // known key in between shares them, too, but its bytes are not available for writing.
        let shared = shared_size_bytes(last.bytes, key.bytes);
        let sizes = self.sizes;
        Sizes {
            prefix_bytes: sizes.prefix_bytes.min(shared),
            distinguishing_bytes: match last.compare(key) {
                Some(_) => sizes.distinguishing_bytes.max(shared + 1),
                None => sizes.distinguishing_bytes,
            },
            longest: sizes.longest.max(known_size_bytes),
        }
    }

    fn known(&self, entry: PendingEntry) -> KnownKey<'_> {
        KnownKey {
            bytes: &self.known[entry.start..entry.end],
            continues: entry.continues,
        }
    }
}

/// Returns the size of the longest common prefix of two byte strings.
pub(super) fn shared_size_bytes(one: &[u8], other: &[u8]) -> usize {
    let pairs = one.iter().zip(other);
    pairs.take_while(|(one, other)| one == other).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: &[u8]) -> Entry<'_> {
        Entry {
            key: KnownKey::whole(key),
            hash: 0,
            position: LogPosition(9),
            is_delete: false,
        }
    }

    fn fill(builder: &mut LeafBuilder, keys: impl Iterator<Item = Vec<u8>>) -> usize {
        let mut count = 0;
        for key in keys {
            if !builder.fits_entry(KnownKey::whole(&key)) {
                break;
            }
            builder.add(entry(&key));
            count += 1;
        }
        count
    }

    /// Promise: a leaf has as many entries as fit, with heads for whole keys unless keys continue
    /// for more than 20 bytes behind the prefix. It never has less than 119, except because of the
    /// prefix.
    #[test]
    fn a_leaf_takes_what_fits() {
        for (prefix_size_bytes, rest_size_bytes, count) in [
            (0, 0, 256),
            (29, 0, 256),
            (4, 4, 213),
            (4, 12, 150),
            (4, 18, 122),
            (4, 19, 119),
            (4, 400, 119),
            (1021, 0, 202),
            (1021, 30, 89),
            (4000, 0, 89),
        ] {
            let keys = (0..1000_u32).map(|it| {
                let mut key = vec![b'p'; prefix_size_bytes];
                key.extend_from_slice(&it.to_be_bytes());
                key.resize(key.len() + rest_size_bytes, 0);
                key
            });
            assert_eq!(
                fill(&mut LeafBuilder::default(), keys),
                count,
                "{prefix_size_bytes} {rest_size_bytes}"
            );
        }
    }

    /// Promise: a leaf that is half full ends before a key that would make heads lose information;
    /// other leaves do not.
    #[test]
    fn a_leaf_ends_where_heads_would_be_lost() {
        for (count, taken) in [(50, 51), (150, 150)] {
            let near =
                (0..count).map(|it| format!("the same for all of them {it:04}").into_bytes());
            let keys = near.chain([b"until here".to_vec()]);
            assert_eq!(fill(&mut LeafBuilder::default(), keys), taken);
        }
        // Nothing is lost if the remaining bytes distinguish the keys.
        let near = (0..100).map(|it| format!("all {it:04}, and more").into_bytes());
        let keys = near.chain([b"until here".to_vec()]);
        assert_eq!(fill(&mut LeafBuilder::default(), keys), 101);
    }
}
