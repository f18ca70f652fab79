//! Work of clients in figures.

use std::fmt;

use farleaf_bench::distribution::Distribution;
use farleaf_bench::workload::{WorkloadLetter, WorkloadSpec};
use serde::Deserialize;

use crate::experiment::plan::mixed;

/// Work of clients: a workload of YCSB, or its load phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Workload {
    /// Only writes. Under uniform requests they insert new records. Under other distributions every
    /// write overwrites an existing record, as few of the drawn keys are new.
    Load,
    /// Workload of YCSB.
    Letter(WorkloadLetter),
}

impl TryFrom<String> for Workload {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        if name == "load" {
            return Ok(Self::Load);
        }
        let letter = name.parse().map(Self::Letter);
        letter.map_err(|error| format!("{error}, or `load`"))
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Load => f.pad("load"),
            Self::Letter(letter) => letter.fmt(f),
        }
    }
}

impl Workload {
    /// Returns the mix of operations under a distribution of requests.
    pub(super) fn spec(self, distribution: Distribution) -> WorkloadSpec {
        match self {
            Self::Letter(letter) => WorkloadSpec::of(letter),
            Self::Load if distribution == Distribution::Uniform => mixed(0.0, 0.0, 1.0),
            Self::Load => mixed(0.0, 1.0, 0.0),
        }
    }
}
