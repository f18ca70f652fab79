//! Random numbers that a seed determines.

/// splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014): enough
/// to choose by, and the same on every machine.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    /// A number below `limit`, which is not 0.
    pub(super) const fn below(&mut self, limit: u64) -> u64 {
        assert!(limit > 0, "no number is below 0");
        self.next() % limit
    }

    /// True in so many of 8 cases.
    pub(super) const fn in_eighths(&mut self, eighths: u64) -> bool {
        self.below(8) < eighths
    }

    /// One of some, in half of all cases the last. `None` if there are none.
    pub(super) fn one_of<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        if items.is_empty() || self.in_eighths(4) {
            return items.last();
        }
        items.get(self.below(items.len() as u64) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the numbers are those of the published generator.
    #[test]
    fn numbers_are_the_published_ones() {
        let mut random = Random::new(1_234_567);
        let numbers: [u64; 3] = std::array::from_fn(|_| random.next());
        assert_eq!(
            numbers,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }
}
