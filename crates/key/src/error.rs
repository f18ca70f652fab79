//! Errors of encoding and decoding keys and values.

use thiserror::Error;

use farleaf_base::limits::{KEY_SIZE_BYTES_MAX, VALUE_SIZE_BYTES_MAX};

/// Error: bytes are not a valid encoding of the requested key or value type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "cannot decode {wanted} at byte {byte_index}: {fault}; check that the bytes were written as \
     this type"
)]
pub struct DecodeError {
    /// Index of the first invalid byte, from 0; the number of bytes if one is missing.
    pub byte_index: usize,
    /// Type that was being read, such as "a u64".
    pub wanted: &'static str,
    /// Reason why the bytes are invalid there.
    pub fault: DecodeFault,
}

impl DecodeError {
    /// Returns the error with its place moved by `size_bytes` preceding bytes.
    pub(crate) fn behind(self, size_bytes: usize) -> Self {
        Self {
            byte_index: self.byte_index + size_bytes,
            ..self
        }
    }
}

/// Reason why bytes are not a valid encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecodeFault {
    /// The bytes end too early.
    #[error("{missing_size_bytes} bytes are missing at the end")]
    Ends {
        /// Number of missing bytes.
        missing_size_bytes: usize,
    },
    /// Bytes are left over after the end of the encoding.
    #[error("{size_bytes} unexpected bytes at the end")]
    Trailing {
        /// Number of bytes left over.
        size_bytes: usize,
    },
    /// A byte that selects one of several cases has an undefined value.
    #[error("expected {allowed}, found {found:#04x}")]
    Byte {
        /// Value of the byte.
        found: u8,
        /// Description of the allowed values.
        allowed: &'static str,
    },
    /// A string that must end with a terminator does not.
    #[error("the terminator 00 01 is missing")]
    Unterminated,
    /// A string or a character is not UTF-8.
    #[error("invalid UTF-8")]
    NotUtf8,
    /// The encoding is longer than allowed. `byte_index` is the index of the first byte too many.
    #[error("{size_bytes} bytes exceed the limit of {size_bytes_max}")]
    TooLong {
        /// Number of bytes found.
        size_bytes: usize,
        /// Largest number of bytes allowed.
        size_bytes_max: usize,
    },
    /// A key or value type of another crate rejected the bytes.
    #[error("{reason}")]
    Refused {
        /// Reason that the type gives.
        reason: &'static str,
    },
}

/// Error: an encoded key exceeds the size limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "the encoded key has {size_bytes} bytes, and the limit is {KEY_SIZE_BYTES_MAX}; use a shorter \
     key"
)]
pub struct KeyTooLong {
    /// Size in bytes of the encoded key, or of its encoded first components.
    pub size_bytes: usize,
}

/// Error: an encoded value exceeds the size limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "the encoded value has {size_bytes} bytes, and the limit is {VALUE_SIZE_BYTES_MAX}; split it \
     over several keys"
)]
pub struct ValueTooLong {
    /// Size of the encoded value in bytes.
    pub size_bytes: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages name the place, the fault and the limit.
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
            "cannot decode a bool at byte 4: expected 00 or 01, found 0x02; \
             check that the bytes were written as this type"
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
