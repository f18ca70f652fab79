//! `farleaf figures talos`: real runs of two servers that replicate regions to each other.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use clap::Args;
use farleaf_bench::replication::ReplicationConfig;
use farleaf_bench::replication::figures::{self, FigureSize, PAGE_NAME, Suite};
use farleaf_chart::folder::Folder;

use crate::arguments::COMMIT;
use crate::command::bench_screen::Screen;
use crate::command::figures::renamed_to;
use crate::failure::{BadArgument, Ending};
use crate::output::{OutputFormat, print};
use crate::private_files;
use crate::scratch::Scratch;
use farleaf_bench::quantity::{count, parse_positive_count};

/// Name of the command that owns a folder of these figures.
const WRITER: &str = "farleaf figures talos";
const FOLDER: &str = "figures-talos";

/// Size of the run, and the output folder.
#[derive(Debug, Args)]
pub(crate) struct TalosArguments {
    /// Run a small version with 2 + 2 regions, in one or two minutes
    #[arg(long)]
    quick: bool,

    /// Folder for the files; must be new, empty, or from an earlier run, whose files are replaced
    /// [default: figures-talos]
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,

    /// The option that `--to` was before
    #[arg(short = 'o', long, hide = true, value_parser = renamed_to)]
    output: Option<String>,

    /// Folder for the servers' files while it runs [default: the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,

    /// Records to load, in all regions together [default: the size's]
    #[arg(long, value_name = "COUNT", value_parser = parse_positive_count)]
    #[arg(allow_negative_numbers = true)]
    records: Option<u64>,

    /// Operations of each workload [default: the size's]
    #[arg(long, value_name = "COUNT", value_parser = parse_positive_count)]
    #[arg(allow_negative_numbers = true)]
    operations: Option<u64>,

    /// Regions that each server leads as primary [default: the size's]
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true)]
    regions: Option<u32>,

    /// Entries of a region's L0 [default: the size's]
    #[arg(long, value_name = "COUNT", value_parser = parse_positive_count)]
    #[arg(allow_negative_numbers = true)]
    l0_entries: Option<u64>,
}

/// Runs all experiments and draws their figures.
pub(super) fn run(arguments: &TalosArguments) -> anyhow::Result<Ending> {
    let directory = arguments.directory.clone();
    let directory = directory.unwrap_or_else(|| ReplicationConfig::default().directory);
    let suite = Suite::new(size(arguments), directory.clone(), COMMIT)
        .map_err(|error| BadArgument(error.to_string()))?;
    // Checked before many minutes of work, not after.
    let output = arguments.to.as_deref().unwrap_or(Path::new(FOLDER));
    let folder = Folder::claim(WRITER, output, &figures::file_names())?;
    private_files::remove_at_signals().context("cannot install the signal handlers")?;
    let scratch = Scratch::in_directory(&directory)?;
    let suite = suite.in_directory(scratch.path().to_owned());
    let started_at = Instant::now();
    let screen = Screen::new(OutputFormat::Text);
    let measured = suite.measure(&screen);
    screen.end()?;
    let rows = measured?;
    scratch.remove()?;
    folder.replace(&figures::files(&suite, &rows)?)?;
    print(format!(
        "{} phases, real runs, in {:.0} s\n{}\n",
        count(rows.len() as u64),
        started_at.elapsed().as_secs_f64(),
        folder.file(PAGE_NAME).display()
    ))?;
    Ok(Ending::Done)
}

fn size(arguments: &TalosArguments) -> FigureSize {
    let size = if arguments.quick {
        FigureSize::QUICK
    } else {
        FigureSize::FULL
    };
    let changed = FigureSize {
        records: arguments.records.unwrap_or(size.records),
        operations: arguments.operations.unwrap_or(size.operations),
        regions: arguments.regions.unwrap_or(size.regions),
        l0_entries: arguments.l0_entries.unwrap_or(size.l0_entries),
        ..size
    };
    if changed == size {
        return size;
    }
    FigureSize {
        name: "a size of its own",
        ..changed
    }
}
