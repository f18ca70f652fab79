//! `farleaf sim messages`: simulates calls over one-sided WRITEs, and checks the results.

use clap::Args;
use farleaf_sim::campaign::Finding;
use farleaf_sim::exchange::{MESSAGES_FOUND_WITHIN_RUN_COUNT, MessagePlant, run_message_campaign};

use super::sim_seeds::SeedArguments;
use crate::failure::Ending;
use farleaf_bench::quantity::count;

/// Number and kind of simulated failures.
#[derive(Debug, Args)]
pub(crate) struct MessagesArguments {
    #[command(flatten)]
    seeds: SeedArguments,

    #[arg(long, value_name = "BUG", help = plant_help())]
    plant: Option<MessagePlant>,
}

/// Returns the help of `--plant`; the list comes from the simulator.
fn plant_help() -> String {
    let names = MessagePlant::ALL.map(MessagePlant::name).join(", ");
    let most = count(MESSAGES_FOUND_WITHIN_RUN_COUNT);
    format!("Plant a bug, which must be found within {most} runs: {names}")
}

/// Runs `farleaf sim messages`.
pub(crate) fn run(arguments: &MessagesArguments) -> anyhow::Result<Ending> {
    let plant = arguments.plant;
    let seeds = arguments
        .seeds
        .seeds(plant.map(|_| MESSAGES_FOUND_WITHIN_RUN_COUNT))?;
    let mut text = String::new();
    let ran = arguments.seeds.run(
        &seeds,
        "",
        |stop, progress| run_message_campaign(&seeds, plant, stop, progress),
        |report, _| text = report.finding.as_ref().map_or(String::new(), broken),
    )?;
    let plant = plant.map(|plant| {
        let most = count(MESSAGES_FOUND_WITHIN_RUN_COUNT);
        (
            plant.name(),
            format!("it is within {most} runs from seed 1 on"),
        )
    });
    ran.tell("", "answered call", plant, &text)
}

fn broken(finding: &Finding) -> String {
    let violations = finding.violations.iter().map(|it| format!("  {it}\n"));
    format!("\nWhat it breaks:\n{}", violations.collect::<String>())
}
