//! Workloads on byte strings: mappings from a key's number and a value's word to strings.
//!
//! A run draws keys as numbers and checks values that are words, whatever the table stores. In a
//! table of byte strings each key is YCSB's `user` and the number's digits, padded with zeros, so
//! that strings sort like their numbers. Each value begins with its word, followed by bytes derived
//! from it; all of them are checked, and so is the size. In a value of several fields, each field
//! does this (`fields`). If keys come from a file, numbers are ranks in it (`string_codec`).

use core::fmt;
use core::str::FromStr;

use super::fields::Fields;
use crate::verify::is_value_of;

/// Prefix of keys, as in YCSB.
const KEY_START: &str = "user";
/// Digits of the greatest number.
const DIGIT_COUNT: usize = 20;
/// Size of the shortest keys.
pub(super) const KEY_SIZE_BYTES_MIN: usize = KEY_START.len() + DIGIT_COUNT;
/// Size of the shortest values: their word.
pub(super) const VALUE_SIZE_BYTES_MIN: usize = 8;

/// Sizes of values in Talos (section 5), of a record with a key of 24 bytes.
const SMALL: usize = 9;
const MEDIUM: usize = 99;
const LARGE: usize = 999;

/// Sizes of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueSize {
    /// All values have this size in bytes.
    Fixed(usize),
    /// Mix of small, medium and large values, as in the Talos paper; the key determines a record's
    /// size.
    Mixed {
        /// Name of the mix.
        name: &'static str,
        /// Percentages of 9, 99 and 999 bytes.
        percent: [u8; 3],
    },
}

const MIXES: [ValueSize; 3] = [
    ValueSize::Mixed {
        name: "SD",
        percent: [60, 20, 20],
    },
    ValueSize::Mixed {
        name: "MD",
        percent: [20, 60, 20],
    },
    ValueSize::Mixed {
        name: "LD",
        percent: [20, 20, 60],
    },
];

impl fmt::Display for ValueSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(size_bytes) => write!(f, "{size_bytes}"),
            Self::Mixed { name, .. } => f.write_str(name),
        }
    }
}

/// Parses bytes in decimal, `S`, `M` or `L` (9, 99 or 999), or the name of a mix; the error lists
/// these.
impl FromStr for ValueSize {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = MIXES.into_iter().find(|mix| mix.to_string() == text);
        let fixed = match text {
            "S" => Some(SMALL),
            "M" => Some(MEDIUM),
            "L" => Some(LARGE),
            _ => text.parse().ok(),
        };
        named
            .or(fixed.map(Self::Fixed))
            .ok_or("a count of bytes, S, M or L (9, 99, 999), or a mix: SD, MD or LD")
    }
}

/// Settings of a table's strings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strings {
    /// Size of keys in bytes: 24 to 4,096; `None`: 24, or the size of a file's keys.
    pub key_size_bytes: Option<usize>,
    /// Sizes of values: 8 bytes to 64 MiB.
    pub value_size: ValueSize,
    /// Number of a value's fields, all of equal size. 1: an update writes the whole value (YCSB's
    /// `writeallfields`). More: it reads the value and puts it with one field changed.
    pub field_count: usize,
    /// Size of pages in bytes.
    pub page_size_bytes: u64,
    /// Size of the largest value that is stored in a page, in bytes.
    pub inline_value_size_bytes: u64,
}

impl Default for Strings {
    /// Records as large as YCSB's, whose 10 fields of 100 bytes are always written together.
    fn default() -> Self {
        let pages = farleaf::PageOptions::default();
        Self {
            key_size_bytes: None,
            value_size: ValueSize::Fixed(1_000),
            field_count: 1,
            page_size_bytes: pages.page_size_bytes,
            inline_value_size_bytes: pages.inline_value_size_bytes,
        }
    }
}

impl Strings {
    /// Returns the size of keys that are numbers, in bytes.
    pub fn key_size_bytes(&self) -> usize {
        self.key_size_bytes.unwrap_or(KEY_SIZE_BYTES_MIN)
    }

    /// Fills the buffer with the key of a number.
    pub fn key(&self, number: u64, key: &mut Vec<u8>) {
        use std::io::Write as _;
        let width = self.key_size_bytes() - KEY_START.len();
        key.clear();
        write!(key, "{KEY_START}{number:0width$}").expect("a vector takes all");
    }

    /// Returns the number of a key; `None` if it is not a key of this table.
    pub fn number(&self, key: &[u8]) -> Option<u64> {
        let digits = key.strip_prefix(KEY_START.as_bytes())?;
        let text = core::str::from_utf8(digits).ok()?;
        let is_one =
            key.len() == self.key_size_bytes() && text.bytes().all(|it| it.is_ascii_digit());
        is_one.then(|| text.parse().ok())?
    }

    /// Returns the size of a key's value in bytes.
    pub fn value_size_bytes(&self, number: u64) -> usize {
        match self.value_size {
            ValueSize::Fixed(size_bytes) => size_bytes,
            ValueSize::Mixed {
                percent: [small, medium, _],
                ..
            } => {
                let share = (number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) % 100;
                match share {
                    share if share < u64::from(small) => SMALL,
                    share if share < u64::from(small) + u64::from(medium) => MEDIUM,
                    _ => LARGE,
                }
            }
        }
    }

    /// Returns the mean size of values in bytes.
    pub fn value_size_bytes_mean(&self) -> f64 {
        match self.value_size {
            ValueSize::Fixed(size_bytes) => size_bytes as f64,
            ValueSize::Mixed { percent, .. } => {
                let sizes = [SMALL, MEDIUM, LARGE].into_iter().zip(percent);
                sizes
                    .map(|(size, share)| size as f64 * f64::from(share))
                    .sum::<f64>()
                    / 100.0
            }
        }
    }

    /// Returns the division of values into fields; `None` if there is only one.
    fn fields(&self) -> Option<Fields> {
        match self.value_size {
            ValueSize::Fixed(size_bytes) if self.field_count > 1 => Some(Fields {
                count: self.field_count,
                size_bytes: size_bytes / self.field_count,
            }),
            _ => None,
        }
    }

    /// Fills the buffer with the value of a key and a word.
    pub fn value(&self, number: u64, word: u64, value: &mut Vec<u8>) {
        if let Some(fields) = self.fields() {
            return fields.write(word, value);
        }
        let size_bytes = self.value_size_bytes(number);
        value.clear();
        value.extend_from_slice(&word.to_le_bytes());
        let rest = size_bytes.saturating_sub(VALUE_SIZE_BYTES_MIN);
        value.resize(VALUE_SIZE_BYTES_MIN + rest, filling(word));
    }

    /// Updates a correct value of a key by this word: all of it, or one field.
    pub fn update(&self, number: u64, word: u64, value: &mut Vec<u8>) {
        match self.fields() {
            Some(fields) => fields.change(word, value),
            None => self.value(number, word, value),
        }
    }

    /// Returns the word of a key's value, of several fields that of the last write; `None` if this
    /// value was never written there.
    pub fn word(&self, number: u64, value: &[u8]) -> Option<u64> {
        if let Some(fields) = self.fields() {
            return fields.word(value, |word| is_value_of(number, word));
        }
        let (word, rest) = value.split_first_chunk::<VALUE_SIZE_BYTES_MIN>()?;
        let word = u64::from_le_bytes(*word);
        let is_one = value.len() == self.value_size_bytes(number)
            && rest.iter().all(|byte| *byte == filling(word));
        is_one.then_some(word)
    }
}

/// Returns the byte that follows a word: a mixture of two values is invalid.
pub(super) const fn filling(word: u64) -> u8 {
    (word.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(key_size_bytes: usize, value_size: &str) -> Strings {
        Strings {
            key_size_bytes: Some(key_size_bytes),
            value_size: value_size.parse().expect("a size"),
            ..Strings::default()
        }
    }

    /// Promise: keys sort like their numbers, have the requested length, and map back.
    #[test]
    fn keys_sort_as_numbers() {
        let strings = strings(30, "8");
        let keys = [0, 9, 10, 1 << 40, u64::MAX].map(|number| {
            let mut key = Vec::new();
            strings.key(number, &mut key);
            assert_eq!((key.len(), strings.number(&key)), (30, Some(number)));
            key
        });
        assert!(keys.is_sorted());
        assert_eq!(keys[1], b"user00000000000000000000000009");
        assert_eq!(strings.number(b"user9"), None);
        assert_eq!(strings.number(b"user0000000000000000000000000x"), None);
    }

    /// Promise: a value maps back to its word; a value of another size, or with a byte of another
    /// one, does not.
    #[test]
    fn values_tell_their_words() {
        for size in ["8", "S", "100", "L", "SD"] {
            let strings = strings(24, size);
            let mut value = Vec::new();
            for number in 0..100 {
                strings.value(number, 7, &mut value);
                assert_eq!(value.len(), strings.value_size_bytes(number));
                assert_eq!(strings.word(number, &value), Some(7));
                assert_eq!(strings.word(number, &value[1..]), None);
                if let Some(last) = value.get_mut(8..).and_then(<[u8]>::last_mut) {
                    *last ^= 1;
                    assert_eq!(strings.word(number, &value), None);
                }
            }
        }
    }

    /// Promise: a value of fields does, too, whichever was updated; a value with a field of another
    /// key does not.
    #[test]
    fn values_of_fields_tell_their_words() {
        use crate::verify::loaded_value;
        let strings = Strings {
            field_count: 10,
            ..Strings::default()
        };
        let (mut value, mut other) = (Vec::new(), Vec::new());
        strings.value(1, loaded_value(1), &mut value);
        strings.value(2, loaded_value(2), &mut other);
        assert_eq!((value.len(), other.len()), (1_000, 1_000));
        for sequence in 1..50 {
            let word = loaded_value(1) + sequence;
            strings.update(1, word, &mut value);
            assert_eq!(strings.word(1, &value), Some(word));
            assert_eq!(strings.word(2, &value), None);
        }
        strings.update(2, loaded_value(1), &mut other);
        assert_eq!(strings.word(2, &other), None);
    }

    /// Promise: a mix has the paper's sizes in about their shares.
    #[test]
    fn mixes_are_mixed() {
        let strings = strings(24, "SD");
        let small = (0..10_000).filter(|number| strings.value_size_bytes(*number) == SMALL);
        assert!((5_500..6_500).contains(&small.count()));
        assert!((strings.value_size_bytes_mean() - 225.0).abs() < 1.0);
        assert!("XL".parse::<ValueSize>().is_err());
        assert_eq!("LD".parse::<ValueSize>().expect("a mix").to_string(), "LD");
    }
}
