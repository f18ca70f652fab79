//! Receivers of a run's progress.

use std::fmt;

use crate::report::RunReport;
use crate::workload::WorkloadLetter;

/// Receiver of a run's progress. All calls come from the thread that called [`run`](super::run), at
/// most about ten times per second.
pub trait ProgressSink {
    /// Called when a phase begins, and the previous one has ended.
    fn begin(&self, phase: Phase) {
        let _ = phase;
    }

    /// Called with the part of the phase's total that is done.
    fn advance(&self, done: u64) {
        let _ = done;
    }

    /// Called when an operation failed, or an answer was wrong or missing. Only the first few of
    /// each workload are reported, after its operations; its report counts all.
    fn fault(&self, workload: WorkloadLetter, description: &str) {
        let _ = (workload, description);
    }

    /// Called when a workload is done.
    fn finish(&self, report: &RunReport) {
        let _ = report;
    }
}

/// Sink that ignores progress.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl ProgressSink for Silent {}

/// Phase of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase {
    /// Workload of the phase; `None`: all.
    pub workload: Option<WorkloadLetter>,
    /// Kind of the phase.
    pub kind: PhaseKind,
    /// Total amount of work: keys, records or operations.
    pub total: u64,
}

/// Kind of a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PhaseKind {
    /// Keys are generated; reported once, at the end.
    Generating,
    /// Records are loaded.
    Loading,
    /// Operations run.
    Running,
    /// All records are read once more.
    Checking,
}

impl fmt::Display for PhaseKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Generating => "generating keys",
            Self::Loading => "loading",
            Self::Running => "running",
            Self::Checking => "checking",
        })
    }
}
