//! Memory node of a scene: a child that serves by shared memory and tcp, or by verbs if an RDMA
//! device serves its memory.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use farleaf::{ConnectOptions, Pool, VerbsOptions};
use farleaf_node::{DataNode, DataNodeOptions, MainNodeOptions, NodeId, ShmNode, TcpListenOptions};
use rustix::process::Signal;

use crate::children::{ChildProcess, ChildRole, wait_for_the_end};

/// Pool name of every scene; the directories differ.
pub(crate) const POOL: &str = "scene";

/// Number of data nodes beside the main node.
const DATA_NODE_COUNT: usize = 2;
/// Time without a reply after which a data node is lost.
pub(crate) const LOST_AFTER: Duration = Duration::from_millis(1500);

/// Fabric over which a process accesses the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fabric {
    Shm,
    Tcp,
    /// TCP to a main node and two data nodes, each in its own process.
    Nodes,
    Verbs,
    /// Verbs to a main node and two data nodes, each in its own process.
    VerbsNodes,
}

impl Fabric {
    /// Returns whether there are several nodes.
    fn has_data_nodes(self) -> bool {
        matches!(self, Self::Nodes | Self::VerbsNodes)
    }

    /// Returns whether an RDMA device serves the memory.
    pub(crate) fn is_by_verbs(self) -> bool {
        matches!(self, Self::Verbs | Self::VerbsNodes)
    }
}

/// Returns the clients' connection options, with their RDMA device for verbs.
pub(crate) fn connect_options() -> ConnectOptions {
    let mut options = ConnectOptions::default();
    options.verbs.device = std::env::var("FARLEAF_RDMA_DEVICE").ok();
    options
}

/// Returns the options of nodes that serve by verbs.
pub(crate) fn node_options() -> VerbsOptions {
    VerbsOptions {
        device: std::env::var("FARLEAF_TEST_NODE_RDMA_DEVICE").ok(),
        ..VerbsOptions::default()
    }
}

/// Opens a pool, with the clients' RDMA device if it is served by verbs.
pub(crate) fn open_pool(address: &str) -> Pool {
    Pool::open_with(address, &connect_options()).expect("the node serves")
}

/// Parameters of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodePlan {
    pub(crate) size_mib: u64,
    pub(crate) retrain_threads: u32,
    /// Time without a message after which a tcp client is fenced.
    pub(crate) silence_max: Duration,
    /// Whether only an RDMA device serves the memory.
    pub(crate) by_verbs: bool,
    /// Time without a reply after which a data node is lost.
    pub(crate) lost_after: Duration,
}

impl NodePlan {
    /// Returns parameters of a node without retraining and with long timeouts.
    pub(crate) fn of_size(size_mib: u64) -> Self {
        Self {
            size_mib,
            retrain_threads: 0,
            silence_max: Duration::from_secs(30),
            by_verbs: false,
            lost_after: LOST_AFTER,
        }
    }
}

/// Running memory node; the main node of a pool, if there are several.
pub(crate) struct Node {
    peer: ChildProcess,
    network_address: String,
    pub(crate) data_nodes: Vec<DataNodeProcess>,
}

/// Running node that is not its pool's main node.
pub(crate) struct DataNodeProcess {
    peer: ChildProcess,
}

impl DataNodeProcess {
    /// Joins the pool whose main node is at an address.
    pub(crate) fn start(plan: NodePlan, main_node_address: &str) -> Self {
        let arguments = format!("{} {main_node_address} {}", plan.size_mib, plan.by_verbs);
        let peer = ChildProcess::start(ChildRole::DataNode, &arguments);
        let said = peer.hear();
        assert!(said.starts_with("joined "), "{said}");
        Self { peer }
    }

    pub(crate) fn kill(self) {
        self.peer.kill();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.peer.signal(signal);
    }
}

impl Node {
    /// Starts the nodes that a fabric needs; each of several nodes has the plan's size.
    pub(crate) fn start_over(fabric: Fabric, plan: NodePlan) -> Self {
        let plan = NodePlan {
            by_verbs: fabric.is_by_verbs(),
            ..plan
        };
        if !fabric.has_data_nodes() {
            return Self::start(plan);
        }
        let mut main_node = Self::start_part(ChildRole::MainNode, plan);
        for _ in 0..DATA_NODE_COUNT {
            main_node
                .data_nodes
                .push(DataNodeProcess::start(plan, &main_node.network_address));
        }
        main_node
    }

    pub(crate) fn start(plan: NodePlan) -> Self {
        Self::start_part(ChildRole::Node, plan)
    }

    fn start_part(part: ChildRole, plan: NodePlan) -> Self {
        let peer = ChildProcess::start(
            part,
            &format!(
                "{} {} {} {} {}",
                plan.size_mib,
                plan.retrain_threads,
                plan.silence_max.as_millis(),
                plan.by_verbs,
                plan.lost_after.as_millis()
            ),
        );
        let said = peer.hear();
        let network_address = said.strip_prefix("serving ").expect(&said).to_owned();
        Self {
            peer,
            network_address,
            data_nodes: Vec::new(),
        }
    }

    /// Returns the address of the node's pool.
    pub(crate) fn pool(&self, fabric: Fabric) -> String {
        match fabric {
            Fabric::Shm => format!("shm:{POOL}"),
            Fabric::Tcp | Fabric::Nodes => format!("tcp:{}", self.network_address),
            Fabric::Verbs | Fabric::VerbsNodes => format!("verbs:{}", self.network_address),
        }
    }

    /// Returns the address for tcp clients.
    pub(crate) fn network_address(&self) -> &str {
        &self.network_address
    }

    pub(crate) fn kill(self) {
        self.peer.kill();
    }

    /// Kills only the main node; returns its data nodes.
    pub(crate) fn kill_main_node(self) -> Vec<DataNodeProcess> {
        self.peer.kill();
        self.data_nodes
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.peer.signal(signal);
    }
}

fn by_verbs(argument: &str) -> Option<VerbsOptions> {
    (argument == "true").then(node_options)
}

fn loopback() -> TcpListenOptions {
    TcpListenOptions::at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
}

fn serve(mut node: ShmNode, silence_ms: u64) {
    let mut options = loopback();
    options.silence_max = Duration::from_millis(silence_ms);
    let address = node.listen(&options).expect("a free port");
    eprintln!("serving {address}");
    wait_for_the_end();
}

/// Runs [`ChildRole::Node`]: serves a pool, and reports its address.
pub(crate) fn play(arguments: &[&str]) {
    let number = |index: usize| arguments[index].parse::<u64>().expect("a number");
    let retraining = farleaf::retrain_policy(number(1) as u32).expect("0 or 1");
    let size_bytes = number(0) << 20;
    let node = match by_verbs(arguments[3]) {
        Some(options) => ShmNode::start_with_verbs(POOL, size_bytes, retraining, &options),
        None => ShmNode::start(POOL, size_bytes, retraining),
    };
    serve(node.expect("a node"), number(2));
}

/// Runs [`ChildRole::MainNode`]: serves the main node of a pool of several nodes, and reports its
/// address.
pub(crate) fn play_main_node(arguments: &[&str]) {
    let number = |index: usize| arguments[index].parse::<u64>().expect("a number");
    let retraining = farleaf::retrain_policy(number(1) as u32).expect("0 or 1");
    let options = MainNodeOptions {
        address: "127.0.0.1:0".to_owned(),
        connect: ConnectOptions::default(),
        lost_after: Duration::from_millis(number(4)),
        verbs: by_verbs(arguments[3]),
    };
    let node = ShmNode::start_main_node(POOL, number(0) << 20, retraining, options);
    serve(node.expect("a main node"), number(2));
}

/// Runs [`ChildRole::DataNode`]: joins a pool, and reports its number.
pub(crate) fn play_data_node(arguments: &[&str]) {
    let options = DataNodeOptions {
        name: "scene-data-node".to_owned(),
        size_bytes: arguments[0].parse::<u64>().expect("a number") << 20,
        listen: loopback(),
        address: "127.0.0.1:0".to_owned(),
        wanted: NodeId(0),
        main_node_address: arguments[1].to_owned(),
        connect: ConnectOptions::default(),
        verbs: by_verbs(arguments[2]),
    };
    let node = DataNode::start(&options).expect("a data node");
    let number = node.wait_until_joined().expect("the main node is there");
    eprintln!("joined {}", number.0);
    wait_for_the_end();
}
