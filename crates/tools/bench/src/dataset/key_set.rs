//! Keys of a run, by record index.

use std::path::Path;
use std::sync::Arc;

use super::generate::{draw_of_file, generate_with_inserts};
use super::{Dataset, DatasetError, StringKeys, read_string_file};

/// Keys of a run. Record indexes below the record count name loaded keys, later ones name inserts
/// in their order.
///
/// As in YCSB (`insertorder=hashed`) neighboring indexes name distant keys. Records that are
/// popular by index, above all the newest ones, are thus not neighbors by key. Sequential keys keep
/// their order (`insertorder=ordered`): their newest records are the largest keys.
#[derive(Clone, Debug)]
pub struct KeySet {
    loaded: Vec<u64>,
    inserts: Vec<u64>,
    /// Stride: `index` names the loaded key at `index * stride mod record count`.
    stride: u64,
    /// Byte strings whose ranks the keys are, if they come from a file of byte strings.
    strings: Option<Arc<StringKeys>>,
}

impl KeySet {
    /// Creates the keys of a run on the byte strings of a file: their ranks among all of them.
    /// Inserts are a part of the file that is not loaded.
    pub fn of_string_file(
        path: &Path,
        record_count: usize,
        insert_count: usize,
        seed: u64,
    ) -> Result<Self, DatasetError> {
        let strings = read_string_file(path)?;
        let ranks = (0..strings.count() as u64).collect();
        let (loaded, inserts) = draw_of_file(path, ranks, record_count, insert_count, seed)?;
        Ok(Self {
            loaded,
            inserts,
            stride: scattering_stride(record_count as u64),
            strings: Some(Arc::new(strings)),
        })
    }

    /// Generates the keys of a run that loads `record_count` keys and inserts up to `insert_count`.
    pub fn generate(
        dataset: &Dataset,
        record_count: usize,
        insert_count: usize,
        seed: u64,
    ) -> Result<Self, DatasetError> {
        let (loaded, inserts) = generate_with_inserts(dataset, record_count, insert_count, seed)?;
        let stride = match dataset {
            Dataset::Sequential => 1,
            _ => scattering_stride(record_count as u64),
        };
        Ok(Self {
            loaded,
            inserts,
            stride,
            strings: None,
        })
    }

    /// Returns the byte strings whose ranks the keys are, if they come from a file of byte strings.
    pub fn strings(&self) -> Option<&Arc<StringKeys>> {
        self.strings.as_ref()
    }

    /// Returns the keys to load, ascending.
    pub fn loaded(&self) -> &[u64] {
        &self.loaded
    }

    /// Returns the keys to insert, in the order of their insert indexes.
    pub fn inserts(&self) -> &[u64] {
        &self.inserts
    }

    /// Returns the number of loaded keys.
    pub fn record_count(&self) -> u64 {
        self.loaded.len() as u64
    }

    /// Returns the key that record `index` names, loaded or inserted. Costs a few nanoseconds and a
    /// cache miss.
    ///
    /// # Panics
    /// The record does not exist.
    #[inline]
    pub fn key(&self, index: u64) -> u64 {
        let record_count = self.record_count();
        if index < record_count {
            let place = if let Some(product) = index.checked_mul(self.stride) {
                product % record_count
            } else {
                // A 128-bit division is slow; it is only needed beyond 2^32 records.
                let product = u128::from(index) * u128::from(self.stride);
                (product % u128::from(record_count)) as u64
            };
            self.loaded[place as usize]
        } else {
            self.inserts[(index - record_count) as usize]
        }
    }
}

/// Golden section, 0.618..., times 2^64.
const GOLDEN_SECTION: u128 = 0x9E37_79B9_7F4A_7C15;

/// Returns a stride near the golden section of `count` without a common divisor: its multiples
/// visit all places, with neighbors far apart.
fn scattering_stride(count: u64) -> u64 {
    let start = (u128::from(count) * GOLDEN_SECTION) >> 64;
    let mut stride = (start as u64).max(1);
    // Ends at the latest at a prime that does not divide `count`; at once for counts of 0 and 1.
    while greatest_common_divisor(stride, count) > 1 {
        stride += 1;
    }
    stride
}

fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: record indexes name every loaded key once, then the inserts in order.
    #[test]
    fn indexes_name_every_key_once() {
        for record_count in [1, 2, 3, 10, 1_000, 1_024, 9_973] {
            let keys = KeySet::generate(&Dataset::Uniform, record_count, 7, 1).expect("keys");
            let mut named: Vec<u64> = (0..keys.record_count()).map(|i| keys.key(i)).collect();
            named.sort_unstable();
            assert_eq!(named, keys.loaded(), "{record_count}");
            for (insert_index, key) in keys.inserts().iter().enumerate() {
                assert_eq!(keys.key((record_count + insert_index) as u64), *key);
            }
        }
    }

    /// Promise: any hundred neighboring indexes name keys from all over the set, as in YCSB's
    /// hashed insert order; sequential keys keep their order.
    #[test]
    fn neighbouring_indexes_name_distant_keys() {
        let keys = KeySet::generate(&Dataset::Uniform, 100_000, 0, 1).expect("keys");
        for first in [0, 5_000, 99_900] {
            let mut named: Vec<u64> = (first..first + 100).map(|i| keys.key(i)).collect();
            named.sort_unstable();
            let widest = named
                .windows(2)
                .map(|pair| pair[1] - pair[0])
                .max()
                .expect("pairs");
            let narrowest = named
                .windows(2)
                .map(|pair| pair[1] - pair[0])
                .min()
                .expect("pairs");
            assert!(
                widest < u64::MAX / 20 && narrowest > u64::MAX / 1_000,
                "{first}"
            );
        }
        let keys = KeySet::generate(&Dataset::Sequential, 1_000, 10, 1).expect("keys");
        assert!((0..1_010).all(|index| keys.key(index) == index));
    }
}
