//! Counts the segments, and measures the upper models, for the leaf lows of 10 M keys.
//!
//! Every 6th key is a leaf's lower fence (8 slots, 6 used). Run it in release mode: `cargo run
//! --release -p farleaf-model --example segment_counts`.

use farleaf_model::{SegmentBuilder, UpperModels};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

const KEY_COUNT: usize = 10_000_000;
const KEYS_PER_LEAF: usize = 6;
const POINT_COUNT_MAX: u32 = 65_535;

fn main() {
    let half = (1_u64 << 63) as f64;
    report("uniform", Rng::next_u64);
    report("normal", |prng| to_key(half + half / 8.0 * normal(prng)));
    report("lognormal", |prng| {
        to_key((2.0 * normal(prng)).exp() * 1e15)
    });
}

/// A random number as a key.
#[expect(
    clippy::cast_sign_loss,
    reason = "a negative key, far out in the tail, saturates to 0"
)]
fn to_key(number: f64) -> u64 {
    number as u64
}

/// Returns a standard normal number (Box and Muller).
fn normal(prng: &mut Xoshiro256PlusPlus) -> f64 {
    let mut fraction = || ((prng.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
    let radius = (-2.0 * fraction().ln()).sqrt();
    radius * (std::f64::consts::TAU * fraction()).cos()
}

fn report(name: &str, mut draw: impl FnMut(&mut Xoshiro256PlusPlus) -> u64) {
    let mut prng = Xoshiro256PlusPlus::seed_from_u64(1);
    let mut keys: Vec<u64> = (0..KEY_COUNT).map(|_| draw(&mut prng)).collect();
    keys.sort_unstable();
    keys.dedup();
    let lows: Vec<u64> = keys.iter().copied().step_by(KEYS_PER_LEAF).collect();
    for epsilon in [2.67, 3.33, 4.0, 5.33] {
        let mut builder = SegmentBuilder::new(epsilon, POINT_COUNT_MAX);
        let mut segments: Vec<_> = lows.iter().filter_map(|&low| builder.push(low)).collect();
        segments.extend(builder.finish());
        let error_max = segments
            .iter()
            .map(|segment| segment.error_max)
            .fold(0.0, f64::max);
        let upper = UpperModels::build(segments.iter().map(|segment| segment.first_x).collect());
        println!(
            "{name}, {} leaves, epsilon {epsilon} leaves: {} segments, {:.1} leaves each, \
             error {error_max:.6}, upper models {} bytes",
            lows.len(),
            segments.len(),
            lows.len() as f64 / segments.len() as f64,
            upper.size_bytes(),
        );
    }
}
