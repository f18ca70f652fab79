//! Keys as far as a tree has them: a head, and whether the key goes on behind it (LT2).

use std::cmp::Ordering;
use std::sync::Arc;

use crate::error::LsmError;
use crate::place::LogPosition;

/// The first bytes of a key, or all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownKey<'k> {
    /// The bytes that are known.
    pub bytes: &'k [u8],
    /// The key goes on behind them.
    pub goes_on: bool,
}

impl<'k> KnownKey<'k> {
    /// A key that is known whole.
    pub const fn whole(bytes: &'k [u8]) -> Self {
        Self {
            bytes,
            goes_on: false,
        }
    }

    /// Which key is less, if the bytes that are known tell.
    pub fn compare(self, other: KnownKey<'_>) -> Option<Ordering> {
        let common = self.bytes.len().min(other.bytes.len());
        match self.bytes[..common].cmp(&other.bytes[..common]) {
            Ordering::Equal => {}
            differs => return Some(differs),
        }
        match (self.bytes.len() > common, other.bytes.len() > common) {
            // One ends where the other goes on, unless it goes on, too, who knows how.
            (true, _) => (!other.goes_on).then_some(Ordering::Greater),
            (_, true) => (!self.goes_on).then_some(Ordering::Less),
            _ => match (self.goes_on, other.goes_on) {
                (false, false) => Some(Ordering::Equal),
                (true, false) => Some(Ordering::Greater),
                (false, true) => Some(Ordering::Less),
                (true, true) => None,
            },
        }
    }
}

impl KnownKey<'_> {
    /// The first 16 bytes as a number, zeros behind the end; `None` if not so many are known. Of
    /// two keys with other numbers the one with the lesser number is less.
    pub fn number(self) -> Option<u128> {
        let mut bytes = [0; 16];
        match self.bytes.first_chunk() {
            Some(first) => bytes = *first,
            None if self.goes_on => return None,
            None => bytes[..self.bytes.len()].copy_from_slice(self.bytes),
        }
        Some(u128::from_be_bytes(bytes))
    }
}

/// Who can tell a key whole: the log.
pub trait KeySource {
    /// Appends the key of the record at a place to a buffer.
    ///
    /// # Errors
    /// The log cannot be read there, or is damaged.
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
            goes_on: true,
        }
    }

    /// Promise: the order is told where the bytes tell it, and only there.
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

    /// Promise: numbers of keys that are not the same are in the order of the keys, whatever is
    /// known of those.
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
                    goes_on: known < one.len(),
                };
                let number = head.number();
                assert_eq!(number.is_none(), head.goes_on && known < 16);
                let of_other = KnownKey::whole(other).number().expect("it is whole");
                if let Some(number) = number.filter(|number| *number != of_other) {
                    assert_eq!(number.cmp(&of_other), one.cmp(other), "{one:?} {other:?}");
                }
            }
        }
    }
}
