//! Golden bytes, which are stored in tables and must not change.

use std::fmt::Debug;

use farleaf_key::text::from_hex;
use farleaf_key::{AsKey, Key, Value, decode_key, decode_value, encode_key, encode_value};

/// Checks that a key has these bytes, as the last component and followed by another, and decodes
/// from them.
#[track_caller]
fn key<K: Key + Debug>(key: &impl AsKey<K>, last: &str, inner: &str) {
    let [last, inner] = [last, inner].map(|it| from_hex(&it.replace(' ', "")).unwrap());
    assert_eq!(encode_key::<K>(key).unwrap(), last);
    assert_eq!(
        encode_key::<(K, u8)>(&(key, 0xee)).unwrap(),
        [&inner[..], &[0xee]].concat()
    );
    assert_eq!(
        encode_key::<K>(&decode_key::<K>(&last).unwrap()).unwrap(),
        last
    );
}

/// Integers are big-endian, with the sign bit of signed ones inverted.
#[test]
fn integer_keys() {
    key::<u8>(&0x12, "12", "12");
    key::<u16>(&0x1234, "1234", "1234");
    key::<u32>(&1, "00000001", "00000001");
    key::<u64>(
        &0x0102_0304_0506_0708,
        "0102030405060708",
        "0102030405060708",
    );
    let text = "000102030405060708090a0b0c0d0e0f";
    key::<u128>(&0x0001_0203_0405_0607_0809_0a0b_0c0d_0e0f, text, text);
    key::<i8>(&-128, "00", "00");
    key::<i8>(&-1, "7f", "7f");
    key::<i8>(&0, "80", "80");
    key::<i8>(&127, "ff", "ff");
    key::<i16>(&-2, "7ffe", "7ffe");
    key::<i32>(&i32::MIN, "00000000", "00000000");
    key::<i64>(&1, "8000000000000001", "8000000000000001");
    let text = "7fffffffffffffffffffffffffffffff";
    key::<i128>(&-1, text, text);
}

/// Floats sort in total order.
#[test]
fn float_keys() {
    key::<f32>(&1.0, "bf800000", "bf800000");
    key::<f32>(&-1.0, "407fffff", "407fffff");
    key::<f32>(&0.0, "80000000", "80000000");
    key::<f32>(&-0.0, "7fffffff", "7fffffff");
    key::<f32>(&f32::from_bits(0x7fc0_0001), "ffc00001", "ffc00001");
    key::<f64>(&1.5, "bff8000000000000", "bff8000000000000");
    key::<f64>(&f64::NEG_INFINITY, "000fffffffffffff", "000fffffffffffff");
    key::<f64>(&f64::INFINITY, "fff0000000000000", "fff0000000000000");
    key::<f64>(
        &f64::from_bits(u64::MAX),
        "0000000000000000",
        "0000000000000000",
    );
}

/// Checks the other types of few bytes.
#[test]
fn small_keys() {
    key::<bool>(&false, "00", "00");
    key::<bool>(&true, "01", "01");
    key::<()>(&(), "", "");
    key::<char>(&'a', "61", "61");
    key::<char>(&'\u{e9}', "c3a9", "c3a9");
    key::<char>(&'\u{20ac}', "e282ac", "e282ac");
    key::<char>(&'\u{10ffff}', "f48fbfbf", "f48fbfbf");
    key::<[u8; 3]>(b"\x00a\xff", "0061ff", "0061ff");
}

/// Strings are plain at the end, escaped and terminated before others.
#[test]
fn string_keys() {
    key::<String>(&"user:1", "757365723a31", "757365723a31 0001");
    key::<String>(&"", "", "0001");
    key::<String>(&"a\0b", "610062", "61 00ff 62 0001");
    key::<Vec<u8>>(b"\x00\xff\x01", "00ff01", "00ff ff 01 0001");
    key::<Vec<u8>>(b"", "", "0001");
}

/// Checks options and tuples.
#[test]
fn compound_keys() {
    key::<Option<u8>>(&None::<u8>, "00", "00");
    key::<Option<u8>>(&Some(0), "0100", "0100");
    key::<Option<String>>(&Some(""), "01", "01 0001");
    key::<Option<String>>(&Some("a"), "0161", "0161 0001");
    key::<Option<Option<()>>>(&Some(None::<()>), "0100", "0100");
    key::<(u8, u8)>(&(1, 2), "0102", "0102");
    key::<(String, String)>(&("a", "b"), "61 0001 62", "61 0001 62 0001");
    key::<(u8, Option<String>)>(&(7, Some("b")), "07 01 62", "07 01 62 0001");
    key::<((String, i8), (bool, String))>(
        &(("a", -1), (true, "\0")),
        "61 0001 7f 01 00",
        "61 0001 7f 01 00ff 0001",
    );
    key::<(u8, u8, u8, u8, u8, u8, u8, u8)>(
        &(1, 2, 3, 4, 5, 6, 7, 8),
        "0102030405060708",
        "0102030405060708",
    );
}

/// Checks that a value has these bytes, and decodes from them.
#[track_caller]
fn value<V: Value + PartialEq + Debug>(value: &V, bytes: &str) {
    let bytes = from_hex(&bytes.replace(' ', "")).unwrap();
    assert_eq!(encode_value::<V>(value).unwrap(), bytes);
    assert_eq!(decode_value::<V>(&bytes).as_ref(), Ok(value));
}

/// Values are little-endian, and otherwise plain.
#[test]
fn values() {
    value::<u8>(&0x12, "12");
    value::<u16>(&0x1234, "3412");
    value::<u32>(&0x0102_0304, "04030201");
    value::<u64>(&1, "0100000000000000");
    value::<u128>(&1, "01000000000000000000000000000000");
    value::<i8>(&-1, "ff");
    value::<i16>(&-2, "feff");
    value::<i32>(&i32::MIN, "00000080");
    value::<i64>(&-1, "ffffffffffffffff");
    value::<i128>(&2, "02000000000000000000000000000000");
    value::<f32>(&1.0, "0000803f");
    value::<f64>(&-0.0, "0000000000000080");
    value::<bool>(&true, "01");
    value::<bool>(&false, "00");
    value::<()>(&(), "");
    value::<String>(&"a\0".to_owned(), "6100");
    value::<Vec<u8>>(&vec![0, 255], "00ff");
    value::<[u8; 2]>(&[0, 255], "00ff");
    value::<Option<u16>>(&None, "00");
    value::<Option<u16>>(&Some(1), "01 0100");
    value::<Option<Option<String>>>(&Some(Some(String::new())), "01 01");
}
