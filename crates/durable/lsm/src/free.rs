//! Which segments of a device are free.

use std::collections::{BTreeMap, BTreeSet};

use crate::place::SegmentId;

/// The segments of a device that are free, as ranges: as many as there are gaps between those in
/// use, however far apart a manifest says that those are.
#[derive(Debug)]
pub struct FreeSegments {
    /// First segment of a range, and the one behind its last. No two of them touch, and none
    /// reaches `next`.
    ranges: BTreeMap<u32, u32>,
    /// This one and all behind it are free, too.
    next: u32,
    /// Segments in use.
    used_count: u32,
}

impl FreeSegments {
    /// All but these, none of which is behind [`SegmentId::MAX`].
    pub fn but(used: &BTreeSet<SegmentId>) -> Self {
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

    /// Segments in use.
    pub const fn used_count(&self) -> u32 {
        self.used_count
    }

    /// Takes the first one. It may be behind [`SegmentId::MAX`]: then no manifest can name it.
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

    /// Whether it is free.
    pub fn has(&self, segment: SegmentId) -> bool {
        let before = self.ranges.range(..=segment.0).next_back();
        segment.0 >= self.next || before.is_some_and(|(_, end)| segment.0 < *end)
    }

    /// Takes one back; false: it was free.
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

    /// Promise: segments are handed out from the first one on, each to one, and are free again when
    /// they are given back; ranges that touch are one.
    #[test]
    fn segments_are_one_users() {
        let mut used: BTreeSet<SegmentId> = [1, 2, 9].map(SegmentId).into();
        let mut free = FreeSegments::but(&used);
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
            let gaps = FreeSegments::but(&used);
            assert_eq!((&free.ranges, free.next), (&gaps.ranges, gaps.next));
        }
    }

    /// Promise: what segments in use that are far apart cost does not depend on how far.
    #[test]
    fn a_gap_costs_nothing() {
        let used = [SegmentId(5), SegmentId::MAX].into();
        let mut free = FreeSegments::but(&used);
        assert_eq!(free.ranges.len(), 2);
        let taken: Vec<u32> = (0..7).map(|_| free.take().0).collect();
        assert_eq!(taken, [0, 1, 2, 3, 4, 6, 7]);
    }
}
