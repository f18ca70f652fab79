//! Sorted keys of the shapes for which the bound is tested.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

pub(crate) fn prng(seed: u64) -> Xoshiro256PlusPlus {
    Xoshiro256PlusPlus::seed_from_u64(seed)
}

/// Returns a fraction in (0, 1].
fn fraction(prng: &mut Xoshiro256PlusPlus) -> f64 {
    ((prng.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64
}

/// Returns a standard normal number (Box and Muller).
fn normal(prng: &mut Xoshiro256PlusPlus) -> f64 {
    let radius = (-2.0 * fraction(prng).ln()).sqrt();
    radius * (std::f64::consts::TAU * fraction(prng)).cos()
}

/// Returns every shape, by name, with about `count` keys each; equal keys only in shapes named so.
pub(crate) fn all_shapes(count: usize) -> Vec<(&'static str, Vec<u64>)> {
    let mut shapes = random_shapes(count);
    shapes.extend(regular_shapes(count as u64));
    for (name, keys) in &mut shapes {
        keys.sort_unstable();
        if !name.contains("equal") {
            keys.dedup();
        }
    }
    shapes
}

/// A random number as a key.
#[expect(
    clippy::cast_sign_loss,
    reason = "a negative key, far out in the tail, saturates to 0"
)]
fn to_key(number: f64) -> u64 {
    number as u64
}

fn random_shapes(count: usize) -> Vec<(&'static str, Vec<u64>)> {
    let prng = &mut prng(7);
    let mut draw = |key: &mut dyn FnMut(&mut Xoshiro256PlusPlus, usize) -> u64| -> Vec<u64> {
        (0..count).map(|index| key(prng, index)).collect()
    };
    let half = (1_u64 << 63) as f64;
    let mut sum = 0;
    vec![
        ("uniform", draw(&mut |prng, _| prng.next_u64())),
        (
            "normal",
            draw(&mut |prng, _| to_key(half + half / 8.0 * normal(prng))),
        ),
        (
            "lognormal",
            draw(&mut |prng, _| to_key((2.0 * normal(prng)).exp() * 1e15)),
        ),
        (
            "clustered",
            draw(&mut |prng, index| {
                (index as u64 % 13) * (1 << 60)
                    + (prng.next_u64() % 13).pow(9)
                    + prng.next_u64() % 999
            }),
        ),
        (
            "dense at 2^62",
            draw(&mut |prng, _| (1 << 62) + prng.next_u64() % (3 * count as u64)),
        ),
        (
            "dense below 2^64",
            draw(&mut |prng, _| u64::MAX - prng.next_u64() % (3 * count as u64)),
        ),
        (
            "equal often",
            draw(&mut |prng, _| prng.next_u64() % (count as u64 / 3 + 1) * 1_000_003),
        ),
        (
            "equal in bursts",
            draw(&mut |prng, _| {
                if prng.next_u64().is_multiple_of(40) {
                    sum += 1 << (prng.next_u64() % 48);
                }
                sum
            }),
        ),
    ]
}

fn regular_shapes(count: u64) -> Vec<(&'static str, Vec<u64>)> {
    let widest = u64::MAX / count;
    vec![
        ("sequential", (0..count).collect()),
        (
            "sequential up to the last key",
            (0..count).map(|index| u64::MAX - index).collect(),
        ),
        (
            "widest stride",
            (0..=count)
                .map(|index| index * widest)
                .chain([u64::MAX])
                .collect(),
        ),
        (
            "two strides",
            (0..count).map(|i| i * 8 + (i % 100) / 50 * 3).collect(),
        ),
        (
            "strides that double",
            (0..count).map(|i| (i % 97) << (i * 55 / count)).collect(),
        ),
        ("squares", (0..count).map(|index| index * index).collect()),
        (
            "roots",
            (0..count)
                .map(|i| to_key((i as f64 * 1e18).sqrt() * 1e4))
                .collect(),
        ),
        ("powers of two, and neighbors", {
            let powers = (0..64).map(|exponent| 1_u64 << exponent);
            powers
                .flat_map(|power| [power - 1, power, power + 1, !power])
                .collect()
        }),
        ("equal at both ends", {
            let ends = std::iter::repeat_n(0, 50).chain(std::iter::repeat_n(u64::MAX, 50));
            ends.chain((1..count).map(|index| index * widest)).collect()
        }),
        ("all equal", vec![u64::MAX - 1; count as usize]),
        ("one key", vec![u64::MAX]),
        ("one key, the first", vec![0]),
        ("two keys", vec![0, u64::MAX]),
        ("two equal keys", vec![5, 5]),
        ("three keys", vec![0, 1, u64::MAX]),
        ("three keys, late", vec![0, u64::MAX - 1, u64::MAX]),
        ("three equal keys", vec![u64::MAX; 3]),
    ]
}
