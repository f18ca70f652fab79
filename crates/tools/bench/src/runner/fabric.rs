//! Over which fabric a run's store is reached.

use std::fmt;
use std::str::FromStr;

use farleaf::{EmbeddedFabric, VerbsOptions};

/// Over which fabric the store is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FabricKind {
    /// Memory of this process alone.
    Mem,
    /// Shared memory, as other processes would reach it.
    Shm,
    /// A memory node that listens on loopback, as one on another host would be reached.
    Tcp,
    /// Three of them: a pool of several nodes.
    Nodes,
    /// The same, whose memory an RDMA device of this host serves, over itself.
    Verbs,
}

impl FabricKind {
    /// A pool of this process over it.
    pub(crate) fn embedded(self, verbs: &VerbsOptions) -> EmbeddedFabric {
        match self {
            Self::Mem => EmbeddedFabric::Mem,
            Self::Shm => EmbeddedFabric::Shm { name: None },
            Self::Tcp => EmbeddedFabric::Tcp,
            Self::Nodes => EmbeddedFabric::Nodes { node_count: 3 },
            Self::Verbs => EmbeddedFabric::Verbs(verbs.clone()),
        }
    }

    /// All of them.
    pub const ALL: [Self; 5] = [Self::Mem, Self::Shm, Self::Tcp, Self::Nodes, Self::Verbs];

    /// The name on the command line and in reports.
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

/// A name that is no fabric's.
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

    /// Promise: a fabric is read by the name it is shown with.
    #[test]
    fn a_fabric_is_read_by_its_name() {
        for fabric in FabricKind::ALL {
            assert_eq!(fabric.to_string().parse(), Ok(fabric));
        }
        assert!("ib".parse::<FabricKind>().is_err());
    }
}
