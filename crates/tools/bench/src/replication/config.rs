//! Configuration: the runs and their size.

use std::path::PathBuf;

use super::names::{Promise, ReplicationFabric, ReplicationKind, ReplicationPhase};
use crate::runner::{BenchError, ValueSize};
use crate::verify::WriterId;
use crate::workload::WorkloadLetter;

/// Maximal number of regions of a server: each backup has 10 MiB of registered memory.
pub const REGION_COUNT_MAX: u32 = 64;
/// Maximal number of client threads.
pub const CLIENT_COUNT_MAX: usize = 256;
/// Maximal number of records: positions in a batch and request numbers stay far below their limits.
const RECORD_COUNT_MAX: u64 = 1 << 32;
/// Least size of values: the shortest ones identify their key.
const VALUE_SIZE_BYTES_MIN: usize = 8;
/// Greatest size of values: longer ones would fill a log segment each.
const VALUE_SIZE_BYTES_MAX: usize = 1 << 20;
const ROUND_COUNT_MAX: u32 = 100;
const GROWTH_FACTOR_MAX: u64 = 1024;

/// Options of `farleaf bench replication`.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplicationConfig {
    /// Kinds of replication, one after the other in each round.
    pub kinds: Vec<ReplicationKind>,
    /// Workloads after Load A, each on the records that the previous ones have left.
    pub workloads: Vec<WorkloadLetter>,
    /// Sizes of values; keys have 24 bytes.
    pub value_size: ValueSize,
    /// Records of Load A, in all regions together.
    pub records: u64,
    /// Operations of each other workload.
    pub operations: u64,
    /// Number of regions of which a server is primary; it is backup of as many.
    pub regions: u32,
    /// Entries of a region's L0.
    pub l0_entries: u64,
    /// Size ratio between a level and the one above.
    pub growth_factor: u64,
    /// Client threads, which call primaries directly.
    pub threads: usize,
    /// Threads of a server for background work of its primaries; as many serve its backups.
    pub background: usize,
    /// Durability with which a put returns.
    pub promise: Promise,
    /// Fabric for verbs to backups.
    pub fabric: ReplicationFabric,
    /// Directory in which each run creates a directory of its own, and removes it.
    pub directory: PathBuf,
    /// Seed of the requests.
    pub seed: u64,
    /// Number of rounds.
    pub rounds: u32,
    /// Records to compare in promoted backups after each run; 0: none.
    pub check_records: u64,
    /// Commit of the measured version.
    pub commit: String,
}

impl Default for ReplicationConfig {
    /// Send-Index, Build-Index and no replication, Load A and Run A with the small-dominated mix: a
    /// million records on 16 + 16 regions.
    fn default() -> Self {
        Self {
            kinds: ReplicationKind::ALL.to_vec(),
            workloads: vec![WorkloadLetter::A],
            value_size: "SD".parse().expect("a mix"),
            records: 1_000_000,
            operations: 500_000,
            regions: 16,
            l0_entries: 1_000,
            growth_factor: 8,
            threads: 2,
            background: 2,
            promise: Promise::Memory,
            fabric: ReplicationFabric::Mem,
            directory: std::env::temp_dir(),
            seed: 1,
            rounds: 1,
            check_records: 10_000,
            commit: String::new(),
        }
    }
}

impl ReplicationConfig {
    /// Checks the limits of all options; the first option that is out of range is the error.
    ///
    /// # Errors
    /// [`BenchError::BadOption`].
    pub fn validate(&self) -> Result<(), BenchError> {
        let counts = [
            ("records", self.records, RECORD_COUNT_MAX),
            ("operations", self.operations, RECORD_COUNT_MAX),
            ("regions", self.regions.into(), REGION_COUNT_MAX.into()),
            ("l0-entries", self.l0_entries, RECORD_COUNT_MAX),
            ("threads", self.threads as u64, CLIENT_COUNT_MAX as u64),
            (
                "background",
                self.background as u64,
                u64::from(self.regions),
            ),
            ("rounds", self.rounds.into(), ROUND_COUNT_MAX.into()),
        ];
        for (option, given, max) in counts {
            if !(1..=max).contains(&given) {
                return Err(BenchError::bad(option, given, format!("1 to {max}")));
            }
        }
        if !(2..=GROWTH_FACTOR_MAX).contains(&self.growth_factor) {
            let allowed = format!("2 to {GROWTH_FACTOR_MAX}");
            return Err(BenchError::bad(
                "growth-factor",
                self.growth_factor,
                allowed,
            ));
        }
        if let ValueSize::Fixed(size_bytes) = self.value_size
            && !(VALUE_SIZE_BYTES_MIN..=VALUE_SIZE_BYTES_MAX).contains(&size_bytes)
        {
            let allowed = format!(
                "{VALUE_SIZE_BYTES_MIN} to {VALUE_SIZE_BYTES_MAX} bytes, or one of S, M, L, SD, \
                 MD, LD"
            );
            return Err(BenchError::bad("value-size", size_bytes, allowed));
        }
        if self.kinds.is_empty() {
            return Err(BenchError::bad("kind", "missing", "given at least once"));
        }
        let has_scans = |letter: &&WorkloadLetter| **letter > WorkloadLetter::D;
        if let Some(letter) = self.workloads.iter().find(has_scans) {
            let allowed = "letters from A to D, as in the paper";
            return Err(BenchError::bad("workload", letter, allowed));
        }
        if !self.directory.is_dir() {
            let directory = self.directory.display();
            return Err(BenchError::bad(
                "directory",
                directory,
                "an existing directory",
            ));
        }
        Ok(())
    }

    /// Returns the phases of a run, in their order.
    pub fn phases(&self) -> Vec<ReplicationPhase> {
        let runs = self.workloads.iter().map(|it| ReplicationPhase::Run(*it));
        std::iter::once(ReplicationPhase::Load)
            .chain(runs)
            .collect()
    }

    /// Returns the number of operations of a phase.
    pub const fn operation_count(&self, phase: ReplicationPhase) -> u64 {
        match phase {
            ReplicationPhase::Load => self.records,
            ReplicationPhase::Run(_) => self.operations,
        }
    }

    /// Returns the number of operations of all phases, kinds and rounds.
    pub fn operation_count_total(&self) -> u64 {
        let phases = self.phases().into_iter();
        let of_run: u64 = phases.map(|phase| self.operation_count(phase)).sum();
        of_run * self.kinds.len() as u64 * u64::from(self.rounds)
    }

    /// Returns the number of regions of both servers.
    pub(super) const fn region_count(&self) -> usize {
        2 * self.regions as usize
    }
}

const _: () = assert!(CLIENT_COUNT_MAX < WriterId::THREAD_COUNT_MAX);

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the defaults are valid, and an out-of-range option is refused by name, with the
    /// permitted values.
    #[test]
    fn what_is_out_of_range_is_named() {
        ReplicationConfig::default()
            .validate()
            .expect("the defaults");
        let refused = |change: fn(&mut ReplicationConfig)| {
            let mut config = ReplicationConfig::default();
            change(&mut config);
            config.validate().expect_err("out of range").to_string()
        };
        let message = refused(|config| config.background = 17);
        assert_eq!(message, "--background is 17: it must be 1 to 16");
        let message = refused(|config| config.regions = 65);
        assert_eq!(message, "--regions is 65: it must be 1 to 64");
        assert!(refused(|config| config.records = 0).starts_with("--records is 0"));
        assert!(refused(|config| config.threads = 257).starts_with("--threads is 257"));
        assert!(refused(|config| config.growth_factor = 1).starts_with("--growth-factor is 1"));
        assert!(refused(|config| config.kinds.clear()).starts_with("--kind is missing"));
        let workload = refused(|config| config.workloads.push(WorkloadLetter::E));
        assert_eq!(
            workload,
            "--workload is E: it must be letters from A to D, as in the paper"
        );
        let value = refused(|config| config.value_size = ValueSize::Fixed(7));
        assert!(
            value.starts_with("--value-size is 7: it must be 8 to"),
            "{value}"
        );
        let directory = refused(|config| config.directory = PathBuf::from("/none/such"));
        assert!(
            directory.starts_with("--directory is /none/such"),
            "{directory}"
        );
    }
}
