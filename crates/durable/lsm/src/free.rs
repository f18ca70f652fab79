//! Free segments of a device.

use std::collections::{BTreeMap, BTreeSet};

use crate::place::SegmentId;

/// Free segments of a device, stored as ranges. Memory use follows the number of gaps between used
/// segments, however large those gaps are in a manifest.
#[derive(Debug)]
pub struct FreeSegments {
    /// Ranges of free segments: first segment, and the one after the last. No two ranges touch, and
    /// none reaches `next`.
    ranges: BTreeMap<u32, u32>,
    /// This segment and all later ones are free, too.
    next: u32,
    /// Number of segments in use.
    used_count: u32,
}

impl FreeSegments {
    /// Creates the set of all segments except these, none of which is greater than
    /// [`SegmentId::MAX`].
    pub fn all_except(used: &BTreeSet<SegmentId>) -> Self {
        let mut ranges = BTreeMap::new();
        let mut next = 0;
        for segment in used {
            assert!(*segment <= SegmentId::MAX, "who knows them has looked");
            if next < segment.0 {
                ranges.insert(next, segment.0);
            }
            next = segment.0 + 1;
        }
        Self {
            ranges,
            next,
            used_count: used.len() as u32,
        }
    }

    /// Returns the number of segments in use.
    pub const fn used_count(&self) -> u32 {
        self.used_count
    }

    /// Takes the first free segment. It may exceed [`SegmentId::MAX`]; no manifest can name it
    /// then.
    pub fn take(&mut self) -> SegmentId {
        self.used_count += 1;
        if let Some((first, end)) = self.ranges.pop_first() {
            if first + 1 < end {
                self.ranges.insert(first + 1, end);
            }
            return SegmentId(first);
        }
        let segment = SegmentId(self.next);
        self.next = self.next.checked_add(1).expect("4 PiB were used up before");
        segment
    }

    /// Returns true if the segment is free.
    pub fn has(&self, segment: SegmentId) -> bool {
        let before = self.ranges.range(..=segment.0).next_back();
        segment.0 >= self.next || before.is_some_and(|(_, end)| segment.0 < *end)
    }

    /// Returns a segment to the free ones; returns false if it was already free.
    #[must_use]
    pub fn give_back(&mut self, segment: SegmentId) -> bool {
        if self.has(segment) {
            return false;
        }
        let number = segment.0;
        let before = self.ranges.range(..=number).next_back();
        let before = before.map(|(first, end)| (*first, *end));
        self.used_count -= 1;
        let first = match before {
            Some((first, end)) if end == number => first,
            _ => number,
        };
        let behind = number + 1;
        if behind == self.next {
            self.ranges.remove(&first);
            self.next = first;
            return true;
        }
        let end = self.ranges.remove(&behind).unwrap_or(behind);
        self.ranges.insert(first, end);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::random_numbers;

    /// Promise: segments are assigned from the first one on, each to one user, and are free again
    /// when they are returned; adjacent ranges are joined.
    #[test]
    fn segments_are_one_users() {
        let mut used: BTreeSet<SegmentId> = [1, 2, 9].map(SegmentId).into();
        let mut free = FreeSegments::all_except(&used);
        for number in random_numbers(5).take(20_000) {
            let is_free = |it: &SegmentId| !used.contains(it);
            if number % 2 == 0 && used.len() < 40 {
                let first = (0..50).map(SegmentId).find(is_free);
                let taken = free.take();
                assert_eq!(Some(taken), first);
                used.insert(taken);
            } else {
                let segment = SegmentId((number >> 8) as u32 % 50);
                assert_eq!(free.give_back(segment), used.remove(&segment));
            }
            assert_eq!(free.used_count() as usize, used.len());
            let gaps = FreeSegments::all_except(&used);
            assert_eq!((&free.ranges, free.next), (&gaps.ranges, gaps.next));
        }
    }

    /// Promise: the cost of used segments does not depend on the distance between them.
    #[test]
    fn a_gap_costs_nothing() {
        let used = [SegmentId(5), SegmentId::MAX].into();
        let mut free = FreeSegments::all_except(&used);
        assert_eq!(free.ranges.len(), 2);
        let taken: Vec<u32> = (0..7).map(|_| free.take().0).collect();
        assert_eq!(taken, [0, 1, 2, 3, 4, 6, 7]);
    }
}
