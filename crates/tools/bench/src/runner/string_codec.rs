//! Which byte string each number of a run is.

use std::sync::Arc;

use super::strings::Strings;
use crate::dataset::{KeySet, StringKeys};
use crate::verify::loaded_value;

/// Numbers as keys: YCSB's, or those of a file, whose ranks the numbers are. Strings sort as their
/// numbers do.
#[derive(Clone, Debug)]
pub(super) struct Spelling {
    /// Values, and keys that are no file's.
    pub(super) strings: Strings,
    listed: Option<Arc<StringKeys>>,
}

impl Spelling {
    /// That of these keys.
    pub(super) fn new(strings: Strings, keys: &KeySet) -> Self {
        Self {
            strings,
            listed: keys.strings().cloned(),
        }
    }

    /// The key that a number of the run is; replaces what was in the buffer.
    pub(super) fn key(&self, number: u64, key: &mut Vec<u8>) {
        match &self.listed {
            None => self.strings.key(number, key),
            Some(listed) => {
                key.clear();
                key.extend_from_slice(listed.key(number as usize));
            }
        }
    }

    /// The number that a key is, which is not below `start`; `None`: it is none of this run. Of a
    /// file it is found the faster the nearer it is.
    pub(super) fn number(&self, key: &[u8], start: u64) -> Option<u64> {
        match &self.listed {
            None => self.strings.number(key),
            Some(listed) => listed.rank(key, start as usize).map(|rank| rank as u64),
        }
    }

    /// The number that a key of a scan is, which goes on from `start`; of a key that is none, one
    /// that nobody has loaded.
    pub(super) fn found_number(&self, key: &[u8], start: &mut u64) -> u64 {
        let number = self.number(key, *start);
        number.inspect(|it| *start = *it).unwrap_or(u64::MAX)
    }

    /// The word of a value; of what is none, one of which the checks tell that its tag is another
    /// key's.
    pub(super) fn word(&self, number: u64, value: &[u8]) -> u64 {
        let word = self.strings.word(number, value);
        word.unwrap_or_else(|| !loaded_value(number))
    }

    /// Changes a value that was read by an update with this word; what it was is its word. What is
    /// no value becomes a whole new one.
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

    /// Promise: numbers of a file's keys are keys in their order, and come back; a key that the
    /// file does not have does not.
    #[test]
    fn keys_of_a_file_come_back() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("names");
        std::fs::write(&path, "pear\nfig\n\\x00\napple\n").expect("a file");
        let keys = KeySet::of_string_file(&path, 3, 1, 1).expect("keys");
        let spelling = Spelling::new(Strings::default(), &keys);
        let mut numbers = [keys.loaded(), keys.inserts()].concat();
        numbers.sort_unstable();
        let mut key = Vec::new();
        for (number, expected) in numbers.into_iter().zip(["\0", "apple", "fig", "pear"]) {
            spelling.key(number, &mut key);
            assert_eq!(key, expected.as_bytes());
            assert_eq!(spelling.number(&key, 0), Some(number));
            assert_eq!(spelling.number(&[&key[..], b"s"].concat(), 0), None);
        }
    }
}
