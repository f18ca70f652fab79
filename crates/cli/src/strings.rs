//! Byte strings in arguments and in output.
//!
//! An argument is used as raw bytes unless `--hex` or `--escaped` is given. Text output escapes
//! characters that are not printable, so that a record stays on one line with one tab, and can be
//! read back with `--escaped`. With `--hex`, output is hexadecimal. In JSON, a string that is valid
//! UTF-8 has its plain name (`key`). Otherwise, and with `--hex`, it is hexadecimal under another
//! name (`key_hex`).

use std::ffi::OsStr;
use std::fmt::{self, Display};
use std::os::unix::ffi::OsStrExt as _;

use clap::Args;
use farleaf::key::KEY_SIZE_BYTES_MAX;
use farleaf::key::text::{Escaped, from_hex, to_hex, unescape};
use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::failure::BadArgument;

/// Encoding of keys and values in arguments and output.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct EncodingArguments {
    /// Read and print keys and values as hexadecimal digits, two per byte
    #[arg(long, conflicts_with = "escaped")]
    pub(crate) hex: bool,

    /// Read `\\`, `\n`, `\r`, `\t` and `\xNN` in keys and values as the bytes that they stand for
    #[arg(long)]
    pub(crate) escaped: bool,
}

impl EncodingArguments {
    /// Returns the given option, if any.
    pub(crate) fn given(self) -> Option<&'static str> {
        match self {
            Self { hex: true, .. } => Some("--hex"),
            Self { escaped: true, .. } => Some("--escaped"),
            _ => None,
        }
    }

    /// Decodes an argument. `role` names the argument in error messages.
    pub(crate) fn read(self, role: &str, argument: &OsStr) -> Result<Vec<u8>, BadArgument> {
        let bytes = argument.as_bytes();
        if !self.hex && !self.escaped {
            return Ok(bytes.to_vec());
        }
        let shown = Escaped(bytes);
        let bad = |why: &dyn Display, name| {
            BadArgument(format!("{role} '{shown}' cannot be read as {name}: {why}"))
        };
        let name = if self.hex { "--hex" } else { "--escaped" };
        let text = str::from_utf8(bytes).map_err(|error| bad(&error, name))?;
        let read = if self.hex {
            from_hex(text)
        } else {
            unescape(text)
        };
        read.map_err(|error| bad(&error, name))
    }

    /// Decodes a key and checks its size.
    pub(crate) fn read_key(self, argument: &OsStr) -> Result<Vec<u8>, BadArgument> {
        self.read_up_to_key_size("key", argument)
    }

    /// Decodes a key prefix.
    pub(crate) fn read_prefix(self, argument: &OsStr) -> Result<Vec<u8>, BadArgument> {
        self.read_up_to_key_size("prefix", argument)
    }

    fn read_up_to_key_size(self, role: &str, argument: &OsStr) -> Result<Vec<u8>, BadArgument> {
        let bytes = self.read(role, argument)?;
        if bytes.len() > KEY_SIZE_BYTES_MAX {
            return Err(BadArgument(format!(
                "the {role} has {} bytes, more than the maximum of {KEY_SIZE_BYTES_MAX}: '{}...'",
                bytes.len(),
                Escaped(&bytes[..16])
            )));
        }
        Ok(bytes)
    }

    /// Formats a byte string as text.
    pub(crate) const fn show(self, bytes: &[u8]) -> ShownString<'_> {
        Notation::Bytes(self).show(bytes)
    }
}

/// Form in which keys and values are printed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Notation {
    /// Words, as numbers. They are encoded as 8 bytes, most significant first.
    Words,
    /// Byte strings.
    Bytes(EncodingArguments),
}

impl Notation {
    pub(crate) const fn show(self, bytes: &[u8]) -> ShownString<'_> {
        ShownString {
            bytes,
            notation: self,
        }
    }
}

/// Decodes the word in the first 8 bytes; 0 if there are none.
pub(crate) fn word_of(bytes: &[u8]) -> u64 {
    let first = bytes.iter().take(size_of::<u64>());
    first.fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// Key or value as text, on one line and without a tab.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShownString<'a> {
    bytes: &'a [u8],
    notation: Notation,
}

impl Display for ShownString<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.notation {
            Notation::Words => word_of(self.bytes).fmt(f),
            Notation::Bytes(EncodingArguments { hex: true, .. }) => {
                f.write_str(&to_hex(self.bytes))
            }
            Notation::Bytes(_) => Escaped(self.bytes).fmt(f),
        }
    }
}

/// Value column of a printed record.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ShownValue<'a> {
    Present(&'a [u8]),
    /// The record has no value: the key is absent.
    Absent,
    /// Values were not requested.
    NotAsked,
}

/// Record; as text its key, a tab and its value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShownRecord<'a> {
    pub(crate) notation: Notation,
    pub(crate) key: &'a [u8],
    pub(crate) value: ShownValue<'a>,
}

impl Display for ShownRecord<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.notation.show(self.key).fmt(f)?;
        if let ShownValue::Present(value) = self.value {
            write!(f, "\t{}", self.notation.show(value))?;
        }
        Ok(())
    }
}

impl Serialize for ShownRecord<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        let mut entry = |names: [&str; 2], bytes: &[u8]| {
            let encoding = match self.notation {
                Notation::Words => return map.serialize_entry(names[0], &word_of(bytes)),
                Notation::Bytes(encoding) => encoding,
            };
            match str::from_utf8(bytes) {
                Ok(text) if !encoding.hex => map.serialize_entry(names[0], text),
                _ => map.serialize_entry(names[1], &to_hex(bytes)),
            }
        };
        entry(["key", "key_hex"], self.key)?;
        match self.value {
            ShownValue::Present(value) => entry(["value", "value_hex"], value)?,
            ShownValue::Absent => map.serialize_entry("value", &None::<&str>)?,
            ShownValue::NotAsked => {}
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: EncodingArguments = EncodingArguments {
        hex: false,
        escaped: false,
    };
    const HEX: EncodingArguments = EncodingArguments { hex: true, ..PLAIN };
    const ESCAPED: EncodingArguments = EncodingArguments {
        escaped: true,
        ..PLAIN
    };

    fn all_bytes() -> Vec<u8> {
        (0..=u8::MAX).collect()
    }

    /// Promise: without an option, an argument is used as raw bytes, UTF-8 or not. The output for
    /// any bytes can be read back, with `--hex` and with `--escaped`, and contains no line break,
    /// tab or other control character.
    #[test]
    fn strings_read_back() {
        let bytes = all_bytes();
        assert_eq!(PLAIN.read_key(OsStr::from_bytes(&bytes)).unwrap(), bytes);
        for (shown_with, read_with) in [(PLAIN, ESCAPED), (ESCAPED, ESCAPED), (HEX, HEX)] {
            let shown = shown_with.show(&bytes).to_string();
            assert!(!shown.contains(char::is_control), "{shown}");
            assert_eq!(read_with.read_key(OsStr::new(&shown)).unwrap(), bytes);
        }
    }

    /// Promise: an argument that cannot be decoded is rejected with the character and the reason,
    /// and so is a key that is too long.
    #[test]
    fn what_is_no_string_is_refused() {
        let long = "61".repeat(KEY_SIZE_BYTES_MAX + 1);
        let not_text = OsStr::from_bytes(b"\xff");
        for (encoding, argument, expected) in [
            (
                HEX,
                OsStr::new("6g"),
                "character 2: 'g' is not a hexadecimal digit",
            ),
            (HEX, OsStr::new("616"), "a digit is missing"),
            (HEX, not_text, "key '\\xff' cannot be read as --hex"),
            (
                ESCAPED,
                OsStr::new("a\\q"),
                "character 3: unknown escape \\q",
            ),
            (ESCAPED, not_text, "--escaped: invalid utf-8"),
            (
                HEX,
                OsStr::new(&long),
                "the key has 4097 bytes, more than the maximum of 4096",
            ),
        ] {
            let error = encoding
                .read_key(argument)
                .expect_err("refused")
                .to_string();
            assert!(error.contains(expected) && error.len() < 200, "{error}");
        }
    }

    /// Promise: in JSON, key and value are each text if they are valid UTF-8, and hexadecimal if
    /// they are not or if `--hex` is given.
    #[test]
    fn json_names_tell_what_a_string_is() {
        let json = |encoding, key, value| {
            let record = ShownRecord {
                notation: Notation::Bytes(encoding),
                key,
                value,
            };
            serde_json::to_string(&record).expect("JSON")
        };
        let (text, not_text) = ("é\t\0".as_bytes(), &b"\xc3"[..]);
        assert_eq!(
            json(PLAIN, text, ShownValue::Present(not_text)),
            r#"{"key":"é\t\u0000","value_hex":"c3"}"#
        );
        assert_eq!(
            json(PLAIN, not_text, ShownValue::Present(b"")),
            r#"{"key_hex":"c3","value":""}"#
        );
        assert_eq!(
            json(HEX, b"a", ShownValue::Absent),
            r#"{"key_hex":"61","value":null}"#
        );
        assert_eq!(json(ESCAPED, b"a", ShownValue::NotAsked), r#"{"key":"a"}"#);
    }

    /// Promise: words are numbers in text and in JSON.
    #[test]
    fn words_are_shown_as_numbers() {
        let (key, value) = (7_u64.to_be_bytes(), u64::MAX.to_be_bytes());
        let record = ShownRecord {
            notation: Notation::Words,
            key: &key,
            value: ShownValue::Present(&value),
        };
        assert_eq!(record.to_string(), format!("7\t{}", u64::MAX));
        let json = serde_json::to_string(&record).expect("JSON");
        assert_eq!(json, format!(r#"{{"key":7,"value":{}}}"#, u64::MAX));
    }
}
