//! `farleaf sim`: runs the simulator.

use std::fmt::Display;
use std::str::FromStr;
use std::sync::atomic::AtomicBool;

use clap::{Args, Subcommand};
use farleaf_sim::campaign::{Campaign, Finding, Seeds, explain, run_campaign, run_safely};
use farleaf_sim::plan::{Plan, Profile, UnknownProfile};
use farleaf_sim::plant::{FOUND_WITHIN_RUN_COUNT, Plant};
use farleaf_sim::run::Verdict;

use crate::command::sim_messages::{self, MessagesArguments};
use crate::command::sim_network::{self, NetworkArguments};
use crate::command::sim_seeds::{SeedArguments, several};
use crate::failure::{BadArgument, Ending};
use farleaf_bench::quantity::{count, parse_positive_count};

/// Arguments of `farleaf sim`.
#[derive(Debug, Args)]
pub(crate) struct SimArguments {
    #[command(subcommand)]
    command: SimCommand,
}

#[derive(Debug, Subcommand)]
enum SimCommand {
    /// Run the real code through many seeded failure simulations; name the seed of each run that
    /// breaks a promise. Exit status 1 if one does, 4 if a planted bug is not found, 130 after
    /// Ctrl-C
    Check(CheckArguments),

    /// Simulate failures of calls over one-sided WRITEs alone. Exit statuses as for `sim check`
    Messages(MessagesArguments),

    /// Compare READ and CAS rates and latencies of the modeled NICs with published ones. Exit
    /// status 1 if they differ much, 3 if nothing is published
    Network(NetworkArguments),
}

/// Number and kind of simulated failures.
#[derive(Debug, Args)]
pub(crate) struct CheckArguments {
    #[command(flatten)]
    seeds: SeedArguments,

    /// Faults to simulate. `calm`: only what a fabric may do; `crashes`: also deaths, pauses,
    /// zombies and broken connections; `retraining`: the same while leaves move; `node-loss`: the
    /// node restarts empty; `trees`: crashes on tables with a tree; `compaction`: the same while
    /// leaves are merged; `calls`: crashes on tables that the node holds; `xstore`: on tables whose
    /// models the node trains; `bytes`: on tables of byte strings; `all`: each in turn [default:
    /// `crashes`; with --plant, the profile that finds the bug]
    #[arg(long)]
    profile: Option<Profiles>,

    #[arg(long, value_name = "BUG", help = plant_help())]
    plant: Option<Plant>,

    /// Runs to spend on reducing a failing run
    #[arg(long, value_name = "COUNT", default_value = "3000")]
    #[arg(value_parser = parse_positive_count, allow_negative_numbers = true)]
    reduce: u64,

    /// Print every verb of a failing run, or of the only run
    #[arg(long)]
    trace: bool,
}

/// One profile, or all profiles.
#[derive(Clone, Copy, Debug)]
enum Profiles {
    One(Profile),
    All,
}

impl FromStr for Profiles {
    type Err = UnknownProfiles;

    fn from_str(name: &str) -> Result<Self, UnknownProfiles> {
        match name {
            "all" => Ok(Self::All),
            name => Ok(Self::One(name.parse()?)),
        }
    }
}

/// Error: a name that is neither a profile nor `all`.
#[derive(Debug, thiserror::Error)]
#[error("{0}; 'all' means each of them")]
struct UnknownProfiles(#[from] UnknownProfile);

/// Runs `farleaf sim`.
pub(crate) fn run(arguments: &SimArguments) -> anyhow::Result<Ending> {
    match &arguments.command {
        SimCommand::Check(check) => run_check(check),
        SimCommand::Messages(messages) => sim_messages::run(messages),
        SimCommand::Network(network) => sim_network::run(network),
    }
}

/// Returns the help of `--plant`; the list comes from the simulator.
fn plant_help() -> String {
    let with = Profile::ALL.into_iter().filter_map(|profile| {
        let plants = Plant::ALL.into_iter();
        let names = plants.filter(|plant| plant.profile() == profile);
        let names: Vec<_> = names.map(Plant::name).collect();
        (!names.is_empty()).then(|| format!("with profile `{profile}` {}", names.join(", ")))
    });
    format!(
        "Plant a bug, which must be found within {} runs: {}",
        count(FOUND_WITHIN_RUN_COUNT),
        with.collect::<Vec<_>>().join("; "),
    )
}

fn run_check(arguments: &CheckArguments) -> anyhow::Result<Ending> {
    let planted_run_count = arguments.plant.map(|_| FOUND_WITHIN_RUN_COUNT);
    let seeds = arguments.seeds.seeds(planted_run_count)?;
    match (arguments.profile, arguments.plant) {
        (Some(Profiles::One(profile)), _) => run_profile(arguments, profile, seeds),
        (Some(Profiles::All), None) => run_all_profiles(arguments, seeds),
        (Some(Profiles::All), Some(plant)) => Err(BadArgument(format!(
            "--profile all cannot be used with --plant: profile '{}' finds the bug '{plant}'; \
             leave --profile out",
            plant.profile()
        ))
        .into()),
        (None, plant) => {
            let by_default = plant.map_or(Profile::default(), Plant::profile);
            run_profile(arguments, by_default, seeds)
        }
    }
}

/// Runs each profile until Ctrl-C, even if others fail.
fn run_all_profiles(arguments: &CheckArguments, seeds: Seeds) -> anyhow::Result<Ending> {
    let mut all = Ending::Done;
    for profile in Profile::ALL {
        let seeds = arguments.seeds.seeds_after(seeds);
        match run_profile(arguments, profile, seeds)? {
            Ending::Done => {}
            Ending::Interrupted => return Ok(Ending::Interrupted),
            failed => all = failed,
        }
    }
    Ok(all)
}

fn run_profile(
    arguments: &CheckArguments,
    profile: Profile,
    seeds: Seeds,
) -> anyhow::Result<Ending> {
    let campaign = Campaign {
        seeds,
        profile,
        plant: arguments.plant,
    };
    let what = format!(", profile {profile}");
    let mut text = String::new();
    let ran = arguments.seeds.run(
        &campaign.seeds,
        &what,
        |stop, progress| run_campaign(&campaign, stop, progress),
        |report, stop| {
            if let Some(finding) = &report.finding {
                text = explanation(arguments, &campaign, finding, stop);
            } else if arguments.trace && campaign.seeds.run_count == 1 && report.run_count == 1 {
                text = lines_of(&story(campaign.seeds.first, profile, campaign.plant));
            }
        },
    )?;
    let plant = arguments.plant.map(|plant| {
        let found = format!(
            "profile '{}' finds it within {} runs",
            plant.profile(),
            count(FOUND_WITHIN_RUN_COUNT)
        );
        (plant.name(), found)
    });
    ran.tell(&what, "operation", plant, &text)
}

/// Returns all events of a run without a violation.
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

/// Describes the violation, the smallest history that causes it, and how to reproduce it.
fn explanation(
    arguments: &CheckArguments,
    campaign: &Campaign,
    finding: &Finding,
    stop: &AtomicBool,
) -> String {
    let (profile, plant) = (campaign.profile, campaign.plant);
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
