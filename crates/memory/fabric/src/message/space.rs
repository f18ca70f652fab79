//! Segments of a ring that are in use, as known to the caller, which assigns them.

use std::collections::VecDeque;

/// The segments of a ring, assigned in circular order and released in the same order.
#[derive(Debug)]
pub struct RingSpace {
    segment_count: u32,
    /// Next segment to assign.
    next: u32,
    in_use_count: u32,
    taken: VecDeque<AssignedRange>,
    /// Number of the first of `taken`.
    first_number: u64,
}

#[derive(Clone, Copy, Debug)]
struct AssignedRange {
    /// Number of segments, including those skipped before them.
    segment_count: u32,
    is_released: bool,
}

/// Assigned segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "it must be given back"]
pub struct RingRange {
    number: u64,
    /// First segment.
    pub first: u32,
    /// Number of segments.
    pub segment_count: u32,
    /// Segment of the reset, if the end of the ring was skipped.
    pub reset_at: Option<u32>,
}

impl RingSpace {
    /// Returns a ring of `segment_count` free segments.
    pub fn new(segment_count: u32) -> Self {
        Self {
            segment_count,
            next: 0,
            in_use_count: 0,
            taken: VecDeque::new(),
            first_number: 0,
        }
    }

    /// Assigns `segment_count` adjacent segments; returns `None` if they are not free now.
    ///
    /// # Panics
    /// `segment_count` is 0, or more than half of the ring: so many might never be free side by
    /// side.
    pub fn take(&mut self, segment_count: u32) -> Option<RingRange> {
        assert!(segment_count > 0 && segment_count <= self.place_size_max());
        if !self.has(segment_count) {
            return None;
        }
        let skipped = self.skipped(segment_count);
        let first = if skipped > 0 { 0 } else { self.next };
        let needed = skipped + segment_count;
        let place = RingRange {
            number: self.first_number + self.taken.len() as u64,
            first,
            segment_count,
            reset_at: (skipped > 0).then_some(self.next),
        };
        self.taken.push_back(AssignedRange {
            segment_count: needed,
            is_released: false,
        });
        self.in_use_count += needed;
        self.next = (first + segment_count) % self.segment_count;
        Some(place)
    }

    /// Returns true if `segment_count` adjacent segments are free now.
    pub fn has(&self, segment_count: u32) -> bool {
        let needed = self.skipped(segment_count) + segment_count;
        needed <= self.segment_count - self.in_use_count
    }

    /// Returns the number of segments at the end of the ring that are too few for `segment_count`.
    fn skipped(&self, segment_count: u32) -> u32 {
        let to_end = self.segment_count - self.next;
        if segment_count <= to_end { 0 } else { to_end }
    }

    /// Returns the largest number of segments that can be assigned at once while none is in use.
    /// Wherever the next segment is, that many are behind or in front of it.
    pub fn place_size_max(&self) -> u32 {
        self.segment_count.div_ceil(2)
    }

    /// Releases assigned segments, which no side writes to or reads any more.
    ///
    /// # Panics
    /// The segments were released before.
    pub fn release(&mut self, place: RingRange) {
        let index = place.number.checked_sub(self.first_number);
        let taken = index.and_then(|index| self.taken.get_mut(index as usize));
        let taken = taken.expect("it is in use");
        assert!(!taken.is_released, "it is in use");
        taken.is_released = true;
        while let Some(first) = self.taken.front().filter(|first| first.is_released) {
            self.in_use_count -= first.segment_count;
            self.taken.pop_front();
            self.first_number += 1;
        }
    }

    /// Returns true if no segment is in use.
    pub fn is_free(&self) -> bool {
        self.taken.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Promise: a message that does not fit before the end goes to the beginning; the skipped
    /// segments are released with it.
    #[test]
    fn the_end_is_skipped() {
        let mut space = RingSpace::new(10);
        let one = space.take(4).expect("free");
        let two = space.take(4).expect("free");
        assert_eq!((one.first, two.first, two.reset_at), (0, 4, None));
        assert!(space.take(4).is_none(), "two are left");
        space.release(two);
        assert!(space.take(4).is_none(), "the first one holds it up");
        space.release(one);
        let three = space.take(4).expect("free");
        assert_eq!((three.first, three.reset_at), (0, Some(8)));
        let four = space.take(2).expect("free");
        space.release(four);
        space.release(three);
        assert!(space.is_free());
        let five = space.take(4).expect("free");
        assert_eq!((five.first, five.reset_at), (6, None));
        space.release(five);
        assert_eq!(space.take(1).map(|place| place.first), Some(0));
    }

    proptest! {
        /// Promise: no segment is assigned twice, and each place is inside the ring. After any
        /// order of releases, the maximum is available again.
        #[test]
        fn nothing_is_handed_out_twice(
            segment_count in 1_u32..40,
            steps in proptest::collection::vec((any::<bool>(), 1_u32..20, any::<usize>()), 0..200),
        ) {
            let mut space = RingSpace::new(segment_count);
            let mut held: Vec<RingRange> = Vec::new();
            for (takes, count, which) in steps {
                if takes {
                    let count = count.min(space.place_size_max());
                    if let Some(place) = space.take(count) {
                        prop_assert!(place.first + count <= segment_count);
                        for other in &held {
                            let is_left = place.first + count <= other.first;
                            let is_right = other.first + other.segment_count <= place.first;
                            prop_assert!(is_left || is_right, "{place:?} and {other:?}");
                        }
                        held.push(place);
                    }
                } else if !held.is_empty() {
                    space.release(held.swap_remove(which % held.len()));
                }
            }
            for place in held {
                space.release(place);
            }
            prop_assert!(space.is_free());
            prop_assert!(space.take(space.place_size_max()).is_some());
        }
    }
}
