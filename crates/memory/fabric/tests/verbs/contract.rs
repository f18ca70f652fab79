//! The conformance suite over queue pairs.

use std::sync::Arc;

use farleaf_fabric::Control;
use farleaf_fabric::conformance::{Backend, Client, run_all, run_on_threads};
use farleaf_fabric::mapped::MappedMemory;
use farleaf_fabric::verbs::{VerbsClient, VerbsEndpoint, VerbsNode};

use crate::node::{Node, node_options};

/// Divisor of rounds: under software emulation a round trip takes about 50 us.
const ROUND_DIVISOR: u64 = 20;

/// Backend whose endpoints are queue pairs of sessions.
struct Connected {
    client: VerbsClient,
    node: Node,
}

impl Backend for Connected {
    type Endpoint = VerbsEndpoint;

    const ROUND_DIVISOR: u64 = ROUND_DIVISOR;

    fn memory_word_count(&self) -> u64 {
        self.node.memory.word_count()
    }

    fn run(&self, clients: Vec<Client<'_, VerbsEndpoint>>) {
        let connect = || {
            let owner = self.client.register_session().expect("a session");
            self.client.endpoint(owner).expect("a queue pair")
        };
        run_on_threads(connect, clients);
    }
}

/// Promise: FABRIC-1 to FABRIC-9 hold between two devices.
pub(crate) fn verbs_keep_the_contract() {
    run_all(|| {
        let node = Node::start();
        let client = node.client(None);
        Connected { client, node }
    });
}

/// Backend whose endpoints are the node's own.
struct Own {
    memory: Arc<MappedMemory>,
    node: VerbsNode,
}

impl Backend for Own {
    type Endpoint = VerbsEndpoint;

    const ROUND_DIVISOR: u64 = 4 * ROUND_DIVISOR;

    fn memory_word_count(&self) -> u64 {
        self.memory.word_count()
    }

    fn run(&self, clients: Vec<Client<'_, VerbsEndpoint>>) {
        run_on_threads(|| self.node.loopback().expect("a queue pair"), clients);
    }
}

/// Promise (FABRIC-4): queue pairs that are connected to themselves keep the contract.
pub(crate) fn a_loopback_keeps_the_contract() {
    run_all(|| {
        let memory = Arc::new(MappedMemory::anonymous(1).expect("memory"));
        let node = VerbsNode::start(&memory, &node_options()).expect("the node's device");
        Own { memory, node }
    });
}
