//! Which segments of a ring are in use, as the one knows who hands them out (E3).

use std::collections::VecDeque;

/// The segments of a ring, handed out in a circle and given back in the same order.
#[derive(Debug)]
pub struct Space {
    segment_count: u32,
    /// The next segment to hand out.
    next: u32,
    in_use_count: u32,
    taken: VecDeque<Taken>,
    /// The number of the first of `taken`.
    first_number: u64,
}

#[derive(Clone, Copy, Debug)]
struct Taken {
    /// Segments, those that were skipped before it among them.
    segment_count: u32,
    is_given_back: bool,
}

/// Segments that were handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "it must be given back"]
pub struct Place {
    number: u64,
    /// The first segment.
    pub first: u32,
    /// How many there are.
    pub segment_count: u32,
    /// E4: the segment from which the end of the ring was skipped.
    pub reset_at: Option<u32>,
}

impl Space {
    /// A ring of so many segments, none of which is in use.
    pub fn new(segment_count: u32) -> Self {
        Self {
            segment_count,
            next: 0,
            in_use_count: 0,
            taken: VecDeque::new(),
            first_number: 0,
        }
    }

    /// So many segments side by side; `None`: they are not free now.
    ///
    /// # Panics
    /// There are none, or more than half of the ring, which might never be free side by side.
    pub fn take(&mut self, segment_count: u32) -> Option<Place> {
        assert!(segment_count > 0 && segment_count <= self.place_size_max());
        if !self.has(segment_count) {
            return None;
        }
        let skipped = self.skipped(segment_count);
        let first = if skipped > 0 { 0 } else { self.next };
        let needed = skipped + segment_count;
        let place = Place {
            number: self.first_number + self.taken.len() as u64,
            first,
            segment_count,
            reset_at: (skipped > 0).then_some(self.next),
        };
        self.taken.push_back(Taken {
            segment_count: needed,
            is_given_back: false,
        });
        self.in_use_count += needed;
        self.next = (first + segment_count) % self.segment_count;
        Some(place)
    }

    /// Whether so many segments are free now, side by side.
    pub fn has(&self, segment_count: u32) -> bool {
        let needed = self.skipped(segment_count) + segment_count;
        needed <= self.segment_count - self.in_use_count
    }

    /// Segments at the end that are too few for so many.
    fn skipped(&self, segment_count: u32) -> u32 {
        let to_end = self.segment_count - self.next;
        if segment_count <= to_end { 0 } else { to_end }
    }

    /// The most that can be handed out at once, when nothing is in use: wherever the next segment
    /// is, there is so much before the end or in front of it.
    pub fn place_size_max(&self) -> u32 {
        self.segment_count.div_ceil(2)
    }

    /// Nobody writes there any more, and nobody needs what is there.
    ///
    /// # Panics
    /// It was given back before.
    pub fn give_back(&mut self, place: Place) {
        let index = place.number.checked_sub(self.first_number);
        let taken = index.and_then(|index| self.taken.get_mut(index as usize));
        let taken = taken.expect("it is in use");
        assert!(!taken.is_given_back, "it is in use");
        taken.is_given_back = true;
        while let Some(first) = self.taken.front().filter(|first| first.is_given_back) {
            self.in_use_count -= first.segment_count;
            self.taken.pop_front();
            self.first_number += 1;
        }
    }

    /// Whether nothing is in use.
    pub fn is_free(&self) -> bool {
        self.taken.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What does not fit before the end goes to the beginning, and what was skipped is free again
    /// with it.
    #[test]
    fn the_end_is_skipped() {
        let mut space = Space::new(10);
        let one = space.take(4).expect("free");
        let two = space.take(4).expect("free");
        assert_eq!((one.first, two.first, two.reset_at), (0, 4, None));
        assert!(space.take(4).is_none(), "two are left");
        space.give_back(two);
        assert!(space.take(4).is_none(), "the first one holds it up");
        space.give_back(one);
        let three = space.take(4).expect("free");
        assert_eq!((three.first, three.reset_at), (0, Some(8)));
        let four = space.take(2).expect("free");
        space.give_back(four);
        space.give_back(three);
        assert!(space.is_free());
        let five = space.take(4).expect("free");
        assert_eq!((five.first, five.reset_at), (6, None));
        space.give_back(five);
        assert_eq!(space.take(1).map(|place| place.first), Some(0));
    }

    proptest! {
        /// Promise: no segment is handed out twice, each place is inside, and whatever is given
        /// back, in any order, the most that may be asked for is there in the end.
        #[test]
        fn nothing_is_handed_out_twice(
            segment_count in 1_u32..40,
            steps in proptest::collection::vec((any::<bool>(), 1_u32..20, any::<usize>()), 0..200),
        ) {
            let mut space = Space::new(segment_count);
            let mut held: Vec<Place> = Vec::new();
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
                    space.give_back(held.swap_remove(which % held.len()));
                }
            }
            for place in held {
                space.give_back(place);
            }
            prop_assert!(space.is_free());
            prop_assert!(space.take(space.place_size_max()).is_some());
        }
    }
}
