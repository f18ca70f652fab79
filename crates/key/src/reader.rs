//! Reader that decodes a key byte by byte.

use crate::error::{DecodeError, DecodeFault};
use crate::strings::{ESCAPED_ZERO, TERMINATOR};

/// Bytes of one key, and the position of the next byte to read. No method panics, whatever the
/// bytes.
#[derive(Clone, Debug)]
pub struct KeyReader<'a> {
    bytes: &'a [u8],
    /// Index of the next byte; at most the number of bytes.
    byte_index: usize,
}

impl<'a> KeyReader<'a> {
    /// Creates a reader that starts at the first byte.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            byte_index: 0,
        }
    }

    /// Returns the index of the next byte, counted from 0.
    pub fn byte_index(&self) -> usize {
        self.byte_index
    }

    /// Returns the next byte, if any, without consuming it.
    pub fn peek(&self) -> Option<u8> {
        self.bytes.get(self.byte_index).copied()
    }

    /// Takes one byte. `wanted` names the type being read, for the error if no byte is left.
    ///
    /// # Errors
    ///
    /// [`DecodeError`], if no byte is left.
    pub fn take_byte(&mut self, wanted: &'static str) -> Result<u8, DecodeError> {
        self.take_array(wanted).map(|[byte]| byte)
    }

    /// Takes as many bytes as the array has.
    ///
    /// # Errors
    ///
    /// [`DecodeError`], if fewer bytes are left.
    pub fn take_array<const N: usize>(
        &mut self,
        wanted: &'static str,
    ) -> Result<[u8; N], DecodeError> {
        let rest = &self.bytes[self.byte_index..];
        let Some(array) = rest.first_chunk() else {
            let fault = DecodeFault::Ends {
                missing_size_bytes: N - rest.len(),
            };
            return Err(error_at(self.bytes.len(), wanted, fault));
        };
        self.byte_index += N;
        Ok(*array)
    }

    /// Takes `size_bytes` bytes.
    ///
    /// # Errors
    ///
    /// [`DecodeError`], if fewer bytes are left.
    pub fn take(
        &mut self,
        size_bytes: usize,
        wanted: &'static str,
    ) -> Result<&'a [u8], DecodeError> {
        let rest = &self.bytes[self.byte_index..];
        let Some(taken) = rest.get(..size_bytes) else {
            let fault = DecodeFault::Ends {
                missing_size_bytes: size_bytes - rest.len(),
            };
            return Err(error_at(self.bytes.len(), wanted, fault));
        };
        self.byte_index += size_bytes;
        Ok(taken)
    }

    /// Takes all remaining bytes: the last form of a byte string.
    pub fn take_rest(&mut self) -> &'a [u8] {
        let rest = &self.bytes[self.byte_index..];
        self.byte_index = self.bytes.len();
        rest
    }

    /// Takes the inner form of a byte string, which [`write_terminated`](crate::write_terminated)
    /// wrote, up to and including its terminator, and returns the string without it.
    ///
    /// # Errors
    ///
    /// [`DecodeError`], if the terminator is missing or an escape is invalid.
    pub fn take_terminated(&mut self, wanted: &'static str) -> Result<Vec<u8>, DecodeError> {
        let mut string = Vec::new();
        loop {
            let rest = &self.bytes[self.byte_index..];
            let zero = rest.iter().position(|byte| *byte == 0);
            let Some((zero, marker)) = zero.and_then(|it| Some((it, *rest.get(it + 1)?))) else {
                let fault = DecodeFault::Unterminated;
                return Err(error_at(self.bytes.len(), wanted, fault));
            };
            string.extend_from_slice(&rest[..zero]);
            let marker_byte_index = self.byte_index + zero + 1;
            self.byte_index = marker_byte_index + 1;
            match marker {
                TERMINATOR => return Ok(string),
                ESCAPED_ZERO => string.push(0),
                found => {
                    let allowed = "01 or ff (behind a 00)";
                    let fault = DecodeFault::Byte { found, allowed };
                    return Err(error_at(marker_byte_index, wanted, fault));
                }
            }
        }
    }

    /// Checks that no bytes are left.
    pub(crate) fn finish(self, wanted: &'static str) -> Result<(), DecodeError> {
        match self.bytes.len() - self.byte_index {
            0 => Ok(()),
            size_bytes => {
                let fault = DecodeFault::Trailing { size_bytes };
                Err(error_at(self.byte_index, wanted, fault))
            }
        }
    }
}

pub(crate) fn error_at(byte_index: usize, wanted: &'static str, fault: DecodeFault) -> DecodeError {
    DecodeError {
        byte_index,
        wanted,
        fault,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Missing bytes are counted and reported at the end of the bytes.
    #[test]
    fn missing_bytes_are_counted() {
        let mut reader = KeyReader::new(&[1, 2, 3]);
        assert_eq!(reader.take_byte("x"), Ok(1));
        let fault = DecodeFault::Ends {
            missing_size_bytes: 2,
        };
        assert_eq!(reader.take_array::<4>("x"), Err(error_at(3, "x", fault)));
        assert_eq!(reader.take(4, "x"), Err(error_at(3, "x", fault)));
        assert_eq!(reader.byte_index(), 1);
        assert_eq!(reader.take_rest(), [2, 3]);
        assert_eq!(reader.peek(), None);
    }

    /// Strings end at their terminator; errors name the place of the fault.
    #[test]
    fn terminated_strings_are_read_to_their_end() {
        let mut reader = KeyReader::new(b"a\x00\xffb\x00\x01c");
        assert_eq!(reader.take_terminated("x").as_deref(), Ok(&b"a\0b"[..]));
        assert_eq!(reader.peek(), Some(b'c'));

        let read = |bytes: &[u8]| KeyReader::new(bytes).take_terminated("x").unwrap_err();
        for open in [&b""[..], b"ab", b"a\x00", b"a\x00\xff", b"a\x00\xff\x00"] {
            let error = read(open);
            assert_eq!(error.fault, DecodeFault::Unterminated);
            assert_eq!(error.byte_index, open.len());
        }
        let error = read(b"a\x00\xffb\x00\x02c");
        assert_eq!(error.byte_index, 5);
        assert!(matches!(error.fault, DecodeFault::Byte { found: 2, .. }));
    }
}
