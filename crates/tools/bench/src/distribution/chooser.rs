//! Chooser of the record of an operation: a request distribution over the existing records.

use rand::Rng;
use serde::{Deserialize, Serialize};

use super::latest::Latest;
use super::random::below;
use super::scrambled::ScrambledZipfian;
use crate::named::named;

/// Request distribution, by its name in YCSB's `requestdistribution`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Distribution {
    /// Every loaded record equally; inserted ones are not requested.
    Uniform,
    /// Zipfian with constant 0.99, popular records scattered.
    Zipfian,
    /// The newest records most often.
    Latest,
}

named!(
    Distribution,
    "request distribution",
    Uniform = "uniform",
    Zipfian = "zipfian",
    Latest = "latest",
);

/// Draws record indexes from the records whose inserts are acknowledged.
#[derive(Clone, Debug)]
pub struct IndexChooser {
    loaded_count: u64,
    shape: Shape,
}

#[derive(Clone, Debug)]
enum Shape {
    Uniform,
    Zipfian(ScrambledZipfian),
    Latest(Latest),
}

impl IndexChooser {
    /// Creates a chooser for `loaded_count` loaded records (at least 1) and up to `insert_count`
    /// more.
    ///
    /// As in YCSB, the scrambled zipfian also spans records that do not exist yet, so that the
    /// popular ones stay the same while records are added. It spans one index more (YCSB counts the
    /// inclusive end of its range). Draws of records that do not exist yet are repeated.
    pub fn new(distribution: Distribution, loaded_count: u64, insert_count: u64) -> Self {
        let loaded_count = loaded_count.max(1);
        let shape = match distribution {
            Distribution::Uniform => Shape::Uniform,
            Distribution::Zipfian => {
                Shape::Zipfian(ScrambledZipfian::new(loaded_count + insert_count + 1))
            }
            Distribution::Latest => Shape::Latest(Latest::new(loaded_count - 1)),
        };
        Self {
            loaded_count,
            shape,
        }
    }

    /// Draws an index below `existing_count`, the number of loaded records and acknowledged
    /// inserts. It is at least the loaded count and never shrinks.
    #[inline]
    pub fn choose(&mut self, random: &mut impl Rng, existing_count: u64) -> u64 {
        let existing_count = existing_count.max(self.loaded_count);
        match &mut self.shape {
            Shape::Uniform => below(random, self.loaded_count),
            Shape::Zipfian(items) => loop {
                let index = items.sample(random);
                if index < existing_count {
                    return index;
                }
            },
            Shape::Latest(latest) => latest.sample(random, existing_count - 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::random::numbered_stream;
    use super::*;

    /// Promise: no distribution draws a record that does not exist yet, and each draws inserted
    /// ones as soon as they exist (uniform: never, as in YCSB).
    #[test]
    fn only_existing_records_are_chosen() {
        for distribution in Distribution::ALL {
            let mut chooser = IndexChooser::new(distribution, 1_000, 500);
            let mut random = numbered_stream(10, 0);
            let mut highest = 0;
            for existing_count in 1_000..=1_500 {
                for _ in 0..100 {
                    let index = chooser.choose(&mut random, existing_count);
                    assert!(index < existing_count, "{distribution}: {index}");
                    highest = highest.max(index);
                }
            }
            assert_eq!(
                highest >= 1_000,
                distribution != Distribution::Uniform,
                "{distribution}"
            );
        }
    }

    /// Promise: the popular records stay the same while records are added.
    #[test]
    fn inserts_do_not_move_the_popular_records() {
        let most_popular = |existing_count| {
            let mut chooser = IndexChooser::new(Distribution::Zipfian, 1_000, 500);
            let mut random = numbered_stream(11, 0);
            let mut counts = vec![0_u32; 1_500];
            for _ in 0..50_000 {
                counts[chooser.choose(&mut random, existing_count) as usize] += 1;
            }
            counts[..1_000]
                .iter()
                .enumerate()
                .max_by_key(|(_, count)| **count)
                .unwrap()
                .0
        };
        assert_eq!(most_popular(1_000), most_popular(1_400));
    }

    /// Promise: names parse back, and the error of an unknown one names it.
    #[test]
    fn names_are_read_back() {
        for distribution in Distribution::ALL {
            assert_eq!(distribution.to_string().parse(), Ok(distribution));
        }
        let error = "zipf".parse::<Distribution>().unwrap_err();
        assert!(error.to_string().contains("`zipf`"), "{error}");
    }
}
