//! Front-coded fences: each is stored without the bytes that it shares with the previous one.
//!
//! # Encoding
//!
//! A segment of n leaves has n - 1 *entries*, for its leaves from the second on; keys below all of
//! these belong to the first leaf. The prefix of all fences of the segment is removed. An entry is
//! a *sizes byte* and a *suffix*: the bytes after those shared with the previous entry. The low
//! four bits of the sizes byte are the size of the suffix. The high four are the *cut*, the number
//! of bytes removed from the end of the previous entry. 15 means 15 or more. The rest then follows
//! in groups of seven bits, low ones first, with the top bit set in all but the last byte; the
//! cut's rest comes first.
//!
//! Every 16th entry, including the first, is a *restart*: it shares nothing, and its cut is 0.
//! Places of restarts are not stored but found when entries are read.
//!
//! # Why a lookup decodes no string
//!
//! A lookup is a binary search over the restarts, which are whole strings. It continues from the
//! last restart that is not above the key. Let the previous entry not be above the key, and share
//! `matched` bytes with it. The next entry shares `shared` bytes with the previous one, and then
//! has a greater byte, or is longer.
//!
//! - If `shared < matched`, the key has the smaller byte there: the next entry is above it.
//! - If `shared > matched`, the key's byte at `matched` is greater than that of both entries: the
//!   next entry is not above the key, and shares as many bytes with it.
//! - Only if both are equal, the suffix is compared with the key.
//!
//! This requires that entries share the maximum, which [`FrontCodedSegment::from_parts`] checks.

use core::ops::Range;

use crate::strings::error::StringModelError;
use crate::strings::line_builder::shared_size;

/// Number of entries from one restart to the next. Larger intervals save bytes but slow down
/// lookups.
pub(super) const RESTART_INTERVAL: usize = 16;
/// Largest value of four bits, which means that more follows.
const NIBBLE_MAX: u32 = 15;
/// Largest number of bytes of a number behind the sizes byte.
const VARINT_SIZE_MAX: u32 = 5;

/// Stored parts of a front-coded segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontCodedSegmentParts {
    /// Lower fence of the first leaf.
    pub first_fence: Vec<u8>,
    /// Size in bytes of the common prefix of all fences of the segment.
    pub prefix_size: u16,
    /// Number of leaves; at least 1.
    pub leaf_count: u32,
    /// Fences of all leaves but the first, in the module's encoding.
    pub entries: Box<[u8]>,
}

/// Front-coded lower fences of consecutive leaves, which map any key to the leaf that contains it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontCodedSegment {
    first_fence: Vec<u8>,
    prefix_size: u16,
    leaf_count: u32,
    pub(super) fences: FrontCodedFences,
}

impl FrontCodedSegment {
    /// Encodes the fences of a segment's leaves. Cost: linear in their bytes.
    ///
    /// # Panics
    ///
    /// If there are no fences, if they are not strictly ascending, or if they have 2^32 bytes or
    /// more in all.
    pub fn encode<'a>(fences: impl IntoIterator<Item = &'a [u8], IntoIter: Clone>) -> Self {
        let mut fences = fences.into_iter();
        let others = fences.clone().skip(1);
        let first = fences.next().expect("a segment has a leaf");
        // Fences ascend, so all share what the first and the last one share.
        let last = others.clone().last().unwrap_or(first);
        let prefix_size = shared_size(first, last).min(u16::MAX.into());
        let mut encoder = Encoder::default();
        let (mut before, mut leaf_count) = (first, 1);
        for fence in others {
            assert!(
                *fence > *before,
                "a fence is not greater than the one before"
            );
            encoder.push(&before[prefix_size..], &fence[prefix_size..]);
            before = fence;
            leaf_count += 1;
        }
        let (bytes, restarts) = (encoder.bytes.into(), encoder.restarts.into());
        Self {
            first_fence: first.to_vec(),
            prefix_size: prefix_size as u16,
            leaf_count,
            fences: FrontCodedFences { bytes, restarts },
        }
    }

    /// Creates a segment of stored parts. Cost: linear in their bytes; decodes one fence at a time.
    ///
    /// # Errors
    /// The parts are invalid: entries are truncated, surplus or not above the one before, cuts
    /// exceed the previous entry, or an entry does not share the maximum.
    pub fn from_parts(parts: FrontCodedSegmentParts) -> Result<Self, StringModelError> {
        let (prefix_size, fence_size) = (usize::from(parts.prefix_size), parts.first_fence.len());
        let prefix_and_rest = parts.first_fence.split_at_checked(prefix_size);
        let (_, first) = prefix_and_rest.ok_or(StringModelError::Prefix {
            prefix_size,
            fence_size,
        })?;
        if parts.leaf_count == 0 {
            return Err(StringModelError::Number {
                name: "leaf count",
                value: 0.0,
            });
        }
        let restarts = check(first, parts.leaf_count, &parts.entries)?;
        Ok(Self {
            first_fence: parts.first_fence,
            prefix_size: parts.prefix_size,
            leaf_count: parts.leaf_count,
            fences: FrontCodedFences {
                bytes: parts.entries,
                restarts,
            },
        })
    }

    /// Returns the lower fence of the first leaf.
    pub fn first_fence(&self) -> &[u8] {
        &self.first_fence
    }

    /// Returns the size in bytes of the common prefix of all fences.
    pub fn prefix_size(&self) -> u16 {
        self.prefix_size
    }

    /// Returns the number of leaves.
    pub fn leaf_count(&self) -> u32 {
        self.leaf_count
    }

    /// Returns the stored fences of all leaves but the first.
    pub fn entries(&self) -> &[u8] {
        &self.fences.bytes
    }

    /// Returns the leaf of a present or absent key: the last one whose fence is not above the key;
    /// 0 if the key is below all.
    pub fn find(&self, key: &[u8]) -> u32 {
        let prefix = &self.first_fence[..usize::from(self.prefix_size)];
        match key.strip_prefix(prefix) {
            Some(suffix) => self.fences.find(suffix),
            None if *key < *prefix => 0,
            None => self.leaf_count - 1,
        }
    }
}

/// Returns the size in bytes of an entry, given the previous fence, without restarts.
pub(super) fn entry_size(before: &[u8], fence: &[u8]) -> usize {
    let shared = shared_size(before, fence);
    let (cut, size) = (before.len() - shared, fence.len() - shared);
    1 + varint_size(cut) + varint_size(size) + size
}

fn varint_size(number: usize) -> usize {
    let more = number.checked_sub(NIBBLE_MAX as usize);
    more.map_or(0, |more| (more.max(1).ilog2() / 7 + 1) as usize)
}

/// Entries, and the places of restarts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FrontCodedFences {
    bytes: Box<[u8]>,
    restarts: Box<[u32]>,
}

impl FrontCodedFences {
    /// Returns the number of entries that are not above a key, of which `key` is the part behind
    /// the prefix.
    pub(super) fn find(&self, key: &[u8]) -> u32 {
        let restart = self.restarts.partition_point(|at| {
            let sizes = read_sizes(&self.bytes, *at as usize);
            self.bytes[sizes.suffix()] <= *key
        });
        let Some(restart) = restart.checked_sub(1) else {
            return 0;
        };
        let sizes = read_sizes(&self.bytes, self.restarts[restart] as usize);
        let mut matched = shared_size(&self.bytes[sizes.suffix()], key);
        let (mut fence_size, mut at) = (sizes.size, sizes.suffix().end);
        let mut entry = restart * RESTART_INTERVAL + 1;
        let end = self.restarts.get(restart + 1);
        let end = end.map_or(self.bytes.len(), |end| *end as usize);
        while at < end {
            let sizes = read_sizes(&self.bytes, at);
            let shared = fence_size - sizes.cut;
            if shared < matched {
                break;
            }
            if shared == matched {
                let (suffix, rest) = (&self.bytes[sizes.suffix()], &key[matched..]);
                let more = shared_size(suffix, rest);
                if suffix.get(more) > rest.get(more) {
                    break;
                }
                matched += more;
            }
            (fence_size, at) = (shared + sizes.size, sizes.suffix().end);
            entry += 1;
        }
        entry as u32
    }

    /// Returns the bytes held besides the value itself.
    pub(super) fn heap_size_bytes(&self) -> usize {
        self.bytes.len() + size_of_val(&*self.restarts)
    }
}

/// Decoded sizes of an entry.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    cut: usize,
    size: usize,
    /// Start of the suffix.
    start: usize,
}

impl Sizes {
    #[inline]
    fn suffix(&self) -> Range<usize> {
        self.start..self.start + self.size
    }
}

/// Decodes sizes that were checked, or written here.
#[inline]
fn read_sizes(bytes: &[u8], at: usize) -> Sizes {
    let byte = bytes[at];
    let (cut, size) = (byte >> 4, byte & 15);
    if u32::from(cut.max(size)) < NIBBLE_MAX {
        return Sizes {
            cut: cut.into(),
            size: size.into(),
            start: at + 1,
        };
    }
    read_long_sizes(bytes, at).expect("entries were checked")
}

/// Decodes sizes from any bytes; `None` if they end too early, or a number is too large. The suffix
/// may still reach beyond the end.
fn read_long_sizes(bytes: &[u8], at: usize) -> Option<Sizes> {
    let byte = u32::from(*bytes.get(at)?);
    let (cut, start) = read_number(bytes, at + 1, byte >> 4)?;
    let (size, start) = read_number(bytes, start, byte & 15)?;
    Some(Sizes { cut, size, start })
}

/// Decodes a number that begins with four bits; also returns where it ends.
fn read_number(bytes: &[u8], mut at: usize, nibble: u32) -> Option<(usize, usize)> {
    let mut number = u64::from(nibble);
    if nibble == NIBBLE_MAX {
        for index in 0.. {
            let byte = *bytes.get(at)?;
            at += 1;
            number += u64::from(byte & 0x7F) << (7 * index);
            if byte < 0x80 {
                break;
            }
            if index + 1 == VARINT_SIZE_MAX {
                return None;
            }
        }
    }
    let number = u32::try_from(number).ok()?;
    Some((number as usize, at))
}

/// Checks that entries behind the first fence (without the prefix) are valid, complete and in
/// order, and returns the places of restarts.
fn check(first: &[u8], leaf_count: u32, bytes: &[u8]) -> Result<Box<[u32]>, StringModelError> {
    let wrong = |leaf: u32, what| StringModelError::FrontCoded { leaf, what };
    if u32::try_from(bytes.len()).is_err() {
        return Err(wrong(leaf_count, "has too many bytes before it"));
    }
    let (mut before, mut restarts, mut at) = (first.to_vec(), Vec::new(), 0);
    for leaf in 1..leaf_count {
        let is_restart = (leaf as usize - 1).is_multiple_of(RESTART_INTERVAL);
        let sizes = read_long_sizes(bytes, at);
        let sizes = sizes.ok_or_else(|| wrong(leaf, "is truncated"))?;
        let suffix = bytes.get(sizes.suffix());
        let suffix = suffix.ok_or_else(|| wrong(leaf, "is truncated"))?;
        if is_restart {
            if sizes.cut != 0 {
                return Err(wrong(leaf, "cuts bytes at a restart point"));
            }
            if *suffix <= *before {
                return Err(wrong(leaf, "is not greater than the previous fence"));
            }
            before.clear();
            restarts.push(at as u32);
        } else {
            let shared = before.len().checked_sub(sizes.cut);
            let shared = shared.ok_or_else(|| wrong(leaf, "cuts more bytes than there are"))?;
            if suffix.is_empty() || before.get(shared) >= suffix.first() {
                return Err(wrong(leaf, "is not greater than the previous fence"));
            }
            before.truncate(shared);
        }
        before.extend_from_slice(suffix);
        at = sizes.suffix().end;
    }
    if at != bytes.len() {
        return Err(wrong(leaf_count, "exceeds the number of leaves"));
    }
    Ok(restarts.into())
}

/// Encoder of entries.
#[derive(Debug, Default)]
struct Encoder {
    bytes: Vec<u8>,
    restarts: Vec<u32>,
    entry_count: usize,
}

impl Encoder {
    fn push(&mut self, before: &[u8], fence: &[u8]) {
        let (mut cut, mut shared) = (0, 0);
        if self.entry_count.is_multiple_of(RESTART_INTERVAL) {
            let at = u32::try_from(self.bytes.len()).expect("fences are shorter in all");
            self.restarts.push(at);
        } else {
            shared = shared_size(before, fence);
            cut = before.len() - shared;
        }
        let suffix = &fence[shared..];
        let [high, low] = [cut, suffix.len()].map(|number| number.min(NIBBLE_MAX as usize) as u8);
        self.bytes.push(high << 4 | low);
        self.push_rest(cut);
        self.push_rest(suffix.len());
        self.bytes.extend_from_slice(suffix);
        self.entry_count += 1;
    }

    /// Writes the part of a number that exceeds four bits.
    fn push_rest(&mut self, number: usize) {
        let Some(mut rest) = number.checked_sub(NIBBLE_MAX as usize) else {
            return;
        };
        while rest >= 0x80 {
            self.bytes.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        self.bytes.push(rest as u8);
    }
}
