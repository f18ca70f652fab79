//! `UpperModels::find` is exact for any keys.

use farleaf_model::UpperModels;
use proptest::prelude::*;
use rand_xoshiro::rand_core::Rng;

use crate::keys;

fn expected(first_keys: &[u64], key: u64) -> usize {
    first_keys
        .partition_point(|&first| first <= key)
        .saturating_sub(1)
}

/// Searches for each first key, its neighbors, the ends of the domain, and random keys.
fn check_find(name: &str, first_keys: &[u64]) {
    let upper = UpperModels::build(first_keys.to_vec());
    assert_eq!(upper.first_keys(), first_keys);
    assert!(upper.size_bytes() >= size_of_val(first_keys), "{name}");
    let near = first_keys.iter().flat_map(|&first| {
        [
            first.saturating_sub(1),
            first,
            first.saturating_add(1),
            first ^ (1 << 40),
        ]
    });
    let mut prng = keys::prng(3);
    let random: Vec<u64> = (0..10_000)
        .map(|index| prng.next_u64() >> (index % 64))
        .collect();
    for key in near
        .chain(random)
        .chain([0, 1, 1 << 63, u64::MAX - 1, u64::MAX])
    {
        assert_eq!(upper.find(key), expected(first_keys, key), "{name}, {key}");
    }
}

/// Tests every shape, with and without the ends of the domain.
#[test]
fn find_is_exact_on_all_shapes() {
    for count in [1000, 100_000] {
        for (name, mut first_keys) in keys::all_shapes(count) {
            first_keys.dedup();
            check_find(name, &first_keys);
            first_keys.extend([0, u64::MAX]);
            first_keys.sort_unstable();
            first_keys.dedup();
            check_find(name, &first_keys);
        }
    }
}

/// Tests counts around every size at which the layout changes, with and without the domain's ends.
#[test]
fn find_is_exact_for_every_count() {
    let mut prng = keys::prng(5);
    let powers_of_four = (1..=8).flat_map(|exponent| {
        let power = 1_usize << (2 * exponent);
        power - 2..=power + 2
    });
    for count in (1..300).chain(powers_of_four) {
        let mut first_keys: Vec<u64> = (0..count).map(|_| prng.next_u64()).collect();
        first_keys[0] = if count % 2 == 0 { 0 } else { first_keys[0] };
        first_keys[count - 1] = if count % 3 == 0 {
            u64::MAX
        } else {
            first_keys[count - 1]
        };
        first_keys.sort_unstable();
        first_keys.dedup();
        check_find("random count", &first_keys);
    }
}

/// Tests keys that need many models: all gaps differ, so that levels stay large and deep.
#[test]
fn find_is_exact_where_models_are_bad() {
    let mut prng = keys::prng(9);
    let mut key = 0_u64;
    let mut first_keys = Vec::new();
    while first_keys.len() < 100_000 {
        first_keys.push(key);
        let magnitude = if first_keys.len() % 24 < 12 {
            1
        } else {
            prng.next_u64() % 45
        };
        key += 1 + (prng.next_u64() & ((1 << magnitude) - 1));
    }
    check_find("gaps of all magnitudes", &first_keys);
    // Even so, the upper levels are a fraction of the keys.
    let upper = UpperModels::build(first_keys);
    assert!(
        upper.size_bytes() < 100_000 * 8 * 2,
        "{}",
        upper.size_bytes()
    );
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Tests dense and sparse keys mixed.
    #[test]
    fn find_is_exact_on_random_keys(
        first_keys in prop::collection::btree_set(prop_oneof![0_u64..5000, any::<u64>()], 1..2000),
        queries in prop::collection::vec(prop_oneof![0_u64..5000, any::<u64>()], 100),
    ) {
        let first_keys: Vec<u64> = first_keys.into_iter().collect();
        let upper = UpperModels::build(first_keys.clone());
        for query in queries {
            prop_assert_eq!(upper.find(query), expected(&first_keys, query));
        }
    }
}
