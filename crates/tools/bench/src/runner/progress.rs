//! Who is told how far a run is.

use std::fmt;

use crate::report::RunReport;
use crate::workload::WorkloadLetter;

/// Who is told how far a run is. Everything is told from the thread that called
/// [`run`](super::run), up to some ten times a second.
pub trait ProgressSink {
    /// A phase begins, and the one before has ended.
    fn begin(&self, phase: Phase) {
        let _ = phase;
    }

    /// So much of the phase's total is done.
    fn advance(&self, done: u64) {
        let _ = done;
    }

    /// An operation failed, or an answer was wrong or missing. Told of the first few of each
    /// workload, when its operations are done; all are counted in its report.
    fn fault(&self, workload: WorkloadLetter, description: &str) {
        let _ = (workload, description);
    }

    /// A workload is done.
    fn finish(&self, report: &RunReport) {
        let _ = report;
    }
}

/// A sink that tells nobody.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl ProgressSink for Silent {}

/// A part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase {
    /// For which workload; `None`: for all.
    pub workload: Option<WorkloadLetter>,
    /// What is done.
    pub kind: PhaseKind,
    /// How much there is to do: keys, records or operations.
    pub total: u64,
}

/// What is done in a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PhaseKind {
    /// Keys are made; told of once at its end.
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
