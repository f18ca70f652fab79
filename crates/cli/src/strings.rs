//! Byte strings, as the command line takes them and as they are printed.
//!
//! An argument is its bytes, unless `--hex` or `--escaped` says how it stands for others. What is
//! printed as text is escaped where it is not printable, so that a line stays a line and a tab
//! separates, and reads back with `--escaped`; with `--hex` it is hexadecimal. In JSON a string is
//! itself under its name (`key`) if it is UTF-8, and otherwise, and with `--hex`, hexadecimal under
//! another one (`key_hex`).

use std::ffi::OsStr;
use std::fmt::{self, Display};
use std::os::unix::ffi::OsStrExt as _;

use clap::Args;
use farleaf::key::KEY_SIZE_BYTES_MAX;
use farleaf::key::text::{Escaped, from_hex, to_hex, unescape};
use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::failure::BadArgument;

/// How keys and values are written.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct EncodingArguments {
    /// Of bytes: keys and values are hexadecimal, two digits a byte, as arguments and as they are
    /// printed
    #[arg(long, conflicts_with = "escaped")]
    pub(crate) hex: bool,

    /// Of bytes: keys and values in arguments have the escapes with which they are printed: `\\`,
    /// `\n`, `\r`, `\t`, and `\xNN` for any byte
    #[arg(long)]
    pub(crate) escaped: bool,
}

impl EncodingArguments {
    /// The option that is given, if one is.
    pub(crate) fn given(self) -> Option<&'static str> {
        match self {
            Self { hex: true, .. } => Some("--hex"),
            Self { escaped: true, .. } => Some("--escaped"),
            _ => None,
        }
    }

    /// The bytes that an argument stands for; `role` is what it is, for the message.
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

    /// The same for a key, which must not be too long to be one.
    pub(crate) fn read_key(self, argument: &OsStr) -> Result<Vec<u8>, BadArgument> {
        self.read_up_to_key_size("key", argument)
    }

    /// The same for what keys begin with.
    pub(crate) fn read_prefix(self, argument: &OsStr) -> Result<Vec<u8>, BadArgument> {
        self.read_up_to_key_size("prefix", argument)
    }

    fn read_up_to_key_size(self, role: &str, argument: &OsStr) -> Result<Vec<u8>, BadArgument> {
        let bytes = self.read(role, argument)?;
        if bytes.len() > KEY_SIZE_BYTES_MAX {
            return Err(BadArgument(format!(
                "a {role} has {} bytes, and can have {KEY_SIZE_BYTES_MAX} at the most: '{}...'",
                bytes.len(),
                Escaped(&bytes[..16])
            )));
        }
        Ok(bytes)
    }

    /// A string as text.
    pub(crate) const fn show(self, bytes: &[u8]) -> ShownString<'_> {
        ShownString {
            bytes,
            is_hex: self.hex,
        }
    }
}

/// A byte string as text, on one line and without a tab.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShownString<'a> {
    bytes: &'a [u8],
    is_hex: bool,
}

impl Display for ShownString<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_hex {
            f.write_str(&to_hex(self.bytes))
        } else {
            Escaped(self.bytes).fmt(f)
        }
    }
}

/// What a record is printed with as its value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ShownValue<'a> {
    Present(&'a [u8]),
    /// The key is absent: `null` in JSON.
    Absent,
    /// Only keys are printed.
    NotAsked,
}

/// A record of byte strings: as text its key, a tab and its value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShownRecord<'a> {
    pub(crate) encoding: EncodingArguments,
    pub(crate) key: &'a [u8],
    pub(crate) value: ShownValue<'a>,
}

impl Display for ShownRecord<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.encoding.show(self.key).fmt(f)?;
        if let ShownValue::Present(value) = self.value {
            write!(f, "\t{}", self.encoding.show(value))?;
        }
        Ok(())
    }
}

impl Serialize for ShownRecord<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        let mut entry = |names: [&str; 2], bytes: &[u8]| match str::from_utf8(bytes) {
            Ok(text) if !self.encoding.hex => map.serialize_entry(names[0], text),
            _ => map.serialize_entry(names[1], &to_hex(bytes)),
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

    /// Promise: an argument is its bytes, UTF-8 or not; what is shown of any bytes reads back to
    /// them, with `--hex` as with `--escaped`, and has no line break, no tab and no control
    /// character in it.
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

    /// Promise: what stands for no bytes is refused with the character and the reason, and so is a
    /// key that is too long.
    #[test]
    fn what_is_no_string_is_refused() {
        let long = "61".repeat(KEY_SIZE_BYTES_MAX + 1);
        let not_text = OsStr::from_bytes(b"\xff");
        for (encoding, argument, told) in [
            (
                HEX,
                OsStr::new("6g"),
                "character 2: 'g' is no hexadecimal digit",
            ),
            (HEX, OsStr::new("616"), "a digit is missing"),
            (HEX, not_text, "key '\\xff' cannot be read as --hex"),
            (
                ESCAPED,
                OsStr::new("a\\q"),
                "character 3: no escape is called \\q",
            ),
            (ESCAPED, not_text, "--escaped: invalid utf-8"),
            (
                HEX,
                OsStr::new(&long),
                "a key has 4097 bytes, and can have 4096",
            ),
        ] {
            let error = encoding
                .read_key(argument)
                .expect_err("refused")
                .to_string();
            assert!(error.contains(told) && error.len() < 200, "{error}");
        }
    }

    /// Promise: in JSON a string is itself where it is UTF-8, each of key and value by itself, and
    /// hexadecimal where it is not, or where that is asked for.
    #[test]
    fn json_names_tell_what_a_string_is() {
        let json = |encoding, key, value| {
            let record = ShownRecord {
                encoding,
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
}
