//! Scrambled zipfian distribution: popular items scattered over the whole index space.
//!
//! Source: YCSB's `ScrambledZipfianGenerator`: a zipfian rank among 10^10 items, hashed by FNV-1a,
//! modulo the item count. Every YCSB core workload means this by "zipfian".

use rand::Rng;

use super::zipfian::Zipfian;

/// Number of ranks to draw from, whatever the number of records: YCSB's `ITEM_COUNT`.
const ITEM_COUNT: u64 = 10_000_000_000;

/// Zeta of [`ITEM_COUNT`] items: YCSB's constant.
pub(super) const ZETA_OF_ITEM_COUNT: f64 = 26.469_028_201_783_02;

/// Draws item indexes with zipfian popularity, with popular ones scattered.
///
/// The most popular item gets 1 / 26.47 = 3.8 % of the draws, whatever the number of items. A draw
/// costs one power, a hash of eight steps and a division: about 25 ns.
#[derive(Clone, Debug)]
pub struct ScrambledZipfian {
    ranks: Zipfian,
    item_count: u64,
}

impl ScrambledZipfian {
    /// Creates a distribution over `0..item_count`; a count of 0 is taken as 1.
    pub fn new(item_count: u64) -> Self {
        // YCSB passes 0 and ITEM_COUNT as the inclusive ends of the range: one item more.
        let ranks = Zipfian::with_zeta(ITEM_COUNT + 1, ZETA_OF_ITEM_COUNT);
        Self {
            ranks,
            item_count: item_count.max(1),
        }
    }

    /// Returns the number of items.
    pub fn item_count(&self) -> u64 {
        self.item_count
    }

    /// Draws an item index in `0..item_count`.
    #[inline]
    pub fn sample(&self, random: &mut impl Rng) -> u64 {
        fnv_hash(self.ranks.sample(random)) % self.item_count
    }
}

/// Computes YCSB's `fnvhash64`: FNV-1a over the eight bytes of `value`, least significant first,
/// and then the absolute value of the result as a signed number. (For the one hash whose absolute
/// value does not fit, Java returns a negative number; here it is 2^63.)
#[inline]
pub fn fnv_hash(value: u64) -> u64 {
    const OFFSET_BASIS: u64 = 0xCBF2_9CE4_8422_2325;
    const PRIME: u64 = 1_099_511_628_211;
    /// Three steps over zero bytes are three multiplications: the last steps for any value below
    /// 2^40, as all ranks are.
    const PRIME_CUBED: u64 = PRIME.wrapping_mul(PRIME).wrapping_mul(PRIME);
    let step = |hash: u64, byte: u64| (hash ^ (byte & 0xFF)).wrapping_mul(PRIME);
    let mut hash = OFFSET_BASIS;
    for byte in 0..5 {
        hash = step(hash, value >> (8 * byte));
    }
    if value >> 40 == 0 {
        hash = hash.wrapping_mul(PRIME_CUBED);
    } else {
        for byte in 5..8 {
            hash = step(hash, value >> (8 * byte));
        }
    }
    hash.cast_signed().unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::super::random::numbered_stream;
    use super::*;

    /// Computes FNV-1a as specified, then Java's `Math.abs`.
    fn fnv_by_the_book(value: u64) -> u64 {
        let hash = value
            .to_le_bytes()
            .iter()
            .fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3)
            });
        hash.cast_signed().wrapping_abs().cast_unsigned()
    }

    /// Promise: the shortcut over zero bytes changes no hash.
    #[test]
    fn hashes_as_the_specification_says() {
        for shift in 0..64 {
            for value in [
                1_u64 << shift,
                (1 << shift) - 1,
                0xA5A5_A5A5_A5A5_A5A5 >> shift,
            ] {
                assert_eq!(fnv_hash(value), fnv_by_the_book(value), "{value:#x}");
            }
        }
    }

    /// Promise: golden values. The first is well known from YCSB: its first record is
    /// "user6284781860667377211".
    #[test]
    fn golden_hashes() {
        let hashes = [0, 1, 2, 12_345, 10_000_000_000].map(fnv_hash);
        let golden = [
            6_284_781_860_667_377_211,
            8_517_097_267_634_966_620,
            1_820_151_046_732_198_393,
            1_792_800_413_050_876_852,
            1_201_321_332_300_452_516,
        ];
        assert_eq!(hashes, golden);
    }

    /// Promise: the most popular item is where YCSB puts it and has its share: 1 / zeta, plus
    /// colliding items.
    #[test]
    fn the_most_popular_item_has_its_place_and_share() {
        let items = ScrambledZipfian::new(100_000);
        let mut random = numbered_stream(6, 0);
        let mut counts = vec![0_u32; 100_000];
        for _ in 0..1_000_000 {
            counts[items.sample(&mut random) as usize] += 1;
        }
        let (index, count) = counts
            .iter()
            .enumerate()
            .max_by_key(|(_, count)| **count)
            .unwrap();
        assert_eq!(index as u64, fnv_hash(0) % 100_000);
        let share = f64::from(*count) / 1e6;
        assert!((share - 1.0 / ZETA_OF_ITEM_COUNT).abs() < 0.001, "{share}");
    }

    /// Promise: popular items are scattered: each tenth of the index space gets its share of the
    /// draws, except for the few hot items in it.
    #[test]
    fn popular_items_are_scattered() {
        let items = ScrambledZipfian::new(1_000_000);
        let mut random = numbered_stream(7, 0);
        let mut tenths = [0_u32; 10];
        for _ in 0..200_000 {
            tenths[(items.sample(&mut random) / 100_000) as usize] += 1;
        }
        assert!(
            tenths.iter().all(|count| (12_000..32_000).contains(count)),
            "{tenths:?}"
        );
    }

    /// Promise: a seed always yields the same items.
    #[test]
    fn a_seed_yields_the_same_items_for_ever() {
        let items = ScrambledZipfian::new(1_000_000);
        let mut random = numbered_stream(42, 0);
        let drawn: Vec<u64> = (0..8).map(|_| items.sample(&mut random)).collect();
        assert_eq!(
            drawn,
            [
                903_149, 816_329, 911_950, 133_995, 661_459, 56_984, 980_425, 841_422
            ]
        );
    }
}
