//! The memory node of a scene: a child that is reached over shared memory and over tcp alike, or,
//! where an RDMA device serves its memory, by verbs.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use farleaf::{ConnectOptions, Pool, VerbsOptions};
use farleaf_node::{ShmNode, TcpListenOptions};
use rustix::process::Signal;

use crate::children::{Part, Peer, wait_for_the_end};

/// The pool of every scene; their directories differ.
pub(crate) const POOL: &str = "scene";

/// How a process reaches the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fabric {
    Shm,
    Tcp,
    Verbs,
}

/// Opens a pool, by the clients' RDMA device if it is one by verbs.
pub(crate) fn open_pool(address: &str) -> Pool {
    let mut options = ConnectOptions::default();
    options.verbs.device = std::env::var("FARLEAF_RDMA_DEVICE").ok();
    Pool::open_with(address, &options).expect("the node serves")
}

/// What a node is like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodePlan {
    pub(crate) size_mib: u64,
    pub(crate) retrain_threads: u32,
    /// A client by tcp that says nothing for so long is given up.
    pub(crate) silence_max: Duration,
    /// Whether an RDMA device serves its memory, and nobody else.
    pub(crate) by_verbs: bool,
}

impl NodePlan {
    /// A node that changes no table by itself, and is patient.
    pub(crate) fn of_size(size_mib: u64) -> Self {
        Self {
            size_mib,
            retrain_threads: 0,
            silence_max: Duration::from_secs(30),
            by_verbs: false,
        }
    }
}

/// A memory node that serves.
pub(crate) struct Node {
    peer: Peer,
    network_address: String,
}

impl Node {
    pub(crate) fn start(plan: NodePlan) -> Self {
        let peer = Peer::start(
            Part::Node,
            &format!(
                "{} {} {} {}",
                plan.size_mib,
                plan.retrain_threads,
                plan.silence_max.as_millis(),
                plan.by_verbs
            ),
        );
        let said = peer.hear();
        let network_address = said.strip_prefix("serving ").expect(&said).to_owned();
        Self {
            peer,
            network_address,
        }
    }

    /// The address of its pool.
    pub(crate) fn pool(&self, fabric: Fabric) -> String {
        match fabric {
            Fabric::Shm => format!("shm:{POOL}"),
            Fabric::Tcp => format!("tcp:{}", self.network_address),
            Fabric::Verbs => format!("verbs:{}", self.network_address),
        }
    }

    /// Where it listens for clients by tcp.
    pub(crate) fn network_address(&self) -> &str {
        &self.network_address
    }

    pub(crate) fn kill(self) {
        self.peer.kill();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.peer.signal(signal);
    }
}

/// The body of [`Part::Node`]: serves a pool, and says where it listens.
pub(crate) fn play(arguments: &[&str]) {
    let number = |index: usize| arguments[index].parse::<u64>().expect("a number");
    let retraining = farleaf::retrain_policy(number(1) as u32).expect("0 or 1");
    let size_bytes = number(0) << 20;
    let node = if arguments[3] == "true" {
        let device = std::env::var("FARLEAF_TEST_NODE_RDMA_DEVICE").ok();
        let options = VerbsOptions {
            device,
            ..VerbsOptions::default()
        };
        ShmNode::start_with_verbs(POOL, size_bytes, retraining, &options)
    } else {
        ShmNode::start(POOL, size_bytes, retraining)
    };
    let mut node = node.expect("a node");
    let mut options = TcpListenOptions::at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    options.silence_max = Duration::from_millis(number(2));
    let address = node.listen(&options).expect("a free port");
    eprintln!("serving {address}");
    wait_for_the_end();
}
