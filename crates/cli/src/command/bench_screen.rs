//! Progress and output of all benchmarks.

use std::cell::RefCell;

use farleaf_bench::runner::{ProgressSink, Row};
use indicatif::ProgressBar;

use crate::log::say;
use crate::output::{OutputFormat, print};
use crate::progress::count_bar;

/// Shows progress on stderr, and prints each result on stdout as soon as it is complete.
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

    /// Removes the progress bar, and returns the first error of printing, once.
    pub(super) fn end(&self) -> anyhow::Result<()> {
        self.bar.borrow().finish_and_clear();
        self.printed.replace(Ok(()))
    }

    /// Prints text above the progress bar. Does nothing after the first error.
    fn print(&self, text: impl FnOnce() -> anyhow::Result<String>) {
        let mut printed = self.printed.borrow_mut();
        if printed.is_ok() {
            *printed = self.bar.borrow().suspend(|| text().and_then(print));
        }
    }
}

impl ProgressSink for Screen {
    fn begin(&self, title: &str, total: u64) {
        self.bar.borrow().finish_and_clear();
        *self.bar.borrow_mut() = count_bar(title, total);
    }

    fn advance(&self, done: u64) {
        self.bar.borrow().set_position(done);
    }

    fn fault(&self, description: &str) {
        self.bar.borrow().suspend(|| say(description));
    }

    fn note(&self, text: &str) {
        if self.format == OutputFormat::Text {
            self.print(|| Ok(text.to_owned()));
        }
    }

    fn row(&self, row: &Row) {
        match (self.format, &row.json) {
            (OutputFormat::Text, _) => self.print(|| Ok(row.text.clone())),
            (OutputFormat::Json, Ok(json)) => self.print(|| Ok(format!("{json}\n"))),
            (OutputFormat::Json, Err(error)) => self.print(|| anyhow::bail!("{error}")),
        }
    }
}
