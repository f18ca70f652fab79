//! Receivers of a run's progress and results.

use serde::Serialize;

/// Receiver of the progress and the results of any benchmark. All calls come from the thread that
/// called the benchmark's `run`, those of [`advance`](Self::advance) at most about ten times per
/// second.
pub trait ProgressSink {
    /// Called when a phase with this total amount of work begins, and the previous one has ended.
    fn begin(&self, title: &str, total: u64) {
        let _ = (title, total);
    }

    /// Called with the part of the phase's total that is done.
    fn advance(&self, done: u64) {
        let _ = done;
    }

    /// Called when an operation failed, or an answer was wrong or missing. Only the first few are
    /// reported, after all operations; the report counts all.
    fn fault(&self, description: &str) {
        let _ = description;
    }

    /// Called with text that only people read, such as the header of a table.
    fn note(&self, text: &str) {
        let _ = text;
    }

    /// Called when a result is complete.
    fn row(&self, row: &Row) {
        let _ = row;
    }
}

/// Sink that ignores everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl ProgressSink for Silent {}

/// Result in both output formats.
#[derive(Debug)]
pub struct Row {
    /// Text with its line feeds; empty if the result is shown later, together with others.
    pub text: String,
    /// JSON object without a line feed.
    pub json: serde_json::Result<String>,
}

impl Row {
    /// Creates the row of a result.
    pub fn new(text: String, result: &impl Serialize) -> Self {
        let json = serde_json::to_string(result);
        Self { text, json }
    }
}
