//! `farleaf bench`: YCSB core workloads on its own pool or on persistent tables, whose options are
//! in `bench_persistent`. Output is in `bench_screen`, and the other benchmarks are in
//! `bench_timeline`, `bench_budget`, `bench_costs`, `bench_calls` and `bench_replication`.

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
use crate::command::bench_screen::Screen;
use crate::command::bench_timeline::{self, TimelineArguments};
use crate::failure::{BadArgument, Ending};
use crate::output::{OutputFormat, print};
use crate::private_files;
use crate::scratch::Scratch;
use crate::table_options::{parse_epsilon, parse_fill, parse_slots};
use farleaf_bench::quantity::{parse_key, parse_positive_count, parse_size};

/// Benchmark to run.
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
    /// Run the YCSB core workloads A to F; `farleaf bench` alone does the same
    Ycsb(Box<YcsbArguments>),
    /// Measure the cost of gets under metadata budgets, from all models to almost none
    Budget(Box<BudgetArguments>),
    /// Measure a call of the memory node next to a plain echo over loopback TCP
    Calls(CallsArguments),
    /// Count what each operation costs with each search layer: round trips, bytes, atomics,
    /// metadata
    Costs(Box<CostsArguments>),
    /// Measure two servers that replicate regions to each other, with trees sent or built
    Replication(Box<ReplicationArguments>),
    /// Watch a table while it grows, shrinks or moves, second by second
    Timeline(Box<TimelineArguments>),
}

/// Options of the workloads. The defaults are [`RunConfig`]'s.
#[derive(Clone, Debug, Args)]
pub(crate) struct YcsbArguments {
    /// Workloads, letters from A to F or `all`; separate several with commas
    #[arg(
        long,
        value_name = "LETTERS",
        value_delimiter = ',',
        default_value = "all"
    )]
    #[arg(value_parser = parse_workload)]
    workload: Vec<WorkloadChoice>,

    /// Search layers: `learned`, `rolex`, `rf-tree`, `fg`, `sherman`, `cell`, `xstore`, `rpc`;
    /// separate several with commas
    #[arg(long, value_name = "LAYERS", value_delimiter = ',')]
    #[arg(default_values_t = [RunConfig::default().layer])]
    index: Vec<LayerKind>,

    /// Fabric: `shm` (shared memory) or `mem` (memory of this process)
    #[arg(long, default_value_t = RunConfig::default().fabric)]
    fabric: FabricKind,

    /// Records to load before each workload, such as 250000, 250k or 10M
    #[arg(long, value_name = "COUNT", default_value_t = RunConfig::default().records)]
    #[arg(value_parser = parse_positive_count, allow_negative_numbers = true)]
    records: u64,

    /// Operations of each workload, by all threads together
    #[arg(long, value_name = "COUNT", default_value_t = RunConfig::default().operations)]
    #[arg(value_parser = parse_positive_count, allow_negative_numbers = true)]
    operations: u64,

    /// Number of threads
    #[arg(long, value_name = "COUNT", default_value_t = RunConfig::default().threads as u64)]
    #[arg(value_parser = parse_positive_count, allow_negative_numbers = true)]
    threads: u64,

    /// Operations that each thread keeps in flight
    #[arg(long, value_name = "COUNT", default_value_t = RunConfig::default().in_flight as u64)]
    #[arg(value_parser = parse_positive_count, allow_negative_numbers = true)]
    in_flight: u64,

    /// Request distribution: uniform, zipfian or latest [default: the workload's]
    #[arg(long, value_name = "NAME")]
    distribution: Option<Distribution>,

    /// Data set: uniform, sequential, normal, lognormal, clustered or keys:FILE
    #[arg(long, value_name = "NAME", default_value_t = RunConfig::default().dataset)]
    dataset: Dataset,

    /// File of keys, one per line, plain or gzip; same as --dataset keys:FILE. With `--kind bytes`,
    /// strings with the escapes of `load`, or the first column of a file for `load`
    #[arg(long, value_name = "FILE", conflicts_with = "dataset")]
    keys: Option<PathBuf>,

    /// Type of keys and values: `words` (64-bit integers) or `bytes` (keys `user...` as in YCSB)
    /// [default: words; bytes for persistent tables]
    #[arg(long, value_enum)]
    kind: Option<KindChoice>,

    /// Key size in bytes, from 24 to 4096 (`--kind bytes`; not for keys of a file) [default: 24]
    #[arg(long, value_name = "BYTES")]
    #[arg(value_parser = parse_positive_count, allow_negative_numbers = true)]
    key_size: Option<u64>,

    /// Value size, such as 1000 or 64KiB; or S, M, L (9, 99, 999 bytes), or a mix: SD, MD, LD
    /// (`--kind bytes`)
    #[arg(long, value_name = "SIZE", default_value_t = Strings::default().value_size)]
    #[arg(value_parser = parse_value_size)]
    value_size: ValueSize,

    /// Number of equal fields of a value. With 1, an update writes the whole value; with more, it
    /// reads the value, changes one field and writes it (`--kind bytes`; not for mixes)
    #[arg(long, value_name = "COUNT", default_value_t = Strings::default().field_count as u64)]
    #[arg(value_parser = parse_positive_count, allow_negative_numbers = true)]
    fields: u64,

    /// Page size: 512, 1024 or 2048 bytes (`--kind bytes`)
    #[arg(long, value_name = "BYTES", default_value_t = Strings::default().page_size_bytes)]
    page_size: u64,

    /// Largest value stored inside a page, in bytes (`--kind bytes`)
    #[arg(long, value_name = "BYTES")]
    #[arg(default_value_t = Strings::default().inline_value_size_bytes)]
    inline_value: u64,

    /// Records per leaf: 8, 12 or 16
    #[arg(long, default_value_t = RunConfig::default().slots, value_parser = parse_slots)]
    #[arg(allow_negative_numbers = true)]
    slots: u64,

    /// Fill factor of loaded leaves in percent, from 25 to 100
    #[arg(long, value_name = "PERCENT", default_value_t = RunConfig::default().fill_percent)]
    #[arg(value_parser = parse_fill, allow_negative_numbers = true)]
    fill: u8,

    /// Error bound of the models, in keys, from 0.5 to 1024
    #[arg(long, value_name = "KEYS", default_value_t = RunConfig::default().epsilon_keys)]
    #[arg(value_parser = parse_epsilon, allow_negative_numbers = true)]
    epsilon: f64,

    /// Memory of each session for finding leaves, such as 64KiB; a session fetches the rest when it
    /// needs it (`learned`, `sherman`, `cell`) [default: no limit; 64MiB for trees]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, allow_negative_numbers = true)]
    metadata_budget: Option<u64>,

    /// Links that a lookup follows before it reads the cached tree again (`rf-tree`) [default: 2]
    #[arg(long, value_name = "COUNT", value_parser = parse_link_count)]
    #[arg(allow_negative_numbers = true)]
    link_count_max: Option<u32>,

    /// Models that sessions cache: `all`, `models` without translation tables, or only the `top`
    /// model (`xstore`)
    #[arg(long, value_name = "PART", default_value_t = RunConfig::default().model_cache)]
    model_cache: ModelCache,

    /// Ask the memory node when a model misses a key, before following a link (`xstore`)
    #[arg(long)]
    no_speculation: bool,

    /// Number of pools that the table spans, each with an equal share of the records and its own
    /// server
    #[arg(long, value_name = "COUNT", default_value_t = RunConfig::default().partitions as u64)]
    #[arg(value_parser = parse_positive_count, allow_negative_numbers = true)]
    partitions: u64,

    #[command(flatten)]
    persistent: PersistentBenchArguments,

    /// Seed of keys and operations; the same seed gives the same run
    #[arg(long, default_value_t = RunConfig::default().seed)]
    #[arg(value_parser = parse_key, allow_negative_numbers = true)]
    seed: u64,

    /// Output format: tables of text, or one JSON object per line
    #[arg(
        short,
        long,
        alias = "format",
        value_enum,
        value_name = "FORMAT",
        default_value_t
    )]
    output: OutputFormat,
}

/// Type of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum KindChoice {
    Words,
    Bytes,
}

impl KindChoice {
    /// Returns the default.
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

/// Runs the workloads with each search layer. Wrong and missing results end with status 1.
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
    private_files::remove_at_signals().context("cannot install the signal handlers")?;
    let mut scratches = Vec::new();
    for persistent in configs.iter_mut().filter_map(|it| it.persistent.as_mut()) {
        scratches.extend(prepare(persistent, pool, arguments.threads)?);
    }
    let screen = Screen::new(arguments.output);
    let mut reports = Vec::new();
    for config in &configs {
        let ran = runner::run(config, &screen);
        let printed = screen.end();
        reports.extend(ran?);
        printed?;
    }
    scratches.into_iter().try_for_each(Scratch::remove)?;
    if arguments.output == OutputFormat::Text && reports.len() > 1 {
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

/// Returns the arguments of the workloads; `None` for another benchmark.
pub(crate) fn of_ycsb(bench: &ArgMatches) -> Option<&ArgMatches> {
    match bench.subcommand() {
        None => Some(bench),
        Some(("ycsb", ycsb)) => Some(ycsb),
        Some(_) => None,
    }
}

/// Returns an error message for an option on the command line that belongs to the other kind of
/// tables.
pub(crate) fn option_of_other_kind(bench: &ArgMatches) -> Option<String> {
    let ycsb = of_ycsb(bench)?;
    if let Some(misplaced) = misplaced_option(ycsb) {
        return Some(misplaced);
    }
    let is_given = |option: &&str| ycsb.value_source(option) == Some(ValueSource::CommandLine);
    let kind = ycsb.get_one("kind").copied();
    match kind.unwrap_or_else(|| KindChoice::of(is_persistent(ycsb))) {
        KindChoice::Bytes => ["slots"].into_iter().find(is_given).map(|option| {
            format!("--{option} cannot be used with --kind bytes: it is for tables of words")
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
            format!("--{option} needs --kind bytes: it is for tables of byte strings")
        }),
    }
}

/// Parses a size as in other options, or a value mix of the Talos paper.
pub(super) fn parse_value_size(text: &str) -> Result<ValueSize, &'static str> {
    match parse_size(text) {
        Ok(size_bytes) => Ok(ValueSize::Fixed(to_count(size_bytes))),
        Err(_) => text.parse().map_err(|_| {
            "expected a size such as 65536 or 64KiB, S, M or L (9, 99, 999), or a mix: SD, MD \
             or LD"
        }),
    }
}

/// Converts a number; one that is too large becomes the maximum, which the benchmark rejects.
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
