//! Meaning of a plan's numbers on tables of byte strings: a key's number stands for a key, in the
//! same order, and a value's number for a value that identifies it.
//!
//! Histories and checkers can thus use numbers, whatever the table holds.

use farleaf_base::limits::KEY_SIZE_BYTES_MAX;
use farleaf_base::random::Random;

/// Bytes of keys: few, with the least and the greatest.
const KEY_BYTES: [u8; 5] = [0, b'a', b'b', b'~', 0xFF];
/// Longest possible key.
/// Ranges of value sizes: in a page, around the inline limit, in small pieces, in large ones, in
/// chunks.
const VALUE_SIZES_BYTES: [(u64, u64); 6] = [
    (0, 12),
    (13, 40),
    (60, 260),
    (300, 1200),
    (2_000, 34_000),
    (66_000, 140_000),
];

/// Keys and values of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StringMap {
    /// Keys in ascending order; a key's number is its index.
    keys: Vec<Vec<u8>>,
    /// Weights of the sizes of values.
    weights: [u64; VALUE_SIZES_BYTES.len()],
    seed: u64,
}

impl StringMap {
    /// Draws this many keys of several kinds, and the sizes of values. `plain` keys and values make
    /// pages split in place.
    pub fn draw(random: &mut Random, key_count: usize, plain: bool) -> Self {
        let mut kinds = KeyKinds::draw(random);
        if plain {
            // With little in common.
            let [users, numbers] = [&[0, 1], &[0, 4]].map(|weights| *random.choose(weights));
            kinds.weights = [0, 0, 0, users, 0, numbers];
        }
        let mut keys: Vec<Vec<u8>> = Vec::new();
        while keys.len() < key_count {
            let key = kinds.key(random);
            if let Err(place) = keys.binary_search(&key) {
                keys.insert(place, key);
            }
        }
        let mut weights = VALUE_SIZES_BYTES.map(|_| *random.choose(&[0, 0, 1, 3, 10]));
        weights[0] += 1;
        // Rarely: a value of chunks takes as long as all the others together.
        let last = weights.len() - 1;
        weights[last] = u64::from(random.chance(150));
        if plain {
            weights = [1, 4, 2, 0, 0, 0];
        }
        Self {
            keys,
            weights,
            seed: random.bits(),
        }
    }

    /// Returns a key. The first one's range begins at the empty string.
    ///
    /// # Panics
    /// There are fewer keys.
    pub fn key(&self, number: u64) -> &[u8] {
        &self.keys[number as usize]
    }

    /// Returns the bound of a key range; `None` after the last key.
    pub fn bound(&self, number: u64) -> Option<&[u8]> {
        match number {
            0 => Some(&[]),
            _ => self.keys.get(number as usize).map(Vec::as_slice),
        }
    }

    /// Returns the number of a key; `None` if no client writes such a key.
    pub fn key_number(&self, key: &[u8]) -> Option<u64> {
        let place = self.keys.binary_search_by(|own| own.as_slice().cmp(key));
        place.ok().map(|place| place as u64)
    }

    /// Returns a value: the number and its size, then bytes derived from them. The first value is
    /// empty.
    pub fn value(&self, number: u64) -> Vec<u8> {
        if number == 1 {
            return Vec::new();
        }
        let size = 8 - number.leading_zeros() as usize / 8;
        let mut value = vec![size as u8];
        value.extend_from_slice(&number.to_le_bytes()[..size]);
        let mut random = Random::new(self.seed ^ number);
        let size_bytes = self.draw_size_bytes(&mut random);
        while value.len() < size_bytes {
            let left = size_bytes - value.len();
            value.extend_from_slice(&random.bits().to_le_bytes()[..left.min(8)]);
        }
        value
    }

    /// Returns the number of a value; `None` if no client writes such a value.
    pub fn value_number(&self, value: &[u8]) -> Option<u64> {
        let Some((size, rest)) = value.split_first() else {
            return Some(1);
        };
        let own = rest
            .get(..usize::from(*size))
            .filter(|own| own.len() <= 8)?;
        let mut word = [0; 8];
        word[..own.len()].copy_from_slice(own);
        let number = u64::from_le_bytes(word);
        (self.value(number) == value).then_some(number)
    }

    fn draw_size_bytes(&self, random: &mut Random) -> usize {
        let mut left = random.below(self.weights.iter().sum());
        for (weight, (from, to)) in self.weights.iter().zip(VALUE_SIZES_BYTES) {
            if left < *weight {
                return random.between(from, to) as usize;
            }
            left -= weight;
        }
        unreachable!("the weights add up to more than what is left")
    }
}

/// Kinds of keys of a run.
struct KeyKinds {
    weights: [u64; 6],
    /// Common prefixes of many keys.
    prefixes: Vec<Vec<u8>>,
}

impl KeyKinds {
    fn draw(random: &mut Random) -> Self {
        let weights = core::array::from_fn(|_| *random.choose(&[0, 0, 1, 3, 10]));
        let prefix = |random: &mut Random| {
            let size = random.between(40, 300) as usize;
            letters(random, size)
        };
        let mut prefixes = vec![prefix(random)];
        // One prefix extends another one.
        let longer = [&prefixes[0][..], &letters(random, 36)].concat();
        prefixes.extend([longer, prefix(random)]);
        Self { weights, prefixes }
    }

    fn key(&self, random: &mut Random) -> Vec<u8> {
        let kinds: u64 = self.weights.iter().sum();
        // Whatever is switched off, there are enough short keys.
        let mut left = random.below(kinds + 1);
        let kind = self.weights.iter().position(|weight| {
            let is_it = left < *weight;
            left = left.saturating_sub(*weight);
            is_it
        });
        match kind {
            Some(0) => {
                let prefix = random.choose(&self.prefixes).clone();
                let size = random.between(0, 6) as usize;
                [prefix, letters(random, size)].concat()
            }
            Some(1) => {
                // Longer than an eighth of some pages.
                let size = random.between(1, 3) as usize;
                let first = letters(random, size);
                let size = random.between(60, 500) as usize;
                [first, letters(random, size)].concat()
            }
            Some(2) => vec![0xFF; random.between(1, 90) as usize],
            Some(3) => format!("user{:08}", random.below(1000) * 7).into_bytes(),
            Some(4) => {
                // The common part is longer than what a page stores of a key that is outside.
                let prefix = &self.prefixes[0];
                let size = random.between(150, 400) as usize;
                let middle = [&prefix[..], &vec![b'm'; size]].concat();
                [middle, letters(random, 3)].concat()
            }
            Some(_) if random.chance(30) => {
                let mut key = letters(random, 4);
                key.resize(KEY_SIZE_BYTES_MAX, b'z');
                key
            }
            Some(_) => random.below(1 << 12).to_be_bytes().to_vec(),
            None => {
                let size = random.between(0, 8) as usize;
                letters(random, size)
            }
        }
    }
}

fn letters(random: &mut Random, size: usize) -> Vec<u8> {
    (0..size).map(|_| *random.choose(&KEY_BYTES)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: numbers and strings map one to one, keys in the same order, and some runs have each
    /// kind of key and value.
    #[test]
    fn numbers_lead_back() {
        let (mut has_empty, mut has_long, mut has_chunks) = (false, false, false);
        for seed in 0..60 {
            let strings = StringMap::draw(&mut Random::new(seed), 40, seed % 3 == 0);
            for number in 0..40 {
                let key = strings.key(number);
                assert_eq!(strings.key_number(key), Some(number));
                assert!(number == 0 || strings.key(number - 1) < key);
                has_empty |= key.is_empty();
                has_long |= key.len() > 300;
            }
            let numbers = (1..60).chain((1 << 32)..(1 << 32) + 40);
            for number in numbers {
                let value = strings.value(number);
                assert_eq!(strings.value_number(&value), Some(number));
                has_chunks |= value.len() > 1 << 16;
            }
        }
        assert!(has_empty && has_long && has_chunks);
    }

    /// Promise: torn bytes are not a value of any number.
    #[test]
    fn a_value_that_is_not_whole_is_none() {
        let strings = StringMap::draw(&mut Random::new(3), 4, false);
        let mut long = (2..200).map(|number| strings.value(number));
        let mut value = long.find(|value| value.len() > 20).expect("some are");
        value[19] ^= 1;
        assert_eq!(strings.value_number(&value), None);
        assert_eq!(strings.value_number(&[200, 1]), None);
        assert_eq!(strings.value_number(&[1]), None);
    }
}
