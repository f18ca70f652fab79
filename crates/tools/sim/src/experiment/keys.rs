//! Keys to load, to read and to insert.
//!
//! The benchmark's data sets, and one like the web log with which ROLEX and others train: moments
//! of requests to a site in the course of a year. The real log is not public. This one has what
//! makes the log hard for a straight line: days and nights, weekends, and minutes with bursts of
//! requests.

use std::f64::consts::TAU;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

use farleaf_bench::dataset::{Dataset, DatasetError, KeySet};
use serde::{Deserialize, Serialize};

use farleaf_base::random::Random;

/// Sources of keys, by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum KeySource {
    /// Data set of the benchmark.
    Bench(Dataset),
    /// Moments of requests, in microseconds of a year.
    Weblog,
    /// Almost evenly spaced keys, each moved by up to a few hundred (XStore's noised linear keys).
    Noised,
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bench(dataset) => dataset.fmt(f),
            Self::Weblog => f.pad("weblog"),
            Self::Noised => f.pad("noised"),
        }
    }
}

impl KeySource {
    /// Returns the file that contains the keys, if any.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::Bench(Dataset::Keys(path)) => Some(path),
            Self::Bench(_) | Self::Weblog | Self::Noised => None,
        }
    }

    /// Returns the same keys; a relative path of their file is resolved in this folder.
    #[must_use]
    pub fn in_folder(self, folder: &Path) -> Self {
        match self {
            Self::Bench(Dataset::Keys(path)) => Self::Bench(Dataset::Keys(folder.join(path))),
            other => other,
        }
    }
}

impl FromStr for KeySource {
    type Err = DatasetError;

    fn from_str(name: &str) -> Result<Self, DatasetError> {
        match name {
            "weblog" => Ok(Self::Weblog),
            "noised" => Ok(Self::Noised),
            _ => name.parse().map(Self::Bench),
        }
    }
}

impl TryFrom<String> for KeySource {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        name.parse()
            .map_err(|error: DatasetError| format!("{error}; or weblog, noised"))
    }
}

impl From<KeySource> for String {
    fn from(source: KeySource) -> Self {
        source.to_string()
    }
}

/// Keys of a run. Record indexes below the record count name loaded keys, later ones name inserts;
/// see [`KeySet`].
#[derive(Clone, Debug)]
pub struct Keys {
    set: Set,
}

#[derive(Clone, Debug)]
enum Set {
    Bench(KeySet),
    Own { loaded: Vec<u64>, inserts: Vec<u64> },
}

/// Prime that divides no smaller record count: its multiples visit all places, with neighbors far
/// apart.
const STRIDE: u128 = 11_400_714_819_323_198_549;

impl Keys {
    /// Generates keys to load and keys to insert.
    ///
    /// # Errors
    /// The file of the keys cannot be read, or has too few.
    pub fn generate(
        source: &KeySource,
        record_count: usize,
        insert_count: usize,
        seed: u64,
    ) -> Result<Self, DatasetError> {
        let set = match source {
            KeySource::Bench(dataset) => {
                Set::Bench(KeySet::generate(dataset, record_count, insert_count, seed)?)
            }
            KeySource::Weblog => {
                let mut random = Random::new(seed ^ 0x7765_626C_6F67);
                let bursts: Vec<u64> = (0..YEAR_DAYS)
                    .map(|_| random.below(YEAR_DAYS * DAY))
                    .collect();
                let draw = |_, random: &mut Random| request(&bursts, random);
                distinct(record_count, insert_count, &mut random, draw)
            }
            KeySource::Noised => {
                let mut random = Random::new(seed ^ 0x6E6F_6973_6564);
                let draw = |turn: usize, random: &mut Random| {
                    turn as u64 * NOISED_DISTANCE + random.below(NOISE_MAX)
                };
                distinct(record_count, insert_count, &mut random, draw)
            }
        };
        Ok(Self { set })
    }

    /// Returns the keys to load, ascending.
    pub fn loaded(&self) -> &[u64] {
        match &self.set {
            Set::Bench(set) => set.loaded(),
            Set::Own { loaded, .. } => loaded,
        }
    }

    /// Returns the keys to insert, in their order.
    pub fn inserts(&self) -> &[u64] {
        match &self.set {
            Set::Bench(set) => set.inserts(),
            Set::Own { inserts, .. } => inserts,
        }
    }

    /// Returns the key that a record index names.
    ///
    /// # Panics
    /// The record does not exist.
    pub fn key(&self, index: u64) -> u64 {
        match &self.set {
            Set::Bench(set) => set.key(index),
            Set::Own { loaded, inserts } => {
                let count = loaded.len() as u64;
                if index < count {
                    loaded[(u128::from(index) * STRIDE % u128::from(count)) as usize]
                } else {
                    inserts[(index - count) as usize]
                }
            }
        }
    }
}

/// Microseconds of a day and of a minute.
const DAY: u64 = 86_400_000_000;
const MINUTE: u64 = 60_000_000;
const YEAR_DAYS: u64 = 364;

/// Distance between two noised keys before the noise, and the largest noise.
const NOISED_DISTANCE: u64 = 1 << 10;
const NOISE_MAX: u64 = NOISED_DISTANCE * 256;

/// Draws distinct keys, some to load and the others to insert, in the order drawn. `draw` receives
/// the number of the draw.
fn distinct(
    record_count: usize,
    insert_count: usize,
    random: &mut Random,
    draw: impl Fn(usize, &mut Random) -> u64,
) -> Set {
    let wanted = record_count + insert_count;
    let mut drawn: Vec<(u64, usize)> = Vec::with_capacity(wanted);
    while drawn.len() < wanted {
        let missing = drawn.len()..wanted;
        drawn.extend(missing.map(|turn| (draw(turn, random), turn)));
        drawn.sort_unstable();
        drawn.dedup_by_key(|(key, _)| *key);
    }
    let mut inserts = Vec::with_capacity(insert_count);
    let mut loaded = Vec::with_capacity(record_count);
    // Draw which keys are inserted, each equally likely (selection sampling).
    let (mut left, mut wanted) = (drawn.len() as u64, insert_count as u64);
    for (key, _) in drawn {
        if random.below(left) < wanted {
            inserts.push(key);
            wanted -= 1;
        } else {
            loaded.push(key);
        }
        left -= 1;
    }
    for turn in 0..inserts.len() {
        let other = turn + random.below((inserts.len() - turn) as u64) as usize;
        inserts.swap(turn, other);
    }
    Set::Own { loaded, inserts }
}

/// Draws one request: usually by the rate of its hour and weekday, one in ten in a burst.
fn request(bursts: &[u64], random: &mut Random) -> u64 {
    if random.chance(100) {
        return random.choose(bursts) + random.below(MINUTE);
    }
    loop {
        let at = random.below(YEAR_DAYS * DAY);
        let hour = (at % DAY) as f64 / DAY as f64;
        let of_day = 0.55 - 0.45 * (TAU * hour).cos();
        let of_week = if at / DAY % 7 < 5 { 1.0 } else { 0.5 };
        if (random.below(1000) as f64) < 1000.0 * of_day * of_week {
            return at;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: keys to load ascend, no insert key is among them, one index names each key, and the
    /// seed decides them.
    #[test]
    fn keys_are_distinct_and_all_named() {
        for name in ["weblog", "noised", "uniform"] {
            let source: KeySource = name.parse().expect("known");
            let keys = Keys::generate(&source, 10_000, 2_000, 3).expect("keys");
            assert!(keys.loaded().windows(2).all(|pair| pair[0] < pair[1]));
            let mut all: Vec<u64> = (0..12_000).map(|index| keys.key(index)).collect();
            assert_eq!(&all[10_000..], keys.inserts());
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), 12_000, "{name}");
            let again = Keys::generate(&source, 10_000, 2_000, 3).expect("keys");
            assert_eq!(again.loaded(), keys.loaded());
            assert_eq!(again.inserts(), keys.inserts());
        }
    }

    /// Promise: nights have fewer requests than days, and names parse back.
    #[test]
    fn the_weblog_has_days_and_nights() {
        let keys = Keys::generate(&KeySource::Weblog, 20_000, 0, 1).expect("keys");
        let in_hours = |from: u64, to: u64| {
            let hours = keys.loaded().iter().map(|key| key % DAY / (60 * MINUTE));
            hours.filter(|hour| (from..to).contains(hour)).count()
        };
        assert!(in_hours(11, 13) > 4 * in_hours(0, 2));
        assert_eq!(
            KeySource::Weblog.to_string().parse::<KeySource>().ok(),
            Some(KeySource::Weblog)
        );
        assert!("no such".parse::<KeySource>().is_err());
    }
}
