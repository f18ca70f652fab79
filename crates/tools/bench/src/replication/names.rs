//! Names of kinds of replication, fabrics, promises and phases.

use std::fmt;

use farleaf_lsm::Durability;
use serde::{Serialize, Serializer};

use crate::named::named;
use crate::workload::WorkloadLetter;

/// Kind of replication of the regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ReplicationKind {
    /// No replication.
    None,
    /// One backup each, which receives trees (Send-Index).
    Sent,
    /// One backup each, which builds its trees itself (Build-Index).
    Built,
}

/// Fabric between a primary and a backup's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ReplicationFabric {
    /// Memory of this process: the processor that posts a verb executes it, in place of a NIC.
    Mem,
    /// A memory node for each server, on loopback.
    Tcp,
}

/// Durability with which a put returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Promise {
    /// All replicas have it in memory.
    Memory,
    /// All replicas have it on their devices.
    Sync,
}

impl Promise {
    pub(super) const fn durability(self) -> Durability {
        match self {
            Self::Memory => Durability::Memory,
            Self::Sync => Durability::Sync,
        }
    }
}

/// Phase of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReplicationPhase {
    /// Load A: all records are put, in the order of hashes of their numbers.
    Load,
    /// Core workload on the loaded records.
    Run(WorkloadLetter),
}

impl fmt::Display for ReplicationPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Load => f.pad("Load A"),
            Self::Run(letter) => f.pad(&format!("Run {letter}")),
        }
    }
}

impl Serialize for ReplicationPhase {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

named!(
    ReplicationKind,
    "kind of replication",
    None = "none",
    Sent = "sent",
    Built = "built"
);
named!(ReplicationFabric, "fabric", Mem = "mem", Tcp = "tcp");
named!(Promise, "promise", Memory = "memory", Sync = "sync");

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: names parse back, and the error of an unknown one lists the valid ones.
    #[test]
    fn names_are_read_back() {
        for kind in ReplicationKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        for fabric in ReplicationFabric::ALL {
            assert_eq!(fabric.to_string().parse(), Ok(fabric));
        }
        let error = "send".parse::<ReplicationKind>().expect_err("none");
        let message = "unknown kind of replication `send`: expected none, sent or built";
        assert_eq!(error.to_string(), message);
        assert_eq!(
            ReplicationPhase::Run(WorkloadLetter::A).to_string(),
            "Run A"
        );
    }
}
