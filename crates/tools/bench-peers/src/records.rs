//! Records of maps: integers, or byte strings.

use farleaf_bench::runner::{Strings, ValueSize};

/// Keys, ascending, with their values: the same for all maps. The type also selects the kind of a
/// map.
pub trait Records: Send + Sync + Sized + 'static {
    /// Key or value, as it is passed to a map and lent by one.
    type Item<'a>: Copy + Send + Sync;

    /// Returns the number of records.
    fn count(&self) -> usize;

    /// Returns the key of a rank.
    fn key(&self, rank: usize) -> Self::Item<'_>;

    /// Returns the records with these ranks, in this order, adjacent in memory.
    #[must_use]
    fn pick(&self, ranks: &[u32]) -> Self;

    /// Returns a key's value in a round, distinct for all rounds: a few instructions, and as many
    /// writes into the buffer as it has words.
    fn value<'a>(
        &self,
        key: Self::Item<'_>,
        version: u64,
        buffer: &'a mut Vec<u8>,
    ) -> Self::Item<'a>;

    /// Returns a number that depends on every bit of an item.
    fn digest(item: Self::Item<'_>) -> u64;
}

/// Receiver of the results of reads.
pub trait Sink<R: Records> {
    /// Receives the value of a requested key.
    fn value(&mut self, value: Option<R::Item<'_>>);
    /// Receives a record of a scan.
    fn record(&mut self, key: R::Item<'_>, value: R::Item<'_>);
}

/// Records with keys and values of 64 bits.
#[derive(Clone, Debug)]
pub struct WordRecords(Vec<u64>);

impl WordRecords {
    /// Creates records of these keys, which ascend.
    pub fn new(keys: Vec<u64>) -> Self {
        Self(keys)
    }

    /// Returns the records with which maps are loaded.
    pub fn first(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter().map(|key| (*key, word_of(*key, 0)))
    }
}

/// Returns the value of a key in a version.
#[inline]
fn word_of(key: u64, version: u64) -> u64 {
    key.rotate_left(17) ^ version.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

impl Records for WordRecords {
    type Item<'a> = u64;

    fn count(&self) -> usize {
        self.0.len()
    }

    fn key(&self, rank: usize) -> u64 {
        self.0[rank]
    }

    fn pick(&self, ranks: &[u32]) -> Self {
        Self(ranks.iter().map(|rank| self.0[*rank as usize]).collect())
    }

    #[inline]
    fn value(&self, key: u64, version: u64, _buffer: &mut Vec<u8>) -> u64 {
        word_of(key, version)
    }

    #[inline]
    fn digest(item: u64) -> u64 {
        item
    }
}

/// Records with keys of one size and values of one size.
#[derive(Clone, Debug)]
pub struct StringRecords {
    /// Keys, one after the other.
    keys: Vec<u8>,
    key_size_bytes: usize,
    value_size_bytes: usize,
}

impl StringRecords {
    /// Creates YCSB's keys: `user`, and the numbers, which ascend, padded with zeros.
    ///
    /// # Panics
    /// Keys of this size have no space for their numbers.
    pub fn new(numbers: &[u64], key_size_bytes: usize, value_size_bytes: usize) -> Self {
        let strings = Strings {
            key_size_bytes: Some(key_size_bytes),
            value_size: ValueSize::Fixed(value_size_bytes),
            ..Strings::default()
        };
        let mut keys = Vec::with_capacity(numbers.len() * key_size_bytes);
        let mut key = Vec::with_capacity(key_size_bytes);
        for number in numbers {
            strings.key(*number, &mut key);
            keys.extend_from_slice(&key);
        }
        assert_eq!(keys.len(), numbers.len() * key_size_bytes, "one size");
        Self {
            keys,
            key_size_bytes,
            value_size_bytes,
        }
    }

    /// Returns the size of all keys and values in bytes.
    pub fn size_bytes(&self) -> usize {
        self.count() * (self.key_size_bytes + self.value_size_bytes)
    }

    /// Returns the size of each key in bytes.
    pub fn key_size_bytes(&self) -> usize {
        self.key_size_bytes
    }

    /// Calls a function with each record with which maps are loaded.
    ///
    /// # Errors
    /// The function failed.
    pub fn for_each_first<E>(
        &self,
        mut load: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut value = Vec::with_capacity(self.value_size_bytes);
        for key in self.keys.chunks_exact(self.key_size_bytes) {
            load(key, self.value(key, 0, &mut value))?;
        }
        Ok(())
    }
}

impl Records for StringRecords {
    type Item<'a> = &'a [u8];

    fn count(&self) -> usize {
        self.keys.len() / self.key_size_bytes
    }

    fn key(&self, rank: usize) -> &[u8] {
        &self.keys[rank * self.key_size_bytes..][..self.key_size_bytes]
    }

    fn pick(&self, ranks: &[u32]) -> Self {
        let keys = ranks.iter().flat_map(|rank| self.key(*rank as usize));
        Self {
            keys: keys.copied().collect(),
            ..*self
        }
    }

    #[inline]
    fn value<'a>(&self, key: &[u8], version: u64, buffer: &'a mut Vec<u8>) -> &'a [u8] {
        // The last digits, which differ between keys.
        let word = word_of(
            key.last_chunk().map_or(0, |it| u64::from_le_bytes(*it)),
            version,
        );
        buffer.clear();
        while buffer.len() < self.value_size_bytes {
            buffer.extend_from_slice(&word.to_le_bytes());
        }
        buffer.truncate(self.value_size_bytes);
        buffer
    }

    #[inline]
    fn digest(item: &[u8]) -> u64 {
        let (words, rest) = item.as_chunks::<8>();
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        words
            .iter()
            .chain([&last])
            .fold(item.len() as u64, |sum, word| {
                sum.rotate_left(5).wrapping_add(u64::from_le_bytes(*word))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: every round's value differs from the previous one, so that a lost put is detected;
    /// strings have the requested size, and their keys ascend.
    #[test]
    fn rounds_give_keys_other_values() {
        let words = WordRecords::new(vec![0, 1, u64::MAX]);
        let strings = StringRecords::new(&[0, 7, u64::MAX], 30, 13);
        let mut buffer = Vec::new();
        for rank in 0..3 {
            let mut digests = Vec::new();
            for version in 0..20 {
                let word = words.value(words.key(rank), version, &mut buffer);
                let value = strings.value(strings.key(rank), version, &mut buffer);
                assert_eq!(value.len(), 13);
                digests.push((word, StringRecords::digest(value)));
            }
            let differ = |pair: &[(u64, u64)]| pair[0].0 != pair[1].0 && pair[0].1 != pair[1].1;
            assert!(digests.windows(2).all(differ), "{rank}");
        }
        assert!(strings.key(0) < strings.key(1) && strings.key(1) < strings.key(2));
        assert_eq!((strings.count(), strings.size_bytes()), (3, 3 * 43));
    }

    /// Promise: the digest of a string depends on every byte and on the size.
    #[test]
    fn digests_tell_strings_apart() {
        for size in 0..30 {
            let string = vec![0; size];
            let digest = StringRecords::digest(&string);
            assert_ne!(digest, StringRecords::digest(&vec![0; size + 1]));
            for place in 0..size {
                let mut other = string.clone();
                other[place] = 1;
                assert_ne!(StringRecords::digest(&other), digest, "{place} of {size}");
            }
        }
    }
}
