//! Separators between two children of an inner block.

use std::cmp::Ordering;

use crate::error::LsmError;
use crate::head::{KeySource, KnownKey};
use crate::place::LogPosition;
use crate::tree::leaf_builder::shared_size_bytes;
use crate::tree::whole_key;

/// Maximum size in bytes of the part of a separator that is in the inner block.
pub(super) const SEPARATOR_SIZE_BYTES_MAX: usize = 256;

/// String that is greater than all keys to its left and not greater than those to its right.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Separator {
    /// First bytes of the separator, or all of it.
    pub(super) bytes: Vec<u8>,
    /// Record whose key is the whole separator, if that is longer than an inner block stores.
    pub(super) record: Option<LogPosition>,
}

/// Known part of a key, and the record with the whole key.
#[derive(Clone, Copy)]
pub(super) struct Neighbour<'k> {
    pub(super) key: KnownKey<'k>,
    pub(super) position: LogPosition,
}

/// Returns the shortest separator of two neighbors, or `None` if they are not ascending. Keys are
/// read from the log only if their known parts, or their first 256 bytes, are equal.
pub(super) fn between(
    left: Neighbour<'_>,
    right: Neighbour<'_>,
    keys: &dyn KeySource,
) -> Result<Option<Separator>, LsmError> {
    let shared = shared_size_bytes(left.key.bytes, right.key.bytes);
    if shared >= SEPARATOR_SIZE_BYTES_MAX {
        // Whatever follows, the separator is longer than the limit. An earlier comparison, or the
        // caller, ensures that the keys ascend.
        return Ok(Some(cut(right.key.bytes, shared, right.position)));
    }
    match left.key.compare(right.key) {
        Some(Ordering::Less) => Ok(Some(cut(right.key.bytes, shared, right.position))),
        Some(_) => Ok(None),
        None => {
            let left = whole_key(left.key, left.position, keys)?;
            let right_key = whole_key(right.key, right.position, keys)?;
            if left >= right_key {
                return Ok(None);
            }
            let shared = shared_size_bytes(&left, &right_key);
            Ok(Some(cut(&right_key, shared, right.position)))
        }
    }
}

/// Returns the separator before a key that is greater than its left neighbor and shares this many
/// bytes with it.
fn cut(right: &[u8], shared: usize, position: LogPosition) -> Separator {
    if shared >= SEPARATOR_SIZE_BYTES_MAX {
        return Separator {
            bytes: right[..SEPARATOR_SIZE_BYTES_MAX].to_vec(),
            record: Some(position),
        };
    }
    let mut bytes = right[..right.len().min(shared + 1)].to_vec();
    if bytes.len() == shared {
        // The known part of the right key is the whole left key, so the right one continues, with a
        // zero byte or more.
        bytes.push(0);
    }
    Separator {
        bytes,
        record: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::MemoryLog;

    fn head(bytes: &[u8]) -> KnownKey<'_> {
        KnownKey {
            bytes,
            continues: true,
        }
    }

    /// Promise: separators are as short as possible, and made from known bytes where those decide.
    #[test]
    fn separators_are_the_shortest() {
        let log = MemoryLog::default();
        let position = log.put(b"right");
        let between = |left, right| {
            let left = Neighbour {
                key: left,
                position: LogPosition(0),
            };
            let right = Neighbour {
                key: right,
                position,
            };
            between(left, right, &log).unwrap()
        };
        let short = |bytes: &[u8]| {
            Some(Separator {
                bytes: bytes.to_vec(),
                record: None,
            })
        };
        let whole = KnownKey::whole;
        assert_eq!(between(whole(b"abc"), whole(b"abxyz")), short(b"abx"));
        assert_eq!(between(whole(b""), whole(b"a")), short(b"a"));
        assert_eq!(between(whole(b"ab"), whole(b"abc")), short(b"abc"));
        assert_eq!(between(head(b"abc"), head(b"abd")), short(b"abd"));
        assert_eq!(between(whole(b"ab"), head(b"ab")), short(b"ab\0"));
        assert_eq!(between(whole(b"b"), whole(b"a")), None);
        assert_eq!(between(whole(b"a"), whole(b"a")), None);
        let left = [&[b'k'; 255][..], b"a"].concat();
        let right = [&[b'k'; 255][..], b"bcd"].concat();
        assert_eq!(between(whole(&left), whole(&right)), short(&right[..256]));
        let long = [b'k'; 300];
        let cut = Separator {
            bytes: vec![b'k'; 256],
            record: Some(position),
        };
        assert_eq!(between(head(&long), head(&long)), Some(cut.clone()));
        assert_eq!(between(whole(&long[..256]), head(&long[..256])), Some(cut));
        assert_eq!(log.read_count(), 0);
    }

    /// Promise: where known bytes do not decide, the log does, also for keys that do not ascend.
    #[test]
    fn separators_of_equal_heads_are_read() {
        let log = MemoryLog::default();
        let (left, right) = (log.put(b"head one"), log.put(b"head two"));
        let neighbour = |position| Neighbour {
            key: head(b"head"),
            position,
        };
        let found = between(neighbour(left), neighbour(right), &log).unwrap();
        assert_eq!(found.unwrap().bytes, b"head t");
        assert_eq!(log.read_count(), 2);
        assert_eq!(
            between(neighbour(right), neighbour(left), &log).unwrap(),
            None
        );
    }
}
