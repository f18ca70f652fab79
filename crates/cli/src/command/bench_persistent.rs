//! `farleaf bench ycsb` on persistent tables: what their options are, and what does not go with
//! them.

use std::path::PathBuf;
use std::time::Duration;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args};
use farleaf_bench::runner::{PersistentConfig, REGION_COUNT_MAX, ServersConfig};
use farleaf_cluster::record::region::REPLICA_COUNT_MAX;

use super::cluster_way::open_patiently;
use super::region::parse_l0_size;
use super::serve::allow_descriptors;
use crate::arguments::PoolArguments;
use crate::cluster_options::{DurabilityArgument, EngineName};
use crate::scratch::Scratch;

/// Where a benchmark's table is, and how it is made if it is persistent.
#[derive(Clone, Debug, Args)]
pub(super) struct PersistentBenchArguments {
    /// Where records are: `memory`, in a pool; `lsm`, on the disks of servers, which is a
    /// persistent table: of servers of its own, or of a cluster with --cluster [default: lsm with
    /// --cluster, memory without]
    #[arg(long, value_enum, value_name = "ENGINE", hide_possible_values = true)]
    engine: Option<EngineName>,

    /// Of a persistent table: how many servers have each record, 1 to 15; own servers are as many
    /// [default: 3]
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=REPLICA_COUNT_MAX as i64 - 1))]
    replicas: Option<u8>,

    /// Of a persistent table: regions that it is cut into, each with as many records, 1 to 117
    /// [default: as many as replicas]
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=REGION_COUNT_MAX as i64))]
    regions: Option<u16>,

    #[command(flatten)]
    durability: DurabilityArgument,

    /// Of own servers: how much a region gathers in memory before it is written as a tree, at the
    /// latest after four times as much of its log; half as much of the log's end, with the values,
    /// stays in memory besides [default: 64MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_l0_size)]
    #[arg(allow_negative_numbers = true)]
    l0_size: Option<u64>,

    /// Of own servers: where their files are while it runs [default: the system's temporary
    /// directory]
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
}

/// Whether a run is on a persistent table.
pub(super) fn is_persistent(ycsb: &ArgMatches) -> bool {
    has_cluster(ycsb) || ycsb.get_one("engine") == Some(&EngineName::Lsm)
}

/// That of the environment stands there for commands which do not fill a table of their own.
fn has_cluster(ycsb: &ArgMatches) -> bool {
    ycsb.value_source("cluster") == Some(ValueSource::CommandLine)
}

/// An option that does not go with where the table is to be, and what to do about it.
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
                "--engine memory cannot be used with a cluster: its tables are on disks; leave \
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
    /// Whether the table is persistent, and how it is made then; nothing is asked or made yet.
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

/// Opens the cluster whose servers are meant, or makes a directory for the files of own ones, which
/// must be there as long as they are.
pub(super) fn prepare(
    config: &mut PersistentConfig,
    pool: &PoolArguments,
    thread_count: u64,
) -> anyhow::Result<Option<Scratch>> {
    let connection_count = thread_count.saturating_mul(config.replicas as u64);
    if let Some(address) = &pool.cluster {
        allow_descriptors(connection_count);
        // A benchmark of a cluster that is away fails at once.
        let opened = open_patiently(pool, address, Duration::ZERO)?;
        config.servers = ServersConfig::Cluster(opened.cluster);
    }
    let ServersConfig::Own { directory, .. } = &mut config.servers else {
        return Ok(None);
    };
    // Both ends of each are in this process.
    allow_descriptors(connection_count.saturating_mul(2));
    let scratch = Scratch::in_directory(directory)?;
    scratch.path().clone_into(directory);
    Ok(Some(scratch))
}
