//! Fences themselves, each without what it shares with the one before.
//!
//! # The bytes
//!
//! A segment of n leaves has n - 1 *entries*, those of its leaves from the second on; what is below
//! all of these belongs to the first leaf. Of each fence there is what follows the prefix that all
//! fences of the segment have. An entry is a *sizes byte* and then the *suffix*: what is behind the
//! bytes that it shares with the entry before. The low four bits of the sizes byte are the size of
//! the suffix, the high four how many bytes at the end of the entry before are cut off. 15 stands
//! for 15 and more: how much more follows in seven bits a byte, low ones first, the top bit of all
//! but the last one set; of two such numbers the cut comes first.
//!
//! Every 16th entry, the first one among them, is a *restart*: it shares nothing, its cut is 0.
//! Where these begin is not stored but found when entries are read.
//!
//! # Why a lookup decodes no string
//!
//! Binary search over the restarts, which are whole; then on from the last that is not above the
//! key. Let the entry before not be above the key, and share `matched` bytes with it; the next one
//! shares `shared` bytes with the entry before, and then has a greater byte, or goes on. If
//! `shared < matched`, the key has the lesser byte there: the next one is above it. If `shared >
//! matched`, the key's greater byte at `matched` stands against both: the next one is not above it,
//! and shares as much. Only if both are equal the suffix is compared with the key. This needs that
//! what is shared is shared to the last byte, so [`FrontCodedSegment::from_parts`] asks for it.

use core::ops::Range;

use crate::strings::error::StringModelError;
use crate::strings::line_builder::shared_size;

/// Entries from one restart to the next. Larger ones save bytes of restarts, and lookups take
/// longer.
pub(super) const RESTART_INTERVAL: usize = 16;
/// What four bits hold, and that there is more.
const NIBBLE_MAX: u32 = 15;
/// The most bytes of a number behind the sizes byte.
const VARINT_SIZE_MAX: u32 = 5;

/// What a front-coded segment consists of: what has to be stored of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontCodedSegmentParts {
    /// Lower fence of the first leaf.
    pub first_fence: Vec<u8>,
    /// How many of its first bytes are a prefix of all fences of the segment.
    pub prefix_size: u16,
    /// Number of leaves; at least 1.
    pub leaf_count: u32,
    /// The fences of all leaves but the first, as the module has it.
    pub entries: Box<[u8]>,
}

/// The lower fences of consecutive leaves, front-coded: from a key to the leaf that it is in,
/// always.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontCodedSegment {
    first_fence: Vec<u8>,
    prefix_size: u16,
    leaf_count: u32,
    pub(super) fences: FrontCodedFences,
}

impl FrontCodedSegment {
    /// The segment of leaves with these fences: at least one, strictly ascending, of less than 2^32
    /// bytes in all (asserted). Cost: linear in their bytes.
    pub fn encode<'a>(fences: impl IntoIterator<Item = &'a [u8], IntoIter: Clone>) -> Self {
        let mut fences = fences.into_iter();
        let others = fences.clone().skip(1);
        let first = fences.next().expect("a segment has a leaf");
        // Fences ascend, so what the first and the last one share, all do.
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

    /// A segment of parts that were stored. Cost: linear in their bytes; a fence at a time is
    /// decoded.
    ///
    /// # Errors
    /// What cannot be right: entries that are cut off, too many or not above the one before, cuts
    /// of more than there is, what is shared and not cut.
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

    /// Lower fence of the first leaf.
    pub fn first_fence(&self) -> &[u8] {
        &self.first_fence
    }

    /// How many of its first bytes are a prefix of all fences.
    pub fn prefix_size(&self) -> u16 {
        self.prefix_size
    }

    /// Number of leaves.
    pub fn leaf_count(&self) -> u32 {
        self.leaf_count
    }

    /// The fences of all leaves but the first, as they are stored.
    pub fn entries(&self) -> &[u8] {
        &self.fences.bytes
    }

    /// The leaf that a key is in, whether it is there or not: the last one whose fence is not above
    /// it; 0 if it is below all.
    pub fn find(&self, key: &[u8]) -> u32 {
        let prefix = &self.first_fence[..usize::from(self.prefix_size)];
        match key.strip_prefix(prefix) {
            Some(suffix) => self.fences.find(suffix),
            None if *key < *prefix => 0,
            None => self.leaf_count - 1,
        }
    }
}

/// Bytes that an entry takes, given the fence before it; what restarts take apart.
pub(super) fn entry_size(before: &[u8], fence: &[u8]) -> usize {
    let shared = shared_size(before, fence);
    let (cut, size) = (before.len() - shared, fence.len() - shared);
    1 + varint_size(cut) + varint_size(size) + size
}

fn varint_size(number: usize) -> usize {
    let more = number.checked_sub(NIBBLE_MAX as usize);
    more.map_or(0, |more| (more.max(1).ilog2() / 7 + 1) as usize)
}

/// Entries, and where restarts are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FrontCodedFences {
    bytes: Box<[u8]>,
    restarts: Box<[u32]>,
}

impl FrontCodedFences {
    /// How many entries are not above a key, of which `key` is what follows the prefix.
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

    /// Bytes held beside the value itself.
    pub(super) fn heap_size_bytes(&self) -> usize {
        self.bytes.len() + size_of_val(&*self.restarts)
    }
}

/// What an entry says before its suffix.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    cut: usize,
    size: usize,
    /// Where the suffix begins.
    start: usize,
}

impl Sizes {
    #[inline]
    fn suffix(&self) -> Range<usize> {
        self.start..self.start + self.size
    }
}

/// Reads what was checked, or written here.
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

/// The same of any bytes; `None` if they end too early, or a number is too large. The suffix may
/// still reach beyond the end.
fn read_long_sizes(bytes: &[u8], at: usize) -> Option<Sizes> {
    let byte = u32::from(*bytes.get(at)?);
    let (cut, start) = read_number(bytes, at + 1, byte >> 4)?;
    let (size, start) = read_number(bytes, start, byte & 15)?;
    Some(Sizes { cut, size, start })
}

/// A number that begins with four bits, and where it ends.
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

/// Where the restarts of entries are, which are all right, in number and in order, behind what the
/// first fence has behind the prefix.
fn check(first: &[u8], leaf_count: u32, bytes: &[u8]) -> Result<Box<[u32]>, StringModelError> {
    let wrong = |leaf: u32, what| StringModelError::FrontCoded { leaf, what };
    if u32::try_from(bytes.len()).is_err() {
        return Err(wrong(leaf_count, "has too many bytes before it"));
    }
    let (mut before, mut restarts, mut at) = (first.to_vec(), Vec::new(), 0);
    for leaf in 1..leaf_count {
        let is_restart = (leaf as usize - 1).is_multiple_of(RESTART_INTERVAL);
        let sizes = read_long_sizes(bytes, at);
        let sizes = sizes.ok_or_else(|| wrong(leaf, "is cut off"))?;
        let suffix = bytes.get(sizes.suffix());
        let suffix = suffix.ok_or_else(|| wrong(leaf, "is cut off"))?;
        if is_restart {
            if sizes.cut != 0 {
                return Err(wrong(leaf, "shares bytes where reading begins"));
            }
            if *suffix <= *before {
                return Err(wrong(leaf, "is not above the one before it"));
            }
            before.clear();
            restarts.push(at as u32);
        } else {
            let shared = before.len().checked_sub(sizes.cut);
            let shared = shared.ok_or_else(|| wrong(leaf, "shares less than nothing"))?;
            if suffix.is_empty() || before.get(shared) >= suffix.first() {
                return Err(wrong(leaf, "is not above the one before it"));
            }
            before.truncate(shared);
        }
        before.extend_from_slice(suffix);
        at = sizes.suffix().end;
    }
    if at != bytes.len() {
        return Err(wrong(leaf_count, "is more than there are leaves"));
    }
    Ok(restarts.into())
}

/// Writes entries.
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

    /// What four bits do not hold of a number.
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
