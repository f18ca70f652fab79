//! A memory node that has only sessions, whose memory an RDMA device serves.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use farleaf_base::{Incarnation, OwnerWord, SessionId};
use farleaf_fabric::mapped::MappedMemory;
use farleaf_fabric::tcp::{Grant, TcpConnectOptions, TcpListenOptions, TcpListener, TcpService};
use farleaf_fabric::verbs::{VerbsClient, VerbsNode, VerbsOptions};
use farleaf_fabric::{SessionService, StopSignal};
use farleaf_net::secret::{Rights, Secret};
use farleaf_net::tls::TlsServer;

/// Returns the options of the clients' device.
pub(crate) fn client_options() -> VerbsOptions {
    VerbsOptions {
        device: std::env::var("FARLEAF_RDMA_DEVICE").ok(),
        ..VerbsOptions::default()
    }
}

/// Returns the options of the node's device.
pub(crate) fn node_options() -> VerbsOptions {
    let device = std::env::var("FARLEAF_TEST_NODE_RDMA_DEVICE").ok();
    VerbsOptions {
        device: device.or(client_options().device),
        ..VerbsOptions::default()
    }
}

/// Returns the reason why no device is available for tests, if there is none.
pub(crate) fn missing_device() -> Option<String> {
    let memory = Arc::new(MappedMemory::anonymous(1).expect("memory"));
    match VerbsNode::start(&memory, &VerbsOptions::default()) {
        Err(error) if error.is_missing() => Some(error.to_string()),
        _ => None,
    }
}

/// Sessions in a map.
#[derive(Default)]
pub(crate) struct Sessions {
    alive: BTreeMap<u64, u32>,
    registered_count: u16,
}

impl SessionService for Sessions {
    fn register(&mut self, pid: u32) -> Result<OwnerWord, String> {
        self.registered_count += 1;
        let session = SessionId::new(self.registered_count).expect("counted from 1");
        let owner = OwnerWord::new(session, Incarnation::new(7));
        self.alive.insert(owner.word(), pid);
        Ok(owner)
    }

    fn fence(&mut self, owner: OwnerWord) {
        let fenced = self.alive.remove(&owner.word());
        assert!(fenced.is_some(), "{owner} was fenced twice, or never was");
    }

    fn process_of(&mut self, owner: OwnerWord) -> Option<u32> {
        self.alive.get(&owner.word()).copied()
    }
}

impl TcpService for Sessions {
    fn grant(&self, _rights: Rights) -> Grant {
        Grant::everything()
    }

    fn own_words(&self, _owner: OwnerWord) -> Range<u64> {
        0..4
    }
}

/// A node that listens on loopback until it is dropped.
pub(crate) struct Node {
    pub(crate) address: String,
    pub(crate) memory: Arc<MappedMemory>,
    stop: StopSignal,
    thread: Option<JoinHandle<io::Result<()>>>,
}

fn secret() -> Secret {
    Secret::from_text("the secret of these tests").expect("long enough")
}

impl Node {
    pub(crate) fn start() -> Self {
        Self::start_with(None)
    }

    /// Starts a node that encrypts its connections if it has a certificate.
    pub(crate) fn start_with(tls: Option<TlsServer>) -> Self {
        let memory = Arc::new(MappedMemory::anonymous(1).expect("memory"));
        let verbs = VerbsNode::start(&memory, &node_options()).expect("the node's device");
        let mut options = TcpListenOptions::at("127.0.0.1:0".parse().expect("an address"));
        options.secret = Some(secret());
        options.tls = tls;
        let mut listener = TcpListener::bind(&memory, &options).expect("a free port");
        listener.offer_verbs(Arc::new(verbs));
        let address = listener.address().to_string();
        let stop = StopSignal::new().expect("a descriptor");
        let signal = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut sessions = Sessions::default();
            listener.run(&mut sessions, &signal)
        });
        Self {
            address,
            memory,
            stop,
            thread: Some(thread),
        }
    }

    /// Returns the options of a client with these rights, or all.
    pub(crate) fn connect_options(rights: Option<Rights>) -> TcpConnectOptions {
        TcpConnectOptions {
            secret: Some(secret()),
            rights,
            verbs: client_options(),
            ..TcpConnectOptions::default()
        }
    }

    /// Returns a client with these rights, or all.
    pub(crate) fn client(&self, rights: Option<Rights>) -> VerbsClient {
        let control = Self::connect_options(rights);
        VerbsClient::connect(&self.address, &control).expect("it listens")
    }

    /// Returns the current value of a word of the memory.
    pub(crate) fn word(&self, index: usize) -> u64 {
        self.memory.words()[index].load(Ordering::SeqCst)
    }
}

impl Drop for Node {
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
