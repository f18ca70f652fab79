//! Routes from a key to the segment that predicts it.

use core::cmp::Ordering;

use crate::strings::alphabet::head;
use crate::strings::error::StringModelError;
use crate::strings::line_builder::shared_size;
use crate::upper::UpperModels;

/// Finds the last of many first fences that is not above a key. Immutable.
///
/// The common prefix of all fences but the first is stored once. The first fence often is the empty
/// string, before everything; it need not be compared, because keys below the second belong to it.
/// The first eight bytes of each rest are a number, its *head*. [`UpperModels`] search the heads if
/// there are many. Only among equal heads, whole strings are compared.
#[derive(Debug)]
pub struct StringRoutes {
    /// Common prefix of all first fences but the first.
    prefix: Box<[u8]>,
    /// Whole first one, and the others without the prefix, concatenated.
    suffixes: Box<[u8]>,
    /// End of each fence in `suffixes`.
    ends: Box<[u32]>,
    /// Distinct heads of all but the first; absent if there is only one fence.
    heads: Option<Heads>,
    /// For each distinct head, the number of fences before those that have it, without the first
    /// one. Empty if all heads are distinct.
    starts: Box<[u32]>,
}

/// Largest number of distinct heads that is searched without models, which take 2 KiB for any
/// number. A part of a directory seldom has more. For 64 heads, a binary search takes twice as many
/// instructions.
const FEW_COUNT_MAX: usize = 16;

/// Distinct heads, ascending, at least one.
#[derive(Debug)]
enum Heads {
    Few(Box<[u64]>),
    Many(UpperModels),
}

impl Heads {
    fn of(heads: Vec<u64>) -> Self {
        if heads.len() <= FEW_COUNT_MAX {
            Self::Few(heads.into())
        } else {
            Self::Many(UpperModels::build(heads))
        }
    }

    /// Returns the last head that is not above `head`, or the first, and its index.
    #[inline]
    fn find(&self, head: u64) -> (usize, u64) {
        match self {
            Self::Few(heads) => {
                // A count of few heads has no branch that depends on them, unlike a binary search.
                let count: usize = heads.iter().map(|it| usize::from(*it <= head)).sum();
                let index = count.saturating_sub(1);
                (index, heads[index])
            }
            Self::Many(upper) => {
                let index = upper.find(head);
                (index, upper.first_keys()[index])
            }
        }
    }

    fn heap_size_bytes(&self) -> usize {
        match self {
            Self::Few(heads) => size_of_val(&**heads),
            Self::Many(upper) => upper.size_bytes() - size_of::<UpperModels>(),
        }
    }
}

impl StringRoutes {
    /// Builds the search over first fences. Cost: linear in their bytes.
    ///
    /// # Errors
    ///
    /// [`StringModelError`], if there are none, or they are not strictly ascending.
    pub fn build(first_fences: &[&[u8]]) -> Result<Self, StringModelError> {
        let (first, others) = first_fences
            .split_first()
            .ok_or(StringModelError::NoSegment)?;
        if let Some(index) = first_fences.windows(2).position(|pair| pair[0] >= pair[1]) {
            return Err(StringModelError::Order { segment: index + 1 });
        }
        let prefix_size = match others {
            [] => 0,
            [least, .., greatest] => shared_size(least, greatest),
            [only] => only.len(),
        };
        let mut suffixes = first.to_vec();
        let mut ends = vec![end(&suffixes)?];
        let (mut heads, mut starts) = (Vec::new(), Vec::new());
        for (index, fence) in others.iter().enumerate() {
            let suffix = &fence[prefix_size..];
            suffixes.extend_from_slice(suffix);
            ends.push(end(&suffixes)?);
            let head = head(suffix);
            if heads.last() != Some(&head) {
                heads.push(head);
                starts.push(index as u32);
            }
        }
        if heads.len() == others.len() {
            starts.clear();
        }
        Ok(Self {
            prefix: others
                .first()
                .map_or(&[][..], |fence| &fence[..prefix_size])
                .into(),
            suffixes: suffixes.into(),
            ends: ends.into(),
            heads: (!heads.is_empty()).then(|| Heads::of(heads)),
            starts: starts.into(),
        })
    }

    /// Returns the index of the last first fence that is not above `key`; 0 if there is none.
    /// Always exact, and without allocation.
    #[inline]
    pub fn find(&self, key: &[u8]) -> usize {
        let Some(heads) = &self.heads else {
            return 0;
        };
        let Some(suffix) = key.strip_prefix(&*self.prefix) else {
            return if *key < *self.prefix {
                0
            } else {
                self.ends.len() - 1
            };
        };
        let head = head(suffix);
        let (distinct, found) = heads.find(head);
        match found.cmp(&head) {
            Ordering::Greater => 0,
            Ordering::Less => self.start(distinct + 1),
            Ordering::Equal => self.find_among_equals(distinct, suffix),
        }
    }

    /// Returns the number of fences.
    pub fn count(&self) -> usize {
        self.ends.len()
    }

    /// Compares the first `prefix_size` bytes of `key`, or all if fewer, with those of a fence.
    #[inline]
    pub(super) fn compare_prefix(&self, index: usize, prefix_size: usize, key: &[u8]) -> Ordering {
        let key = &key[..key.len().min(prefix_size)];
        if index == 0 {
            return key.cmp(&self.suffix(0)[..prefix_size]);
        }
        let shared_size = self.prefix.len().min(prefix_size);
        let own = &self.suffix(index)[..prefix_size - shared_size];
        match key.split_at_checked(shared_size) {
            None => key.cmp(&self.prefix[..shared_size]),
            Some((begin, rest)) => {
                let order = begin.cmp(&self.prefix[..shared_size]);
                order.then_with(|| rest.cmp(own))
            }
        }
    }

    /// Returns the size in bytes of all memory held: this value itself, and what it owns.
    pub fn size_bytes(&self) -> usize {
        let heads = self.heads.as_ref().map_or(0, Heads::heap_size_bytes);
        size_of::<Self>()
            + self.prefix.len()
            + self.suffixes.len()
            + size_of_val(&*self.ends)
            + size_of_val(&*self.starts)
            + heads
    }

    /// Returns the number of fences, without the first, whose heads are smaller than the distinct
    /// one with this index.
    #[inline]
    fn start(&self, distinct: usize) -> usize {
        if self.starts.is_empty() {
            return distinct;
        }
        self.starts
            .get(distinct)
            .map_or(self.ends.len() - 1, |start| *start as usize)
    }

    fn find_among_equals(&self, distinct: usize, suffix: &[u8]) -> usize {
        // The fence before the first of these is not above the key.
        let mut not_above = self.start(distinct);
        let mut above = self.start(distinct + 1) + 1;
        while above - not_above > 1 {
            let middle = not_above + (above - not_above) / 2;
            if self.suffix(middle) <= suffix {
                not_above = middle;
            } else {
                above = middle;
            }
        }
        not_above
    }

    #[inline]
    fn suffix(&self, index: usize) -> &[u8] {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.suffixes[start as usize..self.ends[index] as usize]
    }
}

fn end(suffixes: &[u8]) -> Result<u32, StringModelError> {
    u32::try_from(suffixes.len()).map_err(|_| StringModelError::TooMany {
        what: "bytes of first fences",
    })
}
