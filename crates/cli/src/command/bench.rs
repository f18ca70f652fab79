//! `farleaf bench`: the YCSB core workloads, in a pool of their own or on persistent tables, whose
//! options are in `bench_persistent`; what is shown of them is in `bench_screen` (`bench timeline`
//! is in `bench_timeline`, `bench budget` in `bench_budget`, `bench costs` in `bench_costs`, `bench
//! calls` in `bench_calls`, `bench replication` in `bench_replication`).

use std::path::PathBuf;

use anyhow::Context;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Subcommand, ValueEnum};
use farleaf::{LayerKind, ModelCache};
use farleaf_bench::dataset::Dataset;
use farleaf_bench::distribution::Distribution;
use farleaf_bench::report::comparison_table;
use farleaf_bench::runner::{self, FabricKind, PersistentConfig, RunConfig, Strings, ValueSize};
use farleaf_bench::workload::{UnknownWorkload, WorkloadLetter};

use crate::arguments::{COMMIT, PoolArguments, RdmaArguments};
use crate::command::bench_budget::{self, BudgetArguments};
use crate::command::bench_calls::{self, CallsArguments};
use crate::command::bench_costs::{self, CostsArguments};
use crate::command::bench_persistent::{
    PersistentBenchArguments, is_persistent, misplaced_option, prepare,
};
use crate::command::bench_replication::{self, ReplicationArguments};
use crate::command::bench_screen::{ReportFormat, Screen};
use crate::command::bench_timeline::{self, TimelineArguments};
use crate::failure::{BadArgument, Ending};
use crate::output::print;
use crate::private_files;
use crate::quantity::{parse_key, parse_positive_count, parse_size};
use crate::scratch::Scratch;
use crate::table_options::{parse_epsilon, parse_fill, parse_slots};

/// What to measure.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct BenchArguments {
    #[command(subcommand)]
    command: Option<BenchCommand>,

    #[command(flatten)]
    ycsb: YcsbArguments,
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    /// The YCSB core workloads A to F; `bench` alone is the same
    Ycsb(Box<YcsbArguments>),
    /// What gets cost under metadata budgets, from all of the models to almost none
    Budget(Box<BudgetArguments>),
    /// What a call of the memory node costs, beside a plain echo over loopback TCP
    Calls(CallsArguments),
    /// What each operation costs with each search layer: round trips, bytes, atomics, metadata
    Costs(Box<CostsArguments>),
    /// Two servers that replicate regions to each other: trees sent to backups, or built by them
    Replication(Box<ReplicationArguments>),
    /// A table watched while it grows, shrinks or moves, second by second
    Timeline(Box<TimelineArguments>),
}

/// How to run the workloads. The defaults are [`RunConfig`]'s.
#[derive(Clone, Debug, Args)]
pub(crate) struct YcsbArguments {
    /// Workloads: letters from A to F, or `all`; several with commas, or the option again
    #[arg(
        long,
        value_name = "LETTERS",
        value_delimiter = ',',
        default_value = "all"
    )]
    #[arg(value_parser = parse_workload)]
    workload: Vec<WorkloadChoice>,

    /// Search layers: `learned`, `rolex`, `rf-tree`, `fg`, `sherman`, `cell`, `xstore`, `rpc`;
    /// several with commas
    #[arg(long, value_name = "LAYERS", value_delimiter = ',')]
    #[arg(default_values_t = [RunConfig::default().layer])]
    index: Vec<LayerKind>,

    /// Fabric: `shm` for shared memory, `mem` for memory of this process
    #[arg(long, default_value_t = RunConfig::default().fabric)]
    fabric: FabricKind,

    /// Records to load before each workload, such as 250000, 250k or 10M
    #[arg(long, value_name = "COUNT", default_value_t = RunConfig::default().records)]
    #[arg(value_parser = parse_positive_count, allow_negative_numbers = true)]
    records: u64,

    /// Operations of each workload, all threads together
    #[arg(long, value_name = "COUNT", default_value_t = RunConfig::default().operations)]
    #[arg(value_parser = parse_positive_count, allow_negative_numbers = true)]
    operations: u64,

    /// Threads
    #[arg(long, value_name = "COUNT", default_value_t = RunConfig::default().threads as u64)]
    #[arg(value_parser = parse_positive_count, allow_negative_numbers = true)]
    threads: u64,

    /// Operations that each thread keeps in flight
    #[arg(long, value_name = "COUNT", default_value_t = RunConfig::default().in_flight as u64)]
    #[arg(value_parser = parse_positive_count, allow_negative_numbers = true)]
    in_flight: u64,

    /// Which records are asked for: uniform, zipfian or latest [default: the workload's own]
    #[arg(long, value_name = "NAME")]
    distribution: Option<Distribution>,

    /// Keys: uniform, sequential, normal, lognormal, clustered or keys:FILE
    #[arg(long, value_name = "NAME", default_value_t = RunConfig::default().dataset)]
    dataset: Dataset,

    /// Keys of a file, one a line, plain or gzip: the same as --dataset keys:FILE. With `--kind
    /// bytes` strings with the escapes of `load`, or the first column of a file that `load` takes
    #[arg(long, value_name = "FILE", conflicts_with = "dataset")]
    keys: Option<PathBuf>,

    /// Keys and values: `words` of 64 bits, or `bytes`: YCSB's `user...` keys and values of some
    /// size [default: words; bytes of a persistent table]
    #[arg(long, value_enum)]
    kind: Option<KindChoice>,

    /// Size of keys in bytes, from 24 to 4096 (`--kind bytes`; not of the keys of a file)
    /// [default: 24]
    #[arg(long, value_name = "BYTES")]
    #[arg(value_parser = parse_positive_count, allow_negative_numbers = true)]
    key_size: Option<u64>,

    /// Size of values in bytes, such as 1000 or 64KiB; or S, M or L (9, 99 or 999 bytes), or a mix
    /// of these: SD, MD or LD (`--kind bytes`)
    #[arg(long, value_name = "SIZE", default_value_t = Strings::default().value_size)]
    #[arg(value_parser = parse_value_size)]
    value_size: ValueSize,

    /// Fields of a value, all as large. With 1 an update writes all of the value; with more it
    /// reads the value, changes one of them and puts it (`--kind bytes`; not with mixes)
    #[arg(long, value_name = "COUNT", default_value_t = Strings::default().field_count as u64)]
    #[arg(value_parser = parse_positive_count, allow_negative_numbers = true)]
    fields: u64,

    /// Size of pages: 512, 1024 or 2048 (`--kind bytes`)
    #[arg(long, value_name = "BYTES", default_value_t = Strings::default().page_size_bytes)]
    page_size: u64,

    /// The largest value that lies in a page, in bytes (`--kind bytes`)
    #[arg(long, value_name = "BYTES")]
    #[arg(default_value_t = Strings::default().inline_value_size_bytes)]
    inline_value: u64,

    /// Records that a leaf can hold: 8, 12 or 16
    #[arg(long, default_value_t = RunConfig::default().slots, value_parser = parse_slots)]
    #[arg(allow_negative_numbers = true)]
    slots: u64,

    /// How full loading makes leaves, in percent, from 25 to 100
    #[arg(long, value_name = "PERCENT", default_value_t = RunConfig::default().fill_percent)]
    #[arg(value_parser = parse_fill, allow_negative_numbers = true)]
    fill: u8,

    /// Error bound of the models in keys, from 0.5 to 1024
    #[arg(long, value_name = "KEYS", default_value_t = RunConfig::default().epsilon_keys)]
    #[arg(value_parser = parse_epsilon, allow_negative_numbers = true)]
    epsilon: f64,

    /// The most that each session holds to find leaves, such as 64KiB; what it does not hold it
    /// fetches when it needs it (`learned`, `sherman`, `cell`) [default: no limit; of a tree 64MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, allow_negative_numbers = true)]
    metadata_budget: Option<u64>,

    /// Links that a lookup may follow before the cached tree is read anew (`rf-tree` only)
    /// [default: 2]
    #[arg(long, value_name = "COUNT", value_parser = parse_link_count)]
    #[arg(allow_negative_numbers = true)]
    link_count_max: Option<u32>,

    /// What sessions keep of models: `all`, `models` without translation tables, or the `top` one
    /// (`xstore` only)
    #[arg(long, value_name = "PART", default_value_t = RunConfig::default().model_cache)]
    model_cache: ModelCache,

    /// Ask the memory node for a key that a model has not led to before following a link (`xstore`
    /// only)
    #[arg(long)]
    no_speculation: bool,

    /// Pools that the table is over, each with as many of the records, and a server of its own
    #[arg(long, value_name = "COUNT", default_value_t = RunConfig::default().partitions as u64)]
    #[arg(value_parser = parse_positive_count, allow_negative_numbers = true)]
    partitions: u64,

    #[command(flatten)]
    persistent: PersistentBenchArguments,

    /// Seed of keys and operations: the same seed makes the same run
    #[arg(long, default_value_t = RunConfig::default().seed)]
    #[arg(value_parser = parse_key, allow_negative_numbers = true)]
    seed: u64,

    /// How to print: as tables, or as JSON, one object a line
    #[arg(long, value_enum, default_value_t)]
    format: ReportFormat,
}

/// What keys and values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum KindChoice {
    Words,
    Bytes,
}

impl KindChoice {
    /// The one that is meant if none is given.
    const fn of(is_persistent: bool) -> Self {
        if is_persistent {
            Self::Bytes
        } else {
            Self::Words
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorkloadChoice {
    All,
    One(WorkloadLetter),
}

fn parse_workload(text: &str) -> Result<WorkloadChoice, UnknownWorkload> {
    if text.eq_ignore_ascii_case("all") {
        return Ok(WorkloadChoice::All);
    }
    text.parse().map(WorkloadChoice::One)
}

fn parse_link_count(text: &str) -> Result<u32, &'static str> {
    text.parse()
        .map_err(|_| "expected a count of links from 0 to 4294967295")
}

/// Runs the workloads with each search layer. Wrong and missing answers end with status 1.
pub(crate) fn run(pool: &PoolArguments, arguments: &BenchArguments) -> anyhow::Result<Ending> {
    let rdma = &pool.rdma;
    let arguments = match &arguments.command {
        Some(BenchCommand::Budget(arguments)) => return bench_budget::run(rdma, arguments),
        Some(BenchCommand::Calls(arguments)) => return bench_calls::run(rdma, arguments),
        Some(BenchCommand::Costs(arguments)) => return bench_costs::run(rdma, arguments),
        Some(BenchCommand::Replication(arguments)) => return bench_replication::run(arguments),
        Some(BenchCommand::Timeline(arguments)) => return bench_timeline::run(rdma, arguments),
        Some(BenchCommand::Ycsb(arguments)) => arguments,
        None => &arguments.ycsb,
    };
    let persistent = arguments.persistent.config(pool);
    let of_layer = |layer: &LayerKind| config(rdma, arguments, *layer, persistent.clone());
    let mut configs: Vec<RunConfig> = arguments.index.iter().map(of_layer).collect();
    for config in &configs {
        config
            .validate()
            .map_err(|error| BadArgument(error.to_string()))?;
    }
    private_files::remove_at_signals().context("cannot take signals")?;
    let mut scratches = Vec::new();
    for persistent in configs.iter_mut().filter_map(|it| it.persistent.as_mut()) {
        scratches.extend(prepare(persistent, pool, arguments.threads)?);
    }
    let screen = Screen::new(arguments.format);
    let mut reports = Vec::new();
    for config in &configs {
        let ran = runner::run(config, &screen);
        screen.clear();
        reports.extend(ran?);
        screen.printed()?;
    }
    scratches.into_iter().try_for_each(Scratch::remove)?;
    if arguments.format == ReportFormat::Table && reports.len() > 1 {
        print(comparison_table(&reports))?;
    }
    let is_right = reports
        .iter()
        .all(|report| report.errors == 0 && report.missing == 0);
    Ok(if is_right {
        Ending::Done
    } else {
        Ending::Lacking
    })
}

/// The arguments of the workloads; `None`: it is another benchmark.
pub(crate) fn of_ycsb(bench: &ArgMatches) -> Option<&ArgMatches> {
    match bench.subcommand() {
        None => Some(bench),
        Some(("ycsb", ycsb)) => Some(ycsb),
        Some(_) => None,
    }
}

/// An option on the command line that is of the other kind of tables, and what to do about it.
pub(crate) fn option_of_other_kind(bench: &ArgMatches) -> Option<String> {
    let ycsb = of_ycsb(bench)?;
    if let Some(misplaced) = misplaced_option(ycsb) {
        return Some(misplaced);
    }
    let is_given = |option: &&str| ycsb.value_source(option) == Some(ValueSource::CommandLine);
    let kind = ycsb.get_one("kind").copied();
    match kind.unwrap_or_else(|| KindChoice::of(is_persistent(ycsb))) {
        KindChoice::Bytes => ["slots"].into_iter().find(is_given).map(|option| {
            format!("--{option} is of tables of words: it cannot be used with --kind bytes")
        }),
        KindChoice::Words => [
            "key_size",
            "value_size",
            "fields",
            "page_size",
            "inline_value",
        ]
        .into_iter()
        .find(is_given)
        .map(|option| {
            let option = option.replace('_', "-");
            format!("--{option} is of tables of byte strings: it needs --kind bytes")
        }),
    }
}

/// A size as everywhere, or what the Talos paper names.
pub(super) fn parse_value_size(text: &str) -> Result<ValueSize, &'static str> {
    match parse_size(text) {
        Ok(size_bytes) => Ok(ValueSize::Fixed(to_count(size_bytes))),
        Err(_) => text.parse().map_err(
            |_| "a size such as 65536 or 64KiB, S, M or L (9, 99, 999), or a mix: SD, MD or LD",
        ),
    }
}

/// More than can be counted is refused like anything else that is too many.
fn to_count(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn config(
    rdma: &RdmaArguments,
    arguments: &YcsbArguments,
    layer: LayerKind,
    persistent: Option<PersistentConfig>,
) -> RunConfig {
    let kind = arguments.kind;
    let kind = kind.unwrap_or_else(|| KindChoice::of(persistent.is_some()));
    let letters = arguments.workload.iter().flat_map(|choice| match choice {
        WorkloadChoice::All => WorkloadLetter::ALL.to_vec(),
        WorkloadChoice::One(letter) => vec![*letter],
    });
    let dataset = match &arguments.keys {
        Some(path) => Dataset::Keys(path.clone()),
        None => arguments.dataset.clone(),
    };
    RunConfig {
        workloads: letters.collect(),
        layer,
        fabric: arguments.fabric,
        verbs: rdma.into(),
        records: arguments.records,
        operations: arguments.operations,
        threads: to_count(arguments.threads),
        in_flight: to_count(arguments.in_flight),
        distribution: arguments.distribution,
        dataset,
        strings: (kind == KindChoice::Bytes).then_some(Strings {
            key_size_bytes: arguments.key_size.map(to_count),
            value_size: arguments.value_size,
            field_count: to_count(arguments.fields),
            page_size_bytes: arguments.page_size,
            inline_value_size_bytes: arguments.inline_value,
        }),
        slots: arguments.slots,
        fill_percent: arguments.fill,
        epsilon_keys: arguments.epsilon,
        metadata_budget_bytes: arguments.metadata_budget,
        link_count_max: arguments.link_count_max,
        model_cache: arguments.model_cache,
        does_not_speculate: arguments.no_speculation,
        partitions: to_count(arguments.partitions),
        persistent,
        seed: arguments.seed,
        commit: COMMIT.to_owned(),
    }
}
