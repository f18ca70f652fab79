//! Who asks for the first time waits: a page is worth reading when it is asked for again.

/// Bits at the most; pages that share one are taken for each other, which does no harm.
const BIT_COUNT_MAX: u32 = 1024;

/// Pages that were missed once, one bit each.
#[derive(Debug)]
pub(super) struct Doorkeeper {
    missed: Box<[u64]>,
    missed_count: usize,
}

impl Doorkeeper {
    pub(super) fn new(page_count: u32) -> Self {
        Self {
            missed: vec![0; page_count.min(BIT_COUNT_MAX).div_ceil(64) as usize].into(),
            missed_count: 0,
        }
    }

    /// Notes that a page was missed; true when it had been missed before. Of misses that are
    /// `memory_count` others ago nothing is known.
    pub(super) fn is_second(&mut self, page: u32, memory_count: usize) -> bool {
        let (word, bit) = (page as usize / 64 % self.missed.len(), 1 << (page % 64));
        if self.missed[word] & bit != 0 {
            return true;
        }
        if self.missed_count >= memory_count.max(1) {
            self.missed.fill(0);
            self.missed_count = 0;
        }
        self.missed[word] |= bit;
        self.missed_count += 1;
        false
    }

    pub(super) fn bytes(&self) -> u64 {
        size_of_val(&*self.missed) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page is let in at its second miss, unless so many others were missed in between that the
    /// first is forgotten.
    #[test]
    fn the_second_miss_counts_until_it_is_forgotten() {
        let mut doorkeeper = Doorkeeper::new(200);
        assert!(!doorkeeper.is_second(70, 3));
        assert!(doorkeeper.is_second(70, 3));
        for page in [1, 2, 199] {
            assert!(!doorkeeper.is_second(page, 3));
        }
        assert!(
            !doorkeeper.is_second(70, 3),
            "three others have been missed since"
        );
        assert!(doorkeeper.is_second(70, 3));
        assert_eq!(doorkeeper.bytes(), 32);
        assert_eq!(Doorkeeper::new(u32::MAX).bytes(), 128, "there is a most");
    }
}
