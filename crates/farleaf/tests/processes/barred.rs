//! A session that its main node has fenced, at the data nodes, over verbs. (For tcp see
//! `several_nodes` of the tests `it`.)

use std::time::{Duration, Instant};

use farleaf_base::{NodeId, WordAddr};
use farleaf_executor::block_on;
use farleaf_fabric::verbs::{VerbsClient, VerbsEndpoint};
use farleaf_fabric::{Batch, BatchError, Control, Endpoint};

use crate::children::scene;
use crate::node::{Fabric, Node, NodePlan, connect_options};

/// Time within which a node notices a closed connection.
const NOTICE_TIME_MAX: Duration = Duration::from_secs(10);

fn connect(address: &str) -> VerbsClient {
    VerbsClient::connect(address, &connect_options()).expect("it serves")
}

fn connect_data_node(address: &str, main_node: &VerbsClient) -> VerbsClient {
    VerbsClient::connect_data_node(address, &connect_options(), main_node).expect("it serves")
}

/// Adds to a word behind the memory that a node needs for itself; returns the previous value.
fn add_far(endpoint: &VerbsEndpoint) -> Result<u64, BatchError> {
    let mut batch = Batch::new();
    let last = endpoint.memory_word_count(NodeId(0)).expect("there is one") - 1;
    let slot = batch.fetch_add(WordAddr::new(NodeId(0), last), 1);
    block_on(endpoint.execute(&mut batch), endpoint.completions())?;
    Ok(batch.previous(slot))
}

/// Promise (FABRIC-6): a session that the main node has fenced changes nothing at a data node any
/// more, neither over its existing queue pair nor over a new one. A connection needs the pass of a
/// session that is not connected, and closing it ends no session.
#[test]
#[ignore = "needs RDMA devices; `guest/run` starts a machine that has two"]
fn a_data_node_bars_whom_the_main_node_has_fenced_over_verbs() {
    let name = "barred::a_data_node_bars_whom_the_main_node_has_fenced_over_verbs";
    scene(name, |_| {
        let node = Node::start_over(Fabric::VerbsNodes, NodePlan::of_size(8));
        let pool = crate::node::open_pool(&node.pool(Fabric::VerbsNodes));
        let nodes = pool.nodes().expect("the main node is there");
        let data_node = &nodes
            .iter()
            .find(|node| node.number == 1)
            .expect("it joined")
            .address;
        let main_node = connect(node.network_address());
        let at_data_node = connect_data_node(data_node, &main_node);
        let administrator = connect(node.network_address());
        let fence = |owner| {
            let fenced = administrator.fence_session(owner, &mut |_| ());
            fenced.expect("an administrator may");
        };
        let refused = at_data_node.register_session().expect_err("not here");
        assert!(refused.to_string().contains("main node"), "{refused}");
        let [first, second, third] =
            [(); 3].map(|()| main_node.register_session().expect("a session"));
        let endpoint = at_data_node.endpoint(first).expect("it is let in");
        assert_eq!(add_far(&endpoint).expect("it may"), 0);
        fence(first);
        add_far(&endpoint).expect_err("it is fenced");
        let refused = at_data_node.endpoint(first).expect_err("for ever");
        assert!(refused.to_string().contains("has been fenced"), "{refused}");
        fence(second);
        let refused = at_data_node
            .endpoint(second)
            .expect_err("it never was there");
        assert!(refused.to_string().contains("has been fenced"), "{refused}");
        let refused = connect(data_node).endpoint(third).expect_err("not its own");
        assert!(
            refused.to_string().contains("has no valid pass"),
            "{refused}"
        );
        let twin = connect_data_node(data_node, &main_node);
        let held = twin.endpoint(third).expect("it is its own");
        let refused = at_data_node.endpoint(third).expect_err("it is in use");
        assert!(refused.to_string().contains("another client"), "{refused}");
        drop((held, twin));
        let until = Instant::now() + NOTICE_TIME_MAX;
        let endpoint = loop {
            match at_data_node.endpoint(third) {
                Ok(endpoint) => break endpoint,
                Err(error) => assert!(Instant::now() < until, "it is nobody's any more: {error}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        assert_eq!(add_far(&endpoint).expect("it may"), 1, "once");
    });
}
