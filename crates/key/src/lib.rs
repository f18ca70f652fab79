//! Typed keys as byte strings that sort as the keys do, and typed values as bytes.
//!
//! # The story
//!
//! A byte-string table orders its keys as unsigned bytes and knows no types. A [`Key`] is a type
//! whose values can be written as such a string, so that `a < b` says the same as
//! `encode_key(a) < encode_key(b)`. Two numbers that sort as numbers then sort as bytes, too, and
//! a table with keys of type `(u64, String)` can be scanned from one number to the next.
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
//! The promises, for every key type, those composed of others included:
//!
//! 1. *Ordered.* `a < b` if and only if the bytes of `a` are less than those of `b`. The order is
//!    that of the type; of floats it is that of `total_cmp`; of options, nothing comes first; of
//!    tuples, the first component that differs decides. Hence different keys have different bytes.
//! 2. *Exact.* Decoding gives back what was encoded, every bit of a NaN included.
//! 3. *Canonical.* Bytes that encoding would not have written are refused, with a [`DecodeError`]
//!    that says at which byte and why. Whatever the bytes, decoding does not panic.
//! 4. *Bounded.* No key of more than [`KEY_SIZE_BYTES_MAX`] bytes and no value of more than
//!    [`VALUE_SIZE_BYTES_MAX`] is encoded or decoded.
//!
//! # Two forms of a key
//!
//! A string is best written as it is: then a key `user:1` is the bytes `user:1`, and a tool that
//! knows bytes only sees what the program sees. But nothing may follow it, as nobody could tell
//! where it ends. So every key has two forms: the *last* form, for what nothing follows, and the
//! *inner* form, which ends by itself, for every component of a tuple but the last one. They
//! differ for strings and for what ends with one.
//!
//! The order of the inner form is the stronger one: of two different keys the bytes differ at a
//! place that both have, so what follows has no say. `docs/keys.md` has the encoding as a table,
//! and the proof.
//!
//! # Borrowed keys
//!
//! [`Key`] types own their data, as what was read from a table must. [`AsKey<K>`](AsKey) is what
//! can be looked up among keys of type `K`: `K`, references, `str` for `String`, `[u8]` for
//! `Vec<u8>`, and tuples and options of such, `(u64, &str)` for `(u64, String)`. That is more than
//! `Borrow` can say, which has no `(u64, &str)` to give out of a `(u64, String)`. It is a trait
//! with a parameter, so that in `get(&5)` the table's type says what the `5` is.
//!
//! # What it is not
//!
//! Encodings do not say of which type they are: who opens a table has to know. Nothing is
//! compressed, and there are no locales: strings sort as their bytes.
//!
//! # Modules
//!
//! `key` has the traits, `reader` takes encoded keys apart; `numbers`, `strings` and `compound` are
//! the key types; `range` has ranges of keys and of byte strings, `prefix` those of tuples with
//! the same first components; `value` is for values; [`text`] shows bytes to people.

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
pub use key::{AsKey, KEY_SIZE_BYTES_MAX, Key, decode_key, encode_key, encode_key_into};
pub use prefix::{PrefixOf, prefix_of};
pub use range::{AsRange, ByteRange, prefix_range, successor};
pub use reader::KeyReader;
pub use strings::write_terminated;
pub use value::{AsValue, VALUE_SIZE_BYTES_MAX, Value, decode_value, encode_value};
