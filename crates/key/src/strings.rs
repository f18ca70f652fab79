//! Keys that are byte strings, character strings or byte arrays.
//!
//! The last form of a string is the string. Its inner form writes every zero byte as 00 FF and ends
//! with 00 01 ([`write_terminated`]).
//!
//! Why the inner form sorts as the strings do, whatever follows: let `s` be less than `t`.
//!
//! - They differ first at a byte `a` of `s` that is less than a byte `b` of `t`. Then `b` is not 0,
//!   and the inner forms differ first at `a` and `b`. If `a` is 0, it is written as 00 FF, which
//!   also begins with `a`.
//! - Or `s` is a prefix of `t`. Then `s` has 00 01 at its end, where `t` has a nonzero byte or 00
//!   FF.
//!
//! Arrays of a type all have the same size, so both forms are the plain bytes.

use std::string::FromUtf8Error;

use crate::error::{DecodeError, DecodeFault};
use crate::key::{AsKey, Key};
use crate::reader::{KeyReader, error_at};

/// Second byte of an escaped zero byte: the zero byte belongs to the string.
pub(crate) const ESCAPED_ZERO: u8 = 0xff;
/// Second byte of the terminator: the string ended before the zero byte.
pub(crate) const TERMINATOR: u8 = 0x01;

const _: () = assert!(
    TERMINATOR < ESCAPED_ZERO,
    "a string sorts before its extensions"
);

/// Appends the inner form of a byte string: two bytes longer than the string, plus one for each
/// zero byte. [`KeyReader::take_terminated`] reads it.
pub fn write_terminated(string: &[u8], out: &mut Vec<u8>) {
    out.reserve(string.len() + 2);
    for (piece_index, piece) in string.split(|byte| *byte == 0).enumerate() {
        if piece_index > 0 {
            out.extend_from_slice(&[0, ESCAPED_ZERO]);
        }
        out.extend_from_slice(piece);
    }
    out.extend_from_slice(&[0, TERMINATOR]);
}

/// Implements the key traits for a string type: the types accepted in lookups, and their bytes.
macro_rules! string_keys {
    ($([$($parameters:tt)*] $borrowed:ty => $key:ty, $bytes:ident;)+) => {$(
        impl<$($parameters)*> AsKey<$key> for $borrowed {
            fn encode_inner(&self, out: &mut Vec<u8>) {
                write_terminated(self.$bytes(), out);
            }

            fn encode_last(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(self.$bytes());
            }
        }
    )+};
}

string_keys! {
    [] str => String, as_bytes;
    [] String => String, as_bytes;
    [] [u8] => Vec<u8>, as_ref;
    [] Vec<u8> => Vec<u8>, as_slice;
    [const N: usize] [u8; N] => Vec<u8>, as_slice;
}

impl Key for Vec<u8> {
    fn decode_inner(reader: &mut KeyReader<'_>) -> Result<Self, DecodeError> {
        reader.take_terminated("a byte string")
    }

    fn decode_last(reader: &mut KeyReader<'_>) -> Result<Self, DecodeError> {
        Ok(reader.take_rest().to_vec())
    }
}

impl Key for String {
    fn decode_inner(reader: &mut KeyReader<'_>) -> Result<Self, DecodeError> {
        let byte_index = reader.byte_index();
        let bytes = reader.take_terminated("a string")?;
        string_of(bytes).map_err(|(error, bytes)| {
            // The place counts encoded bytes, where a zero byte is two.
            let good = &bytes[..error.byte_index];
            let zero_count: usize = good.iter().map(|byte| usize::from(*byte == 0)).sum();
            error.behind(byte_index + zero_count)
        })
    }

    fn decode_last(reader: &mut KeyReader<'_>) -> Result<Self, DecodeError> {
        let byte_index = reader.byte_index();
        let bytes = reader.take_rest().to_vec();
        string_of(bytes).map_err(|(error, _)| error.behind(byte_index))
    }
}

/// Converts the bytes to a string; if they are not valid UTF-8, returns the error and the bytes.
pub(crate) fn string_of(bytes: Vec<u8>) -> Result<String, (DecodeError, Vec<u8>)> {
    String::from_utf8(bytes).map_err(|error: FromUtf8Error| {
        let byte_index = error.utf8_error().valid_up_to();
        let fault = DecodeFault::NotUtf8;
        (error_at(byte_index, "a string", fault), error.into_bytes())
    })
}

impl<const N: usize> AsKey<[u8; N]> for [u8; N] {
    fn encode_inner(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
}

impl<const N: usize> Key for [u8; N] {
    fn decode_inner(reader: &mut KeyReader<'_>) -> Result<Self, DecodeError> {
        reader.take_array("a byte array")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{decode_key, encode_key};

    /// Zero bytes at both ends are escaped; the empty string has only a terminator.
    #[test]
    fn zero_bytes_are_escaped_and_the_end_is_marked() {
        let written = |string: &[u8]| {
            let mut out = vec![b'<'];
            write_terminated(string, &mut out);
            out
        };
        assert_eq!(written(b""), b"<\x00\x01");
        assert_eq!(written(b"ab"), b"<ab\x00\x01");
        assert_eq!(written(b"\0"), b"<\x00\xff\x00\x01");
        assert_eq!(written(b"\0a\0\0"), b"<\x00\xffa\x00\xff\x00\xff\x00\x01");
        assert_eq!(written(b"\x01\xff"), b"<\x01\xff\x00\x01");
    }

    /// All borrowed forms of a string have the string's bytes, inside and at the end.
    #[test]
    fn borrowed_strings_have_the_same_bytes() {
        let owned = ("k\0".to_owned(), "v".to_owned());
        let expected = encode_key::<(String, String)>(&owned);
        assert_eq!(encode_key::<(String, String)>(&("k\0", "v")), expected);
        let (first, second) = &owned;
        assert_eq!(encode_key::<(String, String)>(&(first, &second)), expected);

        let expected = encode_key::<(Vec<u8>, Vec<u8>)>(&(b"k\0".to_vec(), b"v".to_vec()));
        let slices = (&b"k\0"[..], &b"v"[..]);
        assert_eq!(encode_key::<(Vec<u8>, Vec<u8>)>(&slices), expected);
        assert_eq!(encode_key::<(Vec<u8>, Vec<u8>)>(&(b"k\0", b"v")), expected);
    }

    /// The place of invalid UTF-8 counts encoded bytes, behind other components and behind escaped
    /// zero bytes.
    #[test]
    fn the_place_of_bad_utf8_is_one_of_encoded_bytes() {
        let error = decode_key::<(u8, String, u8)>(b"\x07a\x00\xff\x00\xffb\xc3\x00\x01\x09");
        let error = error.unwrap_err();
        assert_eq!((error.byte_index, error.fault), (7, DecodeFault::NotUtf8));
        let error = decode_key::<(u8, String)>(b"\x07ab\xff").unwrap_err();
        assert_eq!((error.byte_index, error.fault), (3, DecodeFault::NotUtf8));
    }
}
