//! Configuration of a run, and its limits.

use std::time::Duration;

use farleaf::{LayerKind, VerbsOptions};

use crate::named::named;
use crate::runner::{BenchError, FabricKind, RECORD_COUNT_MAX, THREAD_COUNT_MAX};

/// Options of `farleaf bench timeline`.
#[derive(Clone, Debug, PartialEq)]
pub struct TimelineConfig {
    /// Change of the table.
    pub change: Change,
    /// Search layer of the table.
    pub layer: LayerKind,
    /// Fabric of the pool.
    pub fabric: FabricKind,
    /// RDMA devices of this host to use, if the fabric is `verbs`.
    pub verbs: VerbsOptions,
    /// Size of the pool in bytes; `None`: an estimate of what the change needs.
    pub size_bytes: Option<u64>,
    /// Threads of the pool's node that retrain: 1, or 0 for none.
    pub retrain_threads: u32,
    /// Number of client threads.
    pub threads: usize,
    /// Percentage of gets while writes are left: 0 to 99.
    pub reads_percent: u8,
    /// Length of an interval: 100 ms to an hour.
    pub interval: Duration,
    /// Time for which threads continue to read after the last write: up to an hour.
    pub settle: Duration,
    /// Slots of a leaf: 8, 12 or 16.
    pub slots: u64,
    /// Percentage of a leaf's slots that the load fills: 25 to 100.
    pub fill_percent: u8,
    /// Error bound of the models, in keys: 0.5 to 1024.
    pub epsilon_keys: f64,
    /// Seed of keys and operations.
    pub seed: u64,
    /// Commit of the code that runs, for the report.
    pub commit: String,
}

/// Change of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The table grows.
    Growth {
        /// Order of the keys.
        order: KeyOrder,
        /// Keys that are loaded first; 0: all are put.
        from: u64,
        /// Keys at the end.
        to: u64,
    },
    /// The table moves: keys are put above all others, and as many deleted from below.
    Window {
        /// Keys that exist at any time.
        keys: u64,
        /// Keys that are put, and deleted.
        inserts: u64,
    },
    /// The table shrinks: keys are deleted at random.
    Shrink {
        /// Keys that are loaded first.
        from: u64,
        /// Percentage of them that is deleted: 1 to 99.
        delete_percent: u8,
    },
}

/// Order of the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyOrder {
    /// Random keys of the whole domain.
    Uniform,
    /// Each key above all before.
    Ascending,
    /// Each key below all before.
    Descending,
    /// Dense clusters of 1,024 keys at random positions, 64 of which fill up at a time.
    Clustered,
}

named!(
    KeyOrder,
    Uniform = "uniform",
    Ascending = "ascending",
    Descending = "descending",
    Clustered = "clustered",
);

/// No pattern has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown pattern `{0}`: expected uniform, ascending, descending, clustered, window or shrink"
)]
pub struct UnknownPattern(pub String);

impl Change {
    /// Returns the name of the pattern on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Growth { order, .. } => order.name(),
            Self::Window { .. } => "window",
            Self::Shrink { .. } => "shrink",
        }
    }

    /// Returns the order in which its keys have indexes.
    pub const fn order(self) -> KeyOrder {
        match self {
            Self::Growth { order, .. } => order,
            Self::Window { .. } => KeyOrder::Ascending,
            // Random keys, deleted in the order of their indexes, are deleted at random places.
            Self::Shrink { .. } => KeyOrder::Uniform,
        }
    }

    /// Returns the number of keys that are loaded first.
    pub const fn load_count(self) -> u64 {
        match self {
            Self::Growth { from, .. } | Self::Shrink { from, .. } => from,
            Self::Window { keys, .. } => keys,
        }
    }

    /// Returns the number of keys that are put.
    pub const fn put_count(self) -> u64 {
        match self {
            Self::Growth { from, to, .. } => to.saturating_sub(from),
            Self::Window { inserts, .. } => inserts,
            Self::Shrink { .. } => 0,
        }
    }

    /// Returns the number of keys that are deleted.
    pub const fn delete_count(self) -> u64 {
        match self {
            Self::Growth { .. } => 0,
            Self::Window { inserts, .. } => inserts,
            Self::Shrink {
                from,
                delete_percent,
            } => (from as u128 * delete_percent as u128 / 100) as u64,
        }
    }

    /// Returns the number of puts and deletes.
    pub const fn write_count(self) -> u64 {
        self.put_count() + self.delete_count()
    }

    /// Returns the number of keys that ever exist.
    pub const fn key_count(self) -> u64 {
        self.load_count().saturating_add(self.put_count())
    }
}

impl Default for TimelineConfig {
    /// A million random keys that grow to four million, by one thread, half of whose operations are
    /// gets.
    fn default() -> Self {
        let table = farleaf::TableOptions::default();
        Self {
            change: Change::Growth {
                order: KeyOrder::Uniform,
                from: 1_000_000,
                to: 4_000_000,
            },
            layer: table.layer,
            fabric: FabricKind::Shm,
            verbs: VerbsOptions::default(),
            size_bytes: None,
            retrain_threads: 1,
            threads: 1,
            reads_percent: 50,
            interval: Duration::from_secs(1),
            settle: Duration::from_secs(5),
            slots: table.slots,
            fill_percent: table.fill_percent,
            epsilon_keys: table.epsilon_keys,
            seed: 1,
            commit: "unknown".to_owned(),
        }
    }
}

const HOUR: Duration = Duration::from_hours(1);
/// Shorter intervals measure the system's scheduler more than the table.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

impl TimelineConfig {
    /// Checks the limits of all options; the first option that is out of range is the error.
    ///
    /// # Errors
    /// [`BenchError::BadOption`].
    pub fn validate(&self) -> Result<(), BenchError> {
        let checks = [
            BenchError::within("threads", self.threads, 1, THREAD_COUNT_MAX, ""),
            BenchError::within("retrain-threads", self.retrain_threads, 0, 1, ""),
            BenchError::within("reads", self.reads_percent, 0, 99, " (percent)"),
            BenchError::within("fill", self.fill_percent, 25, 100, " (percent)"),
            BenchError::within("epsilon", self.epsilon_keys, 0.5, 1024.0, " (keys)"),
            seconds("interval", self.interval, INTERVAL_MIN, HOUR),
            seconds("settle", self.settle, Duration::ZERO, HOUR),
            self.check_change(),
        ];
        checks.into_iter().find(Result::is_err).unwrap_or(Ok(()))?;
        if matches!(self.slots, 8 | 12 | 16) {
            return Ok(());
        }
        Err(BenchError::bad("slots", self.slots, "8, 12 or 16"))
    }

    fn check_change(&self) -> Result<(), BenchError> {
        let largest = format!("at most {RECORD_COUNT_MAX}");
        match self.change {
            Change::Growth { from, to, .. } if to <= from => {
                let allowed = format!("above --first-keys ({from})");
                Err(BenchError::bad("last-keys", to, allowed))
            }
            Change::Growth { to, .. } if to > RECORD_COUNT_MAX => {
                Err(BenchError::bad("last-keys", to, largest))
            }
            Change::Window { keys: 0, .. } => Err(BenchError::bad("keys", 0, "at least 1")),
            Change::Window { inserts: 0, .. } => Err(BenchError::bad("inserts", 0, "at least 1")),
            Change::Window { keys, inserts } if keys.saturating_add(inserts) > RECORD_COUNT_MAX => {
                let allowed = format!("at most {RECORD_COUNT_MAX} together with --keys");
                Err(BenchError::bad("inserts", inserts, allowed))
            }
            Change::Shrink { from, .. } if from > RECORD_COUNT_MAX => {
                Err(BenchError::bad("first-keys", from, largest))
            }
            Change::Shrink { from, .. } if from < 2 => Err(BenchError::bad(
                "first-keys",
                from,
                "at least 2, so that keys can be deleted",
            )),
            Change::Shrink { delete_percent, .. } => {
                BenchError::within("delete", delete_percent, 1, 99, " (percent)")
            }
            _ => Ok(()),
        }
    }
}

fn seconds(
    option: &'static str,
    given: Duration,
    lowest: Duration,
    highest: Duration,
) -> Result<(), BenchError> {
    let [given, lowest, highest] = [given, lowest, highest].map(|it| it.as_secs_f64());
    BenchError::within(option, given, lowest, highest, " (seconds)")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut TimelineConfig)) -> String {
        let mut config = TimelineConfig::default();
        change(&mut config);
        config.validate().expect_err("out of range").to_string()
    }

    /// Promise: the defaults are valid, and an out-of-range option is refused by name, with its
    /// value and the permitted values.
    #[test]
    fn what_is_out_of_range_is_named() {
        TimelineConfig::default().validate().expect("the defaults");
        let growth = |from, to| Change::Growth {
            order: KeyOrder::Uniform,
            from,
            to,
        };
        assert_eq!(
            refused(|config| config.change = growth(5, 4)),
            "--last-keys is 4: it must be above --first-keys (5)"
        );
        assert!(refused(|config| config.change = growth(5, 5)).starts_with("--last-keys is 5"));
        assert!(refused(|config| config.change = growth(0, u64::MAX)).starts_with("--last-keys "));
        let (keys, inserts) = (u64::MAX, u64::MAX);
        let window = Change::Window { keys, inserts };
        assert!(refused(|config| config.change = window).starts_with("--inserts "));
        for delete_percent in [0, 100] {
            let from = 100;
            let shrink = Change::Shrink {
                from,
                delete_percent,
            };
            assert!(refused(|config| config.change = shrink).starts_with("--delete is "));
        }
        assert!(refused(|config| config.threads = 0).starts_with("--threads is 0"));
        assert!(refused(|config| config.reads_percent = 100).starts_with("--reads is 100"));
        assert_eq!(
            refused(|config| config.interval = Duration::ZERO),
            "--interval is 0: it must be from 0.1 to 3600 (seconds)"
        );
        assert!(refused(|config| config.settle = HOUR * 2).starts_with("--settle is 7200"));
        assert!(refused(|config| config.slots = 9).starts_with("--slots is 9"));
        assert!(refused(|config| config.epsilon_keys = f64::NAN).starts_with("--epsilon is NaN"));
    }

    /// Promise: counts of a change add up, even if a share is not whole.
    #[test]
    fn counts_add_up() {
        let window = Change::Window {
            keys: 10,
            inserts: 30,
        };
        assert_eq!(
            (window.key_count(), window.write_count()),
            (40, 60),
            "keys, puts and deletes"
        );
        let shrink = Change::Shrink {
            from: 99,
            delete_percent: 90,
        };
        assert_eq!((shrink.delete_count(), shrink.key_count()), (89, 99));
    }
}
