//! Ranges contain exactly the documented keys.

use std::ops::Bound;

use farleaf_key::{AsRange, ByteRange, KeyTooLong, encode_key, prefix_of, prefix_range, successor};
use proptest::prelude::*;

use crate::strategies as s;

type Three = (Vec<u8>, Option<String>, Vec<u8>);
type Eight = (bool, bool, Vec<u8>, bool, bool, bool, bool, bool);

fn three() -> impl Strategy<Value = Three> {
    (s::bytes(), s::option(s::string()), s::bytes())
}

proptest! {
    /// A byte string is in the range of a prefix if and only if it begins with it; for random
    /// strings, and for the prefix with an extension.
    #[test]
    fn prefix_ranges_are_exact(prefix in s::bytes(), other in s::bytes(), more in s::bytes()) {
        let range = prefix_range(&prefix);
        prop_assert_eq!(range.contains(&other), other.starts_with(&prefix));
        let longer = [&prefix[..], &more].concat();
        prop_assert!(range.contains(&longer));
        prop_assert!(!range.is_empty());
    }

    /// The end of a prefix's range is the first string behind it: it does not begin with the
    /// prefix, and every string from the prefix to before the end does.
    #[test]
    fn ends_of_prefix_ranges_are_least(prefix in s::bytes()) {
        let range = prefix_range(&prefix);
        match &range.end {
            None => prop_assert!(prefix.iter().all(|byte| *byte == 0xff)),
            Some(end) => {
                prop_assert!(!end.starts_with(&prefix));
                let mut before = end.clone();
                *before.last_mut().unwrap() -= 1;
                before.extend_from_slice(&[0xff; 9]);
                prop_assert!(before.starts_with(&prefix));
            }
        }
    }

    /// No string is between a string and its successor.
    #[test]
    fn nothing_is_before_a_successor(string in s::bytes(), other in s::bytes()) {
        let next = successor(&string);
        prop_assert!(string < next);
        prop_assert_eq!(other < next, other <= string);
    }

    /// A tuple is in the range of its first components if and only if they are equal.
    #[test]
    fn tuple_prefixes_are_exact(one in three(), other in three()) {
        let bytes = encode_key::<Three>(&other)?;
        let range = prefix_of::<Three>(&(&one.0,))?;
        prop_assert_eq!(range.contains(&bytes), one.0 == other.0);
        let range = prefix_of::<Three>(&(&one.0, one.1.as_deref()))?;
        prop_assert_eq!(range.contains(&bytes), one.0 == other.0 && one.1 == other.1);
        let range = prefix_of::<Three>(&(&other.0, other.1.as_deref()))?;
        prop_assert!(range.contains(&bytes));
    }

    /// A key is in a typed range if and only if Rust's range of the same bounds contains it.
    #[test]
    fn typed_ranges_are_exact(start in three(), end in three(), key in three()) {
        let bytes = encode_key::<Three>(&key)?;
        let has = |range: &dyn AsRange<Three>| range.byte_range().map(|it| it.contains(&bytes));
        prop_assert_eq!(has(&(&start..&end))?, (&start..&end).contains(&&key));
        prop_assert_eq!(has(&(&start..=&end))?, (&start..=&end).contains(&&key));
        prop_assert_eq!(has(&(&start..))?, start <= key);
        prop_assert_eq!(has(&(..&end))?, key < end);
        prop_assert_eq!(has(&(..=&end))?, key <= end);
        prop_assert_eq!(has(&(&key..=&key))?, true);
        prop_assert_eq!(has(&(Bound::Excluded(&start), Bound::Included(&end)))?,
            start < key && key <= end);
        prop_assert_eq!(has(&(Bound::Excluded(&key), Bound::Unbounded))?, false);
        prop_assert!(has(&..)?);
    }
}

/// Prefixes of one to seven components of eight contain their key, and no key that differs in the
/// last component of the prefix.
#[test]
fn prefixes_of_every_number_of_components() -> Result<(), KeyTooLong> {
    let key = encode_key::<Eight>(&(true, true, b"\0", true, true, true, true, true))?;
    let prefixes = [
        prefix_of::<Eight>(&(true,))?,
        prefix_of::<Eight>(&(true, true))?,
        prefix_of::<Eight>(&(true, true, b"\0"))?,
        prefix_of::<Eight>(&(true, true, b"\0", true))?,
        prefix_of::<Eight>(&(true, true, b"\0", true, true))?,
        prefix_of::<Eight>(&(true, true, b"\0", true, true, true))?,
        prefix_of::<Eight>(&(true, true, b"\0", true, true, true, true))?,
    ];
    let others = [
        prefix_of::<Eight>(&(false,))?,
        prefix_of::<Eight>(&(true, false))?,
        prefix_of::<Eight>(&(true, true, b""))?,
        prefix_of::<Eight>(&(true, true, b"\0", false))?,
        prefix_of::<Eight>(&(true, true, b"\0", true, false))?,
        prefix_of::<Eight>(&(true, true, b"\0", true, true, false))?,
        prefix_of::<Eight>(&(true, true, b"\0", true, true, true, false))?,
    ];
    assert!(prefixes.iter().all(|range| range.contains(&key)));
    assert!(others.iter().all(|range| !range.contains(&key)));
    Ok(())
}

/// Bounds and prefixes that are longer than a key are rejected.
#[test]
fn bounds_that_are_no_keys_are_refused() {
    let long = "a".repeat(4097);
    let range = AsRange::<String>::byte_range(&(..long.as_str()));
    assert_eq!(range, Err(KeyTooLong { size_bytes: 4097 }));
    let range = prefix_of::<(String, u8)>(&(&long,));
    assert_eq!(range, Err(KeyTooLong { size_bytes: 4099 }));
}

/// Borrowed prefixes and ranges are ranges, too; a range whose end is not behind its start is
/// empty.
#[test]
fn ranges_of_ranges() -> Result<(), KeyTooLong> {
    let range = |range: &dyn AsRange<(u8, String)>| range.byte_range();
    assert_eq!(range(&..)?, ByteRange::all());
    let owned = (1, "a".to_owned());
    assert_eq!(range(&(&owned..))?.start, b"\x01a");
    let prefix = prefix_of::<(u8, String)>(&(1,))?;
    assert_eq!(range(&&prefix)?, prefix);
    assert!(range(&((2, "")..(1, "z")))?.is_empty());
    assert!(range(&((1, "a")..(1, "a")))?.is_empty());
    assert!(!range(&((1, "a")..=(1, "a")))?.is_empty());
    Ok(())
}
