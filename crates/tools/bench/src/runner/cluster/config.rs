//! Settings of a persistent table and its servers.

use std::path::PathBuf;

use farleaf::persistent::{Cluster, Durability};
use farleaf_cluster::admin::FIRST_REGION_COUNT_MAX;
use farleaf_cluster::record::region::REPLICA_COUNT_MAX;

use super::super::BenchError;
use super::super::config::{Check, RunConfig};

/// Maximal number of regions of a new table.
pub const REGION_COUNT_MAX: usize = FIRST_REGION_COUNT_MAX;

/// Least size of L0: bytes that a region gathers in memory before it writes a tree.
const L0_SIZE_BYTES_MIN: usize = 1 << 20;

/// Settings of a persistent table and its servers.
#[derive(Clone, Debug)]
pub struct PersistentConfig {
    /// Number of servers that have each record.
    pub replicas: usize,
    /// Number of regions of the table, with equal numbers of loaded records.
    pub regions: usize,
    /// Durability of acknowledged writes; `None`: the default for this number of replicas.
    pub durability: Option<Durability>,
    /// Servers of the table.
    pub servers: ServersConfig,
}

/// Servers of a persistent table.
#[derive(Clone, Debug)]
pub enum ServersConfig {
    /// One server for each replica, started in this process anew for each workload.
    Own {
        /// Directory in which each run creates their directory, and removes it.
        directory: PathBuf,
        /// Bytes that a region gathers in memory before it writes a tree.
        l0_size_bytes: usize,
    },
    /// Servers of an existing cluster.
    Cluster(Cluster),
}

impl ServersConfig {
    /// Returns the name of the variant in reports.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Own { .. } => "own",
            Self::Cluster(_) => "cluster",
        }
    }
}

impl PersistentConfig {
    /// Returns the settings for three replicas and as many regions, on own servers in the system's
    /// temporary directory.
    pub fn own() -> Self {
        Self {
            replicas: 3,
            regions: 3,
            durability: None,
            servers: ServersConfig::Own {
                directory: std::env::temp_dir(),
                l0_size_bytes: 64 << 20,
            },
        }
    }

    /// Returns the checks of options that are out of range, or without meaning for a persistent
    /// table.
    pub(in super::super) fn checks(&self, run: &RunConfig) -> Vec<Check> {
        let region_count_max = u64::min(REGION_COUNT_MAX as u64, run.records);
        let mut checks = vec![
            BenchError::check(
                "kind",
                run.strings.is_some(),
                "words with --engine lsm",
                "bytes, because keys and values of persistent tables are byte strings",
            ),
            BenchError::check(
                "in-flight",
                run.in_flight == 1,
                format!("{} with --engine lsm", run.in_flight),
                "1, because threads wait for each operation of a persistent table; use more \
                 --threads",
            ),
            BenchError::check(
                "replicas",
                (1..REPLICA_COUNT_MAX).contains(&self.replicas),
                self.replicas.to_string(),
                format!("from 1 to {}", REPLICA_COUNT_MAX - 1),
            ),
            BenchError::check(
                "regions",
                (1..=region_count_max).contains(&(self.regions as u64)),
                self.regions.to_string(),
                format!("from 1 to {REGION_COUNT_MAX}, and not above --records"),
            ),
        ];
        if let ServersConfig::Own {
            directory,
            l0_size_bytes,
        } = &self.servers
        {
            checks.push(BenchError::check(
                "directory",
                directory.is_dir(),
                directory.display().to_string(),
                "an existing directory",
            ));
            checks.push(BenchError::check(
                "l0-size",
                *l0_size_bytes >= L0_SIZE_BYTES_MIN,
                format!("{l0_size_bytes} bytes"),
                "1 MiB or more",
            ));
        }
        checks.extend(options_of_memory(run).map(|(option, is_default)| {
            BenchError::check(
                option,
                is_default,
                "given with --engine lsm",
                "omitted, because it applies only to tables in far memory",
            )
        }));
        checks
    }
}

/// Returns the options that only tables in far memory have, and whether each has its default value.
fn options_of_memory(run: &RunConfig) -> [(&'static str, bool); 7] {
    let default = RunConfig::default();
    [
        ("index", run.layer == default.layer),
        ("fabric", run.fabric == default.fabric),
        ("metadata-budget", run.metadata_budget_bytes.is_none()),
        ("link-count-max", run.link_count_max.is_none()),
        ("model-cache", run.model_cache == default.model_cache),
        ("no-speculation", !run.does_not_speculate),
        ("partitions", run.partitions == default.partitions),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::Strings;

    fn refused(change: impl FnOnce(&mut RunConfig)) -> String {
        let mut run = RunConfig {
            strings: Some(Strings::default()),
            persistent: Some(PersistentConfig::own()),
            ..RunConfig::default()
        };
        run.validate().expect("good as it is");
        change(&mut run);
        run.validate().expect_err("refused").to_string()
    }

    fn refused_persistent(change: impl FnOnce(&mut PersistentConfig)) -> String {
        refused(|run| change(run.persistent.as_mut().expect("it is persistent")))
    }

    /// Promise: an option that a persistent table cannot have is refused by name, with the
    /// permitted values.
    #[test]
    fn what_cannot_be_is_named() {
        assert_eq!(
            refused(|run| run.strings = None),
            "--kind is words with --engine lsm: it must be bytes, because keys and values of \
             persistent tables are byte strings"
        );
        assert_eq!(
            refused(|run| run.in_flight = 4),
            "--in-flight is 4 with --engine lsm: it must be 1, because threads wait for each \
             operation of a persistent table; use more --threads"
        );
        assert!(refused(|run| run.partitions = 2).starts_with("--partitions is given with"));
        let budget = refused(|run| run.metadata_budget_bytes = Some(4096));
        assert!(budget.contains("only to tables in far memory"), "{budget}");
        assert!(refused_persistent(|it| it.replicas = 16).contains("from 1 to 15"));
        assert!(refused_persistent(|it| it.regions = 0).starts_with("--regions is 0"));
        assert!(refused_persistent(|it| it.regions = 118).contains("from 1 to 117"));
        let few = refused(|run| run.records = 2);
        assert!(
            few.starts_with("--regions is 3") && few.contains("not above --records"),
            "{few}"
        );
        let own = |directory: &str, l0_size_bytes| ServersConfig::Own {
            directory: directory.into(),
            l0_size_bytes,
        };
        let small = refused_persistent(|it| it.servers = own("/", 4096));
        assert!(small.starts_with("--l0-size is 4096 bytes"), "{small}");
        let nowhere = refused_persistent(|it| it.servers = own("/no such", 1 << 20));
        assert!(nowhere.contains("an existing directory"), "{nowhere}");
    }
}
