//! Routes equal a plain binary search.

use farleaf_model::strings::{StringModelError, StringRoutes};
use proptest::prelude::*;

use crate::strings::samples::{all_shapes, string, strings};

fn expected(fences: &[Vec<u8>], key: &[u8]) -> usize {
    fences
        .partition_point(|fence| **fence <= *key)
        .saturating_sub(1)
}

/// Searches for each key, and for the keys directly before and behind it.
fn check<'a>(fences: &[Vec<u8>], keys: impl IntoIterator<Item = &'a Vec<u8>>) {
    let borrowed: Vec<&[u8]> = fences.iter().map(|fence| &**fence).collect();
    let routes = StringRoutes::build(&borrowed).expect("ascending");
    assert_eq!(routes.count(), fences.len());
    for key in keys {
        let mut behind = key.clone();
        behind.push(0);
        let mut before = key.clone();
        if let Some(last) = before.last_mut() {
            *last = last.wrapping_sub(1);
            before.push(0xff);
        }
        for key in [&before, key, &behind] {
            assert_eq!(
                routes.find(key),
                expected(fences, key),
                "{key:?} among {fences:?}"
            );
        }
    }
}

proptest! {
    /// Tests random fences, random keys, and fences as keys; with a common prefix and without.
    #[test]
    fn routes_equal_a_binary_search(
        mut fences in strings(60),
        mut keys in prop::collection::vec(string(), 0..40),
        prefix in string(),
        first_is_empty in any::<bool>(),
    ) {
        check(&fences, keys.iter().chain(&fences));
        for string in fences.iter_mut().chain(&mut keys) {
            string.splice(0..0, prefix.iter().copied());
        }
        if first_is_empty {
            fences[0].clear();
        }
        check(&fences, keys.iter().chain(&fences));
    }
}

/// Tests many fences, and long ones whose heads are equal.
#[test]
fn routes_of_all_shapes_are_exact() {
    for (_, keys) in all_shapes(3000) {
        let fences: Vec<_> = keys.iter().step_by(7).cloned().collect();
        check(&fences, keys.iter().step_by(3));
    }
}

/// Fences that are missing or do not ascend are rejected.
#[test]
fn fences_out_of_order_are_refused() {
    let build = |fences: &[&[u8]]| StringRoutes::build(fences).map(|_| ());
    assert_eq!(build(&[]), Err(StringModelError::NoSegment));
    assert_eq!(
        build(&[b"a", b"b", b"b"]),
        Err(StringModelError::Order { segment: 2 })
    );
    assert_eq!(
        build(&[b"b", b"a"]),
        Err(StringModelError::Order { segment: 1 })
    );
    assert_eq!(build(&[b"b"]), Ok(()));
}
