//! Keys of fixed size, and characters, whose inner and last forms are the same.
//!
//! - Unsigned integers: big-endian.
//! - Signed integers: big-endian with the sign bit inverted, which moves the negative numbers below
//!   the others and keeps the order within both.
//! - Floats: the sign bit inverted where it is clear, all bits inverted where it is set. This is
//!   the total order of IEEE 754 (`total_cmp`): negative NaNs, negative infinity, the negative
//!   numbers, -0.0, 0.0, the positive numbers, infinity, NaNs. Every bit pattern is kept.
//! - `bool`: 00 or 01. `()`: no bytes.
//! - `char`: UTF-8, which sorts as code points do; no character's encoding is a prefix of
//!   another's.

use crate::error::{DecodeError, DecodeFault};
use crate::key::{AsKey, Key};
use crate::reader::{KeyReader, error_at};

macro_rules! unsigned_keys {
    ($($number:ident $wanted:literal),+) => {$(
        impl AsKey<$number> for $number {
            fn encode_inner(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_be_bytes());
            }
        }

        impl Key for $number {
            fn decode_inner(reader: &mut KeyReader<'_>) -> Result<Self, DecodeError> {
                reader.take_array($wanted).map(Self::from_be_bytes)
            }
        }
    )+};
}

unsigned_keys!(u8 "a u8", u16 "a u16", u32 "a u32", u64 "a u64", u128 "a u128");

macro_rules! signed_keys {
    ($($number:ident $wanted:literal),+) => {$(
        impl AsKey<$number> for $number {
            fn encode_inner(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&(self ^ Self::MIN).to_be_bytes());
            }
        }

        impl Key for $number {
            fn decode_inner(reader: &mut KeyReader<'_>) -> Result<Self, DecodeError> {
                reader.take_array($wanted).map(|it| Self::from_be_bytes(it) ^ Self::MIN)
            }
        }
    )+};
}

signed_keys!(i8 "an i8", i16 "an i16", i32 "an i32", i64 "an i64", i128 "an i128");

macro_rules! float_keys {
    ($($float:ident $bits:ident $wanted:literal),+) => {$(
        impl AsKey<$float> for $float {
            fn encode_inner(&self, out: &mut Vec<u8>) {
                const SIGN: $bits = 1 << ($bits::BITS - 1);
                let bits = self.to_bits();
                let ordered = if bits & SIGN == 0 { bits | SIGN } else { !bits };
                out.extend_from_slice(&ordered.to_be_bytes());
            }
        }

        impl Key for $float {
            fn decode_inner(reader: &mut KeyReader<'_>) -> Result<Self, DecodeError> {
                const SIGN: $bits = 1 << ($bits::BITS - 1);
                let ordered = reader.take_array($wanted).map($bits::from_be_bytes)?;
                let bits = if ordered & SIGN == 0 { !ordered } else { ordered ^ SIGN };
                Ok(Self::from_bits(bits))
            }
        }
    )+};
}

float_keys!(f32 u32 "an f32", f64 u64 "an f64");

impl AsKey<bool> for bool {
    fn encode_inner(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
}

impl Key for bool {
    fn decode_inner(reader: &mut KeyReader<'_>) -> Result<Self, DecodeError> {
        let byte_index = reader.byte_index();
        let byte = reader.take_byte("a bool")?;
        bool_of(byte, "a bool").map_err(|error| error.behind(byte_index))
    }
}

/// Decodes 00 and 01; rejects other bytes.
pub(crate) fn bool_of(byte: u8, wanted: &'static str) -> Result<bool, DecodeError> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        found => {
            let allowed = "00 or 01";
            Err(error_at(0, wanted, DecodeFault::Byte { found, allowed }))
        }
    }
}

impl AsKey<()> for () {
    fn encode_inner(&self, _out: &mut Vec<u8>) {}
}

impl Key for () {
    fn decode_inner(_reader: &mut KeyReader<'_>) -> Result<Self, DecodeError> {
        Ok(())
    }
}

impl AsKey<char> for char {
    fn encode_inner(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.encode_utf8(&mut [0; 4]).as_bytes());
    }
}

impl Key for char {
    fn decode_inner(reader: &mut KeyReader<'_>) -> Result<Self, DecodeError> {
        const WANTED: &str = "a char";
        let byte_index = reader.byte_index();
        let not_utf8 = || error_at(byte_index, WANTED, DecodeFault::NotUtf8);
        let size_bytes = match reader.peek() {
            None | Some(0..0x80) => 1,
            Some(0xc2..0xe0) => 2,
            Some(0xe0..0xf0) => 3,
            Some(0xf0..0xf5) => 4,
            Some(_) => return Err(not_utf8()),
        };
        let text = str::from_utf8(reader.take(size_bytes, WANTED)?).map_err(|_| not_utf8())?;
        text.chars().next().ok_or_else(not_utf8)
    }
}
