//! Measures the time per push into a `SegmentBuilder` and per `UpperModels::find`.
//!
//! Run it in release mode: `cargo run --release -p farleaf-model --example timing`.

use std::hint::black_box;
use std::time::Instant;

use farleaf_model::{SegmentBuilder, UpperModels};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

const PUSH_COUNT: usize = 10_000_000;
const FIND_COUNT: usize = 4_000_000;
/// Number of repetitions; the fastest counts, because other processes use the machine too.
const ROUND_COUNT: usize = 5;

fn main() {
    let mut prng = Xoshiro256PlusPlus::seed_from_u64(1);
    let keys = sorted_keys(&mut prng, PUSH_COUNT);
    for epsilon in [2.67, 16.0, 64.0] {
        time_push(&keys, epsilon);
    }
    for first_key_count in [100, 1000, 5_000, 10_000, 20_000, 30_000, 100_000] {
        let uniform = sorted_keys(&mut prng, first_key_count);
        time_find(&mut prng, "uniform", &uniform);
    }
    let first_keys = segment_first_keys(&keys, 2.67);
    time_find(&mut prng, "segments", &first_keys);
}

fn sorted_keys(prng: &mut Xoshiro256PlusPlus, count: usize) -> Vec<u64> {
    let mut keys: Vec<u64> = (0..count).map(|_| prng.next_u64()).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

fn segment_first_keys(keys: &[u64], epsilon: f64) -> Vec<u64> {
    let mut builder = SegmentBuilder::new(epsilon, 65_535);
    let lows = keys.iter().step_by(6);
    let mut segments: Vec<_> = lows.filter_map(|&key| builder.push(key)).collect();
    segments.extend(builder.finish());
    segments.iter().map(|segment| segment.first_x).collect()
}

fn time_push(keys: &[u64], epsilon: f64) {
    let mut best_ns = f64::INFINITY;
    let mut segment_count = 0;
    for _ in 0..ROUND_COUNT {
        let start = Instant::now();
        let mut builder = SegmentBuilder::new(epsilon, 65_535);
        segment_count = keys
            .iter()
            .filter(|&&key| builder.push(key).is_some())
            .count();
        segment_count += usize::from(builder.finish().is_some());
        best_ns = best_ns.min(start.elapsed().as_nanos() as f64 / keys.len() as f64);
    }
    println!("push, epsilon {epsilon}: {best_ns:.1} ns per key, {segment_count} segments");
}

fn time_find(prng: &mut Xoshiro256PlusPlus, name: &str, first_keys: &[u64]) {
    let upper = UpperModels::build(first_keys.to_vec());
    let queries: Vec<u64> = (0..FIND_COUNT).map(|_| prng.next_u64()).collect();
    let independent_ns = best_time_ns(&queries, |query, _| upper.find(query));
    // The low bit of the last result enters the next key: dependent lookups, as in a single
    // session.
    let chained_ns = best_time_ns(&queries, |query, last| {
        upper.find(query ^ (last as u64 & 1))
    });
    let binary_ns = best_time_ns(&queries, |query, last| {
        first_keys.partition_point(|&first| first <= query ^ (last as u64 & 1))
    });
    println!(
        "find, {name}, {} first keys, {} bytes: {independent_ns:.1} ns independent, \
         {chained_ns:.1} ns chained; partition_point chained {binary_ns:.1} ns",
        first_keys.len(),
        upper.size_bytes(),
    );
}

fn best_time_ns(queries: &[u64], mut find: impl FnMut(u64, usize) -> usize) -> f64 {
    let mut best_ns = f64::INFINITY;
    for _ in 0..ROUND_COUNT {
        let start = Instant::now();
        let last = queries.iter().fold(0, |last, &query| find(query, last));
        black_box(last);
        best_ns = best_ns.min(start.elapsed().as_nanos() as f64 / queries.len() as f64);
    }
    best_ns
}
