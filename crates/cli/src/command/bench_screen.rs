//! What `farleaf bench ycsb` shows while it runs, and what it prints.

use std::cell::RefCell;

use clap::ValueEnum;
use farleaf_bench::report::{RunReport, run_table, to_json_lines};
use farleaf_bench::runner::{Phase, ProgressSink};
use farleaf_bench::workload::WorkloadLetter;
use indicatif::ProgressBar;

use crate::log::say;
use crate::output::print;
use crate::progress::count_bar;

/// How reports are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum ReportFormat {
    #[default]
    Table,
    Json,
}

/// Progress on stderr, each report on stdout as soon as it is there.
pub(super) struct Screen {
    format: ReportFormat,
    bar: RefCell<ProgressBar>,
    /// What became of printing.
    printed: RefCell<anyhow::Result<()>>,
}

impl Screen {
    pub(super) fn new(format: ReportFormat) -> Self {
        Self {
            format,
            bar: RefCell::new(ProgressBar::hidden()),
            printed: RefCell::new(Ok(())),
        }
    }

    pub(super) fn clear(&self) {
        self.bar.borrow().finish_and_clear();
    }

    /// The first error of printing, once.
    pub(super) fn printed(&self) -> anyhow::Result<()> {
        self.printed.replace(Ok(()))
    }

    fn text(&self, report: &RunReport) -> anyhow::Result<String> {
        Ok(match self.format {
            ReportFormat::Json => to_json_lines(std::slice::from_ref(report))?,
            ReportFormat::Table => run_table(report) + "\n",
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
