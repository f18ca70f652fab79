//! `farleaf sim messages`: calls over one-sided WRITEs, judged.

use std::num::NonZero;
use std::sync::atomic::Ordering;
use std::time::Instant;

use clap::Args;
use farleaf_sim::exchange::{
    MESSAGES_FOUND_WITHIN_RUN_COUNT, MessageCampaign, MessagePlant, MessageReport,
    run_message_campaign,
};

use super::sim::{fresh_seed, parse_threads, several, stop_at_interrupts};
use crate::failure::{BadArgument, Ending};
use crate::log::say;
use crate::output::print;
use crate::progress::count_bar;
use crate::quantity::{count, parse_key, parse_positive_count};

/// Runs, unless it is said how many.
const RUN_COUNT: u64 = 10_000;

/// How many disasters, and which.
#[derive(Debug, Args)]
pub(crate) struct MessagesArguments {
    /// Seed of the first run; the others follow it [default: a fresh one, which is printed]
    #[arg(long, value_parser = parse_key, allow_negative_numbers = true)]
    seed: Option<u64>,

    /// Runs; each is made twice and compared [default: 10000; with --plant as many as it may take]
    #[arg(long, value_name = "COUNT", value_parser = parse_positive_count)]
    #[arg(allow_negative_numbers = true)]
    runs: Option<u64>,

    #[arg(long, value_name = "BUG", help = plant_help())]
    plant: Option<MessagePlant>,

    /// Threads [default: as many as there are processors]
    #[arg(long, value_name = "COUNT", value_parser = parse_threads)]
    #[arg(allow_negative_numbers = true)]
    threads: Option<u64>,
}

/// The list is the simulator's own.
fn plant_help() -> String {
    let names = MessagePlant::ALL.map(MessagePlant::name).join(", ");
    let most = count(MESSAGES_FOUND_WITHIN_RUN_COUNT);
    format!("Plant a bug, which must be found within {most} runs: {names}")
}

/// Does it.
pub(crate) fn run(arguments: &MessagesArguments) -> anyhow::Result<Ending> {
    let campaign = campaign_of(arguments)?;
    let (begun, stop) = (Instant::now(), stop_at_interrupts()?);
    if arguments.seed.is_none() {
        say(format_args!("seeds from {} on", campaign.first_seed));
    }
    let bar = count_bar("runs", campaign.run_count);
    // A panic of the code under test is a finding; it is told with the others.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let report = run_message_campaign(&campaign, &stop, |done| bar.set_position(done));
    std::panic::set_hook(hook);
    bar.finish_and_clear();
    print(summary(&campaign, &report, begun.elapsed().as_secs_f64()))?;
    let is_cut = report.run_count < campaign.run_count && report.finding.is_none();
    Ok(match (&report.finding, campaign.plant) {
        _ if is_cut && stop.load(Ordering::Relaxed) => Ending::Interrupted,
        (Some(_), _) => Ending::Lacking,
        (None, None) => Ending::Done,
        (None, Some(plant)) => {
            let most = count(MESSAGES_FOUND_WITHIN_RUN_COUNT);
            say(format_args!(
                "the planted bug '{plant}' was not found; it is within {most} runs from seed 1 on"
            ));
            Ending::Unfound
        }
    })
}

fn campaign_of(arguments: &MessagesArguments) -> Result<MessageCampaign, BadArgument> {
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    let first_seed = arguments.seed.unwrap_or_else(fresh_seed);
    let by_default = match arguments.plant {
        Some(_) => MESSAGES_FOUND_WITHIN_RUN_COUNT,
        None => RUN_COUNT,
    };
    let run_count = arguments.runs.unwrap_or(by_default);
    if first_seed.checked_add(run_count - 1).is_none() {
        return Err(BadArgument(format!(
            "--seed {first_seed} is too large for {run_count} runs: the last seed can be {}; take \
             a smaller one, or fewer --runs",
            u64::MAX
        )));
    }
    let threads = arguments.threads.map(|threads| threads as usize);
    Ok(MessageCampaign {
        first_seed,
        run_count,
        plant: arguments.plant,
        thread_count: threads.unwrap_or(processors),
    })
}

fn summary(campaign: &MessageCampaign, report: &MessageReport, duration_s: f64) -> String {
    let first = campaign.first_seed;
    let seeds = match report.run_count {
        0 => format!("from seed {first} on"),
        1 => format!("seed {first}"),
        run_count => format!("seeds {first} to {}", first + (run_count - 1)),
    };
    let plant = campaign.plant;
    let plant = plant.map_or(String::new(), |plant| format!(", {plant} planted"));
    let found = match &report.finding {
        None => "nothing found\n".to_owned(),
        Some((seed, violations)) => {
            let violations = violations.iter().map(|it| format!("  {it}\n"));
            let all: String = violations.collect();
            format!("seed {seed} breaks a promise\n\nWhat it breaks:\n{all}\n")
        }
    };
    format!(
        "{}, each twice, {seeds}{plant}: {found}\
         {} answered, {} dropped, {} lost, in {:.1} ms of virtual time; {duration_s:.1} s on {}\n",
        several(report.run_count, "run"),
        several(report.answered_count, "call"),
        count(report.dropped_count),
        several(report.lost_count, "caller"),
        report.simulated_ns as f64 / 1e6,
        several(campaign.thread_count as u64, "thread"),
    )
}
