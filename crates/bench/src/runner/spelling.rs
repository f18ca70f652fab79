//! Which byte string each number of a run is.

use std::sync::Arc;

use super::strings::Strings;
use crate::dataset::{KeySet, StringKeys};

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
