//! Byte strings of a run's numbers.

use std::sync::Arc;

use super::strings::Strings;
use crate::dataset::{KeySet, StringKeys};
use crate::verify::loaded_value;

/// Byte strings of numbers: YCSB's, or those of a file, whose ranks the numbers are. Strings sort
/// like their numbers.
#[derive(Clone, Debug)]
pub(super) struct StringCodec {
    /// Values, and keys that do not come from a file.
    pub(super) strings: Strings,
    listed: Option<Arc<StringKeys>>,
}

impl StringCodec {
    /// Creates the codec of these keys.
    pub(super) fn new(strings: Strings, keys: &KeySet) -> Self {
        Self {
            strings,
            listed: keys.strings().cloned(),
        }
    }

    /// Fills the buffer with the key of a number.
    pub(super) fn key(&self, number: u64, key: &mut Vec<u8>) {
        match &self.listed {
            None => self.strings.key(number, key),
            Some(listed) => {
                key.clear();
                key.extend_from_slice(listed.key(number as usize));
            }
        }
    }

    /// Returns the number of a key, at least `start`; `None` if it is not a key of this run. In a
    /// file, a search is the faster the nearer the key is.
    pub(super) fn number(&self, key: &[u8], start: u64) -> Option<u64> {
        match &self.listed {
            None => self.strings.number(key),
            Some(listed) => listed.rank(key, start as usize).map(|rank| rank as u64),
        }
    }

    /// Returns the number of a scan's key, which continues from `start`; for an unknown key, a
    /// number that was never loaded.
    pub(super) fn found_number(&self, key: &[u8], start: &mut u64) -> u64 {
        let number = self.number(key, *start);
        number.inspect(|it| *start = *it).unwrap_or(u64::MAX)
    }

    /// Returns the word of a value; for an invalid value, a word that the checks recognize as
    /// another key's.
    pub(super) fn word(&self, number: u64, value: &[u8]) -> u64 {
        let word = self.strings.word(number, value);
        word.unwrap_or_else(|| !loaded_value(number))
    }

    /// Updates a value that was read, by this word, and returns its previous word. An invalid value
    /// is replaced by a whole new one.
    pub(super) fn change(&self, number: u64, word: u64, value: &mut Vec<u8>) -> u64 {
        let previous = self.word(number, value);
        match self.strings.word(number, value) {
            Some(_) => self.strings.update(number, word, value),
            None => self.strings.value(number, word, value),
        }
        previous
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: numbers of a file's keys map to keys in their order and back; a key that is not in
    /// the file does not.
    #[test]
    fn keys_of_a_file_come_back() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("names");
        std::fs::write(&path, "pear\nfig\n\\x00\napple\n").expect("a file");
        let keys = KeySet::of_string_file(&path, 3, 1, 1).expect("keys");
        let string_codec = StringCodec::new(Strings::default(), &keys);
        let mut numbers = [keys.loaded(), keys.inserts()].concat();
        numbers.sort_unstable();
        let mut key = Vec::new();
        for (number, expected) in numbers.into_iter().zip(["\0", "apple", "fig", "pear"]) {
            string_codec.key(number, &mut key);
            assert_eq!(key, expected.as_bytes());
            assert_eq!(string_codec.number(&key, 0), Some(number));
            assert_eq!(string_codec.number(&[&key[..], b"s"].concat(), 0), None);
        }
    }
}
