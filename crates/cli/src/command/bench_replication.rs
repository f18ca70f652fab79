//! `farleaf bench replication`: two servers that replicate regions to each other.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use farleaf_bench::replication::{
    self, Promise, ReplicationConfig, ReplicationFabric, ReplicationKind,
};
use farleaf_bench::runner::ValueSize;
use farleaf_bench::workload::WorkloadLetter;

use crate::arguments::{COMMIT, OutputArgument};
use crate::command::bench::parse_value_size;
use crate::command::bench_screen::Screen;
use crate::failure::{BadArgument, Ending};
use crate::private_files;
use crate::scratch::Scratch;
use farleaf_bench::quantity::{parse_count, parse_key, parse_positive_count};

/// Options of the benchmark. The defaults are [`ReplicationConfig`]'s.
#[derive(Clone, Debug, Args)]
pub(crate) struct ReplicationArguments {
    /// Kinds of replication: `none`, `sent` (Send-Index: the primary sends its trees) or `built`
    /// (Build-Index: backups build them); separate several with commas
    #[arg(long, value_name = "KINDS", value_delimiter = ',')]
    #[arg(default_values_t = ReplicationConfig::default().kinds)]
    kind: Vec<ReplicationKind>,

    /// Workloads to run after Load A, from A to D; separate several with commas
    #[arg(long, value_name = "LETTERS", value_delimiter = ',')]
    #[arg(default_values_t = ReplicationConfig::default().workloads)]
    workload: Vec<WorkloadLetter>,

    /// Value size in bytes; or S, M, L (9, 99, 999 bytes), or a mix: SD, MD, LD
    #[arg(long, value_name = "SIZE", value_parser = parse_value_size)]
    #[arg(default_value_t = ReplicationConfig::default().value_size)]
    value_size: ValueSize,

    /// Records to load, in all regions together, such as 250000, 250k or 10M
    #[arg(long, value_name = "COUNT", default_value_t = ReplicationConfig::default().records)]
    #[arg(value_parser = parse_positive_count, allow_negative_numbers = true)]
    records: u64,

    /// Operations of each workload, by all threads together
    #[arg(long, value_name = "COUNT", default_value_t = ReplicationConfig::default().operations)]
    #[arg(value_parser = parse_positive_count, allow_negative_numbers = true)]
    operations: u64,

    /// Regions that each server leads as primary; it backs up as many
    #[arg(long, value_name = "COUNT", default_value_t = ReplicationConfig::default().regions)]
    #[arg(allow_negative_numbers = true)]
    regions: u32,

    /// Entries of a region's L0; a small L0 makes many levels with few records
    #[arg(long, value_name = "COUNT", default_value_t = ReplicationConfig::default().l0_entries)]
    #[arg(value_parser = parse_positive_count, allow_negative_numbers = true)]
    l0_entries: u64,

    /// Size ratio of adjacent levels
    #[arg(long, value_name = "TIMES")]
    #[arg(default_value_t = ReplicationConfig::default().growth_factor)]
    #[arg(allow_negative_numbers = true)]
    growth_factor: u64,

    /// Client threads, which call the servers directly
    #[arg(long, value_name = "COUNT")]
    #[arg(default_value_t = ReplicationConfig::default().threads as u64)]
    #[arg(value_parser = parse_positive_count, allow_negative_numbers = true)]
    threads: u64,

    /// Background threads of each server for its primaries; as many serve its backups
    #[arg(long, value_name = "COUNT")]
    #[arg(default_value_t = ReplicationConfig::default().background as u64)]
    #[arg(value_parser = parse_positive_count, allow_negative_numbers = true)]
    background: u64,

    /// When a put returns: when all replicas have it in `memory`, or on their devices (`sync`)
    #[arg(long, default_value_t = ReplicationConfig::default().promise)]
    promise: Promise,

    /// Fabric between the servers: `mem` (memory of this process) or `tcp` (loopback)
    #[arg(long, default_value_t = ReplicationConfig::default().fabric)]
    fabric: ReplicationFabric,

    /// Number of rounds; every kind runs once in each round
    #[arg(long, value_name = "COUNT", default_value_t = ReplicationConfig::default().rounds)]
    #[arg(allow_negative_numbers = true)]
    rounds: u32,

    /// Records to compare between promoted backups and their primaries after each run; 0 for none
    #[arg(long, value_name = "COUNT", default_value_t = ReplicationConfig::default().check_records)]
    #[arg(value_parser = parse_count, allow_negative_numbers = true)]
    check_records: u64,

    /// Folder for the servers' files while it runs [default: the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,

    /// Seed of the requests
    #[arg(long, default_value_t = ReplicationConfig::default().seed, value_parser = parse_key)]
    #[arg(allow_negative_numbers = true)]
    seed: u64,

    #[command(flatten)]
    output: OutputArgument,
}

/// Runs all kinds in all rounds.
pub(super) fn run(arguments: &ReplicationArguments) -> anyhow::Result<Ending> {
    let mut config = config(arguments);
    config
        .validate()
        .map_err(|error| BadArgument(error.to_string()))?;
    private_files::remove_at_signals().context("cannot install the signal handlers")?;
    let scratch = Scratch::in_directory(&config.directory)?;
    scratch.path().clone_into(&mut config.directory);
    let screen = Screen::new(arguments.output.output);
    let ran = replication::run(&config, &screen);
    screen.end()?;
    ran?;
    scratch.remove()?;
    Ok(Ending::Done)
}

fn config(arguments: &ReplicationArguments) -> ReplicationConfig {
    ReplicationConfig {
        kinds: arguments.kind.clone(),
        workloads: arguments.workload.clone(),
        value_size: arguments.value_size,
        records: arguments.records,
        operations: arguments.operations,
        regions: arguments.regions,
        l0_entries: arguments.l0_entries,
        growth_factor: arguments.growth_factor,
        // A number that is too large becomes the maximum, which the benchmark rejects.
        threads: usize::try_from(arguments.threads).unwrap_or(usize::MAX),
        background: usize::try_from(arguments.background).unwrap_or(usize::MAX),
        promise: arguments.promise,
        fabric: arguments.fabric,
        directory: arguments
            .directory
            .clone()
            .unwrap_or_else(|| ReplicationConfig::default().directory),
        seed: arguments.seed,
        rounds: arguments.rounds,
        check_records: arguments.check_records,
        commit: COMMIT.to_owned(),
    }
}
