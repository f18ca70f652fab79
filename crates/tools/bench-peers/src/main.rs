//! `cargo run --release -p farleaf-bench-peers -- [options]`: compares Farleaf with its peers.

#![forbid(unsafe_code)]

use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, ValueEnum};
use farleaf::PageOptions;
use farleaf_bench::quantity::parse_positive_count;
use farleaf_bench_peers::comparison::{ComparisonPlan, Kind, compare};
use farleaf_bench_peers::peer::Work;
use farleaf_bench_peers::peers::{PeerName, StringOptions};
use farleaf_bench_peers::report::Report;

/// The same get, put and scan work on Farleaf, on other ordered maps, and on bare memory.
#[derive(Debug, Parser)]
struct Arguments {
    /// Keys and values: words of 64 bits, or byte strings.
    #[arg(long, value_enum, default_value_t = KindName::Words)]
    kind: KindName,
    /// Records in every map; all maps are in memory at once, about 400 bytes a record together of
    /// words, and ten times keys and values of byte strings.
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
    /// Which maps [default: all that hold such keys and values].
    #[arg(long, value_enum, value_delimiter = ',')]
    peers: Option<Vec<PeerName>>,
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
    /// Slots of Farleaf's leaves (`--kind words`) [default: 8].
    #[arg(long)]
    slots: Option<u64>,
    /// Size of keys in bytes, from 24 to 4096 (`--kind bytes`) [default: 24].
    #[arg(long, value_parser = clap::value_parser!(u64).range(24..=4096))]
    key_size: Option<u64>,
    /// Size of values in bytes (`--kind bytes`) [default: 100].
    #[arg(long, value_parser = clap::value_parser!(u64).range(8..=64 << 20))]
    value_size: Option<u64>,
    /// Size of Farleaf's pages: 512, 1024 or 2048 (`--kind bytes`) [default: 1024].
    #[arg(long)]
    page_size: Option<u64>,
    /// The largest value that lies in a page (`--kind bytes`) [default: 128].
    #[arg(long)]
    inline_value: Option<u64>,
    /// The Redis server's program (`--kind bytes`) [default: redis-server].
    #[arg(long)]
    redis: Option<PathBuf>,
    /// Output format.
    #[arg(long, alias = "format", value_enum, default_value_t = Format::Text)]
    output: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum KindName {
    Words,
    Bytes,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// Tables for people.
    #[value(alias = "table")]
    Text,
    /// One JSON object.
    Json,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    if let Err(message) = arguments.check() {
        Arguments::command()
            .error(ErrorKind::ArgumentConflict, message)
            .exit();
    }
    let plan = arguments.plan();
    let measured = compare(&plan, |step| eprintln!("{step}"))?;
    let report = Report::new(&plan, &measured);
    match arguments.output {
        Format::Text => print!("{}", report.to_table()),
        Format::Json => println!("{}", report.to_json()?),
    }
    Ok(())
}

impl Arguments {
    /// Checks options and maps that belong to the other kind.
    fn check(&self) -> Result<(), String> {
        let (other, given, known) = match self.kind {
            KindName::Words => (
                "bytes",
                vec![
                    ("--key-size", self.key_size.is_some()),
                    ("--value-size", self.value_size.is_some()),
                    ("--page-size", self.page_size.is_some()),
                    ("--inline-value", self.inline_value.is_some()),
                    ("--redis", self.redis.is_some()),
                ],
                &PeerName::OF_WORDS[..],
            ),
            KindName::Bytes => (
                "words",
                vec![("--slots", self.slots.is_some())],
                &PeerName::OF_STRINGS[..],
            ),
        };
        if let Some((option, _)) = given.into_iter().find(|(_, is_given)| *is_given) {
            return Err(format!("{option} applies only to --kind {other}; omit it"));
        }
        let mut named = self.peers.iter().flatten();
        let Some(stranger) = named.find(|peer| !known.contains(peer)) else {
            return Ok(());
        };
        let known: Vec<&str> = known.iter().map(|peer| peer.as_str()).collect();
        Err(format!(
            "--peers {} applies only to --kind {other}; choose from {}",
            stranger.as_str(),
            known.join(", ")
        ))
    }

    fn plan(&self) -> ComparisonPlan {
        let known = match self.kind {
            KindName::Words => PeerName::OF_WORDS.to_vec(),
            KindName::Bytes => PeerName::OF_STRINGS.to_vec(),
        };
        ComparisonPlan {
            record_count: self.records,
            operation_count: self.operations,
            round_count: self.rounds,
            thread_counts: self.threads.clone(),
            works: self.work.clone(),
            peers: self.peers.clone().unwrap_or(known),
            seed: self.seed,
            kind: match self.kind {
                KindName::Words => Kind::Words {
                    slots: self.slots.unwrap_or(8),
                },
                KindName::Bytes => Kind::Strings(self.strings()),
            },
        }
    }

    fn strings(&self) -> StringOptions {
        let pages = PageOptions::default();
        StringOptions {
            key_size_bytes: self.key_size.unwrap_or(24) as usize,
            value_size_bytes: self.value_size.unwrap_or(100) as usize,
            pages: PageOptions {
                page_size_bytes: self.page_size.unwrap_or(pages.page_size_bytes),
                inline_value_size_bytes: self.inline_value.unwrap_or(pages.inline_value_size_bytes),
            },
            redis: self.redis.clone().unwrap_or_else(|| "redis-server".into()),
        }
    }
}

/// Parses a count from 1 to 2^32 - 1, such as 250000, `10_000_000`, 250k or 10M.
fn parse_count(text: &str) -> Result<usize, String> {
    let count = parse_positive_count(text).map_err(|error| error.to_string())?;
    let count = u32::try_from(count).map_err(|_| format!("expected at most {}", u32::MAX))?;
    Ok(count as usize)
}
