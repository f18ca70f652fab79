//! Keys composed of other keys: options and tuples.
//!
//! - `None` is 00. `Some(key)` is 01 and the key, in the same form (inner or last) as the option.
//! - A tuple is its components in order, all in their inner form. If the tuple is in its last form,
//!   its last component is in its last form, too.
//!
//! Why these sort as the keys do:
//!
//! - **Options.** `None` and `Some` differ at their first byte. Two `Some` have the same first
//!   byte, followed by encodings that sort as their keys do.
//! - **Tuples.** Up to the first differing component, the bytes are the same. There the inner forms
//!   differ at a byte that both have, so what follows does not matter. If it is the last component,
//!   nothing follows, and its last forms sort as the component does.
//!
//! The argument needs only what [`Key`] requires of the components' two forms, so it holds at any
//! nesting depth.

use crate::error::DecodeError;
use crate::key::{AsKey, Key};
use crate::numbers::bool_of;
use crate::reader::KeyReader;

const NONE: u8 = 0;
const SOME: u8 = 1;

impl<K, Q: AsKey<K>> AsKey<Option<K>> for Option<Q> {
    fn encode_inner(&self, out: &mut Vec<u8>) {
        match self {
            None => out.push(NONE),
            Some(key) => {
                out.push(SOME);
                key.encode_inner(out);
            }
        }
    }

    fn encode_last(&self, out: &mut Vec<u8>) {
        match self {
            None => out.push(NONE),
            Some(key) => {
                out.push(SOME);
                key.encode_last(out);
            }
        }
    }
}

impl<K: Key> Key for Option<K> {
    fn decode_inner(reader: &mut KeyReader<'_>) -> Result<Self, DecodeError> {
        if decode_is_some(reader)? {
            K::decode_inner(reader).map(Some)
        } else {
            Ok(None)
        }
    }

    fn decode_last(reader: &mut KeyReader<'_>) -> Result<Self, DecodeError> {
        if decode_is_some(reader)? {
            K::decode_last(reader).map(Some)
        } else {
            Ok(None)
        }
    }
}

fn decode_is_some(reader: &mut KeyReader<'_>) -> Result<bool, DecodeError> {
    let byte_index = reader.byte_index();
    let byte = reader.take_byte("an option")?;
    bool_of(byte, "an option").map_err(|error| error.behind(byte_index))
}

/// Implements the key traits for tuples of the given components plus one more.
macro_rules! tuple_key {
    ($($key:ident $query:ident $place:tt),+; $last_place:tt) => {
        impl<$($key, $query,)+ L, QL> AsKey<($($key,)+ L)> for ($($query,)+ QL)
        where
            $($query: AsKey<$key>,)+
            QL: AsKey<L>,
        {
            fn encode_inner(&self, out: &mut Vec<u8>) {
                $(self.$place.encode_inner(out);)+
                self.$last_place.encode_inner(out);
            }

            fn encode_last(&self, out: &mut Vec<u8>) {
                $(self.$place.encode_inner(out);)+
                self.$last_place.encode_last(out);
            }
        }

        impl<$($key: Key,)+ L: Key> Key for ($($key,)+ L) {
            fn decode_inner(reader: &mut KeyReader<'_>) -> Result<Self, DecodeError> {
                Ok(($($key::decode_inner(reader)?,)+ L::decode_inner(reader)?))
            }

            fn decode_last(reader: &mut KeyReader<'_>) -> Result<Self, DecodeError> {
                Ok(($($key::decode_inner(reader)?,)+ L::decode_last(reader)?))
            }
        }
    };
}

tuple_key!(A QA 0; 1);
tuple_key!(A QA 0, B QB 1; 2);
tuple_key!(A QA 0, B QB 1, C QC 2; 3);
tuple_key!(A QA 0, B QB 1, C QC 2, D QD 3; 4);
tuple_key!(A QA 0, B QB 1, C QC 2, D QD 3, E QE 4; 5);
tuple_key!(A QA 0, B QB 1, C QC 2, D QD 3, E QE 4, F QF 5; 6);
tuple_key!(A QA 0, B QB 1, C QC 2, D QD 3, E QE 4, F QF 5, G QG 6; 7);

#[cfg(test)]
mod tests {
    use crate::{DecodeFault, decode_key, encode_key};

    /// The form of a component depends on whether anything follows it, at any nesting depth.
    #[test]
    fn only_what_nothing_follows_is_in_its_last_form() {
        type Left = ((String, Option<String>), String);
        type Right = (String, (Option<String>, String));
        let left = encode_key::<Left>(&(("a", Some("b")), "c"));
        assert_eq!(left.unwrap(), b"a\x00\x01\x01b\x00\x01c");
        let right = encode_key::<Right>(&("a", (Some("b"), "c")));
        assert_eq!(right.unwrap(), b"a\x00\x01\x01b\x00\x01c");
        let option = encode_key::<Option<(String, String)>>(&Some(("a", "b")));
        assert_eq!(option.unwrap(), b"\x01a\x00\x01b");
        let inside = encode_key::<(Option<(String, String)>, ())>(&(Some(("a", "b")), ()));
        assert_eq!(inside.unwrap(), b"\x01a\x00\x01b\x00\x01");
    }

    /// `None`, the empty string and a zero byte are three keys in this order, at the end of a tuple
    /// and inside.
    #[test]
    fn nothing_comes_before_the_empty_string() {
        let steps = [
            None,
            Some(""),
            Some("\0"),
            Some("\0\0"),
            Some("\u{1}"),
            Some("a"),
        ];
        let last = steps.map(|it| encode_key::<(u8, Option<String>)>(&(7, it)).unwrap());
        assert!(last.is_sorted_by(|a, b| a < b), "{last:?}");
        let inner = steps.map(|it| encode_key::<(Option<String>, u8)>(&(it, 7)).unwrap());
        assert!(inner.is_sorted_by(|a, b| a < b), "{inner:?}");
    }

    /// The place of a fault counts from the beginning of the whole key.
    #[test]
    fn faults_name_their_place_in_the_whole_key() {
        let error = decode_key::<(u16, Option<bool>, u8)>(&[0, 1, 2, 0]).unwrap_err();
        assert_eq!((error.byte_index, error.wanted), (2, "an option"));
        let error = decode_key::<(u16, Option<bool>, u8)>(&[0, 1, 1, 9]).unwrap_err();
        assert_eq!((error.byte_index, error.wanted), (3, "a bool"));
        let error = decode_key::<(u16, Option<bool>, u8)>(&[0, 1, 0, 9, 9]).unwrap_err();
        assert_eq!(error.fault, DecodeFault::Trailing { size_bytes: 1 });
        assert_eq!(error.byte_index, 4);
    }
}
