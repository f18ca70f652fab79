//! Suite of runs for the figures.

use std::num::NonZero;
use std::path::PathBuf;

use crate::replication::config::ReplicationConfig;
use crate::replication::error::ReplicationError;
use crate::replication::rows::ReplicationRow;
use crate::replication::run;
use crate::report::quantity::count;
use crate::runner::{ProgressSink, ValueSize};
use crate::workload::WorkloadLetter;

/// Growth factor of all runs except those that vary it.
pub(super) const GROWTH_FACTOR: u64 = 8;
/// Growth factors of the figure that varies them.
pub(super) const GROWTH_FACTORS: [u64; 4] = [4, GROWTH_FACTOR, 12, 16];
/// Size mixes, in the paper's order.
pub(super) const MIXES: [&str; 6] = ["S", "M", "L", "SD", "MD", "LD"];
/// Mix of all runs except those that vary it.
pub(super) const MIX: &str = "SD";

/// Percentages of small pairs, and the mixes that have them, for the figure that varies them. The
/// other pairs are medium and large, in equal numbers.
pub(super) fn small_shares() -> [(f64, ValueSize); 4] {
    let mixed = |name, percent| ValueSize::Mixed { name, percent };
    [
        (40.0, mixed("40 % small", [40, 30, 30])),
        (60.0, parsed(MIX)),
        (80.0, mixed("80 % small", [80, 10, 10])),
        (100.0, parsed("S")),
    ]
}

pub(super) fn parsed(mix: &str) -> ValueSize {
    mix.parse().expect("the name of a mix")
}

/// Size of all runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FigureSize {
    /// Name of the size.
    pub name: &'static str,
    /// Number of loaded records.
    pub records: u64,
    /// Operations of each workload after the load.
    pub operations: u64,
    /// Number of regions of which each server is the primary.
    pub regions: u32,
    /// Number of entries at which a region flushes its L0.
    pub l0_entries: u64,
}

impl FigureSize {
    /// Quick size.
    pub const QUICK: Self = Self {
        name: "quick",
        records: 400_000,
        operations: 100_000,
        regions: 2,
        l0_entries: 2_000,
    };

    /// Full size: 16 + 16 regions, as in the paper; about 7 GB of files with the largest mix.
    pub const FULL: Self = Self {
        name: "full",
        records: 3_000_000,
        operations: 750_000,
        regions: 16,
        l0_entries: 2_000,
    };
}

/// All runs of the figures.
#[derive(Clone, Debug)]
pub struct Suite {
    size: FigureSize,
    base: ReplicationConfig,
}

impl Suite {
    /// Creates the runs of this size in an existing directory.
    ///
    /// # Errors
    /// The size is out of range.
    pub fn new(
        size: FigureSize,
        directory: PathBuf,
        commit: &str,
    ) -> Result<Self, ReplicationError> {
        let base = ReplicationConfig {
            records: size.records,
            operations: size.operations,
            regions: size.regions,
            l0_entries: size.l0_entries,
            growth_factor: GROWTH_FACTOR,
            value_size: parsed(MIX),
            check_records: 1_000,
            background: (size.regions as usize).min(ReplicationConfig::default().background),
            directory,
            commit: commit.to_owned(),
            ..ReplicationConfig::default()
        };
        base.validate()?;
        Ok(Self { size, base })
    }

    /// Moves all runs to another directory.
    #[must_use]
    pub fn in_directory(mut self, directory: PathBuf) -> Self {
        self.base.directory = directory;
        self
    }

    /// Returns the size of the runs.
    pub const fn size(&self) -> FigureSize {
        self.size
    }

    /// Returns the settings that all runs share.
    pub(super) const fn base(&self) -> &ReplicationConfig {
        &self.base
    }

    /// Returns the number of processors that this process may use.
    pub(super) fn processor_count() -> usize {
        std::thread::available_parallelism().map_or(1, NonZero::get)
    }

    /// Returns each run with its name: each mix with all workloads. The other varied parameters run
    /// with Load A and Run A, except for values that the mixes already have.
    fn configs(&self) -> Vec<(String, ReplicationConfig)> {
        let all = [
            WorkloadLetter::A,
            WorkloadLetter::B,
            WorkloadLetter::C,
            WorkloadLetter::D,
        ];
        let mixes = MIXES.map(|mix| {
            let config = ReplicationConfig {
                value_size: parsed(mix),
                workloads: all.to_vec(),
                ..self.base.clone()
            };
            (mix.to_owned(), config)
        });
        let factors = GROWTH_FACTORS.into_iter().filter(|it| *it != GROWTH_FACTOR);
        let factors = factors.map(|growth_factor| {
            let config = ReplicationConfig {
                growth_factor,
                ..self.base.clone()
            };
            (format!("growth factor {growth_factor}"), config)
        });
        let shares = small_shares().into_iter();
        let shares = shares.filter(|(_, mix)| !MIXES.map(parsed).contains(mix));
        let shares = shares.map(|(_, value_size)| {
            let config = ReplicationConfig {
                value_size,
                ..self.base.clone()
            };
            (value_size.to_string(), config)
        });
        mixes.into_iter().chain(factors).chain(shares).collect()
    }

    /// Executes all runs.
    ///
    /// # Errors
    /// A run failed.
    pub fn measure(
        &self,
        sink: &dyn ProgressSink,
    ) -> Result<Vec<ReplicationRow>, ReplicationError> {
        let configs = self.configs();
        let run_count = configs.len();
        let mut rows = Vec::new();
        for (index, (name, config)) in configs.into_iter().enumerate() {
            let named_sink = NamedRunSink {
                name: format!("{}/{run_count}: {name}", index + 1),
                sink,
            };
            rows.extend(run(&config, &named_sink)?);
        }
        Ok(rows)
    }

    /// Returns the caption, by which every chart states how it was measured.
    pub(super) fn caption(&self) -> String {
        let size = self.size;
        format!(
            "real runs, {} processors: 2 servers, {} + {} regions, {} records, L0 of {} ({})",
            Self::processor_count(),
            size.regions,
            size.regions,
            count(size.records),
            count(size.l0_entries),
            size.name,
        )
    }
}

/// Sink that adds the name of the run, and ignores results.
struct NamedRunSink<'s> {
    name: String,
    sink: &'s dyn ProgressSink,
}

impl ProgressSink for NamedRunSink<'_> {
    fn begin(&self, what: &str, total: u64) {
        self.sink.begin(&format!("{}, {what}", self.name), total);
    }

    fn advance(&self, done: u64) {
        self.sink.advance(done);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: no run is made twice, and every run is valid.
    #[test]
    fn runs_are_good_and_differ() {
        for size in [FigureSize::QUICK, FigureSize::FULL] {
            let suite = Suite::new(size, std::env::temp_dir(), "").expect("in range");
            let configs = suite.configs();
            assert_eq!(configs.len(), 6 + 3 + 2);
            for (index, (name, config)) in configs.iter().enumerate() {
                config.validate().expect("in range");
                assert!(
                    configs[..index]
                        .iter()
                        .all(|(other, it)| other != name && it != config)
                );
            }
        }
    }
}
