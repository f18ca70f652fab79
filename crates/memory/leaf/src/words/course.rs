//! Which way an operation has gone from leaf to leaf, so that it ends also in a damaged table.
//!
//! In a correct table these hold, whatever happens meanwhile:
//!
//! - A lower fence never changes, and a link leads to the leaf that begins where this one ends. So
//!   each link to the right leads to a leaf with a higher lower fence than the one it comes from,
//!   and to one that does not begin behind the key, as the key is beyond the upper fence.
//! - A retired leaf names the one that took over its low end, which begins no further right.
//! - Hence, once a leaf was met that begins before the key, none begins behind it on this way: only
//!   a hint can be too far right. The next hint then is of a trained leaf further left, at the last
//!   of the first one, which begins at 0.
//! - A retired leaf names one that was made later, and that may itself be retired by now.
//!
//! So a way of links to the right is bounded by the leaves there are, hops to the left by the
//! trained leaves left of the first hint, and hops from retired leaves by how often leaves are
//! retired.

use crate::recovery::RETIRED_HOP_COUNT_MAX;
use crate::{Contradiction, Look};

/// What has to be known of the way so far; `L` is a lower fence.
#[derive(Debug)]
pub struct Course<L = u64> {
    /// Lower fence of the leaf that the last link to the right came from; `None`: there was none
    /// yet, it is not known, or a retired leaf came after it.
    low: Option<L>,
    /// A leaf was met that begins before the key and ends before it.
    went_right: bool,
    /// How often.
    pub link_count: u32,
    /// Hops to the left that are left, once there was one.
    left_hop_count: Option<u32>,
    /// Retired leaves since the last hop to the left.
    retired_hop_count: u32,
}

impl<L> Default for Course<L> {
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

impl<L> Course<L> {
    /// Whether a leaf was met that begins before the key and ends before it.
    pub const fn has_gone_right(&self) -> bool {
        self.went_right
    }
}

impl<L: Ord> Course<L> {
    /// Goes on from a leaf that does not cover the key, as its look (neither [`Look::Here`] nor
    /// [`Look::Torn`]) says. `low` is its lower fence, if known; `parent` the number of the trained
    /// leaf that led there.
    ///
    /// # Errors
    /// The leaves contradict each other.
    pub fn leave(&mut self, parent: u32, low: Option<L>, look: Look) -> Result<(), Contradiction> {
        match look {
            Look::Right(_) => {
                if let (Some(before), Some(low)) = (&self.low, &low)
                    && low <= before
                {
                    return Err(Contradiction::LinkToTheLeft);
                }
                self.low = low;
                self.went_right = true;
                self.link_count += 1;
            }
            Look::Retired(_) => {
                self.low = None;
                self.retired_hop_count += 1;
                if self.retired_hop_count > RETIRED_HOP_COUNT_MAX {
                    return Err(Contradiction::RetiredInCircles);
                }
            }
            Look::Left | Look::Here | Look::Torn => {
                if self.went_right {
                    return Err(Contradiction::KeyPassed);
                }
                // From the first trained leaf's synonyms one more leads to that leaf itself.
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
    use farleaf_types::RemoteAddr;

    const LINK: RemoteAddr = RemoteAddr::NULL;

    #[test]
    fn links_to_the_right_must_lead_to_higher_fences() {
        let mut course = Course::<u64>::default();
        for low in [None, Some(0), Some(1), Some(7)] {
            assert_eq!(course.leave(0, low, Look::Right(LINK)), Ok(()));
        }
        for low in [7, 3] {
            let left = course.leave(0, Some(low), Look::Right(LINK));
            assert_eq!(left, Err(Contradiction::LinkToTheLeft));
        }
    }

    #[test]
    fn a_successor_of_a_retired_leaf_may_begin_further_left() {
        let mut course = Course::<u64>::default();
        assert_eq!(course.leave(0, Some(50), Look::Right(LINK)), Ok(()));
        assert_eq!(course.leave(0, Some(60), Look::Retired(LINK)), Ok(()));
        assert_eq!(course.leave(0, Some(40), Look::Right(LINK)), Ok(()));
    }

    #[test]
    fn there_is_no_way_back_once_a_leaf_began_before_the_key() {
        let mut course = Course::<u64>::default();
        assert_eq!(course.leave(9, Some(90), Look::Left), Ok(()));
        assert_eq!(course.leave(8, Some(10), Look::Right(LINK)), Ok(()));
        let back = course.leave(8, Some(90), Look::Left);
        assert_eq!(back, Err(Contradiction::KeyPassed));
    }

    #[test]
    fn hops_to_the_left_end_at_the_first_trained_leaf() {
        for parent in [0, 3] {
            let mut course = Course::<u64>::default();
            for hop in 0..=parent {
                let left = course.leave(parent - hop, None, Look::Left);
                assert_eq!(left, Ok(()), "{hop} hops from trained leaf {parent}");
            }
            let left = course.leave(0, None, Look::Left);
            assert_eq!(left, Err(Contradiction::NothingFurtherLeft));
        }
    }

    #[test]
    fn retired_leaves_are_followed_as_far_as_there_can_be_loads() {
        let mut course = Course::<u64>::default();
        for _ in 0..RETIRED_HOP_COUNT_MAX {
            assert_eq!(course.leave(0, None, Look::Retired(LINK)), Ok(()));
        }
        let next = course.leave(0, None, Look::Retired(LINK));
        assert_eq!(next, Err(Contradiction::RetiredInCircles));
    }
}
