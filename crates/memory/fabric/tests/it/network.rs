//! The conformance suite over `tcp`.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use farleaf_base::OwnerWord;
use farleaf_fabric::conformance::{Backend, Client, run_all, run_on_threads};
use farleaf_fabric::mapped::MappedMemory;
use farleaf_fabric::tcp::{
    Grant, TcpClient, TcpConnectOptions, TcpEndpoint, TcpListenOptions, TcpListener, TcpService,
};
use farleaf_fabric::{Control, StopSignal, WindowRegistry};
use farleaf_net::secret::{Rights, Secret};

use crate::node::Sessions;

/// Number of words that each session may write, in the order of session numbers, whatever its
/// rights.
const OWN_WORD_COUNT: u64 = 4;

impl TcpService for Sessions {
    fn grant(&self, rights: Rights) -> Grant {
        match rights {
            Rights::Read => Grant::nothing(),
            Rights::Write => Grant {
                open_from: 16 * 1024,
                open: Vec::new(),
            },
            Rights::Admin => Grant::everything(),
        }
    }

    fn own_words(&self, owner: OwnerWord) -> std::ops::Range<u64> {
        let number = owner
            .holder()
            .map_or(0, |(session, _)| u64::from(session.number()));
        number * OWN_WORD_COUNT..(number + 1) * OWN_WORD_COUNT
    }
}

/// A node that listens on loopback until it is dropped.
pub(crate) struct NetworkNode {
    pub(crate) address: String,
    pub(crate) memory: Arc<MappedMemory>,
    pub(crate) windows: Arc<WindowRegistry>,
    thread_id: i32,
    stop: StopSignal,
    thread: Option<JoinHandle<io::Result<()>>>,
}

/// Text of [`secret`].
pub(crate) const SECRET: &str = "the secret of these tests";

/// Returns the secret of the tests.
pub(crate) fn secret() -> Secret {
    Secret::from_text(SECRET).expect("long enough")
}

/// Connects to a node with the tests' [`secret`], with these rights, or all.
pub(crate) fn connect(address: &str, rights: Option<Rights>) -> TcpClient {
    let options = TcpConnectOptions {
        secret: Some(secret()),
        rights,
        ..TcpConnectOptions::default()
    };
    TcpClient::connect(address, &options).expect("it listens")
}

impl NetworkNode {
    pub(crate) fn start() -> Self {
        Self::start_with(|_| {})
    }

    pub(crate) fn start_with(change: impl FnOnce(&mut TcpListenOptions)) -> Self {
        let memory = Arc::new(MappedMemory::anonymous(1).expect("memory"));
        let mut options = TcpListenOptions::at("127.0.0.1:0".parse().expect("an address"));
        options.secret = Some(secret());
        change(&mut options);
        let mut listener = TcpListener::bind(&memory, &options).expect("a free port");
        let windows = Arc::<WindowRegistry>::default();
        listener.offer_windows(Arc::clone(&windows));
        let address = listener.address().to_string();
        let stop = StopSignal::new().expect("a descriptor");
        let signal = stop.clone();
        let mut sessions = Sessions::default();
        let (id_sender, id_receiver) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let id = rustix::thread::gettid().as_raw_nonzero().get();
            id_sender.send(id).expect("who started it waits");
            listener.run(&mut sessions, &signal)
        });
        let thread_id = id_receiver.recv().expect("it has started");
        Self {
            address,
            memory,
            windows,
            thread_id,
            stop,
            thread: Some(thread),
        }
    }

    pub(crate) fn client(&self) -> TcpClient {
        self.client_with(None)
    }

    /// Returns a client with these rights, or all.
    pub(crate) fn client_with(&self, rights: Option<Rights>) -> TcpClient {
        connect(&self.address, rights)
    }

    /// Returns the current value of a word of the memory.
    pub(crate) fn word(&self, index: usize) -> u64 {
        self.memory.words()[index].load(Ordering::SeqCst)
    }

    /// Returns the processor time of the thread that accepts and greets.
    pub(crate) fn listener_time(&self) -> Duration {
        let path = format!("/proc/self/task/{}/schedstat", self.thread_id);
        let text = std::fs::read_to_string(path).expect("the thread runs");
        let nanoseconds = text.split(' ').next().and_then(|text| text.parse().ok());
        Duration::from_nanos(nanoseconds.expect("a number"))
    }
}

impl Drop for NetworkNode {
    fn drop(&mut self) {
        self.stop.stop();
        let served = self.thread.take().expect("dropped once").join();
        if !std::thread::panicking() {
            served
                .expect("the node's thread panicked")
                .expect("the node could not go on");
        }
    }
}

/// Backend whose endpoints are data connections of sessions.
pub(crate) struct Connected {
    pub(crate) client: TcpClient,
    pub(crate) node: NetworkNode,
}

impl Connected {
    fn start() -> Self {
        let node = NetworkNode::start();
        let client = node.client();
        Self { client, node }
    }
}

impl Backend for Connected {
    type Endpoint = TcpEndpoint;

    fn memory_word_count(&self) -> u64 {
        self.node.memory.word_count()
    }

    fn run(&self, clients: Vec<Client<'_, TcpEndpoint>>) {
        let connect = || {
            let owner = self.client.register_session().expect("a session");
            self.client.endpoint(Some(owner)).expect("a connection")
        };
        run_on_threads(connect, clients);
    }
}

#[test]
fn tcp_keeps_the_contract() {
    run_all(Connected::start);
}
