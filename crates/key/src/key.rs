//! Key traits, and functions that encode and decode whole keys.

use farleaf_base::limits::KEY_SIZE_BYTES_MAX;

use crate::error::{DecodeError, DecodeFault, KeyTooLong};
use crate::reader::KeyReader;

/// Type whose values can be encoded as keys of type `K`: `K` itself, or a borrowed equivalent, such
/// as `str` for `String`.
///
/// Implementations must write the same bytes as the equivalent `K`; [`Key`] specifies these bytes.
/// Both methods append to `out` and leave its existing bytes unchanged.
pub trait AsKey<K> {
    /// Appends the inner form, which marks its own end, so that more can follow.
    fn encode_inner(&self, out: &mut Vec<u8>);

    /// Appends the last form, which nothing may follow. Defaults to the inner form.
    fn encode_last(&self, out: &mut Vec<u8>) {
        self.encode_inner(out);
    }
}

/// Key type whose encodings sort as the keys do.
///
/// Implemented for the integers of 8 to 128 bits, `bool`, `char`, `f32`, `f64`, `()`, `String`,
/// `Vec<u8>`, `[u8; N]`, options of keys, and tuples of 2 to 8 keys.
///
/// # Requirements for implementations
///
/// For all keys `a < b`, in a total order:
///
/// 1. The inner forms of `a` and `b` differ at a byte that both have, and at the first such byte
///    that of `a` is less. (So neither is a prefix of the other, and what follows them does not
///    matter.)
/// 2. The last form of `a` is less than that of `b`, as byte strings.
/// 3. Each decoding method returns what the encoding method of the same form wrote, reads not a
///    byte more, and rejects bytes that this method would not have written.
///
/// A type that encodes as another key type meets these requirements:
///
/// ```
/// use farleaf_key::{AsKey, DecodeError, Key, KeyReader, decode_key, encode_key};
///
/// #[derive(Debug, PartialEq, PartialOrd)]
/// struct Celsius(f64);
///
/// impl AsKey<Celsius> for Celsius {
///     fn encode_inner(&self, out: &mut Vec<u8>) {
///         AsKey::<f64>::encode_inner(&self.0, out);
///     }
/// }
///
/// impl Key for Celsius {
///     fn decode_inner(reader: &mut KeyReader<'_>) -> Result<Self, DecodeError> {
///         f64::decode_inner(reader).map(Celsius)
///     }
/// }
///
/// let cold = encode_key::<(Celsius, String)>(&(Celsius(-40.0), "Yakutsk"))?;
/// let warm = encode_key::<(Celsius, String)>(&(Celsius(21.5), "Lagos"))?;
/// assert!(cold < warm);
/// assert_eq!(decode_key::<(Celsius, String)>(&cold)?.0, Celsius(-40.0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A type whose two forms differ must implement all four methods.
pub trait Key: AsKey<Self> + Sized {
    /// Reads the inner form.
    ///
    /// # Errors
    ///
    /// [`DecodeError`], if the bytes are not a valid inner form.
    fn decode_inner(reader: &mut KeyReader<'_>) -> Result<Self, DecodeError>;

    /// Reads the last form. [`decode_key`] checks that no bytes are left behind it.
    ///
    /// # Errors
    ///
    /// [`DecodeError`], if the bytes are not a valid last form.
    fn decode_last(reader: &mut KeyReader<'_>) -> Result<Self, DecodeError> {
        Self::decode_inner(reader)
    }
}

impl<K, Q: AsKey<K> + ?Sized> AsKey<K> for &Q {
    fn encode_inner(&self, out: &mut Vec<u8>) {
        (**self).encode_inner(out);
    }

    fn encode_last(&self, out: &mut Vec<u8>) {
        (**self).encode_last(out);
    }
}

/// Encodes a key as the bytes that a table stores.
///
/// ```
/// # use farleaf_key::encode_key;
/// assert_eq!(encode_key::<String>("user:1")?, b"user:1");
/// assert_eq!(encode_key::<u32>(&258)?, [0, 0, 1, 2]);
/// assert_eq!(encode_key::<(String, u16)>(&("a", 7))?, b"a\x00\x01\x00\x07");
/// # Ok::<(), farleaf_key::KeyTooLong>(())
/// ```
///
/// # Errors
///
/// [`KeyTooLong`], if the encoding exceeds [`KEY_SIZE_BYTES_MAX`] bytes.
pub fn encode_key<K: Key>(key: &(impl AsKey<K> + ?Sized)) -> Result<Vec<u8>, KeyTooLong> {
    let mut bytes = Vec::new();
    encode_key_into::<K>(key, &mut bytes)?;
    Ok(bytes)
}

/// Appends the encoding of a key to `out`; after an error, `out` is unchanged.
///
/// # Errors
///
/// [`KeyTooLong`], as [`encode_key`] returns it.
pub fn encode_key_into<K: Key>(
    key: &(impl AsKey<K> + ?Sized),
    out: &mut Vec<u8>,
) -> Result<(), KeyTooLong> {
    append_bounded(out, |out| key.encode_last(out))
}

/// Appends what `write` writes, or returns an error if it exceeds the size limit of keys.
pub(crate) fn append_bounded(
    out: &mut Vec<u8>,
    write: impl FnOnce(&mut Vec<u8>),
) -> Result<(), KeyTooLong> {
    let size_bytes_before = out.len();
    write(out);
    let size_bytes = out.len() - size_bytes_before;
    if size_bytes > KEY_SIZE_BYTES_MAX {
        out.truncate(size_bytes_before);
        return Err(KeyTooLong { size_bytes });
    }
    Ok(())
}

/// Decodes a key.
///
/// ```
/// # use farleaf_key::{DecodeFault, decode_key};
/// assert_eq!(decode_key::<(String, u16)>(b"a\x00\x01\x00\x07")?, ("a".to_owned(), 7));
///
/// let error = decode_key::<(bool, u16)>(&[2, 0, 7]).unwrap_err();
/// assert_eq!(error.byte_index, 0);
/// assert!(matches!(error.fault, DecodeFault::Byte { found: 2, .. }));
/// # Ok::<(), farleaf_key::DecodeError>(())
/// ```
///
/// # Errors
///
/// [`DecodeError`], if the bytes are not an encoding that [`encode_key`] writes for the type.
pub fn decode_key<K: Key>(bytes: &[u8]) -> Result<K, DecodeError> {
    if bytes.len() > KEY_SIZE_BYTES_MAX {
        return Err(DecodeError {
            byte_index: KEY_SIZE_BYTES_MAX,
            wanted: "a key",
            fault: DecodeFault::TooLong {
                size_bytes: bytes.len(),
                size_bytes_max: KEY_SIZE_BYTES_MAX,
            },
        });
    }
    let mut reader = KeyReader::new(bytes);
    let key = K::decode_last(&mut reader)?;
    reader.finish("a key")?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key may have exactly the maximum size; an error leaves the buffer unchanged.
    #[test]
    fn the_limit_is_exact() {
        let longest = vec![7; KEY_SIZE_BYTES_MAX];
        assert_eq!(encode_key::<Vec<u8>>(&longest).as_ref(), Ok(&longest));
        assert_eq!(decode_key::<Vec<u8>>(&longest).as_ref(), Ok(&longest));

        let too_long = vec![7; KEY_SIZE_BYTES_MAX + 1];
        let mut out = b"before".to_vec();
        let error = encode_key_into::<Vec<u8>>(&too_long, &mut out);
        assert_eq!(error, Err(KeyTooLong { size_bytes: 4097 }));
        assert_eq!(out, b"before");
        let error = decode_key::<Vec<u8>>(&too_long).unwrap_err();
        assert_eq!(error.byte_index, KEY_SIZE_BYTES_MAX);
        let fault = DecodeFault::TooLong {
            size_bytes: 4097,
            size_bytes_max: 4096,
        };
        assert_eq!(error.fault, fault);
    }

    /// The limit counts encoded bytes: escaped zero bytes count twice, and the terminator counts.
    #[test]
    fn the_limit_counts_encoded_bytes() {
        let zeros = vec![0; 2047];
        assert!(encode_key::<(Vec<u8>, ())>(&(&zeros, ())).is_ok());
        let error = encode_key::<(Vec<u8>, u8)>(&(&zeros, 1));
        assert_eq!(error, Err(KeyTooLong { size_bytes: 4097 }));
    }

    /// Encodings are appended behind existing bytes.
    #[test]
    fn keys_are_appended() -> Result<(), KeyTooLong> {
        let mut out = vec![9];
        encode_key_into::<u16>(&1, &mut out)?;
        encode_key_into::<String>("z", &mut out)?;
        assert_eq!(out, [9, 0, 1, b'z']);
        Ok(())
    }
}
