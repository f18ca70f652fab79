//! Program of the instruction gate: measures every case and exits 1 if one is outside its
//! tolerance.
//!
//! ```text
//! cargo run --profile gate --locked -p farleaf-instruction-gate             # compare
//! cargo run --profile gate --locked -p farleaf-instruction-gate -- --bless  # record
//! ```
//!
//! Without valgrind it prints `skipped: valgrind not found` and exits 0.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use clap::Parser;
use farleaf_instruction_gate::expectation::{self, Expectations};
use farleaf_instruction_gate::verdict::Comparison;
use farleaf_instruction_gate::{CASES, Case, callgrind};

/// Counts instructions per operation under callgrind and compares with expected.toml.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Write what was measured to expected.toml instead of comparing.
    #[arg(long)]
    bless: bool,
    /// Run one case with this many operations and exit: how the gate starts itself under callgrind.
    #[arg(
        long = callgrind::CHILD_FLAG.trim_start_matches('-'),
        hide = true,
        num_args = 2,
        value_names = ["CASE", "OPERATION_COUNT"]
    )]
    run_case_as_child: Option<Vec<String>>,
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    if let Some([name, operation_count]) = arguments.run_case_as_child.as_deref() {
        let case = Case::named(name).with_context(|| format!("unknown case '{name}'"))?;
        (case.run)(
            operation_count
                .parse()
                .with_context(|| format!("invalid operation count '{operation_count}'"))?,
        );
        return Ok(ExitCode::SUCCESS);
    }
    if !callgrind::is_installed() {
        println!("skipped: valgrind not found");
        return Ok(ExitCode::SUCCESS);
    }
    ensure!(
        !cfg!(debug_assertions),
        "this build is not optimized, and the expectations are; run with `cargo run --profile gate`"
    );
    let measured = measure_all()?;
    let path = expectation::path();
    if arguments.bless {
        let old = if path.exists() {
            expectation::read(&path)?
        } else {
            Expectations::new()
        };
        let new = expectation::blessed(&old, measured.iter().copied());
        expectation::write(&path, &new)?;
        print!("{}", Comparison::new(&old, measured));
        println!("wrote the measurements to '{}'", path.display());
        return Ok(ExitCode::SUCCESS);
    }
    let comparison = Comparison::new(&expectation::read(&path)?, measured);
    print!("{comparison}");
    Ok(if comparison.passes() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Returns the name and the instructions per operation of every case.
fn measure_all() -> anyhow::Result<Vec<(&'static str, f64)>> {
    let executable = std::env::current_exe().context("cannot find the path of this executable")?;
    let measure = |case: &'static Case| {
        let instruction_count =
            callgrind::count_instructions(&executable, case, case.operation_count)?;
        Ok((
            case.name,
            instruction_count as f64 / case.operation_count as f64,
        ))
    };
    CASES.iter().map(measure).collect()
}
