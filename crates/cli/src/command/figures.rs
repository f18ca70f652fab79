//! `farleaf figures`: figures of papers over modeled NICs. `figures_talos` has `figures talos`,
//! which is measured.

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use clap::{Args, Subcommand};
use farleaf_sim::figures::config::{
    Experiments, RF_TREE_EXPERIMENTS, ROLEX_EXPERIMENTS, XSTORE_EXPERIMENTS,
};
use farleaf_sim::figures::measure::Suite;
use farleaf_sim::figures::write::{Folder, WRITER, write};
use farleaf_sim::nic::profile::load_profile;

use crate::command::figures_talos::{self, TalosArguments};
use crate::command::sim_network::{profile_text, warn_if_far};
use crate::command::sim_seeds::parse_threads;
use crate::failure::{BadArgument, Ending};
use crate::output::print;
use crate::progress::count_bar;
use farleaf_bench::quantity::count;

/// Paper whose figures to draw.
#[derive(Debug, Args)]
pub(crate) struct FiguresArguments {
    #[command(subcommand)]
    command: FiguresCommand,
}

#[derive(Debug, Subcommand)]
enum FiguresCommand {
    /// Draw the figures of ROLEX (FAST'23) from the real code over modeled NICs in virtual time, as
    /// CSV, SVG and one page, index.html
    Rolex(RunArguments),
    /// Draw the figures of RF-tree over modeled NICs: its layer, Sherman's, a tree without a cache,
    /// and `learned`, on two servers that are compute and memory nodes at once
    RfTree(RunArguments),
    /// Draw the figures of XStore (OSDI'20) over modeled NICs: its layer, a server that executes
    /// all operations (`rpc`), trees, and `learned`
    Xstore(RunArguments),
    /// Draw figures 5 to 10 of Talos from real runs of two servers on this machine: trees sent,
    /// trees built, and no replication
    Talos(TalosArguments),
}

/// Experiments, their size, and the output folder.
#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    /// Run a small version, in a few minutes
    #[arg(long)]
    quick: bool,

    /// Folder for the files; must be new, empty, or from an earlier run, whose files are replaced
    /// [default: figures-rolex, figures-rf-tree or figures-xstore]
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,

    /// The option that `--to` was before
    #[arg(short = 'o', long, hide = true, value_parser = renamed_to)]
    output: Option<String>,

    /// Experiments to run, in TOML; paths in it are relative to its folder [default: built in, from
    /// rolex.toml, rf-tree.toml or xstore.toml in experiments/]
    #[arg(long, value_name = "FILE")]
    experiments: Option<PathBuf>,

    /// Testbed: `rolex`, `rf-tree`, `xstore`, or a file [default: the one that the experiments
    /// name]
    #[arg(long, value_name = "PROFILE")]
    profile: Option<String>,

    /// Number of threads [default: the number of processors]; results do not depend on it
    #[arg(long, value_name = "COUNT", value_parser = parse_threads)]
    #[arg(allow_negative_numbers = true)]
    threads: Option<u64>,
}

/// Rejects the option that `--to` replaces.
pub(super) fn renamed_to(folder: &str) -> Result<String, String> {
    Err(format!(
        "the folder of the figures is named by --to; use `--to {folder}`"
    ))
}

/// Paper with built-in experiments.
struct Paper {
    experiments: &'static str,
    folder: &'static str,
}

const ROLEX: Paper = Paper {
    experiments: ROLEX_EXPERIMENTS,
    folder: "figures-rolex",
};
const RF_TREE: Paper = Paper {
    experiments: RF_TREE_EXPERIMENTS,
    folder: "figures-rf-tree",
};

const XSTORE: Paper = Paper {
    experiments: XSTORE_EXPERIMENTS,
    folder: "figures-xstore",
};

/// Runs `farleaf figures`.
pub(crate) fn run(arguments: &FiguresArguments) -> anyhow::Result<Ending> {
    match &arguments.command {
        FiguresCommand::Rolex(arguments) => draw(arguments, &ROLEX),
        FiguresCommand::RfTree(arguments) => draw(arguments, &RF_TREE),
        FiguresCommand::Xstore(arguments) => draw(arguments, &XSTORE),
        FiguresCommand::Talos(arguments) => figures_talos::run(arguments),
    }
}

fn draw(arguments: &RunArguments, paper: &Paper) -> anyhow::Result<Ending> {
    let experiments = experiments(arguments.experiments.as_deref(), paper)?;
    let profile = match arguments.profile.as_deref() {
        Some(profile) => load_profile(profile).map_err(|error| BadArgument(error.to_string()))?,
        None => load_profile(&experiments.profile).map_err(|error| {
            let origin = &experiments.origin;
            BadArgument(format!("{origin}: key profile: {error}"))
        })?,
    };
    let (size_name, size) = if arguments.quick {
        ("quick", experiments.size.quick)
    } else {
        ("full", experiments.size.full)
    };
    let suite = Suite::new(experiments, size_name, size, profile)
        .map_err(|error| BadArgument(error.to_string()))?;
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    let threads = arguments.threads;
    let thread_count = threads.map_or(processors, |threads| threads as usize);
    // Checked before many minutes of work, not after.
    let output = arguments.to.as_deref();
    let output = output.unwrap_or(Path::new(paper.folder));
    let folder = Folder::claim(WRITER, output, &suite.file_names())?;
    let started_at = Instant::now();
    let bar = count_bar("operations", suite.unit_count());
    let measured = suite.measure(thread_count, &|done_count| bar.inc(done_count))?;
    bar.finish_and_clear();
    let page = write(&suite, &measured, &folder)?;
    print(format!(
        "{} experiments, modeled on {}, in {:.0} s\nThe network: {}\n{}\n",
        count(measured.point_count() as u64),
        profile_text(suite.profile()),
        started_at.elapsed().as_secs_f64(),
        measured.self_check().summary(),
        page.display()
    ))?;
    warn_if_far(measured.self_check());
    Ok(Ending::Done)
}

fn experiments(path: Option<&Path>, paper: &Paper) -> anyhow::Result<Experiments> {
    let (text, origin) = match path {
        None => (paper.experiments.to_owned(), "experiments".to_owned()),
        Some(path) => {
            let shown = path.display().to_string();
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("cannot read the experiments '{shown}'"))?;
            (text, shown)
        }
    };
    let read = Experiments::parse(&text, &origin);
    let read = read.map_err(|error| BadArgument(error.to_string()))?;
    let folder = path.and_then(Path::parent);
    Ok(match folder {
        Some(folder) => read.in_folder(folder),
        None => read,
    })
}
