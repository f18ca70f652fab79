//! A backup's memory, which a device serves, and endpoints to it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use farleaf_fabric::Control;
use farleaf_fabric::mapped::MappedMemory;
use farleaf_fabric::tcp::TcpConnectOptions;
use farleaf_fabric::verbs::{VerbsClient, VerbsEndpoint, VerbsNode, VerbsOptions};

use crate::over::memory;
use crate::over::node::{Node, connect_options};

/// Returns the options of the primary's device.
fn primary_options() -> VerbsOptions {
    VerbsOptions {
        device: std::env::var("FARLEAF_RDMA_DEVICE").ok(),
        ..VerbsOptions::default()
    }
}

/// Returns the options of the backup's device.
fn backup_options() -> VerbsOptions {
    let device = std::env::var("FARLEAF_TEST_NODE_RDMA_DEVICE").ok();
    VerbsOptions {
        device: device.or(primary_options().device),
        ..VerbsOptions::default()
    }
}

/// Returns why there is no device to test with, if there is none.
pub(crate) fn missing_device() -> Option<String> {
    let memory = Arc::new(MappedMemory::anonymous(1).expect("memory"));
    match VerbsNode::start(&memory, &VerbsOptions::default()) {
        Err(error) if error.is_missing() => Some(error.to_string()),
        _ => None,
    }
}

/// Memory of one backup, registered with its device, and its primary's connection to the node.
pub(crate) struct Memory {
    mapped: Arc<MappedMemory>,
    device: Arc<VerbsNode>,
    client: VerbsClient,
}

impl Memory {
    /// Creates the memory with its node, which fences the primary's sessions when it is dropped.
    pub(crate) fn served() -> (Node, Self) {
        let memory = memory();
        let device = VerbsNode::start(&memory, &backup_options()).expect("the backup's device");
        let device = Arc::new(device);
        let node = Node::start(&memory, Some(&device));
        let options = TcpConnectOptions {
            verbs: primary_options(),
            ..connect_options()
        };
        let client = VerbsClient::connect(&node.address, &options).expect("it listens");
        let memory = Self {
            mapped: memory,
            device,
            client,
        };
        (node, memory)
    }

    /// Returns the backup's own endpoint, through its device, which also executes the atomics of
    /// the primary's batches (FABRIC-4).
    pub(crate) fn near(&self) -> VerbsEndpoint {
        self.device.loopback().expect("a queue pair")
    }

    /// Returns an endpoint of the primary: a session's queue pair.
    pub(crate) fn connection(&self) -> VerbsEndpoint {
        let owner = self.client.register_session().expect("a session");
        self.client.endpoint(owner).expect("a queue pair")
    }

    /// Reads a word.
    pub(crate) fn word(&self, index: u64) -> u64 {
        self.mapped.words()[index as usize].load(Ordering::SeqCst)
    }
}
