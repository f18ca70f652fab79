//! A backup's memory, which a device serves, and the ways to it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use farleaf_fabric::Control;
use farleaf_fabric::mapped::MappedRegion;
use farleaf_fabric::tcp::TcpConnectOptions;
use farleaf_fabric::verbs::{VerbsClient, VerbsEndpoint, VerbsNode, VerbsOptions};

use crate::over::node::{Node, connect_options};
use crate::over::region;

/// The primary's device.
fn primary_options() -> VerbsOptions {
    VerbsOptions {
        device: std::env::var("FARLEAF_RDMA_DEVICE").ok(),
        ..VerbsOptions::default()
    }
}

/// The backup's.
fn backup_options() -> VerbsOptions {
    let device = std::env::var("FARLEAF_TEST_NODE_RDMA_DEVICE").ok();
    VerbsOptions {
        device: device.or(primary_options().device),
        ..VerbsOptions::default()
    }
}

/// Why there is no device to test with, if there is none.
pub(crate) fn missing_device() -> Option<String> {
    let region = Arc::new(MappedRegion::anonymous(1).expect("memory"));
    match VerbsNode::start(&region, &VerbsOptions::default()) {
        Err(error) if error.is_missing() => Some(error.to_string()),
        _ => None,
    }
}

/// The memory of one backup, registered with its device, and its primary's connection to the node.
pub(crate) struct Memory {
    region: Arc<MappedRegion>,
    device: Arc<VerbsNode>,
    client: VerbsClient,
}

impl Memory {
    /// With the node that has it, and fences the primary's sessions when it is dropped.
    pub(crate) fn served() -> (Node, Self) {
        let region = region();
        let device = VerbsNode::start(&region, &backup_options()).expect("the backup's device");
        let device = Arc::new(device);
        let node = Node::start(&region, Some(&device));
        let options = TcpConnectOptions {
            verbs: primary_options(),
            ..connect_options()
        };
        let client = VerbsClient::connect(&node.address, &options).expect("it listens");
        let memory = Self {
            region,
            device,
            client,
        };
        (node, memory)
    }

    /// The backup's own way: by its device, whose atomics the primary's batches have on its words
    /// (F4).
    pub(crate) fn near(&self) -> VerbsEndpoint {
        self.device.loopback().expect("a queue pair")
    }

    /// One of the primary's ways: a session's queue pair.
    pub(crate) fn way(&self) -> VerbsEndpoint {
        let owner = self.client.register_session().expect("a session");
        self.client.endpoint(owner).expect("a queue pair")
    }

    /// What a word is now.
    pub(crate) fn word(&self, index: u64) -> u64 {
        self.region.words()[index as usize].load(Ordering::SeqCst)
    }
}
