//! The client's side: a process's control connection to a memory node, and the queue pairs that it
//! opens for sessions.

use std::sync::Arc;

use farleaf_base::OwnerWord;
use thiserror::Error;

use crate::control::{Control, ControlError, SessionLife};
use crate::network::{MainNode, NodeDirectory, OtherNodes};
use crate::tcp::{TcpClient, TcpConnectOptions};
use crate::verbs::{VerbsEndpoint, VerbsError, VerbsHost};
use farleaf_net::secret::Rights;

/// Reason why a pool cannot be reached by verbs.
#[derive(Debug, Error)]
pub enum VerbsConnectError {
    /// This host has no verbs, or not with the given options.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The node cannot be reached, or refused.
    #[error(transparent)]
    Control(#[from] ControlError),
}

/// Connection of a process to the memory node at an address, whose memory it accesses by verbs.
///
/// Sessions are registered, closed and fenced over TCP. The process's own work, which publishes
/// progress for its sessions and uses no atomics, also uses TCP. Each session has a queue pair.
#[derive(Debug)]
pub struct VerbsClient {
    control: Arc<TcpClient>,
    host: Arc<VerbsHost>,
}

impl VerbsClient {
    /// Connects to the node at `HOST:PORT`, where it listens for control connections.
    ///
    /// # Errors
    /// This host has no device that fits the options, no node listens there, or the node refuses
    /// this process.
    pub fn connect(address: &str, options: &TcpConnectOptions) -> Result<Self, VerbsConnectError> {
        let host = VerbsHost::open(&options.verbs)?;
        let control = Arc::new(TcpClient::connect(address, options)?);
        Ok(Self { control, host })
    }

    /// Connects to the main node of the pool that the node at this address belongs to, as
    /// [`connect`](Self::connect) does.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    pub fn connect_main_node(
        address: &str,
        options: &TcpConnectOptions,
    ) -> Result<Self, VerbsConnectError> {
        let mut client = Self::connect(address, options)?;
        if let Some(main_node) = client.control.main_node_address()? {
            client.control = Arc::new(TcpClient::connect(&main_node, options)?);
        }
        Ok(client)
    }

    /// Connects to a further node of a pool, as [`connect`](Self::connect) does. The node admits
    /// the sessions that `main_node` has registered.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    pub fn connect_data_node(
        address: &str,
        options: &TcpConnectOptions,
        main_node: &Self,
    ) -> Result<Self, VerbsConnectError> {
        let host = VerbsHost::open(&options.verbs)?;
        let control = TcpClient::connect(address, options)?;
        let control = Arc::new(control.with_sessions_of(&main_node.control));
        Ok(Self { control, host })
    }

    /// Returns the control connection.
    pub fn control(&self) -> &Arc<TcpClient> {
        &self.control
    }

    /// Returns the rights of the sessions. On memory, the card allows `Write` everything that it
    /// allows `Admin`.
    pub fn rights(&self) -> Rights {
        self.control.rights()
    }

    /// Returns the size of the node's memory in bytes.
    pub fn memory_size_bytes(&self) -> u64 {
        self.control.memory_size_bytes()
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

    /// Opens an [`endpoint`](Self::endpoint) to this node, the pool's main node, which opens a
    /// queue pair to each other node when it is needed.
    ///
    /// # Errors
    /// As for [`endpoint`](Self::endpoint).
    pub fn pool_endpoint(
        &self,
        owner: OwnerWord,
        nodes: Arc<dyn NodeDirectory>,
    ) -> Result<VerbsEndpoint, VerbsConnectError> {
        let main_node = MainNode::Connected(self.host.connect(&self.control, owner)?);
        let others = OtherNodes {
            directory: nodes,
            owner: Some(owner),
            resources: Arc::clone(&self.host),
        };
        Ok(VerbsEndpoint::to_pool(main_node, others))
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

    /// Asks the node to move the session's queue pair to ERROR and destroy it.
    fn fence_session(
        &self,
        owner: OwnerWord,
        unresponsive: &mut dyn FnMut(SessionLife),
    ) -> Result<(), ControlError> {
        self.control.fence_session(owner, unresponsive)
    }
}
