//! The client's side: a process's control connection to a memory node, and the queue pairs that it
//! opens for sessions.

use std::sync::Arc;

use farleaf_types::OwnerWord;
use thiserror::Error;

use crate::control::{Control, ControlError, SessionLife};
use crate::network::{Home, NodeDirectory, Others};
use crate::tcp::{Rights, TcpClient, TcpConnectOptions};
use crate::verbs::{VerbsEndpoint, VerbsError, VerbsHost};

/// Why a pool cannot be reached by verbs.
#[derive(Debug, Error)]
pub enum VerbsConnectError {
    /// This host has no verbs, or not as was asked for.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The node cannot be reached, or said no.
    #[error(transparent)]
    Control(#[from] ControlError),
}

/// A process's connection to the memory node at an address, whose memory it reaches by verbs.
///
/// Sessions are registered, closed and fenced over TCP; so is the process's own work done, which
/// publishes for the sessions and has no atomics. Each session has a queue pair.
#[derive(Debug)]
pub struct VerbsClient {
    control: Arc<TcpClient>,
    host: Arc<VerbsHost>,
}

impl VerbsClient {
    /// Connects to the node at `HOST:PORT`, where it listens for control connections.
    ///
    /// # Errors
    /// This host has no device that fits the options; no node listens there, or it does not let
    /// this process in.
    pub fn connect(address: &str, options: &TcpConnectOptions) -> Result<Self, VerbsConnectError> {
        let host = VerbsHost::open(&options.verbs)?;
        let control = Arc::new(TcpClient::connect(address, options)?);
        Ok(Self { control, host })
    }

    /// [`connect`](Self::connect) to the home of the pool that the node at this address belongs to.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    pub fn connect_home(
        address: &str,
        options: &TcpConnectOptions,
    ) -> Result<Self, VerbsConnectError> {
        let mut client = Self::connect(address, options)?;
        if let Some(home) = client.control.home_address()? {
            client.control = Arc::new(TcpClient::connect(&home, options)?);
        }
        Ok(client)
    }

    /// [`connect`](Self::connect) to one of a pool's other nodes, which lets in the sessions that
    /// `home` has registered.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    pub fn connect_guest(
        address: &str,
        options: &TcpConnectOptions,
        home: &Self,
    ) -> Result<Self, VerbsConnectError> {
        let host = VerbsHost::open(&options.verbs)?;
        let control = TcpClient::connect(address, options)?;
        let control = Arc::new(control.with_sessions_of(&home.control));
        Ok(Self { control, host })
    }

    /// The control connection.
    pub fn control(&self) -> &Arc<TcpClient> {
        &self.control
    }

    /// What its sessions may do. The card lets `Write` do all that `Admin` may do to memory.
    pub fn rights(&self) -> Rights {
        self.control.rights()
    }

    /// Size of the node's region, in bytes.
    pub fn region_size_bytes(&self) -> u64 {
        self.control.region_size_bytes()
    }

    /// Opens the queue pair of a session.
    ///
    /// # Errors
    /// The node cannot be reached, does not know the session, or serves no verbs; or a device has
    /// no queue pair left.
    pub fn endpoint(&self, owner: OwnerWord) -> Result<VerbsEndpoint, VerbsConnectError> {
        let connection = self.host.connect(&self.control, owner)?;
        Ok(VerbsEndpoint::to_one(connection))
    }

    /// [`endpoint`](Self::endpoint) to this node, the pool's home, and to the others as they are
    /// needed: a queue pair for each.
    ///
    /// # Errors
    /// As for [`endpoint`](Self::endpoint).
    pub fn pool_endpoint(
        &self,
        owner: OwnerWord,
        nodes: Arc<dyn NodeDirectory>,
    ) -> Result<VerbsEndpoint, VerbsConnectError> {
        let home = Home::Connected(self.host.connect(&self.control, owner)?);
        let others = Others {
            directory: nodes,
            owner: Some(owner),
            means: Arc::clone(&self.host),
        };
        Ok(VerbsEndpoint::to_pool(home, others))
    }
}

impl Control for VerbsClient {
    fn register_session(&self) -> Result<OwnerWord, ControlError> {
        self.control.register_session()
    }

    fn close_session(&self, owner: OwnerWord) -> Result<(), ControlError> {
        self.control.close_session(owner)
    }

    fn session_life(&self, owner: OwnerWord) -> Result<SessionLife, ControlError> {
        self.control.session_life(owner)
    }

    fn give_up(&self) {
        self.control.give_up();
    }

    /// The node moves the session's queue pair to ERROR and destroys it.
    fn fence_session(
        &self,
        owner: OwnerWord,
        unresponsive: &mut dyn FnMut(SessionLife),
    ) -> Result<(), ControlError> {
        self.control.fence_session(owner, unresponsive)
    }
}
