//! Options of `farleaf bench ycsb` on persistent tables, and conflicts between them.

use std::path::PathBuf;
use std::time::Duration;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args};
use farleaf_bench::runner::{PersistentConfig, REGION_COUNT_MAX, ServersConfig};
use farleaf_cluster::record::region::REPLICA_COUNT_MAX;

use super::cluster_client::open_patiently;
use super::region::parse_l0_size;
use super::serve::allow_descriptors;
use crate::arguments::PoolArguments;
use crate::cluster_options::{DurabilityArgument, EngineName};
use crate::scratch::Scratch;

/// Storage engine of a benchmark's table, and the options of a persistent one.
#[derive(Clone, Debug, Args)]
pub(super) struct PersistentBenchArguments {
    /// Storage engine: `memory` (a pool) or `lsm` (a persistent table, on servers that the
    /// benchmark starts, or on a cluster with --cluster) [default: lsm with --cluster, otherwise
    /// memory]
    #[arg(long, value_enum, value_name = "ENGINE", hide_possible_values = true)]
    engine: Option<EngineName>,

    /// Persistent tables: number of replicas, 1 to 15; the benchmark starts as many servers
    /// [default: 3]
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=REPLICA_COUNT_MAX as i64 - 1))]
    replicas: Option<u8>,

    /// Persistent tables: number of regions, each with an equal share of the records, 1 to 117
    /// [default: the number of replicas]
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=REGION_COUNT_MAX as i64))]
    regions: Option<u16>,

    #[command(flatten)]
    durability: DurabilityArgument,

    /// Servers that the benchmark starts: size of a region's write buffer (L0), as for `region
    /// serve` [default: 64MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_l0_size)]
    #[arg(allow_negative_numbers = true)]
    l0_size: Option<u64>,

    /// Servers that the benchmark starts: folder for their files while it runs [default: the
    /// system's temporary directory]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
}

/// Returns whether a run uses a persistent table.
pub(super) fn is_persistent(ycsb: &ArgMatches) -> bool {
    has_cluster(ycsb) || ycsb.get_one("engine") == Some(&EngineName::Lsm)
}

/// Returns whether `--cluster` is on the command line. An address in the environment is meant for
/// commands that do not fill a table of their own.
fn has_cluster(ycsb: &ArgMatches) -> bool {
    ycsb.value_source("cluster") == Some(ValueSource::CommandLine)
}

/// Returns an error message for an option that does not fit the storage engine.
pub(super) fn misplaced_option(ycsb: &ArgMatches) -> Option<String> {
    let is_given = |option: &&str| ycsb.value_source(option) == Some(ValueSource::CommandLine);
    let first = |options: &[&'static str]| {
        let option = options.iter().copied().find(is_given)?;
        Some(option.replace('_', "-"))
    };
    if !is_persistent(ycsb) {
        let options = ["replicas", "regions", "durability", "l0_size", "directory"];
        return first(&options).map(|option| {
            format!(
                "--{option} cannot be used without --engine lsm or --cluster: it is for persistent \
                 tables"
            )
        });
    }
    if has_cluster(ycsb) {
        if ycsb.get_one("engine") == Some(&EngineName::Memory) {
            return Some(
                "--engine memory cannot be used with a cluster: its tables are on disk; leave \
                 --cluster out"
                    .to_owned(),
            );
        }
        if let Some(option) = first(&["l0_size", "directory"]) {
            return Some(format!(
                "--{option} cannot be used with a cluster: it is for servers that the benchmark \
                 starts itself; leave it out"
            ));
        }
    }
    let of_memory = [
        "index",
        "fabric",
        "slots",
        "page_size",
        "inline_value",
        "fill",
        "epsilon",
        "metadata_budget",
        "link_count_max",
        "model_cache",
        "no_speculation",
        "partitions",
    ];
    first(&of_memory).map(|option| {
        format!(
            "--{option} cannot be used with a persistent table: it is for tables in far memory; \
             leave it out"
        )
    })
}

impl PersistentBenchArguments {
    /// Returns the options of a persistent table; `None` if the table is not persistent. Contacts
    /// no server and creates nothing.
    pub(super) fn config(&self, pool: &PoolArguments) -> Option<PersistentConfig> {
        if pool.cluster.is_none() && self.engine != Some(EngineName::Lsm) {
            return None;
        }
        let PersistentConfig {
            replicas, servers, ..
        } = PersistentConfig::own();
        let replicas = self.replicas.map_or(replicas, usize::from);
        Some(PersistentConfig {
            replicas,
            regions: self.regions.map_or(replicas, usize::from),
            durability: self.durability.durability(),
            servers: self.changed(servers),
        })
    }

    fn changed(&self, servers: ServersConfig) -> ServersConfig {
        match servers {
            ServersConfig::Own {
                directory,
                l0_size_bytes,
            } => ServersConfig::Own {
                directory: self.directory.clone().unwrap_or(directory),
                l0_size_bytes: self.l0_size.map_or(l0_size_bytes, |size| size as usize),
            },
            ServersConfig::Cluster(_) => servers,
        }
    }
}

/// Opens the given cluster, or creates a directory for the files of the benchmark's own servers,
/// which must exist as long as they run.
pub(super) fn prepare(
    config: &mut PersistentConfig,
    pool: &PoolArguments,
    thread_count: u64,
) -> anyhow::Result<Option<Scratch>> {
    let connection_count = thread_count.saturating_mul(config.replicas as u64);
    if let Some(address) = &pool.cluster {
        allow_descriptors(connection_count);
        // A benchmark fails at once if its cluster is unavailable.
        let opened = open_patiently(pool, address, Duration::ZERO)?;
        config.servers = ServersConfig::Cluster(opened.cluster);
    }
    let ServersConfig::Own { directory, .. } = &mut config.servers else {
        return Ok(None);
    };
    // Both ends of each connection are in this process.
    allow_descriptors(connection_count.saturating_mul(2));
    let scratch = Scratch::in_directory(directory)?;
    scratch.path().clone_into(directory);
    Ok(Some(scratch))
}
