//! `farleaf figures`: the figures of papers, over modelled NICs (`figures talos`, which is
//! measured, is in `figures_talos`).

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
use crate::command::sim_network::{told_of, warn_if_far};
use crate::command::sim_seeds::parse_threads;
use crate::failure::{BadArgument, Ending};
use crate::output::print;
use crate::progress::count_bar;
use crate::quantity::count;

/// Whose figures.
#[derive(Debug, Args)]
pub(crate) struct FiguresArguments {
    #[command(subcommand)]
    command: FiguresCommand,
}

#[derive(Debug, Subcommand)]
enum FiguresCommand {
    /// Draw the figures of ROLEX (FAST'23): a folder with CSV, SVG and one page, index.html. Real
    /// code over modelled NICs, in virtual time: no number is of hardware
    Rolex(RunArguments),
    /// Draw the figures of RF-tree: the same for its layer, Sherman's, a tree without a cache, and
    /// this project's own, on two servers that are compute and memory nodes at once
    RfTree(RunArguments),
    /// Draw the figures of XStore (OSDI'20): the same for its layer, a server that executes all
    /// operations (`rpc`), trees, and this project's own
    Xstore(RunArguments),
    /// Draw what figures 5 to 10 of Talos are about: trees sent to backups, trees built by them,
    /// and no replication. Real runs of two servers on this machine, not modelled
    Talos(TalosArguments),
}

/// Which experiments, how large, and where to.
#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    /// A small size, for a look: some two minutes instead of many
    #[arg(long)]
    quick: bool,

    /// The folder: a new or empty one, or one of a former run, whose files are replaced [default:
    /// figures-rolex, figures-rf-tree, figures-xstore]
    #[arg(short = 'o', long, value_name = "FOLDER")]
    output: Option<PathBuf>,

    /// What to run, in TOML [default: rolex.toml, rf-tree.toml or xstore.toml of the repository's
    /// experiments, built in]; relative paths in it are looked for in its folder
    #[arg(long, value_name = "FILE")]
    experiments: Option<PathBuf>,

    /// The testbed: `rolex`, `rf-tree`, `xstore`, or a file [default: the one that the
    /// experiments name]
    #[arg(long, value_name = "PROFILE")]
    profile: Option<String>,

    /// Threads [default: as many as there are processors]; the results do not depend on them
    #[arg(long, value_name = "COUNT", value_parser = parse_threads)]
    #[arg(allow_negative_numbers = true)]
    threads: Option<u64>,
}

/// A paper whose figures are built in.
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

/// Does it.
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
    let size = if arguments.quick {
        ("quick", experiments.size.quick)
    } else {
        ("full", experiments.size.full)
    };
    let suite =
        Suite::new(experiments, size, profile).map_err(|error| BadArgument(error.to_string()))?;
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    let threads = arguments.threads;
    let thread_count = threads.map_or(processors, |threads| threads as usize);
    // Found out before many minutes of work, not after.
    let output = arguments.output.as_deref();
    let output = output.unwrap_or(Path::new(paper.folder));
    let folder = Folder::claim(WRITER, output, &suite.file_names())?;
    let begun = Instant::now();
    let bar = count_bar("operations", suite.unit_count());
    let measured = suite.measure(thread_count, &|done| bar.inc(done))?;
    bar.finish_and_clear();
    let page = write(&suite, &measured, &folder)?;
    print(format!(
        "{} experiments, modelled on {}, in {:.0} s\nThe network: {}\n{}\n",
        count(measured.point_count() as u64),
        told_of(suite.profile()),
        begun.elapsed().as_secs_f64(),
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
                .with_context(|| format!("cannot read experiments {shown}"))?;
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
