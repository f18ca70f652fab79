//! `farleaf bench timeline`: measures a table while it grows, shrinks or moves.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use farleaf::LayerKind;
use farleaf_bench::runner::FabricKind;
use farleaf_bench::timeline::{
    self, CSV_NAME, Change, KeyOrder, SVG_NAME, TimelineConfig, TimelineReport, UnknownPattern,
};
use farleaf_chart::folder::Folder;

use crate::arguments::{COMMIT, OutputArgument, RdmaArguments};
use crate::command::bench_screen::Screen;
use crate::failure::{BadArgument, Ending};
use crate::log::say;
use crate::private_files;
use crate::table_options::{parse_epsilon, parse_fill, parse_slots};
use farleaf_bench::quantity::{parse_count, parse_key, parse_positive_count, parse_size};

/// Name of the command that owns a folder of results.
const WRITER: &str = "farleaf bench timeline";

/// Default numbers of keys: loaded before the table changes (`FROM`), and in a growing table at the
/// end (`TO`).
const FROM: u64 = 1_000_000;
const TO: u64 = 4_000_000;
const DELETE_PERCENT: u8 = 90;

/// Options of the benchmark. The defaults are [`TimelineConfig`]'s.
#[derive(Clone, Debug, Args)]
pub(crate) struct TimelineArguments {
    /// How the table changes. It grows by `uniform`, `ascending`, `descending` or `clustered` keys;
    /// `window` inserts above all keys and deletes from below; `shrink` deletes random keys
    #[arg(long, value_name = "NAME", default_value = "uniform")]
    #[arg(value_parser = parse_pattern)]
    pattern: Pattern,

    /// Keys to load before the table changes; 0 to put all of them one by one [default: 1M; not
    /// with `window`]
    #[arg(long, alias = "from", value_name = "COUNT", value_parser = parse_count)]
    #[arg(allow_negative_numbers = true)]
    first_keys: Option<u64>,

    /// Keys at the end [default: 4M; only for a table that grows]
    #[arg(long, value_name = "COUNT", value_parser = parse_count, allow_negative_numbers = true)]
    last_keys: Option<u64>,

    /// Keys in the table at any time [default: 1M; only with `window`]
    #[arg(long, value_name = "COUNT", value_parser = parse_positive_count)]
    #[arg(allow_negative_numbers = true)]
    keys: Option<u64>,

    /// Keys to insert, and as many to delete [default: 4M; only with `window`]
    #[arg(long, value_name = "COUNT", value_parser = parse_positive_count)]
    #[arg(allow_negative_numbers = true)]
    inserts: Option<u64>,

    /// Share of the keys to delete, in percent, from 1 to 99 [default: 90; only with `shrink`]
    #[arg(long, value_name = "PERCENT", allow_negative_numbers = true)]
    delete: Option<u8>,

    /// Search layers: `learned`, `rolex`, or both separated by a comma, measured one after the
    /// other
    #[arg(long, value_name = "LAYERS", value_delimiter = ',')]
    #[arg(default_values_t = [TimelineConfig::default().layer])]
    index: Vec<LayerKind>,

    /// Fabric: `shm` (shared memory) or `mem` (memory of this process)
    #[arg(long, default_value_t = TimelineConfig::default().fabric)]
    fabric: FabricKind,

    /// Size of the pool, such as 512MiB [default: twice the space of all keys in half-full leaves]
    #[arg(long, value_parser = parse_size, allow_negative_numbers = true)]
    size: Option<u64>,

    /// Retraining threads of the memory node: 1, or 0 for none
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true)]
    #[arg(default_value_t = TimelineConfig::default().retrain_threads)]
    retrain_threads: u32,

    /// Number of threads, each with its own session
    #[arg(long, value_name = "COUNT", value_parser = parse_positive_count)]
    #[arg(default_value_t = TimelineConfig::default().threads as u64)]
    #[arg(allow_negative_numbers = true)]
    threads: u64,

    /// Share of gets among the operations while keys are written, in percent, from 0 to 99
    #[arg(long, value_name = "PERCENT", default_value_t = TimelineConfig::default().reads_percent)]
    #[arg(allow_negative_numbers = true)]
    reads: u8,

    /// Seconds to keep reading after the last write
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = parse_seconds)]
    #[arg(allow_negative_numbers = true)]
    settle: Duration,

    /// Seconds between two lines of output, at least 0.1
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_seconds)]
    #[arg(allow_negative_numbers = true)]
    interval: Duration,

    /// Records per leaf: 8, 12 or 16
    #[arg(long, default_value_t = TimelineConfig::default().slots, value_parser = parse_slots)]
    #[arg(allow_negative_numbers = true)]
    slots: u64,

    /// Fill factor of loaded leaves in percent, from 25 to 100
    #[arg(long, value_name = "PERCENT", default_value_t = TimelineConfig::default().fill_percent)]
    #[arg(value_parser = parse_fill, allow_negative_numbers = true)]
    fill: u8,

    /// Error bound of the models, in keys, from 0.5 to 1024
    #[arg(long, value_name = "KEYS", default_value_t = TimelineConfig::default().epsilon_keys)]
    #[arg(value_parser = parse_epsilon, allow_negative_numbers = true)]
    epsilon: f64,

    /// Seed of keys and operations
    #[arg(long, default_value_t = TimelineConfig::default().seed, value_parser = parse_key)]
    #[arg(allow_negative_numbers = true)]
    seed: u64,

    /// Folder for timeline.csv and timeline.svg; must be new, empty, or from an earlier run, whose
    /// files are replaced
    #[arg(long = "to", alias = "out", value_name = "DIR")]
    to_folder: Option<PathBuf>,

    #[command(flatten)]
    output: OutputArgument,
}

/// Pattern by which the table changes, without its sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pattern {
    Growth(KeyOrder),
    Window,
    Shrink,
}

fn parse_pattern(name: &str) -> Result<Pattern, UnknownPattern> {
    let order = KeyOrder::ALL.into_iter().find(|order| order.name() == name);
    match (name, order) {
        (_, Some(order)) => Ok(Pattern::Growth(order)),
        ("window", _) => Ok(Pattern::Window),
        ("shrink", _) => Ok(Pattern::Shrink),
        _ => Err(UnknownPattern(name.to_owned())),
    }
}

fn parse_seconds(text: &str) -> Result<Duration, &'static str> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "expected seconds, such as 1 or 0.5")?;
    // The benchmark checks whether the length makes sense.
    Duration::try_from_secs_f64(seconds).map_err(|_| "expected 0 seconds or more")
}

/// Measures one table for each search layer. Wrong and missing results and rejected puts end with
/// status 1.
pub(super) fn run(rdma: &RdmaArguments, arguments: &TimelineArguments) -> anyhow::Result<Ending> {
    let change = change(arguments)?;
    let layers = arguments.index.iter();
    let configs: Vec<TimelineConfig> = layers
        .map(|layer| config(rdma, arguments, change, *layer))
        .collect();
    for config in &configs {
        config
            .validate()
            .map_err(|error| BadArgument(error.to_string()))?;
    }
    // Checked before minutes of work, not after.
    let names = [CSV_NAME, SVG_NAME].map(str::to_owned);
    let folder = match &arguments.to_folder {
        Some(path) => Some(Folder::claim(WRITER, path, &names)?),
        None => None,
    };
    private_files::remove_at_signals().context("cannot install the signal handlers")?;
    let screen = Screen::new(arguments.output.output);
    let mut reports = Vec::new();
    for config in &configs {
        let ran = timeline::run(config, &screen);
        screen.end()?;
        reports.push(ran?);
    }
    if let Some(folder) = folder {
        folder.replace(&timeline::files(&reports)?)?;
        say(format_args!("{}", folder.file(SVG_NAME).display()));
    }
    let is_right = reports.iter().all(TimelineReport::is_right);
    Ok(if is_right {
        Ending::Done
    } else {
        Ending::Lacking
    })
}

/// Returns the change of the table. An option that would be ignored is an error.
fn change(arguments: &TimelineArguments) -> Result<Change, BadArgument> {
    // In older versions, `--to 4M` was the number of keys at the end.
    let folder = arguments.to_folder.as_deref().and_then(Path::to_str);
    if let Some(count) = folder.filter(|it| parse_count(it).is_ok()) {
        return Err(BadArgument(format!(
            "--to names the folder for the files; for {count} keys at the end, use --last-keys \
             {count} (for a folder of that name, --to ./{count})"
        )));
    }
    let given = [
        ("first-keys", arguments.first_keys.is_some()),
        ("last-keys", arguments.last_keys.is_some()),
        ("keys", arguments.keys.is_some()),
        ("inserts", arguments.inserts.is_some()),
        ("delete", arguments.delete.is_some()),
    ];
    let (name, taken): (_, &[&str]) = match arguments.pattern {
        Pattern::Growth(order) => (order.name(), &["first-keys", "last-keys"]),
        Pattern::Window => ("window", &["keys", "inserts"]),
        Pattern::Shrink => ("shrink", &["first-keys", "delete"]),
    };
    let needless = given.iter().find(|(option, is_given)| {
        let is_taken = taken.contains(option);
        *is_given && !is_taken
    });
    if let Some((option, _)) = needless {
        let taken = taken.join(" and --");
        return Err(BadArgument(format!(
            "--{option} cannot be used with --pattern {name}, which takes --{taken}"
        )));
    }
    let from = arguments.first_keys.unwrap_or(FROM);
    Ok(match arguments.pattern {
        Pattern::Growth(order) => Change::Growth {
            order,
            from,
            to: arguments.last_keys.unwrap_or(TO),
        },
        Pattern::Window => Change::Window {
            keys: arguments.keys.unwrap_or(FROM),
            inserts: arguments.inserts.unwrap_or(TO),
        },
        Pattern::Shrink => Change::Shrink {
            from,
            delete_percent: arguments.delete.unwrap_or(DELETE_PERCENT),
        },
    })
}

fn config(
    rdma: &RdmaArguments,
    arguments: &TimelineArguments,
    change: Change,
    layer: LayerKind,
) -> TimelineConfig {
    TimelineConfig {
        change,
        layer,
        fabric: arguments.fabric,
        verbs: rdma.into(),
        size_bytes: arguments.size,
        retrain_threads: arguments.retrain_threads,
        // A number that is too large becomes the maximum, which the benchmark rejects.
        threads: usize::try_from(arguments.threads).unwrap_or(usize::MAX),
        reads_percent: arguments.reads,
        interval: arguments.interval,
        settle: arguments.settle,
        slots: arguments.slots,
        fill_percent: arguments.fill,
        epsilon_keys: arguments.epsilon,
        seed: arguments.seed,
        commit: COMMIT.to_owned(),
    }
}
