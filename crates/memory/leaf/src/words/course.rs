//! Checks an operation's path from leaf to leaf, so that it ends even in a corrupted table.
//!
//! In a correct table these hold, whatever happens concurrently:
//!
//! - A lower fence never changes, and a link leads to the leaf that begins where this one ends. So
//!   each link to the right leads to a leaf with a higher lower fence. That leaf does not begin
//!   above the key, because the key is above the upper fence.
//! - A retired leaf names the one that took over its low end, which begins no further right.
//! - Hence, after a leaf that begins at or below the key, no leaf on this path begins above it:
//!   only a hint can be too far right. The next hint is then a trained leaf further left, finally
//!   the first one, which begins at 0.
//! - A retired leaf names a newer leaf, which may itself be retired by now.
//!
//! Hence the number of leaves bounds a path of links to the right. The trained leaves left of the
//! first hint bound the hops to the left, and the number of retirements those from retired leaves.

use crate::words::recovery::RETIRED_HOP_COUNT_MAX;
use crate::words::{Contradiction, LeafCheck};

/// State of the path so far; `L` is a lower fence.
#[derive(Debug)]
pub struct SearchPath<L = u64> {
    /// Lower fence of the leaf that the last link to the right came from. `None` if there was none
    /// yet, if it is unknown, or if a retired leaf came after it.
    low: Option<L>,
    /// Whether the path met a leaf whose range lies below the key.
    went_right: bool,
    /// Number of links to the right followed so far.
    pub link_count: u32,
    /// Number of hops to the left that remain; `None` before the first one.
    left_hop_count: Option<u32>,
    /// Number of retired leaves since the last hop to the left.
    retired_hop_count: u32,
}

impl<L> Default for SearchPath<L> {
    fn default() -> Self {
        Self {
            low: None,
            went_right: false,
            link_count: 0,
            left_hop_count: None,
            retired_hop_count: 0,
        }
    }
}

impl<L> SearchPath<L> {
    /// Returns whether the path met a leaf whose range lies below the key.
    pub const fn has_gone_right(&self) -> bool {
        self.went_right
    }
}

impl<L: Ord> SearchPath<L> {
    /// Continues from a leaf that does not cover the key, according to `look` (neither
    /// [`LeafCheck::Here`] nor [`LeafCheck::Torn`]). `low` is the leaf's lower fence, if known;
    /// `parent` is the number of the trained leaf that led there.
    ///
    /// # Errors
    /// The leaves contradict each other.
    pub fn leave(
        &mut self,
        parent: u32,
        low: Option<L>,
        look: LeafCheck,
    ) -> Result<(), Contradiction> {
        match look {
            LeafCheck::Right(_) => {
                if let (Some(before), Some(low)) = (&self.low, &low)
                    && low <= before
                {
                    return Err(Contradiction::LinkToTheLeft);
                }
                self.low = low;
                self.went_right = true;
                self.link_count += 1;
            }
            LeafCheck::Retired(_) => {
                self.low = None;
                self.retired_hop_count += 1;
                if self.retired_hop_count > RETIRED_HOP_COUNT_MAX {
                    return Err(Contradiction::RetiredInCycle);
                }
            }
            LeafCheck::Left | LeafCheck::Here | LeafCheck::Torn => {
                if self.went_right {
                    return Err(Contradiction::KeyPassed);
                }
                // From the first trained leaf's synonyms, one more hop leads to that leaf itself.
                let left = self.left_hop_count.unwrap_or(parent.saturating_add(1));
                let Some(left) = left.checked_sub(1) else {
                    return Err(Contradiction::NothingFurtherLeft);
                };
                self.left_hop_count = Some(left);
                self.retired_hop_count = 0;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_base::RemoteAddr;

    const LINK: RemoteAddr = RemoteAddr::NULL;

    #[test]
    fn links_to_the_right_must_lead_to_higher_fences() {
        let mut course = SearchPath::<u64>::default();
        for low in [None, Some(0), Some(1), Some(7)] {
            assert_eq!(course.leave(0, low, LeafCheck::Right(LINK)), Ok(()));
        }
        for low in [7, 3] {
            let left = course.leave(0, Some(low), LeafCheck::Right(LINK));
            assert_eq!(left, Err(Contradiction::LinkToTheLeft));
        }
    }

    #[test]
    fn a_successor_of_a_retired_leaf_may_begin_further_left() {
        let mut course = SearchPath::<u64>::default();
        assert_eq!(course.leave(0, Some(50), LeafCheck::Right(LINK)), Ok(()));
        assert_eq!(course.leave(0, Some(60), LeafCheck::Retired(LINK)), Ok(()));
        assert_eq!(course.leave(0, Some(40), LeafCheck::Right(LINK)), Ok(()));
    }

    #[test]
    fn there_is_no_way_back_once_a_leaf_began_before_the_key() {
        let mut course = SearchPath::<u64>::default();
        assert_eq!(course.leave(9, Some(90), LeafCheck::Left), Ok(()));
        assert_eq!(course.leave(8, Some(10), LeafCheck::Right(LINK)), Ok(()));
        let back = course.leave(8, Some(90), LeafCheck::Left);
        assert_eq!(back, Err(Contradiction::KeyPassed));
    }

    #[test]
    fn hops_to_the_left_end_at_the_first_trained_leaf() {
        for parent in [0, 3] {
            let mut course = SearchPath::<u64>::default();
            for hop in 0..=parent {
                let left = course.leave(parent - hop, None, LeafCheck::Left);
                assert_eq!(left, Ok(()), "{hop} hops from trained leaf {parent}");
            }
            let left = course.leave(0, None, LeafCheck::Left);
            assert_eq!(left, Err(Contradiction::NothingFurtherLeft));
        }
    }

    #[test]
    fn retired_leaves_are_followed_as_far_as_there_can_be_loads() {
        let mut course = SearchPath::<u64>::default();
        for _ in 0..RETIRED_HOP_COUNT_MAX {
            assert_eq!(course.leave(0, None, LeafCheck::Retired(LINK)), Ok(()));
        }
        let next = course.leave(0, None, LeafCheck::Retired(LINK));
        assert_eq!(next, Err(Contradiction::RetiredInCycle));
    }
}
