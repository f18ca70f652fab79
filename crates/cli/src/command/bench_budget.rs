//! `farleaf bench budget`: gets under metadata budgets, from everything to almost nothing.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use farleaf_bench::budget::{self, BudgetConfig, BudgetReport, CSV_NAME, SVG_NAME};
use farleaf_bench::dataset::Dataset;
use farleaf_bench::distribution::Distribution;
use farleaf_bench::runner::{FabricKind, RunConfig};
use farleaf_chart::folder::Folder;

use crate::arguments::{COMMIT, OutputArgument, RdmaArguments};
use crate::command::bench_screen::Screen;
use crate::failure::{BadArgument, Ending};
use crate::log::say;
use crate::private_files;
use crate::table_options::{parse_epsilon, parse_fill, parse_slots};
use farleaf_bench::quantity::{parse_key, parse_positive_count};

/// Name of the command that owns a folder of results.
const WRITER: &str = "farleaf bench budget";

/// Options of the sweep. The defaults are [`BudgetConfig`]'s.
#[derive(Clone, Debug, Args)]
pub(crate) struct BudgetArguments {
    /// Budgets in percent of what an unlimited session holds; separate several with commas
    #[arg(
        long,
        value_name = "PERCENTS",
        value_delimiter = ',',
        allow_negative_numbers = true
    )]
    #[arg(default_values_t = BudgetConfig::default().percents, value_parser = parse_percent)]
    budgets: Vec<f64>,

    /// Request distributions: uniform, zipfian, or both separated by a comma
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    #[arg(default_values_t = BudgetConfig::default().distributions)]
    distribution: Vec<Distribution>,

    /// Fabric: `shm` (shared memory) or `mem` (memory of this process)
    #[arg(long, default_value_t = RunConfig::default().fabric)]
    fabric: FabricKind,

    /// Records to load, such as 250000, 250k or 10M
    #[arg(long, value_name = "COUNT", default_value_t = RunConfig::default().records)]
    #[arg(value_parser = parse_positive_count, allow_negative_numbers = true)]
    records: u64,

    /// Gets measured under each budget, after as many that are not measured
    #[arg(long, value_name = "COUNT", default_value_t = RunConfig::default().operations)]
    #[arg(value_parser = parse_positive_count, allow_negative_numbers = true)]
    operations: u64,

    /// Data set: uniform, sequential, normal, lognormal, clustered or keys:FILE
    #[arg(long, value_name = "NAME", default_value_t = RunConfig::default().dataset)]
    dataset: Dataset,

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

    /// Seed of keys and gets
    #[arg(long, default_value_t = RunConfig::default().seed)]
    #[arg(value_parser = parse_key, allow_negative_numbers = true)]
    seed: u64,

    /// Folder for budget.csv and budget.svg; must be new, empty, or from an earlier run, whose
    /// files are replaced
    #[arg(long, alias = "out", value_name = "DIR")]
    to: Option<PathBuf>,

    #[command(flatten)]
    output: OutputArgument,
}

fn parse_percent(text: &str) -> Result<f64, &'static str> {
    // The benchmark checks whether the values make sense.
    text.parse()
        .map_err(|_| "expected a percentage, such as 25 or 0.5")
}

/// Measures every budget. Wrong and missing results end with status 1.
pub(super) fn run(rdma: &RdmaArguments, arguments: &BudgetArguments) -> anyhow::Result<Ending> {
    let mut config = config(arguments);
    config.table.verbs = rdma.into();
    config
        .validate()
        .map_err(|error| BadArgument(error.to_string()))?;
    // Checked before minutes of work, not after.
    let names = [CSV_NAME, SVG_NAME].map(str::to_owned);
    let folder = match &arguments.to {
        Some(path) => Some(Folder::claim(WRITER, path, &names)?),
        None => None,
    };
    private_files::remove_at_signals().context("cannot install the signal handlers")?;
    let screen = Screen::new(arguments.output.output);
    let ran = budget::run(&config, &screen);
    screen.end()?;
    let report: BudgetReport = ran?;
    if let Some(folder) = folder {
        folder.replace(&budget::files(&report)?)?;
        say(format_args!("{}", folder.file(SVG_NAME).display()));
    }
    Ok(if report.is_right() {
        Ending::Done
    } else {
        Ending::Lacking
    })
}

fn config(arguments: &BudgetArguments) -> BudgetConfig {
    BudgetConfig {
        percents: arguments.budgets.clone(),
        distributions: arguments.distribution.clone(),
        table: RunConfig {
            fabric: arguments.fabric,
            records: arguments.records,
            operations: arguments.operations,
            dataset: arguments.dataset.clone(),
            slots: arguments.slots,
            fill_percent: arguments.fill,
            epsilon_keys: arguments.epsilon,
            seed: arguments.seed,
            commit: COMMIT.to_owned(),
            ..BudgetConfig::default().table
        },
    }
}
