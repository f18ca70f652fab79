//! `cargo run --release -p farleaf-bench-peers -- [options]`: Farleaf beside its peers.

#![forbid(unsafe_code)]

use clap::{Parser, ValueEnum};
use farleaf_bench_peers::comparison::{Plan, compare};
use farleaf_bench_peers::peer::Work;
use farleaf_bench_peers::peers::PeerName;
use farleaf_bench_peers::report::Report;

/// The same get, put and scan work on Farleaf, on other ordered maps, and on bare memory.
#[derive(Debug, Parser)]
struct Arguments {
    /// Records in every map; all maps are in memory at once, about 400 bytes a record together.
    #[arg(long, default_value_t = 10_000_000, value_parser = parse_count)]
    records: usize,
    /// Gets, keys of multi-gets and puts of each thread in a round; scans are a twentieth of it.
    #[arg(long, default_value_t = 1_000_000, value_parser = parse_count)]
    operations: usize,
    /// Rounds; what is printed are medians.
    #[arg(long, default_value_t = 5, value_parser = parse_count)]
    rounds: usize,
    /// Numbers of threads.
    #[arg(long, value_delimiter = ',', default_value = "1,2", value_parser = parse_count)]
    threads: Vec<usize>,
    /// Which maps.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "farleaf,btree-map,skip-list,congee,masstree,lmdb"
    )]
    peers: Vec<PeerName>,
    /// Which kinds of work, for profiling one of them.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "get,multi-get,put,scan"
    )]
    work: Vec<Work>,
    /// Decides the keys and the requests.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Slots of Farleaf's leaves.
    #[arg(long, default_value_t = 8)]
    slots: u64,
    /// What is printed to stdout.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// Tables for people.
    Table,
    /// One JSON object.
    Json,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let plan = Plan {
        record_count: arguments.records,
        operation_count: arguments.operations,
        round_count: arguments.rounds,
        thread_counts: arguments.threads,
        works: arguments.work,
        peers: arguments.peers,
        seed: arguments.seed,
        slots: arguments.slots,
    };
    let measured = compare(&plan, |step| eprintln!("{step}"))?;
    let report = Report::new(&plan, &measured);
    match arguments.format {
        Format::Table => print!("{}", report.to_table()),
        Format::Json => println!("{}", report.to_json()?),
    }
    Ok(())
}

/// A number from 1 to 2^32 - 1; underscores may group its digits.
fn parse_count(text: &str) -> Result<usize, String> {
    let digits = text.replace('_', "");
    match digits.parse::<u32>() {
        Ok(0) => Err("it must be at least 1".to_owned()),
        Ok(count) => Ok(count as usize),
        Err(error) => Err(error.to_string()),
    }
}
