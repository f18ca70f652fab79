//! Fabric of a run's store.

use farleaf::{EmbeddedFabric, VerbsOptions};

use crate::named::named;

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
}

named!(
    FabricKind,
    "fabric",
    Mem = "mem",
    Shm = "shm",
    Tcp = "tcp",
    Nodes = "nodes",
    Verbs = "verbs",
);

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
