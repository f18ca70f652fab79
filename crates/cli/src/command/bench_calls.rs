//! `farleaf bench calls`: cost of a call of the memory node, compared with a plain echo.

use anyhow::Context;
use clap::Args;
use farleaf_bench::calls::{self, CallsConfig};
use farleaf_bench::runner::FabricKind;

use crate::arguments::{COMMIT, OutputArgument, RdmaArguments};
use crate::command::bench_screen::Screen;
use crate::failure::{BadArgument, Ending};
use crate::private_files;
use farleaf_bench::quantity::parse_positive_count;

/// Options of the benchmark. The defaults are [`CallsConfig`]'s.
#[derive(Clone, Debug, Args)]
pub(crate) struct CallsArguments {
    /// Fabrics: `shm`, `tcp`, `mem`, `verbs`; separate several with commas
    #[arg(long, value_name = "FABRICS", value_delimiter = ',')]
    #[arg(default_values_t = CallsConfig::default().fabrics)]
    fabric: Vec<FabricKind>,

    /// Calls that the thread keeps in flight; separate several with commas
    #[arg(long, value_name = "COUNTS", value_delimiter = ',')]
    #[arg(default_values_t = CallsConfig::default().in_flight)]
    in_flight: Vec<u32>,

    /// Calls per round, such as 20000 or 20k
    #[arg(long, value_name = "COUNT", default_value_t = CallsConfig::default().operations)]
    #[arg(value_parser = parse_positive_count, allow_negative_numbers = true)]
    operations: u64,

    /// Number of rounds; every variant runs once in each round
    #[arg(long, value_name = "COUNT", default_value_t = CallsConfig::default().rounds)]
    rounds: u32,

    #[command(flatten)]
    output: OutputArgument,
}

/// Runs the benchmark. Wrong replies end with status 1.
pub(super) fn run(rdma: &RdmaArguments, arguments: &CallsArguments) -> anyhow::Result<Ending> {
    let config = CallsConfig {
        fabrics: arguments.fabric.clone(),
        in_flight: arguments.in_flight.clone(),
        operations: arguments.operations,
        rounds: arguments.rounds,
        verbs: rdma.into(),
        commit: COMMIT.to_owned(),
    };
    config
        .validate()
        .map_err(|error| BadArgument(error.to_string()))?;
    private_files::remove_at_signals().context("cannot install the signal handlers")?;
    let screen = Screen::new(arguments.output.output);
    let ran = calls::run(&config, &screen);
    screen.end()?;
    Ok(if ran?.iter().all(|row| row.wrong == 0) {
        Ending::Done
    } else {
        Ending::Lacking
    })
}
