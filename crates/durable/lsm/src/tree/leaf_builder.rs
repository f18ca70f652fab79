//! The leaf that is being filled: what it takes, and when it is full.

use crate::head::KnownKey;
use crate::place::{BLOCK_SIZE_BYTES, LogPosition};
use crate::tree::Entry;
use crate::tree::format::{BODY_SIZE_BYTES, Header};
use crate::tree::leaf::{self, HEAD_SIZE_BYTES_MAX, KNOWN_SIZE_BYTES_MAX, PREFIX_SIZE_BYTES_MAX};
use crate::tree::pointer::Pointer;

/// An entry that waits for its leaf to be full.
#[derive(Clone, Copy)]
struct Waiting {
    start: usize,
    end: usize,
    goes_on: bool,
    hash: u64,
    position: LogPosition,
    is_delete: bool,
}

/// What the sizes of a leaf follow from.
#[derive(Clone, Copy, Default)]
struct Sizes {
    prefix_bytes: usize,
    /// So many bytes of keys tell any two neighbours apart that are told apart at all.
    telling_bytes: usize,
    /// What is known of the longest key: as long as that is.
    longest: usize,
}

impl Sizes {
    /// Heads have what is known of all keys, or as much as heads can have.
    const fn head_size_bytes(self) -> usize {
        let behind = self.longest - self.prefix_bytes;
        if behind < HEAD_SIZE_BYTES_MAX {
            behind
        } else {
            HEAD_SIZE_BYTES_MAX
        }
    }

    /// Whether prefix and heads tell apart what is told apart at all.
    const fn tells(self) -> bool {
        self.telling_bytes <= self.prefix_bytes + self.head_size_bytes()
    }
}

/// A leaf that is being filled.
///
/// It takes entries as long as they fit, with one exception: a leaf that is at least half full is
/// closed before an entry that would shorten the prefix so much that two keys which prefix and
/// heads tell apart would not be any more. So a leaf does not end in what only the log can order
/// just because the next table or user begins, and no tree has more than twice the leaves that it
/// needs.
#[derive(Default)]
pub(super) struct LeafBuilder {
    /// What is known of the keys, one behind the other.
    known: Vec<u8>,
    entries: Vec<Waiting>,
    sizes: Sizes,
}

impl LeafBuilder {
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The last key, as far as it is known here, and where its record is.
    pub(super) fn last(&self) -> Option<(KnownKey<'_>, LogPosition)> {
        let last = *self.entries.last()?;
        Some((self.known(last), last.position))
    }

    /// Whether an entry may follow the last one in this leaf.
    pub(super) fn has_room_for(&self, key: KnownKey<'_>) -> bool {
        let (sizes, count) = (self.sizes, self.entries.len());
        let with = self.sizes_with(key);
        if !leaf::fits(with.prefix_bytes, with.head_size_bytes(), count + 1) {
            return false;
        }
        let used_bytes = leaf::size_bytes(sizes.prefix_bytes, sizes.head_size_bytes(), count);
        used_bytes < BODY_SIZE_BYTES / 2 || !sizes.tells() || with.tells()
    }

    /// Takes an entry that it has room for.
    pub(super) fn add(&mut self, entry: Entry<'_>) {
        self.sizes = self.sizes_with(entry.key);
        let size_bytes = entry.key.bytes.len().min(KNOWN_SIZE_BYTES_MAX);
        let start = self.known.len();
        self.known.extend_from_slice(&entry.key.bytes[..size_bytes]);
        self.entries.push(Waiting {
            start,
            end: start + size_bytes,
            goes_on: entry.key.goes_on || size_bytes < entry.key.bytes.len(),
            hash: entry.hash,
            position: entry.position,
            is_delete: entry.is_delete,
        });
    }

    /// Writes what it has into a block of zeros, and begins anew.
    pub(super) fn write(&mut self, block: &mut [u8; BLOCK_SIZE_BYTES]) -> Header {
        let prefix_size_bytes = self.sizes.prefix_bytes;
        let head_size_bytes = self.sizes.head_size_bytes();
        let entries = self.entries.iter().map(|entry| {
            let behind = &self.known[entry.start + prefix_size_bytes..entry.end];
            let head = &behind[..behind.len().min(head_size_bytes)];
            leaf::Written {
                head,
                hash: entry.hash,
                pointer: Pointer {
                    position: entry.position,
                    is_delete: entry.is_delete,
                    head_size_bytes: head.len(),
                    goes_on: entry.goes_on || head.len() < behind.len(),
                },
            }
        });
        let prefix = &self.known[..prefix_size_bytes];
        let header = leaf::write(block, (prefix, head_size_bytes), entries);
        self.known.clear();
        self.entries.clear();
        self.sizes = Sizes::default();
        header
    }

    /// The sizes with another entry.
    fn sizes_with(&self, key: KnownKey<'_>) -> Sizes {
        let known_size_bytes = key.bytes.len().min(KNOWN_SIZE_BYTES_MAX);
        let Some((last, _)) = self.last() else {
            return Sizes {
                prefix_bytes: known_size_bytes.min(PREFIX_SIZE_BYTES_MAX),
                telling_bytes: 0,
                longest: known_size_bytes,
            };
        };
        // What all keys share with the last one, and it with this one. A key in between of which
        // less is known shares it, too, but its bytes are not there to be written.
        let shared = shared_size_bytes(last.bytes, key.bytes);
        let sizes = self.sizes;
        Sizes {
            prefix_bytes: sizes.prefix_bytes.min(shared),
            telling_bytes: match last.compare(key) {
                Some(_) => sizes.telling_bytes.max(shared + 1),
                None => sizes.telling_bytes,
            },
            longest: sizes.longest.max(known_size_bytes),
        }
    }

    fn known(&self, entry: Waiting) -> KnownKey<'_> {
        KnownKey {
            bytes: &self.known[entry.start..entry.end],
            goes_on: entry.goes_on,
        }
    }
}

/// Size of the longest common prefix of two byte strings.
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
            if !builder.has_room_for(KnownKey::whole(&key)) {
                break;
            }
            builder.add(entry(&key));
            count += 1;
        }
        count
    }

    /// Promise: as many entries as fit with heads that have all of the keys, if those do not go on
    /// for more than 20 bytes behind the prefix; never less than 119 but for the prefix.
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

    /// Promise: a leaf ends where the next key would cost its heads what they tell, if it is half
    /// full, and only then.
    #[test]
    fn a_leaf_ends_where_heads_would_be_lost() {
        for (count, taken) in [(50, 51), (150, 150)] {
            let near =
                (0..count).map(|it| format!("the same for all of them {it:04}").into_bytes());
            let keys = near.chain([b"until here".to_vec()]);
            assert_eq!(fill(&mut LeafBuilder::default(), keys), taken);
        }
        // Nothing is lost if the keys are told apart by what remains.
        let near = (0..100).map(|it| format!("all {it:04}, and more").into_bytes());
        let keys = near.chain([b"until here".to_vec()]);
        assert_eq!(fill(&mut LeafBuilder::default(), keys), 101);
    }
}
