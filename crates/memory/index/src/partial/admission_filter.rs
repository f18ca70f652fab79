//! Admission filter: a page is worth reading when it is missed for the second time.

/// Largest number of bits. Pages that share a bit are confused with each other, which is harmless.
const BIT_COUNT_MAX: u32 = 1024;

/// Pages that were missed once, one bit each.
#[derive(Debug)]
pub(super) struct AdmissionFilter {
    missed: Box<[u64]>,
    missed_count: usize,
}

impl AdmissionFilter {
    pub(super) fn new(page_count: u32) -> Self {
        Self {
            missed: vec![0; page_count.min(BIT_COUNT_MAX).div_ceil(64) as usize].into(),
            missed_count: 0,
        }
    }

    /// Records a miss of a page. Returns true if it had been missed before, within about the last
    /// `memory_count` misses of other pages.
    pub(super) fn is_second_miss(&mut self, page: u32, memory_count: usize) -> bool {
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

    /// A page is admitted at its second miss, unless so many others were missed in between that the
    /// first miss is forgotten.
    #[test]
    fn the_second_miss_counts_until_it_is_forgotten() {
        let mut admission_filter = AdmissionFilter::new(200);
        assert!(!admission_filter.is_second_miss(70, 3));
        assert!(admission_filter.is_second_miss(70, 3));
        for page in [1, 2, 199] {
            assert!(!admission_filter.is_second_miss(page, 3));
        }
        assert!(
            !admission_filter.is_second_miss(70, 3),
            "three others have been missed since"
        );
        assert!(admission_filter.is_second_miss(70, 3));
        assert_eq!(admission_filter.bytes(), 32);
        assert_eq!(
            AdmissionFilter::new(u32::MAX).bytes(),
            128,
            "there is a most"
        );
    }
}
