//! The conformance suite over queue pairs.

use std::sync::Arc;

use farleaf_fabric::Control;
use farleaf_fabric::conformance::{Backend, Client, run_all, run_on_threads};
use farleaf_fabric::mapped::MappedRegion;
use farleaf_fabric::verbs::{VerbsClient, VerbsEndpoint, VerbsNode};

use crate::node::{Node, node_options};

/// Under software emulation a round trip takes some 50 us.
const ROUND_DIVISOR: u64 = 20;

/// Every endpoint is the queue pair of a session.
struct Connected {
    client: VerbsClient,
    node: Node,
}

impl Backend for Connected {
    type Endpoint = VerbsEndpoint;

    const ROUND_DIVISOR: u64 = ROUND_DIVISOR;

    fn region_word_count(&self) -> u64 {
        self.node.region.word_count()
    }

    fn run(&self, clients: Vec<Client<'_, VerbsEndpoint>>) {
        let connect = || {
            let owner = self.client.register_session().expect("a session");
            self.client.endpoint(owner).expect("a queue pair")
        };
        run_on_threads(connect, clients);
    }
}

/// Promise: F1 to F9, between two devices.
pub(crate) fn verbs_keep_the_contract() {
    run_all(|| {
        let node = Node::start();
        let client = node.client(None);
        Connected { client, node }
    });
}

/// Every endpoint is one of the node's own.
struct Own {
    region: Arc<MappedRegion>,
    node: VerbsNode,
}

impl Backend for Own {
    type Endpoint = VerbsEndpoint;

    const ROUND_DIVISOR: u64 = 4 * ROUND_DIVISOR;

    fn region_word_count(&self) -> u64 {
        self.region.word_count()
    }

    fn run(&self, clients: Vec<Client<'_, VerbsEndpoint>>) {
        run_on_threads(|| self.node.loopback().expect("a queue pair"), clients);
    }
}

/// Promise (F4): so do the queue pairs that are connected to themselves.
pub(crate) fn a_loopback_keeps_the_contract() {
    run_all(|| {
        let region = Arc::new(MappedRegion::anonymous(1).expect("memory"));
        let node = VerbsNode::start(&region, &node_options()).expect("the node's device");
        Own { region, node }
    });
}
