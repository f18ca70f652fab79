//! The leaf that is being filled: what it takes, and when it is full.

use crate::head::KnownKey;
use crate::place::{BLOCK_SIZE_BYTES, LogPosition};
use crate::tree::Entry;
use crate::tree::format::{BODY_SIZE_BYTES, Header};
use crate::tree::leaf::{self, HEAD_SIZE_BYTES, KNOWN_SIZE_BYTES_MAX, PREFIX_SIZE_BYTES_MAX};
use crate::tree::pointer::Pointer;

/// An entry that waits for its leaf to be full.
#[derive(Clone, Copy)]
struct Waiting {
    start: usize,
    end: usize,
    goes_on: bool,
    hash: u32,
    position: LogPosition,
    is_delete: bool,
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
    prefix_size_bytes: usize,
    /// So many bytes of keys tell any two neighbours apart that are told apart at all.
    telling_size_bytes: usize,
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
        let (prefix_size_bytes, telling_size_bytes) = self.sizes_with(key);
        if !leaf::fits(prefix_size_bytes, self.entries.len() + 1) {
            return false;
        }
        let used_bytes = self.prefix_size_bytes + self.entries.len() * leaf::ENTRY_SIZE_BYTES;
        let tells = self.telling_size_bytes <= self.prefix_size_bytes + HEAD_SIZE_BYTES;
        let will_tell = telling_size_bytes <= prefix_size_bytes + HEAD_SIZE_BYTES;
        used_bytes < BODY_SIZE_BYTES / 2 || !tells || will_tell
    }

    /// Takes an entry that it has room for.
    pub(super) fn add(&mut self, entry: Entry<'_>) {
        let sizes = self.sizes_with(entry.key);
        (self.prefix_size_bytes, self.telling_size_bytes) = sizes;
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
        let prefix_size_bytes = self.prefix_size_bytes;
        let entries = self.entries.iter().map(|entry| {
            let behind = &self.known[entry.start + prefix_size_bytes..entry.end];
            let head = &behind[..behind.len().min(HEAD_SIZE_BYTES)];
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
        let header = leaf::write(block, &self.known[..prefix_size_bytes], entries);
        self.known.clear();
        self.entries.clear();
        (self.prefix_size_bytes, self.telling_size_bytes) = (0, 0);
        header
    }

    /// Sizes of the prefix and of what tells neighbours apart, with another entry.
    fn sizes_with(&self, key: KnownKey<'_>) -> (usize, usize) {
        let Some((last, _)) = self.last() else {
            return (key.bytes.len().min(PREFIX_SIZE_BYTES_MAX), 0);
        };
        // What all keys share with the last one, and it with this one. A key in between of which
        // less is known shares it, too, but its bytes are not there to be written.
        let shared = shared_size_bytes(last.bytes, key.bytes);
        let telling = match last.compare(key) {
            Some(_) => self.telling_size_bytes.max(shared + 1),
            None => self.telling_size_bytes,
        };
        (self.prefix_size_bytes.min(shared), telling)
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

    /// Promise: 168 entries with a prefix of 32 bytes or less, fewer with a longer one, and 126
    /// with the longest.
    #[test]
    fn a_leaf_takes_what_fits() {
        for (prefix_size_bytes, count) in [(0, 168), (29, 168), (38, 167), (1021, 126), (4000, 126)]
        {
            let keys = (0..1000_u32).map(|it| {
                let mut key = vec![b'p'; prefix_size_bytes];
                key.extend_from_slice(&it.to_be_bytes());
                key
            });
            assert_eq!(
                fill(&mut LeafBuilder::default(), keys),
                count,
                "{prefix_size_bytes}"
            );
        }
    }

    /// Promise: a leaf ends where the next key would cost its heads what they tell, if it is half
    /// full, and only then.
    #[test]
    fn a_leaf_ends_where_heads_would_be_lost() {
        for (count, taken) in [(50, 51), (100, 100)] {
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
