//! Ranges of byte strings, and ranges of keys as such.

use std::ops::{Bound, Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

use crate::error::KeyTooLong;
use crate::key::{AsKey, Key, encode_key};

/// Range of byte strings from `start` up to, but excluding, `end`; without `end`, all from `start`.
/// Empty if `end` is not behind `start`.
///
/// The bounds are places between keys. They may be longer than a key by the zero byte that
/// [`successor`] adds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ByteRange {
    /// First byte string of the range.
    pub start: Vec<u8>,
    /// First byte string behind the range; `None` if the range has no upper bound.
    pub end: Option<Vec<u8>>,
}

impl ByteRange {
    /// Returns the range of all byte strings.
    pub fn all() -> Self {
        Self {
            start: Vec::new(),
            end: None,
        }
    }

    /// Returns whether a byte string is in the range.
    pub fn contains(&self, bytes: &[u8]) -> bool {
        self.start.as_slice() <= bytes && self.end.as_deref().is_none_or(|end| bytes < end)
    }

    /// Returns whether the range contains no byte strings.
    pub fn is_empty(&self) -> bool {
        self.end.as_ref().is_some_and(|end| *end <= self.start)
    }
}

/// Returns the range of exactly those byte strings that begin with `prefix`.
///
/// ```
/// # use farleaf_key::{ByteRange, prefix_range};
/// let range = prefix_range(b"user:");
/// assert_eq!(range.start, b"user:");
/// assert_eq!(range.end.as_deref(), Some(&b"user;"[..]));
/// assert_eq!(prefix_range(b"a\xff\xff").end.as_deref(), Some(&b"b"[..]));
/// assert_eq!(prefix_range(b"\xff").end, None);
/// assert_eq!(prefix_range(b""), ByteRange::all());
/// ```
pub fn prefix_range(prefix: &[u8]) -> ByteRange {
    // The first string behind all of them: increment the last byte that is not ff, and cut off what
    // follows it. If all bytes are ff, every following string begins with the prefix.
    let end = prefix.iter().rposition(|byte| *byte != 0xff).map(|last| {
        let mut end = prefix[..=last].to_vec();
        end[last] += 1;
        end
    });
    ByteRange {
        start: prefix.to_vec(),
        end,
    }
}

/// Returns the next byte string: the given one plus a zero byte, with no string between them. For
/// the longest key the result is longer than any key and usable only as a bound.
///
/// ```
/// # use farleaf_key::successor;
/// assert_eq!(successor(b"user:1"), b"user:1\x00");
/// ```
pub fn successor(bytes: &[u8]) -> Vec<u8> {
    let mut next = Vec::with_capacity(bytes.len() + 1);
    next.extend_from_slice(bytes);
    next.push(0);
    next
}

/// Range of keys of type `K`: Rust's ranges of [`AsKey`] types, a pair of bounds, or a
/// [`ByteRange`], such as [`prefix_of`](crate::prefix_of) returns.
///
/// A separate trait, because with `RangeBounds` the element type of `..` could not be inferred.
pub trait AsRange<K> {
    /// Returns the range of byte strings that contains exactly the keys in this range.
    ///
    /// ```
    /// use farleaf_key::{AsRange, encode_key};
    ///
    /// let range = AsRange::<(u8, String)>::byte_range(&((1, "a")..=(1, "b")))?;
    /// assert!(range.contains(&encode_key::<(u8, String)>(&(1, "b"))?));
    /// assert!(!range.contains(&encode_key::<(u8, String)>(&(1, "b\0"))?));
    /// # Ok::<(), farleaf_key::KeyTooLong>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`KeyTooLong`], if an encoded bound exceeds the size limit of keys.
    fn byte_range(&self) -> Result<ByteRange, KeyTooLong>;
}

fn between<K: Key>(
    start: Bound<&impl AsKey<K>>,
    end: Bound<&impl AsKey<K>>,
) -> Result<ByteRange, KeyTooLong> {
    Ok(ByteRange {
        start: match start {
            Bound::Included(key) => encode_key::<K>(key)?,
            Bound::Excluded(key) => successor(&encode_key::<K>(key)?),
            Bound::Unbounded => Vec::new(),
        },
        end: match end {
            Bound::Included(key) => Some(successor(&encode_key::<K>(key)?)),
            Bound::Excluded(key) => Some(encode_key::<K>(key)?),
            Bound::Unbounded => None,
        },
    })
}

impl<K: Key, Q: AsKey<K>> AsRange<K> for (Bound<Q>, Bound<Q>) {
    fn byte_range(&self) -> Result<ByteRange, KeyTooLong> {
        between::<K>(self.0.as_ref(), self.1.as_ref())
    }
}

impl<K: Key, Q: AsKey<K>> AsRange<K> for Range<Q> {
    fn byte_range(&self) -> Result<ByteRange, KeyTooLong> {
        between::<K>(Bound::Included(&self.start), Bound::Excluded(&self.end))
    }
}

impl<K: Key, Q: AsKey<K>> AsRange<K> for RangeInclusive<Q> {
    fn byte_range(&self) -> Result<ByteRange, KeyTooLong> {
        between::<K>(Bound::Included(self.start()), Bound::Included(self.end()))
    }
}

impl<K: Key, Q: AsKey<K>> AsRange<K> for RangeFrom<Q> {
    fn byte_range(&self) -> Result<ByteRange, KeyTooLong> {
        between::<K>(Bound::Included(&self.start), Bound::<&Q>::Unbounded)
    }
}

impl<K: Key, Q: AsKey<K>> AsRange<K> for RangeTo<Q> {
    fn byte_range(&self) -> Result<ByteRange, KeyTooLong> {
        between::<K>(Bound::<&Q>::Unbounded, Bound::Excluded(&self.end))
    }
}

impl<K: Key, Q: AsKey<K>> AsRange<K> for RangeToInclusive<Q> {
    fn byte_range(&self) -> Result<ByteRange, KeyTooLong> {
        between::<K>(Bound::<&Q>::Unbounded, Bound::Included(&self.end))
    }
}

impl<K: Key> AsRange<K> for RangeFull {
    fn byte_range(&self) -> Result<ByteRange, KeyTooLong> {
        Ok(ByteRange::all())
    }
}

impl<K: Key> AsRange<K> for ByteRange {
    fn byte_range(&self) -> Result<ByteRange, KeyTooLong> {
        Ok(self.clone())
    }
}

impl<K: Key, R: AsRange<K>> AsRange<K> for &R {
    fn byte_range(&self) -> Result<ByteRange, KeyTooLong> {
        (**self).byte_range()
    }
}
