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
}
