//! Typed values as bytes. Values need no order, so their encoding is plain.
//!
//! Byte strings, strings and arrays are their own bytes; integers and floats are little-endian in
//! their fixed size; `bool` is 00 or 01; `()` is empty; `None` is 00, `Some(value)` is 01 and the
//! value. As with keys, decoding accepts exactly what encoding writes.

use std::borrow::Cow;

use farleaf_base::limits::VALUE_SIZE_BYTES_MAX;

use crate::error::{DecodeError, DecodeFault, ValueTooLong};
use crate::numbers::bool_of;
use crate::reader::error_at;
use crate::strings::string_of;

/// Type that can be stored as a value of type `V`: `V` itself, or a borrowed equivalent.
pub trait AsValue<V> {
    /// Returns the encoded bytes, borrowed if the value has them in memory.
    fn value_bytes(&self) -> Cow<'_, [u8]>;
}

/// Value type of a table.
///
/// Implemented for `Vec<u8>`, `String`, `[u8; N]`, the integers of 8 to 128 bits, `f32`, `f64`,
/// `bool`, `()` and options of values.
pub trait Value: AsValue<Self> + Sized {
    /// Decodes a value, without a copy if the bytes are owned and the value consists of them.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] with the place, if [`AsValue::value_bytes`] would not have written these
    /// bytes.
    fn from_value_bytes(bytes: Cow<'_, [u8]>) -> Result<Self, DecodeError>;
}

/// Encodes a value as the bytes that a table stores.
///
/// ```
/// # use farleaf_key::encode_value;
/// assert_eq!(encode_value::<String>("text")?, &b"text"[..]);
/// assert_eq!(encode_value::<u32>(&258)?, &[2, 1, 0, 0][..]);
/// assert_eq!(encode_value::<Option<String>>(&Some("text"))?, &b"\x01text"[..]);
/// # Ok::<(), farleaf_key::ValueTooLong>(())
/// ```
///
/// # Errors
///
/// [`ValueTooLong`], if the encoding exceeds [`VALUE_SIZE_BYTES_MAX`] bytes.
pub fn encode_value<V: Value>(
    value: &(impl AsValue<V> + ?Sized),
) -> Result<Cow<'_, [u8]>, ValueTooLong> {
    let bytes = value.value_bytes();
    if bytes.len() > VALUE_SIZE_BYTES_MAX {
        return Err(ValueTooLong {
            size_bytes: bytes.len(),
        });
    }
    Ok(bytes)
}

/// Decodes a value; an owned `Vec<u8>` becomes a string or byte string without a copy.
///
/// ```
/// # use farleaf_key::decode_value;
/// assert_eq!(decode_value::<u32>(&[2, 1, 0, 0])?, 258);
/// assert_eq!(decode_value::<String>(b"text".to_vec())?, "text");
/// assert_eq!(decode_value::<u32>(&[2, 1, 0]).unwrap_err().byte_index, 3);
/// # Ok::<(), farleaf_key::DecodeError>(())
/// ```
///
/// # Errors
///
/// [`DecodeError`], if the bytes are not an encoding that [`encode_value`] writes for the type.
pub fn decode_value<'a, V: Value>(bytes: impl Into<Cow<'a, [u8]>>) -> Result<V, DecodeError> {
    let bytes = bytes.into();
    if bytes.len() > VALUE_SIZE_BYTES_MAX {
        let fault = DecodeFault::TooLong {
            size_bytes: bytes.len(),
            size_bytes_max: VALUE_SIZE_BYTES_MAX,
        };
        return Err(error_at(VALUE_SIZE_BYTES_MAX, "a value", fault));
    }
    V::from_value_bytes(bytes)
}

impl<V, Q: AsValue<V> + ?Sized> AsValue<V> for &Q {
    fn value_bytes(&self) -> Cow<'_, [u8]> {
        (**self).value_bytes()
    }
}

/// Implements the value traits for a type that consists of bytes.
macro_rules! plain_values {
    ($([$($parameters:tt)*] $borrowed:ty => $value:ty, $bytes:ident;)+) => {$(
        impl<$($parameters)*> AsValue<$value> for $borrowed {
            fn value_bytes(&self) -> Cow<'_, [u8]> {
                Cow::Borrowed(self.$bytes())
            }
        }
    )+};
}

plain_values! {
    [] str => String, as_bytes;
    [] String => String, as_bytes;
    [] [u8] => Vec<u8>, as_ref;
    [] Vec<u8> => Vec<u8>, as_slice;
    [const N: usize] [u8; N] => Vec<u8>, as_slice;
    [const N: usize] [u8; N] => [u8; N], as_slice;
}

impl Value for Vec<u8> {
    fn from_value_bytes(bytes: Cow<'_, [u8]>) -> Result<Self, DecodeError> {
        Ok(bytes.into_owned())
    }
}

impl Value for String {
    fn from_value_bytes(bytes: Cow<'_, [u8]>) -> Result<Self, DecodeError> {
        string_of(bytes.into_owned()).map_err(|(error, _)| error)
    }
}

impl<const N: usize> Value for [u8; N] {
    fn from_value_bytes(bytes: Cow<'_, [u8]>) -> Result<Self, DecodeError> {
        array_of(&bytes, "a byte array")
    }
}

/// Returns the bytes as an array, if the size matches.
fn array_of<const N: usize>(bytes: &[u8], wanted: &'static str) -> Result<[u8; N], DecodeError> {
    bytes.try_into().map_err(|_| {
        let size_bytes = bytes.len();
        if size_bytes < N {
            let missing_size_bytes = N - size_bytes;
            error_at(size_bytes, wanted, DecodeFault::Ends { missing_size_bytes })
        } else {
            let size_bytes = size_bytes - N;
            error_at(N, wanted, DecodeFault::Trailing { size_bytes })
        }
    })
}

macro_rules! number_values {
    ($($number:ident $wanted:literal),+) => {$(
        impl AsValue<$number> for $number {
            fn value_bytes(&self) -> Cow<'_, [u8]> {
                Cow::Owned(self.to_le_bytes().to_vec())
            }
        }

        impl Value for $number {
            fn from_value_bytes(bytes: Cow<'_, [u8]>) -> Result<Self, DecodeError> {
                array_of(&bytes, $wanted).map(Self::from_le_bytes)
            }
        }
    )+};
}

number_values!(u8 "a u8", u16 "a u16", u32 "a u32", u64 "a u64", u128 "a u128");
number_values!(i8 "an i8", i16 "an i16", i32 "an i32", i64 "an i64", i128 "an i128");
number_values!(f32 "an f32", f64 "an f64");

impl AsValue<bool> for bool {
    fn value_bytes(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(if *self { &[1] } else { &[0] })
    }
}

impl Value for bool {
    fn from_value_bytes(bytes: Cow<'_, [u8]>) -> Result<Self, DecodeError> {
        let [byte] = array_of(&bytes, "a bool")?;
        bool_of(byte, "a bool")
    }
}

impl AsValue<()> for () {
    fn value_bytes(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&[])
    }
}

impl Value for () {
    fn from_value_bytes(bytes: Cow<'_, [u8]>) -> Result<Self, DecodeError> {
        array_of(&bytes, "a ()").map(|[]| ())
    }
}

impl<V, Q: AsValue<V>> AsValue<Option<V>> for Option<Q> {
    fn value_bytes(&self) -> Cow<'_, [u8]> {
        let Some(value) = self else {
            return Cow::Borrowed(&[0]);
        };
        let value = value.value_bytes();
        let mut bytes = Vec::with_capacity(value.len() + 1);
        bytes.push(1);
        bytes.extend_from_slice(&value);
        Cow::Owned(bytes)
    }
}

impl<V: Value> Value for Option<V> {
    fn from_value_bytes(bytes: Cow<'_, [u8]>) -> Result<Self, DecodeError> {
        const WANTED: &str = "an option";
        let Some(first) = bytes.first() else {
            return array_of(&bytes, WANTED).map(|[_]| None);
        };
        if !bool_of(*first, WANTED)? {
            return array_of(&bytes, WANTED).map(|[_]| None);
        }
        let value = match bytes {
            Cow::Borrowed(bytes) => Cow::Borrowed(&bytes[1..]),
            Cow::Owned(mut bytes) => {
                bytes.remove(0);
                Cow::Owned(bytes)
            }
        };
        let value = V::from_value_bytes(value).map_err(|error| error.behind(1))?;
        Ok(Some(value))
    }
}
