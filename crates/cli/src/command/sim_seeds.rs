//! Common parts of the commands of `farleaf sim` that make seeded runs: seeds, output during and
//! after the runs, and exit statuses.

use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use farleaf_sim::campaign::{CampaignReport, Seeds};
use signal_hook::consts::SIGINT;

use crate::failure::{BadArgument, Ending, INTERRUPTED_STATUS};
use crate::log::say;
use crate::output::print;
use crate::progress::count_bar;
use farleaf_bench::quantity::{count, parse_key, parse_positive_count};

/// Maximum number of threads, more than any machine needs.
const THREAD_COUNT_MAX: u64 = 1024;

/// Default number of runs.
const RUN_COUNT: u64 = 2000;

/// Seeds to run, and the number of threads.
#[derive(Debug, Args)]
pub(super) struct SeedArguments {
    /// Seed of the first run; the next runs use the next seeds [default: a random seed, which is
    /// printed]
    #[arg(long, value_parser = parse_key, allow_negative_numbers = true)]
    seed: Option<u64>,

    /// Number of runs; each is made twice and the two are compared [default: 2000; with --plant, as
    /// many as the bug may take]
    #[arg(long, value_name = "COUNT", value_parser = parse_positive_count)]
    #[arg(allow_negative_numbers = true)]
    runs: Option<u64>,

    /// Stop after this many minutes, even if runs are left
    #[arg(long, value_name = "COUNT", value_parser = parse_positive_count)]
    #[arg(allow_negative_numbers = true)]
    minutes: Option<u64>,

    /// Number of threads [default: the number of processors]
    #[arg(long, value_name = "COUNT", value_parser = parse_threads)]
    #[arg(allow_negative_numbers = true)]
    threads: Option<u64>,
}

/// Finished runs.
pub(super) struct Ran {
    seeds: Seeds,
    report: CampaignReport,
    duration: Duration,
    is_interrupted: bool,
}

impl SeedArguments {
    /// Returns the seeds to run; `planted_run_count` is the number of runs that a planted bug may
    /// take.
    pub(super) fn seeds(&self, planted_run_count: Option<u64>) -> Result<Seeds, BadArgument> {
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        let first = self.seed.unwrap_or_else(fresh_seed);
        let run_count = self.runs.or(planted_run_count).unwrap_or(RUN_COUNT);
        if first.checked_add(run_count - 1).is_none() {
            return Err(BadArgument(format!(
                "--seed {first} is too large for {run_count} runs: the largest seed is {}; use a \
                 smaller seed, or fewer --runs",
                u64::MAX
            )));
        }
        let minutes = self.minutes;
        let deadline = minutes.and_then(|minutes| {
            let limit = Duration::from_secs(minutes.checked_mul(60)?);
            Instant::now().checked_add(limit)
        });
        Ok(Seeds {
            first,
            run_count,
            deadline,
            thread_count: self.threads.map_or(processors, |threads| threads as usize),
        })
    }

    /// Returns as many runs that start at a new seed, if no seed was given.
    pub(super) fn seeds_after(&self, seeds: Seeds) -> Seeds {
        let first = self.seed.unwrap_or_else(fresh_seed);
        Seeds { first, ..seeds }
    }

    /// Runs them until Ctrl-C, with a progress bar. Calls `explain` before the report is printed.
    /// Prints a fresh seed before the first run, followed by `what`, such as `, profile trees`.
    pub(super) fn run(
        &self,
        seeds: &Seeds,
        what: &str,
        run: impl FnOnce(&AtomicBool, &(dyn Fn(u64) + Sync)) -> CampaignReport,
        explain: impl FnOnce(&CampaignReport, &AtomicBool),
    ) -> anyhow::Result<Ran> {
        let (started_at, stop) = (Instant::now(), stop_at_interrupts()?);
        if self.seed.is_none() {
            // Reported at once: a killed process could not report it later.
            say(format_args!("seeds from {} on{what}", seeds.first));
        }
        let bar = count_bar("runs", seeds.run_count);
        // A panic of the code under test is a finding; it is reported with the others.
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let report = run(&stop, &|done_count| bar.set_position(done_count));
        bar.finish_and_clear();
        let duration = started_at.elapsed();
        explain(&report, &stop);
        std::panic::set_hook(hook);
        let is_cut = report.finding.is_some() || report.run_count < seeds.run_count;
        Ok(Ran {
            seeds: *seeds,
            report,
            duration,
            is_interrupted: stop.load(Ordering::Relaxed) && is_cut,
        })
    }
}

impl Ran {
    /// Prints the results, and returns how the command ends. `plant`: name of a planted bug, and
    /// what finds it.
    pub(super) fn tell(
        &self,
        what: &str,
        operation: &str,
        plant: Option<(&str, String)>,
        text: &str,
    ) -> anyhow::Result<Ending> {
        let name = plant.as_ref().map(|(name, _)| *name);
        let summary = self.summary(what, operation, name);
        self.tell_printed(print(summary + text))?;
        Ok(match (&self.report.finding, plant) {
            _ if self.is_interrupted => Ending::Interrupted,
            (Some(_), _) => Ending::Lacking,
            (None, None) => Ending::Done,
            (None, Some((name, found))) => {
                let tried = if self.report.run_count < self.seeds.run_count {
                    " in the runs that fitted into the time limit"
                } else {
                    ""
                };
                say(format_args!(
                    "the planted bug '{name}' was not found{tried}; {found}"
                ));
                Ending::Unfound
            }
        })
    }

    /// Reports a failure to print. A finding remains one even if it cannot be printed.
    fn tell_printed(&self, printed: anyhow::Result<()>) -> anyhow::Result<()> {
        match (&self.report.finding, printed) {
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

    fn summary(&self, what: &str, operation: &str, plant: Option<&str>) -> String {
        let (first, report) = (self.seeds.first, &self.report);
        let seeds = match report.run_count {
            0 => format!("from seed {first} on"),
            1 => format!("seed {first}"),
            // The last seed is valid, so this does not overflow.
            run_count => format!("seeds {first} to {}", first + (run_count - 1)),
        };
        let plant = plant.map_or(String::new(), |plant| format!(", {plant} planted"));
        let found = match &report.finding {
            None => "nothing found".to_owned(),
            Some(finding) => format!("seed {} breaks a promise", finding.seed),
        };
        format!(
            "{}{}, each twice, {seeds}{what}{plant}: {found}\n\
             {} in {:.1} ms of virtual time; {:.1} s on {}\n",
            if self.is_interrupted {
                "interrupted after "
            } else {
                ""
            },
            several(report.run_count, "run"),
            several(report.operation_count, operation),
            report.simulated_ns as f64 / 1e6,
            self.duration.as_secs_f64(),
            several(self.seeds.thread_count as u64, "thread"),
        )
    }
}

/// Makes Ctrl-C stop the runs, so that finished ones are reported. A second Ctrl-C ends the process
/// at once.
fn stop_at_interrupts() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let status = i32::from(INTERRUPTED_STATUS);
    // The order matters: at the first signal, the conditional shutdown must find the flag not yet
    // set.
    signal_hook::flag::register_conditional_shutdown(SIGINT, status, Arc::clone(&stop))?;
    signal_hook::flag::register(SIGINT, Arc::clone(&stop))?;
    Ok(stop)
}

pub(super) fn parse_threads(text: &str) -> Result<u64, String> {
    match parse_positive_count(text).map_err(|error| error.to_string())? {
        threads if threads <= THREAD_COUNT_MAX => Ok(threads),
        _ => Err(format!("expected at most {THREAD_COUNT_MAX}")),
    }
}

/// Returns a new random seed, short enough to copy by hand.
fn fresh_seed() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as u64 % 1_000_000_000_000)
}

pub(super) fn several(number: u64, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {what}{plural}", count(number))
}
