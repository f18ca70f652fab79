//! Valid and invalid selections of devices, ports, addresses and packet sizes.

use std::sync::Arc;

use farleaf_fabric::mapped::MappedMemory;
use farleaf_fabric::verbs::{VerbsError, VerbsNode, VerbsOptions};

use crate::node::{Node, node_options};

fn start(change: impl FnOnce(&mut VerbsOptions)) -> Result<VerbsNode, VerbsError> {
    let memory = Arc::new(MappedMemory::anonymous(1).expect("memory"));
    let mut options = node_options();
    change(&mut options);
    VerbsNode::start(&memory, &options)
}

/// Returns the text of the error that a selection must cause.
fn refused(change: impl FnOnce(&mut VerbsOptions)) -> String {
    start(change)
        .expect_err("there is no such thing")
        .to_string()
}

/// Promise: a selection that does not exist is refused with a list of those that do.
pub(crate) fn wrong_choices_are_told_what_there_is() {
    let device = node_options().device;
    let text = refused(|options| options.device = Some("nonsense0".to_owned()));
    assert!(text.contains("'nonsense0'"), "{text}");
    if let Some(device) = &device {
        assert!(text.contains(device), "{text}");
    }
    let text = refused(|options| options.port = Some(77));
    assert!(text.contains("port 1 active"), "{text}");
    let text = refused(|options| options.gid_index = Some(255));
    assert!(
        text.contains("index 255") && text.contains("RoCE"),
        "{text}"
    );
    for mtu in [0, 1500, 8192] {
        let text = refused(|options| options.mtu_bytes = Some(mtu));
        assert!(text.contains(&format!("MTU of {mtu} bytes")), "{text}");
    }
}

/// Promise: an existing port, address and packet size can be selected, and are used.
pub(crate) fn good_choices_are_taken() {
    let node = start(|options| {
        options.port = Some(1);
        options.mtu_bytes = Some(512);
    });
    let text = node.expect("as small as any").describe();
    assert!(
        text.contains("port 1") && text.contains("MTU 512"),
        "{text}"
    );
    let probed = start(|_| {}).expect("a device").describe();
    assert!(probed.contains("::ffff:"), "RoCE v2 with IPv4: {probed}");
}

/// Promise: a client's and a node's packet sizes may differ; the smaller one is used.
pub(crate) fn packet_sizes_may_differ() {
    use farleaf_base::{NodeId, WordAddr};
    use farleaf_executor::block_on;
    use farleaf_fabric::verbs::VerbsClient;
    use farleaf_fabric::{Batch, Control, Endpoint};

    let node = Node::start();
    let mut options = Node::connect_options(None);
    options.verbs.mtu_bytes = Some(256);
    let client = VerbsClient::connect(&node.address, &options).expect("it listens");
    let owner = client.register_session().expect("a session");
    let endpoint = client.endpoint(owner).expect("a queue pair");
    let mut batch = Batch::new();
    let words: Vec<u64> = (1..=1000).collect();
    batch.write(WordAddr::new(NodeId(0), 8), &words);
    let read = batch.read(WordAddr::new(NodeId(0), 8), 1000);
    block_on(endpoint.execute(&mut batch), endpoint.completions()).expect("a round trip");
    assert_eq!(batch.words(read), words);
}
