//! Memory nodes of the servers on loopback, and connections to them.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use farleaf_base::{Incarnation, OwnerWord, SessionId};
use farleaf_fabric::mapped::MappedMemory;
use farleaf_fabric::tcp::{
    Grant, TcpClient, TcpConnectOptions, TcpEndpoint, TcpListenOptions, TcpListener, TcpService,
};
use farleaf_fabric::{Control, SessionService, StopSignal};
use farleaf_net::secret::{Rights, Secret};

use super::error::ReplicationError;

/// Server's memory on loopback, until it is dropped; with a connection to it.
pub(super) struct Node {
    client: TcpClient,
    stop: StopSignal,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Node {
    pub(super) fn start(memory: &Arc<MappedMemory>) -> Result<Self, ReplicationError> {
        let failed = |error: &dyn std::fmt::Display| ReplicationError::Network(error.to_string());
        let (secret, _) = Secret::random().map_err(|error| failed(&error))?;
        let address = "127.0.0.1:0".parse().expect("an address");
        let mut options = TcpListenOptions::at(address);
        options.secret = Some(secret.clone());
        let listener = TcpListener::bind(memory, &options)?;
        let address = listener.address().to_string();
        let stop = StopSignal::new().map_err(|error| failed(&error))?;
        let signal = stop.clone();
        let thread = thread::Builder::new()
            .spawn(move || listener.run(&mut Sessions::default(), &signal))
            .map_err(|error| failed(&error))?;
        let options = TcpConnectOptions {
            secret: Some(secret),
            ..TcpConnectOptions::default()
        };
        let connected = TcpClient::connect(&address, &options);
        let client = match connected {
            Ok(client) => client,
            Err(error) => {
                stop.stop();
                // Its result does not matter here.
                let _ = thread.join();
                return Err(failed(&error));
            }
        };
        Ok(Self {
            client,
            stop,
            thread: Some(thread),
        })
    }

    /// Returns the endpoint of a session on the node.
    pub(super) fn open_endpoint(&self) -> Result<TcpEndpoint, ReplicationError> {
        let open_endpoint = || {
            let owner = self.client.register_session()?;
            self.client.endpoint(Some(owner))
        };
        open_endpoint().map_err(|error| ReplicationError::Network(error.to_string()))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            // The node is no longer used: however the thread ends, nothing is lost.
            let _ = thread.join();
        }
    }
}

/// Sessions of the other server.
#[derive(Debug, Default)]
struct Sessions {
    alive: BTreeSet<u64>,
    count: u16,
}

impl SessionService for Sessions {
    fn register(&mut self, _pid: u32) -> Result<OwnerWord, String> {
        let session = self.count.checked_add(1).and_then(SessionId::new);
        let session = session.ok_or("no session is left")?;
        self.count += 1;
        let owner = OwnerWord::new(session, Incarnation::new(1));
        self.alive.insert(owner.word());
        Ok(owner)
    }

    fn fence(&mut self, owner: OwnerWord) {
        self.alive.remove(&owner.word());
    }

    fn process_of(&mut self, owner: OwnerWord) -> Option<u32> {
        self.alive.contains(&owner.word()).then(std::process::id)
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
