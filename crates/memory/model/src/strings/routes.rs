//! From a key to the segment that predicts it.

use core::cmp::Ordering;

use crate::strings::alphabet::head;
use crate::strings::error::StringModelError;
use crate::strings::line_builder::shared_size;
use crate::upper::UpperModels;

/// Finds the last of many first fences that is not above a key. Immutable.
///
/// What all fences but the first have in common is kept once: the first one often is the empty
/// string, before everything, and need not be compared, as what is below the second belongs to it
/// anyhow. Of what is left, the first eight bytes are a number, its *head*; where there are many,
/// [`UpperModels`] search these; only among equal heads whole strings are compared.
#[derive(Debug)]
pub struct StringRoutes {
    /// Common to all first fences but the first.
    prefix: Box<[u8]>,
    /// The first one whole, the others without the prefix, one after the other.
    suffixes: Box<[u8]>,
    /// Where each one ends.
    ends: Box<[u32]>,
    /// The distinct heads of all but the first; absent if there is but one fence.
    heads: Option<Heads>,
    /// For each distinct head, how many fences, the first one not counted, are before those that
    /// have it. Empty if no two have the same.
    starts: Box<[u32]>,
}

/// So many distinct heads are searched without models, which take 2 KiB whatever they are over: a
/// part of a directory seldom has more. For 64, halving takes twice as many instructions.
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

    /// The index of the last one that is not above `head`, or 0; and that one.
    #[inline]
    fn find(&self, head: u64) -> (usize, u64) {
        match self {
            Self::Few(heads) => {
                // Not by halves: counting so few takes no branch that depends on them.
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
    /// Builds the search over first fences, which must be strictly ascending. Cost: linear in their
    /// bytes.
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

    /// The index of the last first fence that is not above `key`; 0 if none is. Always exact, and
    /// without allocation.
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

    /// How many fences there are.
    pub fn count(&self) -> usize {
        self.ends.len()
    }

    /// How the first `prefix_size` bytes of `key`, or all of fewer, compare with those of a fence.
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

    /// All memory held, in bytes: this value itself, and what it owns.
    pub fn size_bytes(&self) -> usize {
        let heads = self.heads.as_ref().map_or(0, Heads::heap_size_bytes);
        size_of::<Self>()
            + self.prefix.len()
            + self.suffixes.len()
            + size_of_val(&*self.ends)
            + size_of_val(&*self.starts)
            + heads
    }

    /// How many fences, but for the first, have smaller heads than the distinct one with this
    /// index.
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
