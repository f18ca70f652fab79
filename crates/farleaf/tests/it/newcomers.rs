//! Data nodes that join a pool, and the connections of the main node's own agent to them.

use std::io::copy;
use std::net::{Ipv4Addr, Shutdown, TcpListener as Socket, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use farleaf::{ConnectOptions, EmbeddedFabric, NodeState, Pool, PoolOptions, TableOptions};
use farleaf_base::{NodeId, OwnerWord};
use farleaf_fabric::mapped::MappedMemory;
use farleaf_fabric::tcp::{Grant, JoinRequest, TcpClient, TcpListener, TcpService};
use farleaf_fabric::{Control, SessionService, StopSignal};
use farleaf_net::secret::{Rights, Secret};
use farleaf_node::sessions::format_memory;
use farleaf_node::{DataNode, DataNodeOptions, ShmNode};

use crate::several_nodes::{
    LOST_AFTER, Nodes, SIZE_BYTES, active_count, add_far, client, key, listen, main_node_options,
    wait_for,
};

const WAIT_MAX: Duration = Duration::from_mins(1);

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + WAIT_MAX;
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Promise (FABRIC-6): a session that was fenced before a data node joined, or while it was
/// joining, writes nothing there; a live session does.
#[test]
fn a_newcomer_bars_what_was_fenced_before() {
    let nodes = Nodes::main_node_alone();
    let main_node = client(&nodes.address);
    let administrator = client(&nodes.address);
    let fence = |owner| {
        let fenced = administrator.fence_session(owner, &mut |_| ());
        fenced.expect("an administrator may");
    };
    let mut fenced: Vec<OwnerWord> = Vec::new();
    let mut fence_one = || {
        let owner = main_node.register_session().expect("a session");
        fence(owner);
        fenced.push(owner);
    };
    // Without a data node, with one, and while another one joins.
    fence_one();
    let first = nodes.data_node();
    first.wait_until_joined().expect("it joins");
    fence_one();
    let alive = main_node.register_session().expect("a session");
    let second = nodes.data_node();
    let pool = nodes.open();
    let until = Instant::now() + WAIT_MAX;
    loop {
        fence_one();
        if active_count(&pool.nodes().expect("the main node is there")) == 3 {
            break;
        }
        assert!(Instant::now() < until, "it joins");
    }
    let at_second = client(&second.network_address().to_string()).with_sessions_of(&main_node);
    for owner in fenced {
        let refused = at_second.endpoint(Some(owner)).expect_err("it is fenced");
        assert!(refused.to_string().contains("has been fenced"), "{refused}");
    }
    let endpoint = at_second.endpoint(Some(alive)).expect("it is let in");
    assert_eq!(add_far(&endpoint).expect("it may"), 0);
}

/// Data node that answers and bars sessions until it has barred one; then it closes all
/// connections.
struct Failing {
    stop: StopSignal,
    barred: Arc<Mutex<Vec<OwnerWord>>>,
}

impl SessionService for Failing {
    fn register(&mut self, _pid: u32) -> Result<OwnerWord, String> {
        Err("not here".to_owned())
    }

    fn fence(&mut self, _owner: OwnerWord) {}

    fn process_of(&mut self, _owner: OwnerWord) -> Option<u32> {
        Some(0)
    }
}

impl TcpService for Failing {
    fn grant(&self, _rights: Rights) -> Grant {
        Grant::nothing()
    }

    fn own_words(&self, _owner: OwnerWord) -> core::ops::Range<u64> {
        0..0
    }

    fn bar(&mut self, owner: OwnerWord) -> bool {
        self.barred.lock().expect("nobody panics").push(owner);
        self.stop.stop();
        true
    }
}

/// Promise: a data node that fails while the main node tells it which sessions are fenced does not
/// join, so that no client waits for it; its number is free for the next data node.
#[test]
fn a_data_node_that_fails_while_it_is_taken_in_is_none() {
    let nodes = Nodes::main_node_alone();
    let main_node = client(&nodes.address);
    let mut fenced = [(); 2].map(|()| main_node.register_session().expect("a session"));
    for owner in fenced {
        main_node.close_session(owner).expect("closed");
    }
    let memory = Arc::new(MappedMemory::anonymous(SIZE_BYTES).expect("memory"));
    let layout = format_memory(&memory).expect("large enough");
    let listener = TcpListener::bind(&memory, &listen()).expect("a port");
    let request = JoinRequest {
        memory_id: layout.superblock.memory_id,
        size_bytes: SIZE_BYTES,
        wanted: NodeId(0),
        address: listener.address().to_string(),
        serves_verbs: false,
    };
    let stop = StopSignal::new().expect("a descriptor");
    let barred = Arc::new(Mutex::new(Vec::new()));
    let mut failing = Failing {
        stop: stop.clone(),
        barred: Arc::clone(&barred),
    };
    let refused = std::thread::scope(|scope| {
        scope.spawn(move || listener.run(&mut failing, &stop));
        loop {
            match main_node.join(&request) {
                Ok(joined) if joined.node.is_none() => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Ok(joined) => panic!("it has failed: {joined:?}"),
                Err(refused) => return refused.to_string(),
            }
        }
    });
    assert!(
        refused.contains("did not bar a fenced session"),
        "{refused}"
    );
    fenced.sort_by_key(|owner| owner.word());
    assert_eq!(
        barred.lock().expect("nobody panics")[..],
        fenced[..1],
        "before it hung up"
    );
    assert_eq!(main_node.member(NodeId(1)).expect("an answer").state, 0);
    let data_node = nodes.data_node();
    assert_eq!(data_node.wait_until_joined().expect("it joins"), NodeId(1));
}

/// Promise: a data node that replies to the main node but has no free session for the main node's
/// agent is not lost, and the agent continues when a session is free.
#[test]
fn a_data_node_that_has_no_space_for_the_agent_is_not_lost() {
    const CONNECTION_COUNT_MAX: usize = 16;
    let nodes = Nodes::main_node_alone();
    let mut options = nodes.data_node_options();
    options.listen.connection_count_max = CONNECTION_COUNT_MAX;
    let data_node = DataNode::start(&options).expect("a data node");
    data_node.wait_until_joined().expect("it joins");
    let pool = nodes.open();
    wait_for(&pool, "it joins", |nodes| active_count(nodes) == 2);
    let session = pool.session().expect("a session");
    let table = session.create_table("t", &TableOptions::default());
    let records = (0..200_000).map(|number| (key(number), number));
    table
        .expect("a table")
        .bulk_load(records, |_| {})
        .expect("it fits");
    let used_bytes = || pool.nodes().expect("the main node is there")[1].used_bytes;
    assert!(used_bytes() > Some(0), "it is on both nodes");
    let address = data_node.network_address().to_string();
    let mut held = Vec::new();
    while let Ok(client) = TcpClient::connect(&address, &ConnectOptions::default()) {
        held.push(client);
        assert!(held.len() <= CONNECTION_COUNT_MAX);
    }
    session.drop_table("t").expect("dropped");
    let main_node = client(&nodes.address);
    let started_at = Instant::now();
    let answered = || {
        main_node
            .member(NodeId(1))
            .expect("an answer")
            .answered_count
    };
    let before = answered();
    while started_at.elapsed() < Duration::from_secs(3) {
        let member = main_node.member(NodeId(1)).expect("an answer");
        assert_eq!(member.state, NodeState::Active as u64, "it answers");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(answered() > before, "it is still asked");
    drop(held);
    eventually("the agent comes in, and frees what was dropped", || {
        used_bytes() == Some(0)
    });
}

/// Proxy between a data node and all its peers.
struct Proxy {
    address: String,
    connections: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    /// Starts a proxy to the address, once that is known.
    fn start(target: Arc<Mutex<Option<String>>>) -> Self {
        let socket = Socket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = socket.local_addr().expect("it is bound").to_string();
        let connections = Arc::new(Mutex::new(Vec::new()));
        let known = Arc::clone(&connections);
        std::thread::spawn(move || {
            for near in socket.incoming() {
                let near = near.expect("somebody connects");
                let far = target.lock().expect("nobody panics").clone();
                let Ok(far) = TcpStream::connect(far.expect("it is known")) else {
                    return;
                };
                let again = |stream: &TcpStream| stream.try_clone().expect("a descriptor");
                known.lock().expect("nobody panics").push(again(&near));
                for (mut from, mut to) in [(again(&near), again(&far)), (far, near)] {
                    std::thread::spawn(move || {
                        // If either end closes, both are closed.
                        let _ = copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        Self {
            address,
            connections,
        }
    }

    /// Cuts all connections but the first, over which the main node probes the data node.
    fn cut_all_but_the_first(&self) {
        let connections = self.connections.lock().expect("nobody panics");
        assert!(connections.len() > 1, "there is something to cut");
        for connection in &connections[1..] {
            // The connection may have ended before.
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

/// Promise: when the connection of the main node's agent to a data node breaks, the data node is
/// not lost as long as it replies to the main node. The agent opens another connection and
/// continues.
#[test]
fn the_agent_connects_anew_to_a_data_node_that_goes_on() {
    let secret = Secret::from_text("what all nodes of this pool know").expect("long enough");
    let connect = ConnectOptions {
        secret: Some(secret.clone()),
        ..ConnectOptions::default()
    };
    let mut listen = listen();
    listen.secret = Some(secret);
    let options = main_node_options(&connect, LOST_AFTER);
    let name = format!("newcomers-{}", std::process::id());
    let main_node = ShmNode::start_main_node(&name, SIZE_BYTES, None, options);
    let mut main_node = main_node.expect("a main node");
    let main_node_address = main_node.listen(&listen).expect("a port").to_string();
    let target = Arc::new(Mutex::new(None));
    let proxy = Proxy::start(Arc::clone(&target));
    // Chosen before the pool learns the proxy's address, because the data node's own port is not
    // known before.
    let port = Socket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    listen.address = port.local_addr().expect("it is bound");
    drop(port);
    *target.lock().expect("nobody panics") = Some(listen.address.to_string());
    let data_node = DataNode::start(&DataNodeOptions {
        name: "newcomers-data-node".to_owned(),
        size_bytes: SIZE_BYTES,
        listen,
        address: proxy.address.clone(),
        wanted: NodeId(0),
        main_node_address: main_node_address.clone(),
        connect: connect.clone(),
        verbs: None,
    });
    let data_node = data_node.expect("a data node");
    data_node.wait_until_joined().expect("it joins");
    for round in 0..2 {
        let address = format!("tcp:{main_node_address}");
        let pool = Pool::open_with(&address, &connect).expect("the pool");
        let session = pool.session().expect("a session");
        let table = session.create_table("t", &TableOptions::default());
        let records = (0..200_000).map(|number| (key(number), number));
        let table = table.expect("a table");
        table.bulk_load(records, |_| {}).expect("it fits");
        let data_nodes = || pool.nodes().expect("the main node is there")[1].clone();
        assert!(data_nodes().used_bytes > Some(0), "it is on both nodes");
        session.drop_table("t").expect("dropped");
        eventually("the agent frees what was dropped", || {
            data_nodes().used_bytes == Some(0)
        });
        assert_eq!(data_nodes().state, NodeState::Active, "round {round}");
        drop((table, session, pool));
        proxy.cut_all_but_the_first();
    }
}

/// Promise: if nothing moves leaves, a node does not begin to drain, and the error gives the
/// reason. (It drained forever.)
#[test]
fn nothing_drains_where_nothing_is_retrained() {
    let options = PoolOptions {
        fabric: EmbeddedFabric::Nodes { node_count: 2 },
        size_bytes: SIZE_BYTES,
        retrain_thread_count: 0,
        ..PoolOptions::default()
    };
    let pool = Pool::embedded(&options).expect("a pool");
    let refused = pool.set_node_state(1, NodeState::Draining);
    let refused = refused.expect_err("nobody moves leaves").to_string();
    assert!(refused.contains("--retrain-threads 0"), "{refused}");
    assert_eq!(pool.nodes().expect("nodes")[1].state, NodeState::Active);
}
