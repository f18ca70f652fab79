//! Keys of which a tree knows only the first bytes: a head, and whether the key continues behind
//! it.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::error::LsmError;
use crate::place::LogPosition;

/// First bytes of a key, or the whole key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownKey<'k> {
    /// Known bytes of the key.
    pub bytes: &'k [u8],
    /// Whether the key continues behind the known bytes.
    pub continues: bool,
}

impl<'k> KnownKey<'k> {
    /// Creates a key that is known completely.
    pub const fn whole(bytes: &'k [u8]) -> Self {
        Self {
            bytes,
            continues: false,
        }
    }

    /// Compares two keys; returns `None` if the known bytes do not decide the order.
    pub fn compare(self, other: KnownKey<'_>) -> Option<Ordering> {
        let common = self.bytes.len().min(other.bytes.len());
        match self.bytes[..common].cmp(&other.bytes[..common]) {
            Ordering::Equal => {}
            differs => return Some(differs),
        }
        match (self.bytes.len() > common, other.bytes.len() > common) {
            // One ends where the other continues. If the shorter one also continues, the order is
            // unknown.
            (true, _) => (!other.continues).then_some(Ordering::Greater),
            (_, true) => (!self.continues).then_some(Ordering::Less),
            _ => match (self.continues, other.continues) {
                (false, false) => Some(Ordering::Equal),
                (true, false) => Some(Ordering::Greater),
                (false, true) => Some(Ordering::Less),
                (true, true) => None,
            },
        }
    }
}

impl KnownKey<'_> {
    /// Returns the first 16 bytes as a number, padded with zeros if the key ends before. Returns
    /// `None` if fewer bytes are known.
    ///
    /// If two keys have different numbers, the order of the numbers is the order of the keys.
    pub fn number(self) -> Option<u128> {
        let mut bytes = [0; 16];
        match self.bytes.first_chunk() {
            Some(first) => bytes = *first,
            None if self.continues => return None,
            None => bytes[..self.bytes.len()].copy_from_slice(self.bytes),
        }
        Some(u128::from_be_bytes(bytes))
    }
}

/// Source of complete keys: the log.
pub trait KeySource {
    /// Appends the key of the record at a log position to a buffer.
    ///
    /// # Errors
    /// The log cannot be read there, or is corrupted.
    fn append_key(&self, position: LogPosition, to: &mut Vec<u8>) -> Result<(), LsmError>;
}

impl<K: KeySource + ?Sized> KeySource for &K {
    fn append_key(&self, position: LogPosition, to: &mut Vec<u8>) -> Result<(), LsmError> {
        (**self).append_key(position, to)
    }
}

impl<K: KeySource + ?Sized> KeySource for Arc<K> {
    fn append_key(&self, position: LogPosition, to: &mut Vec<u8>) -> Result<(), LsmError> {
        (**self).append_key(position, to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn head(bytes: &[u8]) -> KnownKey<'_> {
        KnownKey {
            bytes,
            continues: true,
        }
    }

    /// Promise: keys compare only if the known bytes decide the order.
    #[test]
    fn the_order_is_told_where_it_can_be() {
        use Ordering::{Equal, Greater, Less};
        let whole = KnownKey::whole;
        let cases = [
            (whole(b"a"), whole(b"a"), Some(Equal)),
            (whole(b"a"), whole(b"ab"), Some(Less)),
            (whole(b""), whole(b"a"), Some(Less)),
            (whole(b"a"), head(b"a"), Some(Less)),
            (whole(b"ab"), head(b"a"), None),
            (head(b"a"), head(b"a"), None),
            (head(b"a"), head(b"ab"), None),
            (head(b"a"), head(b"b"), Some(Less)),
            (head(b"ab"), whole(b"a"), Some(Greater)),
            (head(b"ab"), whole(b"abc"), None),
            (head(b""), whole(b""), Some(Greater)),
            (head(b""), whole(b"a"), None),
        ];
        for (one, other, order) in cases {
            assert_eq!(one.compare(other), order, "{one:?} {other:?}");
            assert_eq!(other.compare(one), order.map(Ordering::reverse));
        }
    }

    /// Promise: different numbers have the order of their keys, however much of the keys is known.
    #[test]
    fn numbers_are_in_the_order_of_keys() {
        let mut keys = vec![Vec::new()];
        for length in [1, 2, 15, 16, 17, 20] {
            for last in [0, 1, 255] {
                for fill in [0, 7] {
                    let mut key = vec![fill; length];
                    key[length - 1] = last;
                    keys.push(key);
                }
            }
        }
        for (one, other) in keys
            .iter()
            .flat_map(|one| keys.iter().map(move |it| (one, it)))
        {
            for known in [one.len(), 16, 3] {
                let head = KnownKey {
                    bytes: &one[..known.min(one.len())],
                    continues: known < one.len(),
                };
                let number = head.number();
                assert_eq!(number.is_none(), head.continues && known < 16);
                let of_other = KnownKey::whole(other).number().expect("it is whole");
                if let Some(number) = number.filter(|number| *number != of_other) {
                    assert_eq!(number.cmp(&of_other), one.cmp(other), "{one:?} {other:?}");
                }
            }
        }
    }
}
