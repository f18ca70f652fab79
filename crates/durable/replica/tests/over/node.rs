//! A memory node that only has sessions.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use farleaf_base::{Incarnation, OwnerWord, SessionId};
use farleaf_fabric::mapped::MappedMemory;
use farleaf_fabric::tcp::{Grant, TcpConnectOptions, TcpListenOptions, TcpListener, TcpService};
use farleaf_fabric::verbs::VerbsNode;
use farleaf_fabric::{SessionService, StopSignal};
use farleaf_net::secret::{Rights, Secret};

fn secret() -> Secret {
    Secret::from_text("the secret of these tests").expect("long enough")
}

/// Returns the options of its clients.
pub(crate) fn connect_options() -> TcpConnectOptions {
    TcpConnectOptions {
        secret: Some(secret()),
        ..TcpConnectOptions::default()
    }
}

/// A memory node; dropping it fences its sessions (FABRIC-6).
pub(crate) struct Node {
    pub(crate) address: String,
    stop: StopSignal,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Node {
    /// Starts a node that listens on loopback. If there is a device, only the device serves the
    /// memory (FABRIC-4).
    pub(crate) fn start(memory: &Arc<MappedMemory>, device: Option<&Arc<VerbsNode>>) -> Self {
        let mut options = TcpListenOptions::at("127.0.0.1:0".parse().expect("an address"));
        options.secret = Some(secret());
        let mut listener = TcpListener::bind(memory, &options).expect("a free port");
        if let Some(device) = device {
            listener.offer_verbs(Arc::clone(device));
        }
        let address = listener.address().to_string();
        let stop = StopSignal::new().expect("a descriptor");
        let signal = stop.clone();
        let thread = thread::spawn(move || listener.run(&mut Sessions::default(), &signal));
        Self {
            address,
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop.stop();
        let served = self.thread.take().expect("dropped once").join();
        if !thread::panicking() {
            served.expect("no panic").expect("it could go on");
        }
    }
}

#[derive(Default)]
struct Sessions {
    alive: BTreeSet<u64>,
    count: u16,
}

impl SessionService for Sessions {
    fn register(&mut self, _pid: u32) -> Result<OwnerWord, String> {
        self.count += 1;
        let session = SessionId::new(self.count).ok_or("no session is left")?;
        let owner = OwnerWord::new(session, Incarnation::new(1));
        self.alive.insert(owner.word());
        Ok(owner)
    }

    fn fence(&mut self, owner: OwnerWord) {
        self.alive.remove(&owner.word());
    }

    fn process_of(&mut self, owner: OwnerWord) -> Option<u32> {
        self.alive.contains(&owner.word()).then_some(0)
    }
}

impl TcpService for Sessions {
    fn grant(&self, _rights: Rights) -> Grant {
        Grant::everything()
    }

    fn own_words(&self, _owner: OwnerWord) -> Range<u64> {
        0..0
    }
}
