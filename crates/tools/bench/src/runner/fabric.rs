//! Fabric of a run's store.

use std::fmt;
use std::str::FromStr;

use farleaf::{EmbeddedFabric, VerbsOptions};

/// Fabric over which the store is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FabricKind {
    /// Memory of this process alone.
    Mem,
    /// Shared memory, as other processes would use it.
    Shm,
    /// Memory node that listens on loopback, like a node on another host.
    Tcp,
    /// Three such memory nodes: a pool of several nodes.
    Nodes,
    /// Memory node whose memory an RDMA device of this host serves, over loopback.
    Verbs,
}

impl FabricKind {
    /// Creates a pool of this process over the fabric.
    pub(crate) fn embedded(self, verbs: &VerbsOptions) -> EmbeddedFabric {
        match self {
            Self::Mem => EmbeddedFabric::Mem,
            Self::Shm => EmbeddedFabric::Shm { name: None },
            Self::Tcp => EmbeddedFabric::Tcp,
            Self::Nodes => EmbeddedFabric::Nodes { node_count: 3 },
            Self::Verbs => EmbeddedFabric::Verbs(verbs.clone()),
        }
    }

    /// All fabrics.
    pub const ALL: [Self; 5] = [Self::Mem, Self::Shm, Self::Tcp, Self::Nodes, Self::Verbs];

    /// Returns the name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mem => "mem",
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Nodes => "nodes",
            Self::Verbs => "verbs",
        }
    }
}

impl fmt::Display for FabricKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// No fabric has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown fabric `{0}`: expected mem, shm, tcp, nodes or verbs")]
pub struct UnknownFabric(pub String);

impl FromStr for FabricKind {
    type Err = UnknownFabric;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|fabric| fabric.name() == name);
        known.ok_or_else(|| UnknownFabric(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the name of a fabric parses back.
    #[test]
    fn a_fabric_is_read_by_its_name() {
        for fabric in FabricKind::ALL {
            assert_eq!(fabric.to_string().parse(), Ok(fabric));
        }
        assert!("ib".parse::<FabricKind>().is_err());
    }
}
