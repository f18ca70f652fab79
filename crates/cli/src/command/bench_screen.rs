//! Progress and output of `farleaf bench ycsb`.

use std::cell::RefCell;

use farleaf_bench::report::{RunReport, run_table, to_json_lines};
use farleaf_bench::runner::{Phase, ProgressSink};
use farleaf_bench::workload::WorkloadLetter;
use indicatif::ProgressBar;

use crate::log::say;
use crate::output::{OutputFormat, print};
use crate::progress::count_bar;

/// Shows progress on stderr, and prints each report on stdout as soon as it is complete.
pub(super) struct Screen {
    format: OutputFormat,
    bar: RefCell<ProgressBar>,
    /// Result of printing: the first error, if any.
    printed: RefCell<anyhow::Result<()>>,
}

impl Screen {
    pub(super) fn new(format: OutputFormat) -> Self {
        Self {
            format,
            bar: RefCell::new(ProgressBar::hidden()),
            printed: RefCell::new(Ok(())),
        }
    }

    pub(super) fn clear(&self) {
        self.bar.borrow().finish_and_clear();
    }

    /// Returns the first error of printing, once.
    pub(super) fn printed(&self) -> anyhow::Result<()> {
        self.printed.replace(Ok(()))
    }

    fn text(&self, report: &RunReport) -> anyhow::Result<String> {
        Ok(match self.format {
            OutputFormat::Json => to_json_lines(std::slice::from_ref(report))?,
            OutputFormat::Text => run_table(report) + "\n",
        })
    }
}

impl ProgressSink for Screen {
    fn begin(&self, phase: Phase) {
        self.clear();
        let what = match phase.workload {
            Some(workload) => format!("YCSB {workload}, {}", phase.kind),
            None => phase.kind.to_string(),
        };
        *self.bar.borrow_mut() = count_bar(what, phase.total);
    }

    fn advance(&self, done: u64) {
        self.bar.borrow().set_position(done);
    }

    fn fault(&self, workload: WorkloadLetter, description: &str) {
        self.bar
            .borrow()
            .suspend(|| say(format_args!("YCSB {workload}: {description}")));
    }

    fn finish(&self, report: &RunReport) {
        self.clear();
        let mut printed = self.printed.borrow_mut();
        if printed.is_ok() {
            *printed = self.text(report).and_then(print);
        }
    }
}
