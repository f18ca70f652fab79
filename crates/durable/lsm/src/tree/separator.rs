//! Separators: what an inner block has between two children (LT3).

use std::cmp::Ordering;

use crate::error::LsmError;
use crate::head::{KeySource, KnownKey};
use crate::place::LogPosition;
use crate::tree::leaf_builder::shared_size_bytes;
use crate::tree::whole_key;

/// So much of a separator is in the inner block.
pub(super) const SEPARATOR_SIZE_BYTES_MAX: usize = 256;

/// A string that is greater than all keys to its left and not greater than those to its right.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Separator {
    /// It, or its first bytes.
    pub(super) bytes: Vec<u8>,
    /// It is longer than what an inner block keeps: it is the key of this record.
    pub(super) record: Option<LogPosition>,
}

/// A key as far as it is known, and the record that has all of it.
#[derive(Clone, Copy)]
pub(super) struct Neighbour<'k> {
    pub(super) key: KnownKey<'k>,
    pub(super) position: LogPosition,
}

/// The shortest separator of two neighbours, or `None` if they are not ascending. Keys are read
/// from the log only if what is known of them, or their first 256 bytes, are the same.
pub(super) fn between(
    left: Neighbour<'_>,
    right: Neighbour<'_>,
    keys: &dyn KeySource,
) -> Result<Option<Separator>, LsmError> {
    let shared = shared_size_bytes(left.key.bytes, right.key.bytes);
    if shared >= SEPARATOR_SIZE_BYTES_MAX {
        // Whatever follows, the separator is longer than that. Who is less was said before, or is
        // the business of whoever has brought them in this order.
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

/// The separator before a key that shares so many bytes with its left neighbour and is greater.
fn cut(right: &[u8], shared: usize, position: LogPosition) -> Separator {
    if shared >= SEPARATOR_SIZE_BYTES_MAX {
        return Separator {
            bytes: right[..SEPARATOR_SIZE_BYTES_MAX].to_vec(),
            record: Some(position),
        };
    }
    let mut bytes = right[..right.len().min(shared + 1)].to_vec();
    if bytes.len() == shared {
        // All that is known of the right key is the left one, so it goes on, with a zero or more.
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
            goes_on: true,
        }
    }

    /// Promise: separators are the shortest there are, and come from known bytes where those tell.
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

    /// Promise: what known bytes do not tell, the log does, also that they do not ascend.
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
