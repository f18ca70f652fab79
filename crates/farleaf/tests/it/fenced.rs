//! Sessions that an administrator fences while their process is alive.

use std::time::{Duration, Instant};

use farleaf::{ConnectOptions, Pool, Secret, TableOptions};
use farleaf_base::{NodeId, OwnerWord};
use farleaf_executor::block_on;
use farleaf_fabric::tcp::{TcpClient, TcpConnectOptions, TcpEndpoint};
use farleaf_fabric::{Batch, Control, Endpoint};
use farleaf_node::{ShmNode, TcpListenOptions};
use farleaf_pool::layout::SUPERBLOCK_SIZE_WORDS;
use farleaf_pool::session::{SESSION_SIZE_WORDS, SessionRecord, session_ids};
use farleaf_pool::{NodeLayout, Superblock};

fn read<const COUNT: usize>(endpoint: &TcpEndpoint, at: farleaf_base::WordAddr) -> [u64; COUNT] {
    let mut batch = Batch::new();
    let slot = batch.read(at, COUNT);
    block_on(endpoint.execute(&mut batch), endpoint.completions()).expect("a read");
    let mut words = [0; COUNT];
    words.copy_from_slice(batch.words(slot));
    words
}

/// Returns the sessions that are alive, with their blocks.
fn alive(endpoint: &TcpEndpoint, layout: &NodeLayout) -> Vec<(OwnerWord, SessionRecord)> {
    session_ids()
        .take(16)
        .filter_map(|session| {
            let words = read::<SESSION_SIZE_WORDS>(endpoint, layout.session(session));
            let record = SessionRecord::decode(&words);
            let incarnation = record.alive()?;
            Some((OwnerWord::new(session, incarnation), record))
        })
        .collect()
}

/// Promise (FABRIC-6): if one of two sessions of a process over `tcp` is fenced on request, its
/// operations fail and change nothing. The process continues to publish for the other, whose
/// operations continue.
#[test]
fn one_session_is_fenced_and_its_sibling_goes_on() {
    let name = format!("fenced-{}", std::process::id());
    let mut node = ShmNode::start(&name, 64 << 20, None).expect("a node");
    let mut listen = TcpListenOptions::at("127.0.0.1:0".parse().expect("an address"));
    let secret = Secret::from_text("the secret of the fenced").expect("long enough");
    listen.secret = Some(secret.clone());
    let address = node.listen(&listen).expect("a free port").to_string();
    let options = ConnectOptions {
        secret: Some(secret),
        ..TcpConnectOptions::default()
    };
    let operator = TcpClient::connect(&address, &options).expect("it listens");
    let endpoint = operator.endpoint(None).expect("a connection");
    let words = read::<SUPERBLOCK_SIZE_WORDS>(&endpoint, NodeLayout::superblock_addr(NodeId(0)));
    let superblock = Superblock::decode(&words, node.size_bytes()).expect("a superblock");
    let layout = NodeLayout {
        node: NodeId(0),
        superblock,
    };
    let others = alive(&endpoint, &layout).len();
    let pool = Pool::open_with(&format!("tcp:{address}"), &options).expect("it listens");
    let [first, second] = [(); 2].map(|()| pool.session().expect("a session"));
    let table = first
        .create_table("t", &TableOptions::default())
        .expect("a table");
    table.insert(1, 1).expect("an insert");
    let own = alive(&endpoint, &layout).split_off(others);
    assert_eq!(own.len(), 2, "the node's own session came first");
    operator
        .fence_session(own[0].0, &mut |_| {})
        .expect("fenced");
    table.put(1, 2).expect_err("its session is fenced");
    let sibling = second.open_table("t").expect("it is there");
    assert_eq!(sibling.get(1).expect("a get"), Some(1));
    let started_at = Instant::now();
    let heartbeat = || {
        let found = alive(&endpoint, &layout)
            .into_iter()
            .find(|(owner, _)| *owner == own[1].0);
        found.expect("it is alive").1.heartbeat
    };
    let before = heartbeat();
    while heartbeat() == before {
        assert!(
            started_at.elapsed() < Duration::from_secs(20),
            "nobody publishes for it"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}
