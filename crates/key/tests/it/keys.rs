//! Promises of every key type: order, exact and canonical decoding, in both forms.

use std::cmp::Ordering;
use std::fmt::Debug;

use farleaf_key::{AsKey, Key, KeyReader, decode_key, encode_key};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::model_order::ModelOrder;
use crate::strategies::{self as s, Damage};

/// Inner form of a key, as a key of its own.
#[derive(Debug)]
struct Inner<K>(K);

impl<K: Key> AsKey<Inner<K>> for Inner<K> {
    fn encode_inner(&self, out: &mut Vec<u8>) {
        self.0.encode_inner(out);
    }
}

impl<K: Key> Key for Inner<K> {
    fn decode_inner(reader: &mut KeyReader<'_>) -> Result<Self, farleaf_key::DecodeError> {
        K::decode_inner(reader).map(Inner)
    }
}

impl<K: ModelOrder> ModelOrder for Inner<K> {
    fn model_order(&self, other: &Self) -> Ordering {
        self.0.model_order(&other.0)
    }
}

type Checked = Result<(), TestCaseError>;

/// Checks that two keys of one type sort as their bytes do, and that each decodes to itself.
fn check_order<K: Key + ModelOrder + Debug>(one: &K, other: &K) -> Checked {
    let bytes = encode_key::<K>(one)?;
    let other_bytes = encode_key::<K>(other)?;
    prop_assert_eq!(
        bytes.cmp(&other_bytes),
        one.model_order(other),
        "{:?} {:?} {:02x?} {:02x?}",
        one,
        other,
        bytes,
        other_bytes
    );
    let back = decode_key::<K>(&bytes)?;
    prop_assert!(
        back.model_order(one).is_eq(),
        "{:?} came back as {:?}",
        one,
        back
    );
    Ok(())
}

/// Checks the first requirement of [`Key`]: the inner forms of different keys differ at a byte that
/// both have, where the lesser key has the lesser byte.
fn check_inner_order<K: Key + ModelOrder + Debug>(one: &K, other: &K) -> Checked {
    let [mut bytes, mut other_bytes] = [Vec::new(), Vec::new()];
    one.encode_inner(&mut bytes);
    other.encode_inner(&mut other_bytes);
    let order = one.model_order(other);
    if order.is_eq() {
        prop_assert_eq!(bytes, other_bytes);
        return Ok(());
    }
    let differing = bytes
        .iter()
        .zip(&other_bytes)
        .find(|(byte, other)| byte != other);
    let (byte, other_byte) = differing.expect("one inner form is the beginning of another");
    prop_assert_eq!(byte.cmp(other_byte), order, "{:?} {:?}", one, other);
    Ok(())
}

/// Checks that bytes are rejected, or are the encoding of the decoded key, and that errors name a
/// place among them. The reader takes no more than the inner form.
fn check_canonical<K: Key + Debug>(key: &K, damage: &Damage) -> Checked {
    let damaged = damage.apply(encode_key::<K>(key)?);
    match decode_key::<K>(&damaged) {
        Ok(read) => prop_assert_eq!(encode_key::<K>(&read)?, damaged, "read {:?}", read),
        Err(error) => prop_assert!(error.byte_index <= damaged.len(), "{}", error),
    }
    let mut bytes = Vec::new();
    key.encode_inner(&mut bytes);
    let damaged = damage.apply(bytes);
    let mut reader = KeyReader::new(&damaged);
    match K::decode_inner(&mut reader) {
        Ok(read) => {
            let mut again = Vec::new();
            read.encode_inner(&mut again);
            prop_assert_eq!(&again, &damaged[..reader.byte_index()], "read {:?}", read);
        }
        Err(error) => prop_assert!(error.byte_index <= damaged.len(), "{}", error),
    }
    Ok(())
}

/// One test of all promises for each type.
macro_rules! promises {
    ($($name:ident: $key:ty = $strategy:expr;)+) => {
        proptest! {$(
            /// Order in both forms, exact and canonical decoding.
            #[test]
            fn $name(one in $strategy, other in $strategy, damage in s::damage()) {
                let (one, other): ($key, $key) = (one, other);
                check_order(&one, &other)?;
                check_inner_order(&one, &other)?;
                check_canonical(&one, &damage)?;
                check_order(&Inner(one), &Inner(other))?;
            }
        )+}
    };
}

type Sandwich = (Option<String>, u8, Option<String>);
type NestedLeft = (((Vec<u8>, String), Option<(u8, Vec<u8>)>), String);
type NestedRight = (String, (Option<Vec<u8>>, (char, Option<Option<String>>)));
type Deep = Option<(Option<Option<String>>, (Vec<u8>, ()), Option<(i16, String)>)>;
type Seven = (u8, bool, (), char, i8, [u8; 2], Vec<u8>);
type Eight = (bool, Vec<u8>, Option<bool>, String, (), i8, f32, String);

promises! {
    u8_keys: u8 = s::u8();
    u16_keys: u16 = s::u16();
    u32_keys: u32 = s::u32();
    u64_keys: u64 = s::u64();
    u128_keys: u128 = s::u128();
    i8_keys: i8 = s::i8();
    i16_keys: i16 = s::i16();
    i32_keys: i32 = s::i32();
    i64_keys: i64 = s::i64();
    i128_keys: i128 = s::i128();
    f32_keys: f32 = s::f32();
    f64_keys: f64 = s::f64();
    bool_keys: bool = any::<bool>();
    char_keys: char = s::character();
    unit_keys: () = Just(());
    string_keys: String = s::string();
    byte_string_keys: Vec<u8> = s::bytes();
    array_keys: [u8; 5] = s::array::<5>();
    empty_array_keys: [u8; 0] = Just([]);
    option_keys: Option<u16> = s::option(s::u16());
    optional_strings: Option<String> = s::option(s::string());
    options_of_options: Option<Option<Vec<u8>>> = s::option(s::option(s::bytes()));
    pairs_of_strings: (String, String) = (s::string(), s::string());
    pairs_of_byte_strings: (Vec<u8>, Vec<u8>) = (s::bytes(), s::bytes());
    strings_before_numbers: (String, u32) = (s::string(), s::u32());
    strings_before_nothing: (Vec<u8>, ()) = (s::bytes(), Just(()));
    options_inside_and_last: Sandwich = (s::option(s::string()), s::u8(), s::option(s::string()));
    four_components: (f64, Vec<u8>, char, Option<()>) =
        (s::f64(), s::bytes(), s::character(), s::option(Just(())));
    five_components: (Vec<u8>, Vec<u8>, Vec<u8>, Vec<u8>, Vec<u8>) =
        (s::bytes(), s::bytes(), s::bytes(), s::bytes(), s::bytes());
    six_components: (u8, String, i16, Option<Vec<u8>>, bool, String) =
        (s::u8(), s::string(), s::i16(), s::option(s::bytes()), any::<bool>(), s::string());
    seven_components: Seven = (
        s::u8(), any::<bool>(), Just(()), s::character(), s::i8(), s::array::<2>(), s::bytes(),
    );
    eight_components: Eight = (
        any::<bool>(), s::bytes(), s::option(any::<bool>()), s::string(), Just(()), s::i8(),
        s::f32(), s::string(),
    );
    nested_left: NestedLeft = (
        ((s::bytes(), s::string()), s::option((s::u8(), s::bytes()))),
        s::string(),
    );
    nested_right: NestedRight = (
        s::string(),
        (s::option(s::bytes()), (s::character(), s::option(s::option(s::string())))),
    );
    nested_deep: Deep = s::option((
        s::option(s::option(s::string())),
        (s::bytes(), Just(())),
        s::option((s::i16(), s::string())),
    ));
}

/// Compares all byte strings of up to four bytes over the relevant bytes, followed by another
/// component, with each other. Finds what random pairs might miss.
#[test]
fn every_short_string_sorts_before_what_follows() {
    let alphabet = [0x00, 0x01, 0x02, 0xfe, 0xff];
    let mut strings = vec![Vec::new()];
    let mut longest = strings.clone();
    for _ in 0..4 {
        let longer = |string: &Vec<u8>| {
            let string = string.clone();
            alphabet.map(|byte| [string.as_slice(), &[byte]].concat())
        };
        longest = longest.iter().flat_map(longer).collect();
        strings.extend_from_slice(&longest);
    }
    assert_eq!(strings.len(), 1 + 5 + 25 + 125 + 625);
    strings.sort();

    let followers = [&b""[..], b"\x00", b"\x01", b"\xff", b"\xff\xff"];
    let keys = strings
        .iter()
        .flat_map(|it| followers.map(|follower| (it, follower)));
    let encoded: Vec<_> = keys
        .map(|key| encode_key::<(Vec<u8>, Vec<u8>)>(&key).unwrap())
        .collect();
    assert!(encoded.is_sorted_by(|a, b| a < b));
}
