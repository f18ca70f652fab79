//! Use of the crate as in a typed table: over a map of byte strings, without type annotations.

use std::collections::BTreeMap;
use std::marker::PhantomData;

use farleaf_key::{
    AsKey, AsRange, AsValue, Key, Value, decode_key, decode_value, encode_key, encode_value,
    prefix_of,
};
use proptest::prelude::*;

use crate::strategies as s;

type Failure = Box<dyn std::error::Error>;

/// Typed table over byte strings.
struct Table<K, V> {
    records: BTreeMap<Vec<u8>, Vec<u8>>,
    types: PhantomData<(K, V)>,
}

impl<K: Key, V: Value> Table<K, V> {
    fn new() -> Self {
        Self {
            records: BTreeMap::new(),
            types: PhantomData,
        }
    }

    fn put<Q, W>(&mut self, key: &Q, value: &W) -> Result<(), Failure>
    where
        Q: AsKey<K> + ?Sized,
        W: AsValue<V> + ?Sized,
    {
        let value = encode_value::<V>(value)?.into_owned();
        self.records.insert(encode_key::<K>(key)?, value);
        Ok(())
    }

    fn get<Q: AsKey<K> + ?Sized>(&self, key: &Q) -> Result<Option<V>, Failure> {
        let value = self.records.get(&encode_key::<K>(key)?);
        Ok(value.map(decode_value::<V>).transpose()?)
    }

    fn range(&self, range: impl AsRange<K>) -> Result<Vec<(K, V)>, Failure> {
        let range = range.byte_range()?;
        let records = self.records.iter().filter(|(key, _)| range.contains(key));
        records
            .map(|(key, value)| Ok((decode_key(key)?, decode_value(value)?)))
            .collect()
    }
}

/// Keys and values can be borrowed, composed of components, or literals.
#[test]
fn lookups_know_their_types_from_the_table() -> Result<(), Failure> {
    let mut names = Table::<String, u64>::new();
    names.put("ada", &1)?;
    names.put(&"bob".to_owned(), &2)?;
    assert_eq!(names.get("ada")?, Some(1));
    assert_eq!(names.get(&"bob")?, Some(2));
    assert_eq!(names.range("ada".."b")?, [("ada".to_owned(), 1)]);
    assert_eq!(names.range(..)?.len(), 2);

    let mut bytes = Table::<Vec<u8>, Vec<u8>>::new();
    bytes.put(b"literal", b"value")?;
    bytes.put(&[1, 2][..], &vec![3])?;
    assert_eq!(bytes.get(&vec![1, 2])?, Some(vec![3]));

    let mut numbers = Table::<u64, String>::new();
    numbers.put(&5, "five")?;
    assert_eq!(numbers.get(&5)?.as_deref(), Some("five"));
    assert_eq!(numbers.range(5..)?.len(), 1);
    assert_eq!(numbers.range(..=4)?.len(), 0);

    let mut floats = Table::<f64, Option<String>>::new();
    floats.put(&1.5, &Some("x"))?;
    assert_eq!(floats.get(&1.5)?, Some(Some("x".to_owned())));

    let mut pairs = Table::<(u64, String), ()>::new();
    pairs.put(&(7, "a"), &())?;
    pairs.put(&(8, "b".to_owned()), &())?;
    assert_eq!(pairs.get(&(7, "a"))?, Some(()));
    let of_seven = pairs.range(prefix_of::<(u64, String)>(&(7,))?)?;
    assert_eq!(of_seven, [((7, "a".to_owned()), ())]);
    Ok(())
}

/// Bytes of a table with keys of another type return an error with a readable message.
#[test]
fn another_type_returns_an_error() -> Result<(), Failure> {
    let mut names = Table::<String, u32>::new();
    names.put("\u{e9}", &1)?;
    let others = Table::<u32, u32> {
        records: names.records,
        types: PhantomData,
    };
    let error = others.range(..).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot decode a u32 at byte 2: 2 bytes are missing at the end; \
         check that the bytes were written as this type"
    );
    Ok(())
}

proptest! {
    /// A scan returns the records of a map with the same keys, in its order.
    #[test]
    fn scans_are_in_the_order_of_the_keys(
        records in prop::collection::btree_map(
            (s::option(s::string()), s::i16(), s::bytes()),
            s::string(),
            0..40,
        ),
    ) {
        let mut table = Table::<(Option<String>, i16, Vec<u8>), String>::new();
        for (key, value) in records.iter().rev() {
            table.put(key, value).unwrap();
        }
        let expected: Vec<_> = records.into_iter().collect();
        prop_assert_eq!(table.range(..).unwrap(), expected);
    }
}
