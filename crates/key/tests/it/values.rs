//! Promises of every value type.

use std::borrow::Cow;
use std::fmt::Debug;

use farleaf_key::{
    AsValue, DecodeFault, VALUE_SIZE_BYTES_MAX, Value, ValueTooLong, decode_value, encode_value,
};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::model_order::ModelOrder;
use crate::strategies::{self as s, Damage};

/// Checks that a value decodes from borrowed and owned bytes, and that changed bytes are rejected
/// or are the encoding of the decoded value.
fn check<V: Value + ModelOrder + Debug>(value: &V, damage: &Damage) -> Result<(), TestCaseError> {
    let bytes = encode_value::<V>(value)?;
    let lent = decode_value::<V>(&bytes[..])?;
    prop_assert!(lent.model_order(value).is_eq(), "{:?} {:?}", lent, value);
    let given = decode_value::<V>(bytes.to_vec())?;
    prop_assert!(given.model_order(value).is_eq(), "{:?} {:?}", given, value);

    let damaged = damage.apply(bytes.into_owned());
    match decode_value::<V>(&damaged) {
        Ok(read) => prop_assert_eq!(encode_value::<V>(&read)?, damaged, "read {:?}", read),
        Err(error) => {
            prop_assert!(error.byte_index <= damaged.len(), "{}", error);
            prop_assert_eq!(decode_value::<V>(damaged).unwrap_err(), error);
        }
    }
    Ok(())
}

macro_rules! promises {
    ($($name:ident: $value:ty = $strategy:expr;)+) => {
        proptest! {$(
            /// Exact and canonical decoding.
            #[test]
            fn $name(value in $strategy, damage in s::damage()) {
                check::<$value>(&value, &damage)?;
            }
        )+}
    };
}

promises! {
    u8_values: u8 = s::u8();
    u16_values: u16 = s::u16();
    u32_values: u32 = s::u32();
    u64_values: u64 = s::u64();
    u128_values: u128 = s::u128();
    i8_values: i8 = s::i8();
    i16_values: i16 = s::i16();
    i32_values: i32 = s::i32();
    i64_values: i64 = s::i64();
    i128_values: i128 = s::i128();
    f32_values: f32 = s::f32();
    f64_values: f64 = s::f64();
    bool_values: bool = any::<bool>();
    unit_values: () = Just(());
    string_values: String = s::string();
    byte_string_values: Vec<u8> = s::bytes();
    array_values: [u8; 5] = s::array::<5>();
    optional_numbers: Option<u16> = s::option(s::u16());
    optional_strings: Option<String> = s::option(s::string());
    options_of_options: Option<Option<bool>> = s::option(s::option(any::<bool>()));
}

/// Borrowed values have the bytes of their owned equivalents, and are not copied.
#[test]
fn borrowed_values_are_not_copied() -> Result<(), ValueTooLong> {
    let text = "text".to_owned();
    for bytes in [
        encode_value::<String>(text.as_str())?,
        encode_value::<String>(&text)?,
    ] {
        assert!(matches!(bytes, Cow::Borrowed(it) if it.as_ptr() == text.as_ptr()));
    }
    assert!(matches!(
        encode_value::<Vec<u8>>(b"ab")?,
        Cow::Borrowed(b"ab")
    ));
    assert_eq!(encode_value::<Option<String>>(&Some("a"))?, &b"\x01a"[..]);
    let as_value: &dyn AsValue<Vec<u8>> = &&&b"ab"[..];
    assert_eq!(as_value.value_bytes(), &b"ab"[..]);
    Ok(())
}

/// Owned bytes become the value without a copy.
#[test]
fn given_bytes_are_not_copied() {
    let bytes = b"some text".to_vec();
    let place = bytes.as_ptr();
    let text: String = decode_value(bytes).unwrap();
    assert_eq!(text.as_ptr(), place);
    let bytes: Vec<u8> = decode_value(text.into_bytes()).unwrap();
    assert_eq!(bytes.as_ptr(), place);
}

/// A value may have exactly the maximum size.
#[test]
fn the_limit_is_exact() {
    let mut bytes = vec![0; VALUE_SIZE_BYTES_MAX];
    assert!(encode_value::<Vec<u8>>(&bytes).is_ok());
    assert!(encode_value::<Option<Vec<u8>>>(&Some(&bytes[1..])).is_ok());
    let size_bytes = VALUE_SIZE_BYTES_MAX + 1;
    let one_more = Some(&bytes);
    let error = encode_value::<Option<Vec<u8>>>(&one_more);
    assert_eq!(error, Err(ValueTooLong { size_bytes }));

    bytes.push(0);
    assert_eq!(
        encode_value::<Vec<u8>>(&bytes),
        Err(ValueTooLong { size_bytes })
    );
    let error = decode_value::<Vec<u8>>(&bytes).unwrap_err();
    assert_eq!(error.byte_index, VALUE_SIZE_BYTES_MAX);
    let size_bytes_max = VALUE_SIZE_BYTES_MAX;
    assert_eq!(
        error.fault,
        DecodeFault::TooLong {
            size_bytes,
            size_bytes_max
        }
    );
}

/// Errors name the place of the fault.
#[test]
fn faults_have_their_places() {
    let error = decode_value::<Option<bool>>(&[1, 2]).unwrap_err();
    assert_eq!((error.byte_index, error.wanted), (1, "a bool"));
    let error = decode_value::<Option<bool>>(&[0, 2]).unwrap_err();
    assert_eq!(
        (error.byte_index, error.fault),
        (1, DecodeFault::Trailing { size_bytes: 1 })
    );
    let error = decode_value::<Option<bool>>(&[]).unwrap_err();
    let fault = DecodeFault::Ends {
        missing_size_bytes: 1,
    };
    assert_eq!((error.byte_index, error.fault), (0, fault));
    let error = decode_value::<Option<String>>(b"\x01ab\xff").unwrap_err();
    assert_eq!((error.byte_index, error.fault), (3, DecodeFault::NotUtf8));
}
