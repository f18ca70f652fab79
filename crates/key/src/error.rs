//! What can be wrong with bytes, keys and values.

use thiserror::Error;

use crate::key::KEY_SIZE_BYTES_MAX;
use crate::value::VALUE_SIZE_BYTES_MAX;

/// Bytes are not the encoding of any key, or value, of the type that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "at byte {byte_index}, reading {wanted}: {fault}; were these bytes written as another type?"
)]
pub struct DecodeError {
    /// The first byte that cannot stand where it does, counted from 0; the number of bytes, if it
    /// is one that is missing.
    pub byte_index: usize,
    /// What was being read: "a u64".
    pub wanted: &'static str,
    /// What is wrong there.
    pub fault: DecodeFault,
}

impl DecodeError {
    /// The same of bytes that have so many more in front.
    pub(crate) fn behind(self, size_bytes: usize) -> Self {
        Self {
            byte_index: self.byte_index + size_bytes,
            ..self
        }
    }
}

/// Why bytes are no encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecodeFault {
    /// More bytes are needed.
    #[error("the bytes end, {missing_size_bytes} too early")]
    Ends {
        /// How many are missing.
        missing_size_bytes: usize,
    },
    /// It ends before the bytes do.
    #[error("it is over, and {size_bytes} bytes are left")]
    Trailing {
        /// How many are left.
        size_bytes: usize,
    },
    /// A byte that says which of several cases it is says none of them.
    #[error("found {found:#04x}, where only {allowed} may be")]
    Byte {
        /// The byte.
        found: u8,
        /// The bytes that may stand there.
        allowed: &'static str,
    },
    /// A string that is followed by something does not end.
    #[error("the bytes end before the 00 01 that ends it")]
    Unterminated,
    /// A string or a character is not UTF-8.
    #[error("it is not UTF-8")]
    NotUtf8,
    /// Longer than what can have been encoded. `byte_index` is that of the first byte too many.
    #[error("there are {size_bytes} bytes, more than {size_bytes_max}")]
    TooLong {
        /// How many bytes there are.
        size_bytes: usize,
        /// How many there may be.
        size_bytes_max: usize,
    },
    /// For key and value types of other crates: what they refuse.
    #[error("{reason}")]
    Refused {
        /// Why.
        reason: &'static str,
    },
}

/// A key is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "the key has {size_bytes} bytes as encoded, and {KEY_SIZE_BYTES_MAX} is the most; take a shorter one"
)]
pub struct KeyTooLong {
    /// Size of the encoded key, or of the first components of one, in bytes.
    pub size_bytes: usize,
}

/// A value is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "the value has {size_bytes} bytes as encoded, and {VALUE_SIZE_BYTES_MAX} is the most; split it over several keys"
)]
pub struct ValueTooLong {
    /// Size of the encoded value in bytes.
    pub size_bytes: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The messages say where, what, and what the limit is.
    #[test]
    fn messages_say_where_and_why() {
        let error = DecodeError {
            byte_index: 4,
            wanted: "a bool",
            fault: DecodeFault::Byte {
                found: 2,
                allowed: "00 or 01",
            },
        };
        assert_eq!(
            error.to_string(),
            "at byte 4, reading a bool: found 0x02, where only 00 or 01 may be; \
             were these bytes written as another type?"
        );
        let text = KeyTooLong { size_bytes: 5000 }.to_string();
        assert!(text.contains("5000") && text.contains("4096"), "{text}");
        let text = ValueTooLong {
            size_bytes: 70_000_000,
        }
        .to_string();
        assert!(text.contains("70000000") && text.contains("67108864"));
    }
}
