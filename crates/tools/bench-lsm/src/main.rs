//! `cargo run --release -p farleaf-bench-lsm -- [options]`: compares Farleaf's LSM engine with
//! others.

#![forbid(unsafe_code)]

use std::path::PathBuf;

use anyhow::ensure;
use clap::{Parser, ValueEnum};
use farleaf_bench::quantity::parse_positive_count;
use farleaf_bench::runner::ValueSize;
use farleaf_bench_lsm::comparison::{LsmComparisonPlan, compare};
use farleaf_bench_lsm::engines::{EngineName, EngineSettings, Promise};
use farleaf_bench_lsm::report::Report;
use farleaf_bench_lsm::work::{Phase, WorkAmount};

/// The same loads and runs on Farleaf's LSM engine, fjall and RocksDB.
#[derive(Debug, Parser)]
struct Arguments {
    /// Records.
    #[arg(long, default_value_t = 1_000_000, value_parser = parse_positive_count)]
    records: u64,
    /// Operations of each run; scans are a tenth of it.
    #[arg(long, default_value_t = 500_000, value_parser = parse_positive_count)]
    operations: u64,
    /// Values: a count of bytes, S, M or L, or a mix: SD, MD or LD.
    #[arg(long, default_value = "SD")]
    value_size: ValueSize,
    /// Threads that work.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Rounds; what is printed are medians.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// What a write has come to when it returns.
    #[arg(long, value_enum, default_value_t = Promise::Buffered)]
    promise: Promise,
    /// Which engines [default: all that are built].
    #[arg(long, value_enum, value_delimiter = ',')]
    engines: Option<Vec<EngineName>>,
    /// Which phases, after the load.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "a,c,scan")]
    phases: Vec<Phase>,
    /// Size of memtables in MiB.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    memtable: u32,
    /// Size of caches of blocks in MiB.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65536))]
    cache: u32,
    /// Where the engines' directories are made and removed again [default: that of temporary
    /// files].
    #[arg(long)]
    directory: Option<PathBuf>,
    /// Decides the requests.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Output format.
    #[arg(long, alias = "format", value_enum, default_value_t = Format::Text)]
    output: Format,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// A table for people.
    #[value(alias = "table")]
    Text,
    /// One JSON object.
    Json,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let requested = arguments.engines.as_deref();
    let requested = requested.unwrap_or(EngineName::value_variants());
    let (engines, skipped): (Vec<_>, Vec<_>) = requested.iter().partition(|name| name.is_built());
    ensure!(
        arguments.engines.is_none() || skipped.is_empty(),
        "RocksDB is not part of this build; see docs/explanation/lsm-peers.md for how to add it"
    );
    let mut phases = vec![Phase::Load];
    phases.extend(arguments.phases.iter().filter(|it| **it != Phase::Load));
    let plan = LsmComparisonPlan {
        engines,
        phases,
        amount: WorkAmount {
            record_count: arguments.records,
            operation_count: arguments.operations,
            thread_count: arguments.threads.into(),
            value_size: arguments.value_size,
            seed: arguments.seed,
        },
        shape: EngineSettings {
            promise: arguments.promise,
            memtable_size_bytes: (arguments.memtable as usize) << 20,
            cache_size_bytes: (arguments.cache as usize) << 20,
        },
        round_count: arguments.rounds.into(),
    };
    let directory = arguments.directory.unwrap_or_else(std::env::temp_dir);
    let measured = compare(&plan, &directory, |step| eprintln!("{step}"))?;
    let report = Report::new(&plan, &measured, &skipped);
    match arguments.output {
        Format::Text => println!("{}", report.table()),
        Format::Json => println!("{}", serde_json::to_string_pretty(&report)?),
    }
    Ok(())
}
