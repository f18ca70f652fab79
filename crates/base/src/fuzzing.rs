//! Fuzzing of decoders: valid inputs with random changes, for code that reads files or messages of
//! other hosts.
//!
//! Each target runs for `FARLEAF_FUZZ_SECONDS` (default 1). A case depends only on its number:
//! `FARLEAF_FUZZ_SEED=NUMBER` runs that case first, which repeats a failure. Another number selects
//! other cases.

use std::time::{Duration, Instant};

use crate::random::Random;

/// Words that are likely to hit a limit.
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

impl Random {
    /// Changes bytes in one to four ways; the number of bytes may change too.
    pub fn mutate(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..=self.below(4) {
            if bytes.is_empty() {
                return bytes.extend(self.bytes::<24>());
            }
            let at = self.index(bytes.len());
            match self.below(8) {
                0 => bytes[at] ^= 1 << self.below(8),
                1 => bytes[at] = self.bits() as u8,
                // Flips a bit in the first byte of a word, where headers have their flags.
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

/// Prints the name and number of its case if a panic drops it.
struct FuzzCase(&'static str, u64);

impl Drop for FuzzCase {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self(name, seed) = self;
            eprintln!("{name}: set FARLEAF_FUZZ_SEED={seed} to run this case first");
        }
    }
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{variable} is '{text}', which is not a number")))
}

/// Runs cases until the time is over, and prints their number on stderr.
///
/// # Panics
/// A case panicked; stderr shows the number that repeats it.
pub fn run(name: &'static str, mut case: impl FnMut(&mut Random)) {
    let time = Duration::from_secs(number("FARLEAF_FUZZ_SECONDS").unwrap_or(1));
    let first = number("FARLEAF_FUZZ_SEED").unwrap_or(1);
    let start = Instant::now();
    let mut seed = first;
    while start.elapsed() < time || seed == first {
        let _case = FuzzCase(name, seed);
        case(&mut Random::new(seed));
        seed += 1;
    }
    eprintln!("{name}: {} cases", seed - first);
}
