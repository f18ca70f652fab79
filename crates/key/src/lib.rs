//! Typed keys as byte strings that sort as the keys do, and typed values as bytes.
//!
//! # Overview
//!
//! A byte-string table orders its keys as unsigned bytes and knows no types. A [`Key`] is a type
//! whose values encode to such strings so that `a < b` exactly if `encode_key(a) < encode_key(b)`.
//! Numbers therefore sort as numbers, and a table with keys of type `(u64, String)` can be scanned
//! from one number to the next.
//!
//! ```
//! use farleaf_key::{decode_key, encode_key};
//!
//! let nine = encode_key::<(i32, String)>(&(-9, "b"))?;
//! let ten = encode_key::<(i32, String)>(&(-10, "c"))?;
//! assert!(ten < nine);
//! assert_eq!(decode_key::<(i32, String)>(&ten)?, (-10, "c".to_owned()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! All key types, including composed ones, keep these promises:
//!
//! 1. *Ordered.* `a < b` if and only if the bytes of `a` are less than those of `b`. The order is
//!    that of the type; for floats it is that of `total_cmp`; for options, `None` comes first; for
//!    tuples, the first differing component decides. Hence different keys have different bytes.
//! 2. *Exact.* Decoding returns what was encoded, including every bit of a NaN.
//! 3. *Canonical.* Decoding rejects bytes that encoding would not have written. The [`DecodeError`]
//!    names the byte and the reason. Decoding never panics.
//! 4. *Bounded.* Keys of more than [`KEY_SIZE_BYTES_MAX`] bytes and values of more than
//!    [`VALUE_SIZE_BYTES_MAX`] bytes are neither encoded nor decoded.
//!
//! # Two forms of a key
//!
//! A string is best encoded as its own bytes: the key `user:1` is the bytes `user:1`, also for
//! tools that know only bytes. But then nothing can follow it, because its end is not marked. So
//! every key has two forms. The *last* form is for a key that nothing follows. The *inner* form
//! marks its own end and is used for every component of a tuple but the last. The forms differ only
//! for strings and for keys that end with a string.
//!
//! The order of the inner form is stronger: two different keys differ at a byte that both have, so
//! what follows does not matter. `docs/reference/keys.md` has the encoding as a table, and the
//! proof.
//!
//! # Borrowed keys
//!
//! [`Key`] types own their data, because a table read must return owned data. [`AsKey<K>`](AsKey)
//! is implemented by everything that can be looked up among keys of type `K`: `K`, references,
//! `str` for `String`, `[u8]` for `Vec<u8>`, and tuples and options of these, such as `(u64, &str)`
//! for `(u64, String)`. `Borrow` cannot express this, because a `(u64, String)` cannot lend a
//! `(u64, &str)`. The trait has a parameter so that in `get(&5)` the table's type determines the
//! type of `5`.
//!
//! # Limits
//!
//! Encodings do not record their type; the reader must know it. Nothing is compressed, and there
//! are no locales: strings sort as their bytes.
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | `key` | the key traits, and functions that encode and decode keys |
//! | `reader` | reader of encoded keys |
//! | `numbers`, `strings`, `compound` | the key types |
//! | `range` | ranges of keys and of byte strings |
//! | `prefix` | ranges of tuples with the same first components |
//! | `value` | values |
//! | [`text`] | byte strings as readable text |

#![forbid(unsafe_code)]

mod compound;
mod error;
mod key;
mod numbers;
mod prefix;
mod range;
mod reader;
mod strings;
pub mod text;
mod value;

pub use error::{DecodeError, DecodeFault, KeyTooLong, ValueTooLong};
pub use farleaf_base::limits::{KEY_SIZE_BYTES_MAX, VALUE_SIZE_BYTES_MAX};
pub use key::{AsKey, Key, decode_key, encode_key, encode_key_into};
pub use prefix::{PrefixOf, prefix_of};
pub use range::{AsRange, ByteRange, prefix_range, successor};
pub use reader::KeyReader;
pub use strings::write_terminated;
pub use value::{AsValue, Value, decode_value, encode_value};
