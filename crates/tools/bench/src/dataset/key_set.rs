//! The keys of a run: which key a record index names.

use std::path::Path;
use std::sync::Arc;

use super::generate::{draw_of_file, generate_with_inserts};
use super::{Dataset, DatasetError, StringKeys, read_string_file};

/// The keys of a run. Record indexes below the record count name loaded keys, those from there on
/// name inserts in the order in which they are dealt out.
///
/// As in YCSB (`insertorder=hashed`) neighbouring indexes name distant keys, so that what is
/// popular by index, the newest records above all, is not popular by key order. Sequential keys
/// keep their order (`insertorder=ordered`): there the newest records are the largest keys.
#[derive(Clone, Debug)]
pub struct KeySet {
    loaded: Vec<u64>,
    inserts: Vec<u64>,
    /// The loaded key at `index * stride mod record count` is the one that `index` names.
    stride: u64,
    /// What the keys are ranks in, if they are of a file of byte strings.
    strings: Option<Arc<StringKeys>>,
}

impl KeySet {
    /// The keys of a run on the byte strings of a file: their ranks among all of them. Those that
    /// are inserted are a share of the file that is not loaded.
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

    /// The keys of a run that loads `record_count` and inserts up to `insert_count`.
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

    /// What the keys are ranks in, if they are of a file of byte strings.
    pub fn strings(&self) -> Option<&Arc<StringKeys>> {
        self.strings.as_ref()
    }

    /// The keys to load, ascending.
    pub fn loaded(&self) -> &[u64] {
        &self.loaded
    }

    /// The keys to insert, in the order of their insert indexes.
    pub fn inserts(&self) -> &[u64] {
        &self.inserts
    }

    /// How many keys are loaded.
    pub fn record_count(&self) -> u64 {
        self.loaded.len() as u64
    }

    /// The key that record `index` names: loaded or inserted. A few nanoseconds and a cache miss.
    ///
    /// # Panics
    /// When there is no such record.
    #[inline]
    pub fn key(&self, index: u64) -> u64 {
        let record_count = self.record_count();
        if index < record_count {
            let place = if let Some(product) = index.checked_mul(self.stride) {
                product % record_count
            } else {
                // A division of 128 bits is slow; only beyond 2^32 records does it come to that.
                let product = u128::from(index) * u128::from(self.stride);
                (product % u128::from(record_count)) as u64
            };
            self.loaded[place as usize]
        } else {
            self.inserts[(index - record_count) as usize]
        }
    }
}

/// The golden section, 0.618..., times 2^64.
const GOLDEN_SECTION: u128 = 0x9E37_79B9_7F4A_7C15;

/// A step near the golden section of `count` that has no divisor in common with it: multiples of
/// it pass through all places, neighbours far apart.
fn scattering_stride(count: u64) -> u64 {
    let start = (u128::from(count) * GOLDEN_SECTION) >> 64;
    let mut stride = (start as u64).max(1);
    // Ends at the latest at a prime that is no divisor, for counts of 0 and 1 at once.
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

    /// Promise: any hundred neighbouring indexes name keys from all over the set, as YCSB's hashed
    /// insert order does; sequential keys keep their order.
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
