//! `farleaf sim`: the simulator.

use std::fmt::Display;
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use farleaf_sim::campaign::{Campaign, CampaignReport, Finding, explain, run_campaign, run_safely};
use farleaf_sim::plan::{Plan, Profile};
use farleaf_sim::plant::{FOUND_WITHIN_RUN_COUNT, Plant};
use farleaf_sim::run::Verdict;
use signal_hook::consts::SIGINT;

use crate::command::sim_messages::{self, MessagesArguments};
use crate::command::sim_network::{self, NetworkArguments};
use crate::failure::{BadArgument, Ending, INTERRUPTED_STATUS};
use crate::log::say;
use crate::output::print;
use crate::progress::count_bar;
use crate::quantity::{count, parse_key, parse_positive_count};

/// More threads than any machine has use for.
const THREAD_COUNT_MAX: u64 = 1024;

/// Runs of a check, unless it says how many.
const RUN_COUNT: u64 = 2000;

/// What to simulate.
#[derive(Debug, Args)]
pub(crate) struct SimArguments {
    #[command(subcommand)]
    command: SimCommand,
}

#[derive(Debug, Subcommand)]
enum SimCommand {
    /// Try many seeded disasters against the real code, and name the seed of any that breaks a
    /// promise (status 1; 4 if a planted bug is not found, 130 if Ctrl-C ends it)
    Check(CheckArguments),

    /// Try many seeded disasters against calls over one-sided WRITEs, which no index uses yet:
    /// status as of `check`
    Messages(MessagesArguments),

    /// Put READ and CAS rates and latencies of the modelled NICs beside published ones (status 1 if
    /// far off, 3 if nothing is published)
    Network(NetworkArguments),
}

/// How many disasters, and which.
#[derive(Debug, Args)]
pub(crate) struct CheckArguments {
    /// Seed of the first run; the others follow it [default: a fresh one, which is printed]
    #[arg(long, value_parser = parse_key, allow_negative_numbers = true)]
    seed: Option<u64>,

    /// Runs; each is made twice and compared [default: 2000; with --plant as many as it may take]
    #[arg(long, value_name = "COUNT", value_parser = parse_positive_count)]
    #[arg(allow_negative_numbers = true)]
    runs: Option<u64>,

    /// Stop after so many minutes even so
    #[arg(long, value_name = "COUNT", value_parser = parse_positive_count)]
    #[arg(allow_negative_numbers = true)]
    minutes: Option<u64>,

    /// What befalls the clients: `calm`, only what a fabric may do; `crashes`, deaths, pauses,
    /// zombies and broken connections besides; `retraining`, all that while leaves are moved;
    /// `node-loss`, and the node restarts empty; `trees`, that of `crashes` on tables with a tree;
    /// `compaction`, that while leaves of these are merged [default: `crashes`; with --plant, the
    /// one that finds the bug]
    #[arg(long)]
    profile: Option<Profile>,

    #[arg(long, value_name = "BUG", help = plant_help())]
    plant: Option<Plant>,

    /// Threads [default: as many as there are processors]
    #[arg(long, value_name = "COUNT", value_parser = parse_threads)]
    #[arg(allow_negative_numbers = true)]
    threads: Option<u64>,

    /// Runs spent on making a finding smaller
    #[arg(long, value_name = "COUNT", default_value = "3000")]
    #[arg(value_parser = parse_positive_count, allow_negative_numbers = true)]
    reduce: u64,

    /// Print everything that happens in a finding, or in the run if there is only one, verb by verb
    #[arg(long)]
    trace: bool,
}

impl CheckArguments {
    fn profile(&self) -> Profile {
        let by_default = self.plant.map_or(Profile::default(), Plant::profile);
        self.profile.unwrap_or(by_default)
    }
}

/// Does it.
pub(crate) fn run(arguments: &SimArguments) -> anyhow::Result<Ending> {
    match &arguments.command {
        SimCommand::Check(check) => run_check(check),
        SimCommand::Messages(messages) => sim_messages::run(messages),
        SimCommand::Network(network) => sim_network::run(network),
    }
}

/// The list is the simulator's own.
fn plant_help() -> String {
    let names = |profile: Profile| {
        let plants = Plant::ALL.into_iter();
        let names = plants.filter(|plant| plant.profile() == profile);
        names.map(Plant::name).collect::<Vec<_>>().join(", ")
    };
    format!(
        "Plant a bug, which must be found within {} runs: with profile `{}` {}; with `{}` {}; with \
         `{}` {}",
        count(FOUND_WITHIN_RUN_COUNT),
        Profile::Crashes,
        names(Profile::Crashes),
        Profile::Retraining,
        names(Profile::Retraining),
        Profile::Trees,
        names(Profile::Trees),
    )
}

fn run_check(arguments: &CheckArguments) -> anyhow::Result<Ending> {
    let begun = Instant::now();
    let campaign = campaign_of(arguments, begun)?;
    let stop = stop_at_interrupts()?;
    if arguments.seed.is_none() {
        // Told at once: whoever kills the process would not learn it.
        say(format_args!("seeds from {} on", campaign.first_seed));
    }
    let bar = count_bar("runs", campaign.run_count);
    // A panic of the code under test is a finding; it is told with the others.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let report = run_campaign(&campaign, &stop, |done| bar.set_position(done));
    bar.finish_and_clear();
    let duration = begun.elapsed();
    let mut text = String::new();
    if let Some(finding) = &report.finding {
        text = explanation(arguments, finding, &stop);
    } else if arguments.trace && campaign.run_count == 1 && report.run_count == 1 {
        text = lines_of(&story(
            campaign.first_seed,
            campaign.profile,
            campaign.plant,
        ));
    }
    std::panic::set_hook(hook);
    let is_cut = report.finding.is_some() || report.run_count < campaign.run_count;
    let is_interrupted = stop.load(Ordering::Relaxed) && is_cut;
    let summary = summary(&campaign, &report, duration, is_interrupted);
    tell(&report, print(summary + &text))?;
    Ok(match (&report.finding, campaign.plant) {
        _ if is_interrupted => Ending::Interrupted,
        (Some(_), _) => Ending::Lacking,
        (None, None) => Ending::Done,
        (None, Some(plant)) => {
            say(format_args!(
                "the planted bug '{plant}' was not found; profile '{}' finds it within {} runs",
                plant.profile(),
                count(FOUND_WITHIN_RUN_COUNT)
            ));
            Ending::Unfound
        }
    })
}

/// A finding is one whether or not anybody reads of it.
fn tell(report: &CampaignReport, printed: anyhow::Result<()>) -> anyhow::Result<()> {
    match (&report.finding, printed) {
        (Some(finding), Err(error)) => {
            say(format_args!(
                "seed {} breaks a promise, which could not be printed: {error:#}",
                finding.seed
            ));
            Ok(())
        }
        (_, printed) => printed,
    }
}

fn campaign_of(arguments: &CheckArguments, begun: Instant) -> Result<Campaign, BadArgument> {
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    let first_seed = arguments.seed.unwrap_or_else(fresh_seed);
    let run_count = arguments.runs.unwrap_or(match arguments.plant {
        Some(_) => FOUND_WITHIN_RUN_COUNT,
        None => RUN_COUNT,
    });
    if first_seed.checked_add(run_count - 1).is_none() {
        return Err(BadArgument(format!(
            "--seed {first_seed} is too large for {run_count} runs: the last seed can be {}; take \
             a smaller one, or fewer --runs",
            u64::MAX
        )));
    }
    let minutes = arguments.minutes;
    Ok(Campaign {
        first_seed,
        run_count,
        deadline: minutes
            .and_then(|minutes| begun.checked_add(Duration::from_secs(minutes.checked_mul(60)?))),
        profile: arguments.profile(),
        plant: arguments.plant,
        thread_count: arguments
            .threads
            .map_or(processors, |threads| threads as usize),
    })
}

/// Ctrl-C is noted, and what has been done is told; a second one ends the process at once.
pub(super) fn stop_at_interrupts() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let status = i32::from(INTERRUPTED_STATUS);
    // In this order: the first one finds the flag not set yet.
    signal_hook::flag::register_conditional_shutdown(SIGINT, status, Arc::clone(&stop))?;
    signal_hook::flag::register(SIGINT, Arc::clone(&stop))?;
    Ok(stop)
}

/// Everything that happens in a run that breaks nothing.
fn story(seed: u64, profile: Profile, plant: Option<Plant>) -> Vec<String> {
    let verdict = run_safely(&Plan::draw(seed, profile), plant, true);
    let indented = |line: String| format!("  {line}");
    let mut lines = vec!["\nIts history (keys and values in hexadecimal):".to_owned()];
    lines.extend(verdict.history.lines().map(indented));
    lines.push("\nEverything that happens in it (words in hexadecimal):".to_owned());
    lines.extend(verdict.trace.into_iter().map(indented));
    lines
}

fn lines_of(lines: &[String]) -> String {
    let mut text = lines.join("\n");
    text.push('\n');
    text
}

pub(super) fn parse_threads(text: &str) -> Result<u64, String> {
    match parse_positive_count(text).map_err(|error| error.to_string())? {
        threads if threads <= THREAD_COUNT_MAX => Ok(threads),
        _ => Err(format!("expected at most {THREAD_COUNT_MAX}")),
    }
}

/// A seed that was probably never used; its length is one that people can copy.
pub(super) fn fresh_seed() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as u64 % 1_000_000_000_000)
}

fn summary(
    campaign: &Campaign,
    report: &CampaignReport,
    duration: Duration,
    is_interrupted: bool,
) -> String {
    let first = campaign.first_seed;
    let seeds = match report.run_count {
        0 => format!("from seed {first} on"),
        1 => format!("seed {first}"),
        // The last seed of a campaign is one.
        run_count => format!("seeds {first} to {}", first + (run_count - 1)),
    };
    let plant = campaign
        .plant
        .map_or(String::new(), |plant| format!(", {plant} planted"));
    let found = match &report.finding {
        None => "nothing found".to_owned(),
        Some(finding) => format!("seed {} breaks a promise", finding.seed),
    };
    format!(
        "{}{}, each twice, {seeds}, profile {}{plant}: {found}\n\
         {} in {:.1} ms of virtual time; {:.1} s on {}\n",
        if is_interrupted {
            "interrupted after "
        } else {
            ""
        },
        several(report.run_count, "run"),
        campaign.profile,
        several(report.operation_count, "operation"),
        report.simulated_ns as f64 / 1e6,
        duration.as_secs_f64(),
        several(campaign.thread_count as u64, "thread"),
    )
}

pub(super) fn several(number: u64, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {what}{plural}", count(number))
}

/// What was broken, the smallest history that breaks it, and how to see it again.
fn explanation(arguments: &CheckArguments, finding: &Finding, stop: &AtomicBool) -> String {
    let (profile, plant) = (arguments.profile(), arguments.plant);
    let (plan, verdict) = explain(finding.seed, profile, plant, arguments.reduce, stop);
    let mut lines = vec![String::new(), "What it breaks:".to_owned()];
    let indented = |line: &dyn Display| format!("  {line}");
    lines.extend(finding.violations.iter().map(|it| indented(it)));
    lines.extend(smallest(&plan, &verdict));
    if arguments.trace {
        lines.push(String::new());
        lines.push("Everything that happens in it (words in hexadecimal):".to_owned());
        lines.extend(verdict.trace.iter().map(|it| indented(it)));
    }
    if arguments.trace {
        return lines_of(&lines);
    }
    let plant = plant.map_or(String::new(), |plant| format!(" --plant {plant}"));
    lines.push(String::new());
    lines.push("To see it happen, verb by verb:".to_owned());
    lines.push(format!(
        "  farleaf sim check --seed {} --runs 1 --profile {profile}{plant} --reduce {} --trace",
        finding.seed, arguments.reduce
    ));
    lines_of(&lines)
}

fn smallest(plan: &Plan, verdict: &Verdict) -> Vec<String> {
    let table = &plan.table;
    let mut lines = vec![
        String::new(),
        format!(
            "The smallest history found that breaks it ({}; keys and values in hexadecimal):",
            several(plan.operation_count() as u64, "operation")
        ),
        format!(
            "  table: {} layer, {} slots, {} loaded before",
            table.layer,
            table.slots,
            several(table.loaded.len() as u64, "record")
        ),
        format!("  pool: {}", several(plan.node_count.into(), "memory node")),
    ];
    let faults = plan.faults.iter();
    lines.extend(faults.map(|fault| format!("  fault: {:?} {:?}", fault.mishap, fault.when)));
    lines.extend(verdict.history.lines().map(|line| format!("  {line}")));
    lines.extend(verdict.violations.iter().map(|it| format!("  => {it}")));
    lines
}
