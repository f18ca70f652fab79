//! Fuzzing: inputs that were honest before they were changed at random, for whatever reads what
//! another host has sent or a file says.
//!
//! Each target runs for `FARLEAF_FUZZ_SECONDS` (1 if it is not set). A case is made from its number
//! alone, so one that fails is run again, first, by `FARLEAF_FUZZ_SEED=NUMBER`; other numbers give
//! other cases.

use std::time::{Duration, Instant};

/// Words that are more likely than others to meet a limit.
pub const EDGES: [u64; 12] = [
    0,
    1,
    2,
    0xFF,
    1 << 15,
    (1 << 15) + 1,
    1 << 16,
    u32::MAX as u64,
    (1 << 48) - 1,
    1 << 48,
    1 << 63,
    u64::MAX,
];

/// A generator of random numbers: `SplitMix64` (Steele, Lea, Flood, 2014).
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// A number.
    #[expect(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Less than `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// The place of one of so many, which are not none.
    pub fn index(&mut self, count: usize) -> usize {
        self.below(count as u64) as usize
    }

    /// True once in so many times.
    pub fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// So many bytes.
    pub fn bytes<const SIZE: usize>(&mut self) -> [u8; SIZE] {
        core::array::from_fn(|_| self.next() as u8)
    }

    /// Changes bytes in one to four ways; their number may change too.
    pub fn mutate(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..=self.below(4) {
            if bytes.is_empty() {
                return bytes.extend(self.bytes::<24>());
            }
            let at = self.index(bytes.len());
            match self.below(8) {
                0 => bytes[at] ^= 1 << self.below(8),
                1 => bytes[at] = self.next() as u8,
                // Bits of a header.
                2 => bytes[at & !7] ^= 1 << self.below(8),
                3 => {
                    let word = EDGES[self.index(EDGES.len())].to_le_bytes();
                    let place = bytes[at & !7..].iter_mut();
                    place.zip(word).for_each(|(to, from)| *to = from);
                }
                4 => bytes.truncate(at),
                5 => {
                    let end = (at + 8 * self.index(16)).min(bytes.len());
                    drop(bytes.drain(at & !7..end));
                }
                6 => {
                    let end = (at + 1 + self.index(256)).min(bytes.len());
                    let copied = bytes[at..end].to_vec();
                    let to = self.index(bytes.len()) & !7;
                    drop(bytes.splice(to..to, copied));
                }
                _ => {
                    let more = self.bytes::<16>();
                    drop(bytes.splice(at..at, more));
                }
            }
        }
    }
}

/// Says which case it was when it panics.
struct Case(&'static str, u64);

impl Drop for Case {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self(name, seed) = self;
            eprintln!("{name}: run this case again, first, by FARLEAF_FUZZ_SEED={seed}");
        }
    }
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{variable} is '{text}', which is no number")))
}

/// Runs cases until the time is over, and says on stderr how many they were.
///
/// # Panics
/// A case did; the number to run it again by is on stderr.
pub fn run(name: &'static str, mut case: impl FnMut(&mut Random)) {
    let time = Duration::from_secs(number("FARLEAF_FUZZ_SECONDS").unwrap_or(1));
    let first = number("FARLEAF_FUZZ_SEED").unwrap_or(1);
    let start = Instant::now();
    let mut seed = first;
    while start.elapsed() < time || seed == first {
        let _case = Case(name, seed);
        case(&mut Random(seed));
        seed += 1;
    }
    eprintln!("{name}: {} cases", seed - first);
}
