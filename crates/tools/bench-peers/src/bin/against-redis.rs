//! `cargo run --release -p farleaf-bench-peers --bin against-redis`: compares Farleaf over `tcp`
//! with Redis.

#![forbid(unsafe_code)]

use std::path::PathBuf;

use clap::Parser;
use farleaf_bench_peers::network::{NetworkPlan, compare, serve};

/// Gets and puts over loopback: Farleaf beside a Redis server that this starts.
#[derive(Debug, Parser)]
struct Arguments {
    /// The Redis server's program.
    #[arg(long, default_value = "redis-server")]
    redis: PathBuf,
    /// Records on both sides.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    records: u64,
    /// Requests of all connections with one in flight; with more, ten times as many.
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(8..))]
    requests: u64,
    /// Rounds; what is printed are medians.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Serves so many bytes for another process of this program.
    #[arg(long, hide = true)]
    serve_bytes: Option<u64>,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    if let Some(size_bytes) = arguments.serve_bytes {
        return serve(size_bytes);
    }
    let plan = NetworkPlan {
        record_count: arguments.records,
        request_count: arguments.requests,
        round_count: arguments.rounds as usize,
        connection_counts: vec![1, 8],
        in_flight_counts: vec![1, 64],
        redis: arguments.redis,
    };
    for row in compare(&plan, |step| eprintln!("{step}"))? {
        println!("{row}");
    }
    Ok(())
}
