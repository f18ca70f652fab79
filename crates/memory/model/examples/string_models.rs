//! Measures models over strings: segments, bytes per key, keys predicted right, time per lookup.
//!
//! Run it in release mode: `cargo run --release -p farleaf-model --example string_models`; with a
//! file's name behind `--`, it uses that file's lines.

use std::hint::black_box;
use std::time::Instant;

use farleaf_model::strings::{
    Alphabet, Boundary, LineSegmentBuilder, Residuals, StringDirectory, StringSegment,
    StringSegmentBuilder, byte_shift,
};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

const KEY_COUNT: u64 = 1_000_000;
const LOOKUP_COUNT: usize = 400_000;
/// Number of repetitions; the fastest counts, because other processes use the machine too.
const ROUND_COUNT: usize = 5;

fn main() -> std::io::Result<()> {
    if let Some(name) = std::env::args().nth(1) {
        let text = std::fs::read(&name)?;
        let lines = text.split(|byte| *byte == b'\n').map(<[u8]>::to_vec);
        measure_all(&name, lines.collect());
        return Ok(());
    }
    let numbers = || 0..KEY_COUNT;
    let bytes = |text: String| text.into_bytes();
    measure_all(
        "YCSB",
        numbers()
            .map(|n| bytes(format!("user{}", hash(n))))
            .collect(),
    );
    measure_all(
        "sequential",
        numbers().map(|n| bytes(format!("user:{n:07}"))).collect(),
    );
    let hex = |n| bytes(format!("{:016x}{:016x}", hash(n), hash(n + KEY_COUNT)));
    measure_all("hexadecimal", numbers().map(hex).collect());
    measure_all(
        "binary",
        numbers().map(|n| hash(n).to_be_bytes().to_vec()).collect(),
    );
    let mut prng = Xoshiro256PlusPlus::seed_from_u64(1);
    let random = numbers().map(|_| bytes(format!("{:020}", prng.next_u64())));
    measure_all("random decimal", random.collect());
    Ok(())
}

/// Returns FNV-1a of a number's eight bytes, low ones first, as in YCSB.
fn hash(number: u64) -> u64 {
    number
        .to_le_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        })
}

/// Kind of segments.
#[derive(Clone, Copy)]
enum Kind {
    Lines(&'static [Alphabet]),
    /// Lines or front-coded fences, whichever suits.
    Chosen,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Lines([_]) => "lines, binary only",
            Self::Lines(_) => "lines",
            Self::Chosen => "chosen",
        }
    }

    fn segments(self, epsilon: f64, fences: &[&[u8]]) -> Vec<StringSegment> {
        let mut segments = Vec::new();
        match self {
            Self::Lines(alphabets) => {
                let mut builder = LineSegmentBuilder::with_alphabets(epsilon, 4096, alphabets);
                for fence in fences {
                    segments.extend(builder.push(fence).map(StringSegment::from));
                }
                segments.extend(builder.finish().map(StringSegment::from));
            }
            Self::Chosen => {
                let mut builder = StringSegmentBuilder::new(epsilon, 4096);
                for fence in fences {
                    segments.extend(builder.push(fence));
                }
                segments.extend(builder.finish());
            }
        }
        segments
    }
}

fn measure_all(name: &str, mut keys: Vec<Vec<u8>>) {
    keys.sort();
    keys.dedup();
    println!("{name}: {} keys", keys.len());
    for kind in [
        Kind::Lines(&Alphabet::ALL[..1]),
        Kind::Lines(&Alphabet::ALL),
        Kind::Chosen,
    ] {
        for (record_count, epsilon, is_packed) in [
            (6, 2.67, false),
            (6, 7.5, false),
            (30, 2.67, false),
            (1, 2.67, false),
            (1, 30.0, true),
        ] {
            measure(&keys, record_count, epsilon, is_packed, kind);
        }
    }
}

fn measure(keys: &[Vec<u8>], record_count: usize, epsilon: f64, is_packed: bool, kind: Kind) {
    let start = Instant::now();
    let directory = train(keys, record_count, epsilon, is_packed, kind);
    let leaf_count = f64::from(directory.leaf_count());
    let train_ns = start.elapsed().as_nanos() as f64 / leaf_count;
    let (mut single, mut pair) = (0, 0);
    for (index, key) in keys.iter().enumerate() {
        let leaf = (index / record_count) as u32;
        let located = directory.locate(key);
        match located.also {
            None => single += u32::from(located.leaf == leaf),
            Some(also) => pair += u32::from(located.leaf == leaf || also == leaf),
        }
    }
    let count = keys.len() as f64;
    let percent = |part: u32| 100.0 * f64::from(part) / count;
    println!(
        "  {}, {record_count} records a leaf, epsilon {epsilon}, {}: {:.2} segments per 1,000 \
         leaves ({:.2} front-coded), {:.3} B/key; right {:.2} %, one of two {:.2} %; training \
         {train_ns:.0} ns a leaf, lookup {:.0} ns",
        kind.name(),
        if is_packed { "packed" } else { "bytes" },
        1000.0 * directory.segment_count() as f64 / leaf_count,
        1000.0 * directory.front_coded_count() as f64 / leaf_count,
        directory.size_bytes() as f64 / count,
        percent(single),
        percent(pair),
        time_locate(&directory, keys),
    );
}

fn train(
    keys: &[Vec<u8>],
    record_count: usize,
    epsilon: f64,
    is_packed: bool,
    kind: Kind,
) -> StringDirectory {
    let mut fences = vec![&[][..]];
    for first in (record_count..keys.len()).step_by(record_count) {
        let pairs = keys[first - 1].iter().zip(&keys[first]);
        let shared_size = pairs.take_while(|(left, right)| left == right).count();
        fences.push(&keys[first][..=shared_size]);
    }
    let segments = kind.segments(epsilon, &fences);
    let boundary = |leaf: usize| Boundary {
        last: (leaf * record_count)
            .checked_sub(1)
            .map(|last| &*keys[last]),
        fence: fences[leaf],
        first: &keys[leaf * record_count],
    };
    let mut residuals = if is_packed {
        Residuals::Packed { blocks: Vec::new() }
    } else {
        Residuals::Bytes {
            shift: byte_shift(epsilon + 0.2),
            residuals: Vec::new(),
        }
    };
    let mut leaf = 0;
    for segment in &segments {
        let end = leaf + segment.leaf_count() as usize;
        residuals.push(segment, (leaf..end).map(boundary));
        leaf = end;
    }
    StringDirectory::build(&segments, residuals).expect("a training fits together")
}

/// Returns the nanoseconds per lookup of random present keys, which are adjacent in memory in the
/// order of lookups.
fn time_locate(directory: &StringDirectory, keys: &[Vec<u8>]) -> f64 {
    let (mut queries, mut ends) = (Vec::new(), vec![0]);
    let mut prng = Xoshiro256PlusPlus::seed_from_u64(2);
    for _ in 0..LOOKUP_COUNT {
        queries.extend_from_slice(&keys[(prng.next_u64() % keys.len() as u64) as usize]);
        ends.push(queries.len());
    }
    let mut best_ns = f64::INFINITY;
    for _ in 0..ROUND_COUNT {
        let start = Instant::now();
        let sum = ends.windows(2).fold(0, |sum: u32, pair| {
            sum.wrapping_add(directory.locate(&queries[pair[0]..pair[1]]).leaf)
        });
        black_box(sum);
        best_ns = best_ns.min(start.elapsed().as_nanos() as f64 / LOOKUP_COUNT as f64);
    }
    best_ns
}
