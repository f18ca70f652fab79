//! Clients of pools of several nodes whose connection to a data node is cut, while the data node is
//! alive and the main node hears from it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use farleaf::{
    ConnectOptions, Error, ErrorKind, NodeInfo, NodeState, Pool, Table, TableOptions,
    retrain_policy,
};
use farleaf_base::NodeId;
use farleaf_net::secret::Secret;
use farleaf_node::{DataNode, DataNodeOptions, ShmNode, TcpListenOptions};

use crate::several_nodes::main_node_options;

/// Memory of each node in bytes.
const SIZE_BYTES: u64 = 48 << 20;
const RECORD_COUNT: u64 = 200_000;
/// Longer than a test takes.
const LOST_AFTER: Duration = Duration::from_mins(2);

/// Connection that the proxy forwards.
struct ProxiedConnection {
    client: TcpStream,
    node: TcpStream,
    /// Thread that ends when the node has closed its end.
    of_node: Option<JoinHandle<()>>,
}

impl ProxiedConnection {
    fn new(client: TcpStream, to: SocketAddr) -> Self {
        let node = TcpStream::connect(to).expect("the node listens");
        for socket in [&client, &node] {
            socket.set_nodelay(true).expect("a socket");
        }
        let twin = |socket: &TcpStream| socket.try_clone().expect("a descriptor");
        let (from, to) = (twin(&client), twin(&node));
        std::thread::spawn(move || carry(from, &to));
        let (from, to) = (twin(&node), twin(&client));
        let of_node = Some(std::thread::spawn(move || carry(from, &to)));
        Self {
            client,
            node,
            of_node,
        }
    }
}

/// Forwards bytes until one of both ends is closed.
fn carry(mut from: TcpStream, mut to: &TcpStream) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// Proxy between a data node and all its peers.
struct Proxy {
    address: SocketAddr,
    to: Arc<Mutex<Option<SocketAddr>>>,
    is_barred: Arc<AtomicBool>,
    carried: Arc<Mutex<Vec<ProxiedConnection>>>,
}

impl Proxy {
    fn new() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        let proxy = Self {
            address,
            to: Arc::default(),
            is_barred: Arc::default(),
            carried: Arc::default(),
        };
        let (to, is_barred) = (Arc::clone(&proxy.to), Arc::clone(&proxy.is_barred));
        let carried = Arc::clone(&proxy.carried);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let to = *to.lock().unwrap_or_else(PoisonError::into_inner);
                if let (Some(to), false) = (to, is_barred.load(Ordering::SeqCst)) {
                    let connection = ProxiedConnection::new(client, to);
                    let mut carried = carried.lock().unwrap_or_else(PoisonError::into_inner);
                    carried.push(connection);
                }
            }
        });
        proxy
    }

    fn carried_count(&self) -> usize {
        self.carried.lock().expect("no panic").len()
    }

    /// Cuts a connection; the node has noticed when this returns.
    fn cut(&self, index: usize) {
        let mut carried = self.carried.lock().expect("no panic");
        let connection = &mut carried[index];
        connection.node.shutdown(Shutdown::Write).expect("open");
        let of_node = connection.of_node.take().expect("not cut before");
        of_node.join().expect("no panic");
        // The client may have noticed already.
        let _ = connection.client.shutdown(Shutdown::Both);
    }
}

/// Main node, and a data node behind a proxy.
struct MainAndDataNode {
    _data_node: DataNode,
    _main_node: ShmNode,
    address: String,
    connect: ConnectOptions,
    proxy: Proxy,
}

impl MainAndDataNode {
    fn start(name: &str) -> Self {
        // A secret that the nodes created themselves would be stored under the port at which they
        // listen.
        let (secret, _) = Secret::random().expect("random bytes");
        let connect = ConnectOptions {
            secret: Some(secret.clone()),
            ..ConnectOptions::default()
        };
        let mut listen = TcpListenOptions::at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        listen.secret = Some(secret);
        let options = main_node_options(&connect, LOST_AFTER);
        let name = format!("cut-off-{name}-{}", std::process::id());
        // Nothing changes by itself, so the main node's agent has no reason to connect.
        let retraining = retrain_policy(0).expect("there is one");
        let main_node = ShmNode::start_main_node(&name, SIZE_BYTES, retraining, options);
        let mut main_node = main_node.expect("a main node");
        let address = main_node.listen(&listen).expect("a port").to_string();
        let proxy = Proxy::new();
        let options = DataNodeOptions {
            name: format!("{name}-data-node"),
            size_bytes: SIZE_BYTES,
            listen,
            address: proxy.address.to_string(),
            wanted: NodeId(0),
            main_node_address: address.clone(),
            connect: connect.clone(),
            verbs: None,
        };
        let data_node = DataNode::start(&options).expect("a data node");
        *proxy.to.lock().expect("no panic") = Some(data_node.network_address());
        data_node.wait_until_joined().expect("it joins");
        let scene = Self {
            _data_node: data_node,
            _main_node: main_node,
            address,
            connect,
            proxy,
        };
        let pool = scene.open();
        let until = Instant::now() + Duration::from_mins(1);
        while pool.nodes().expect("the main node is there").len() < 2 {
            assert!(Instant::now() < until, "it joins");
            std::thread::sleep(Duration::from_millis(20));
        }
        scene
    }

    fn open(&self) -> Pool {
        let pool = Pool::open_with(&format!("tcp:{}", self.address), &self.connect);
        pool.expect("the pool")
    }
}

fn key(number: u64) -> u64 {
    number * 10 + (number / 1000) * (number / 1000) * 40
}

/// Returns the first error of gets of some of the records.
fn first_failure(table: &Table) -> Option<Error> {
    let mut numbers = (0..RECORD_COUNT).step_by(997);
    numbers.find_map(|number| match table.get(key(number)) {
        Ok(found) => {
            assert_eq!(found, Some(number), "no answer is made up");
            None
        }
        Err(error) => Some(error),
    })
}

/// Promise: a process whose control connection to a live data node has ended logs in there again,
/// for new sessions and for itself. Sessions that used the data node are broken, and no node is
/// lost. (The data node did not know the process any more, which used the old ticket forever.)
#[test]
fn a_data_node_is_logged_in_to_again() {
    let scene = MainAndDataNode::start("login");
    let pool = scene.open();
    let early = pool.session().expect("a session");
    let control = scene.proxy.carried_count();
    pool.nodes().expect("both are there");
    let carried_count = scene.proxy.carried_count();
    // One to read its memory's layout, one to read its chunks.
    assert_eq!(carried_count, control + 3, "and two to look");
    scene.proxy.cut(control);
    let nodes = pool.nodes().expect("both are there");
    assert_eq!(nodes[1].used_bytes, Some(0), "it can be looked at");
    let carried_count = scene.proxy.carried_count();
    assert_eq!(carried_count, control + 7, "one is refused, three are not");
    let control = control + 4;
    let table = early.create_table("t", &TableOptions::default());
    let table = table.expect("a table");
    let records = (0..RECORD_COUNT).map(|number| (key(number), number));
    table.bulk_load(records, |_| {}).expect("it fits");
    assert!(first_failure(&table).is_none());
    let nodes = pool.nodes().expect("both are there");
    assert!(nodes[1].used_bytes > Some(0), "{nodes:?}");
    scene.proxy.cut(control);
    let failure = first_failure(&table).expect("its connection has ended, too");
    assert!(
        !matches!(failure.kind(), ErrorKind::NodeLost { .. }),
        "{failure:?}"
    );
    let late = pool.session().expect("a session");
    let table = late.open_table("t").expect("the table");
    assert!(first_failure(&table).is_none());
    // After a new login, another session does not end the process's connections.
    let before = scene.proxy.carried_count();
    let other = pool.session().expect("a session");
    let other = other.open_table("t").expect("the table");
    assert!(first_failure(&other).is_none());
    assert_eq!(scene.proxy.carried_count(), before + 1, "its own one");
    assert!(first_failure(&table).is_none());
}

/// Promise: the nodes of a pool are listed with what is known, although one cannot be reached from
/// here. (Listing failed.)
#[test]
fn nodes_are_listed_though_one_cannot_be_reached() {
    let scene = MainAndDataNode::start("listed");
    let known = scene.open();
    let before = known.nodes().expect("both are there");
    assert!(before.iter().all(|node| node.used_bytes.is_some()));
    scene.proxy.is_barred.store(true, Ordering::SeqCst);
    for pool in [known, scene.open()] {
        let nodes = pool.nodes().expect("the main node is there");
        assert_eq!(nodes[0], before[0]);
        let unreached = NodeInfo {
            used_bytes: None,
            ..before[1].clone()
        };
        assert_eq!(nodes[1..], [unreached]);
        assert_eq!(
            nodes[1].state,
            NodeState::Active,
            "the main node hears from it"
        );
        scene.proxy.is_barred.store(false, Ordering::SeqCst);
        assert_eq!(pool.nodes().expect("both are there"), before);
        scene.proxy.is_barred.store(true, Ordering::SeqCst);
    }
}
