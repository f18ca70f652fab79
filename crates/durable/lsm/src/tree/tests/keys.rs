//! Keys of many kinds.

use std::collections::BTreeSet;

use crate::tree::mix;

/// Returns reproducible pseudo-random numbers.
pub(crate) fn random_numbers(seed: u64) -> impl Iterator<Item = u64> {
    (0..).map(move |it| mix(mix(!seed).wrapping_add(mix(it))))
}

/// Returns keys as YCSB has them, drawn in random order.
pub(in crate::tree) fn user_keys(seed: u64, count: usize) -> BTreeSet<Vec<u8>> {
    let key = |it: u64| format!("user{it:020}").into_bytes();
    random_numbers(seed).map(key).take(count).collect()
}

/// Returns keys with a prefix of this many bytes and a number.
pub(in crate::tree) fn keys_with_prefix(prefix_size_bytes: usize, count: u32) -> BTreeSet<Vec<u8>> {
    let key = |it: u32| {
        let mut key = vec![b'p'; prefix_size_bytes];
        key.extend_from_slice(format!("{:06}", u64::from(it) * 7919 % 1_000_000).as_bytes());
        key
    };
    (0..count).map(key).collect()
}

/// Returns groups of keys that differ only behind the part that leaves know.
pub(in crate::tree) fn equal_heads(count: usize) -> BTreeSet<Vec<u8>> {
    let key = |it: usize| {
        let long = "-".repeat(30);
        format!("{:03}{long}{it:05}{long}", it % 7).into_bytes()
    };
    (0..count).map(key).collect()
}

/// Returns keys of the lowest and highest bytes and their neighbors; often one is a prefix of
/// another.
pub(in crate::tree) fn binary_keys(count: usize) -> BTreeSet<Vec<u8>> {
    let key = |it: u64| {
        let bytes = random_numbers(it).map(|byte| [0, 0, 0, 1, 0x7f, 0xff][byte as usize % 6]);
        bytes.take(it as usize % 40).collect()
    };
    random_numbers(5).map(key).take(count).collect()
}

/// Returns all kinds of keys and their rare cases, each with a name.
pub(in crate::tree) fn kinds() -> Vec<(&'static str, BTreeSet<Vec<u8>>)> {
    let short = (0..3000_u32).map(|it| it.to_string().into_bytes());
    let mut mixed: BTreeSet<Vec<u8>> = short.clone().collect();
    mixed.extend(equal_heads(700));
    mixed.extend(keys_with_prefix(4090, 300));
    mixed.extend(keys_with_prefix(250, 300));
    mixed.extend(binary_keys(500));
    mixed.extend((0..=4096).step_by(17).map(|it| vec![b'p'; it]));
    mixed.extend((0..=4096).step_by(19).map(|it| vec![0; it]));
    vec![
        ("the empty one", BTreeSet::from([Vec::new()])),
        ("a single one", BTreeSet::from([b"key".to_vec()])),
        ("a full leaf", keys_with_prefix(0, 203)),
        ("one more", keys_with_prefix(0, 204)),
        ("short", short.chain([Vec::new()]).collect()),
        ("as YCSB has them", user_keys(1, 45_000)),
        (
            "of 4,096 bytes, 4,090 the same",
            keys_with_prefix(4090, 2_200),
        ),
        ("of 256 bytes", keys_with_prefix(250, 3_000)),
        ("of 262 bytes", keys_with_prefix(256, 3_000)),
        ("of 1,037 bytes", keys_with_prefix(1031, 1_000)),
        ("equal heads", equal_heads(3_000)),
        ("binary", binary_keys(5_000)),
        ("mixed", mixed),
    ]
}
