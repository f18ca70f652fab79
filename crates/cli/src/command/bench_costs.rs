//! `farleaf bench costs`: cost of each operation with each search layer, from the counters.

use std::str::FromStr;

use anyhow::Context;
use clap::Args;
use farleaf::LayerKind;
use farleaf_bench::costs::{self, CostRow, CostsConfig};
use farleaf_bench::dataset::Dataset;
use farleaf_bench::runner::{FabricKind, RunConfig};

use crate::arguments::{COMMIT, OutputArgument, RdmaArguments};
use crate::command::bench_screen::Screen;
use crate::failure::{BadArgument, Ending};
use crate::private_files;
use crate::table_options::{parse_epsilon, parse_fill, parse_slots};
use farleaf_bench::quantity::{parse_key, parse_positive_count};

/// Options of the benchmark. The defaults are [`CostsConfig`]'s.
#[derive(Clone, Debug, Args)]
pub(crate) struct CostsArguments {
    /// Search layers: `learned`, `rolex`, `rf-tree`, `fg`, `sherman`, `cell`, `xstore`, `rpc` or
    /// `all`; separate several with commas
    #[arg(
        long,
        value_name = "LAYERS",
        value_delimiter = ',',
        default_value = "all"
    )]
    index: Vec<LayerChoice>,

    /// Fabric: `shm` (shared memory) or `mem` (memory of this process)
    #[arg(long, default_value_t = RunConfig::default().fabric)]
    fabric: FabricKind,

    /// Records to load for each layer, such as 250000, 250k or 10M
    #[arg(long, value_name = "COUNT", default_value_t = RunConfig::default().records)]
    #[arg(value_parser = parse_positive_count, allow_negative_numbers = true)]
    records: u64,

    /// Operations of each kind to count; at most the number of records
    #[arg(long, value_name = "COUNT", default_value_t = CostsConfig::default().table.operations)]
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

    /// Seed of keys and operations
    #[arg(long, default_value_t = RunConfig::default().seed)]
    #[arg(value_parser = parse_key, allow_negative_numbers = true)]
    seed: u64,

    #[command(flatten)]
    output: OutputArgument,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LayerChoice {
    All,
    One(LayerKind),
}

impl FromStr for LayerChoice {
    type Err = <LayerKind as FromStr>::Err;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "all" => Ok(Self::All),
            name => name.parse().map(Self::One),
        }
    }
}

/// Counts with every search layer. Wrong and missing results end with status 1.
pub(super) fn run(rdma: &RdmaArguments, arguments: &CostsArguments) -> anyhow::Result<Ending> {
    let mut config = config(arguments);
    config.table.verbs = rdma.into();
    config
        .validate()
        .map_err(|error| BadArgument(error.to_string()))?;
    private_files::remove_at_signals().context("cannot install the signal handlers")?;
    let screen = Screen::new(arguments.output.output);
    let ran = costs::run(&config, &screen);
    screen.end()?;
    Ok(if ran?.iter().all(CostRow::is_right) {
        Ending::Done
    } else {
        Ending::Lacking
    })
}

fn config(arguments: &CostsArguments) -> CostsConfig {
    let layers = arguments.index.iter().flat_map(|choice| match choice {
        LayerChoice::All => LayerKind::ALL.to_vec(),
        LayerChoice::One(layer) => vec![*layer],
    });
    CostsConfig {
        layers: layers.collect(),
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
            ..CostsConfig::default().table
        },
    }
}
