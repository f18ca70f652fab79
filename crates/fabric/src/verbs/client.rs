//! The client's side: a process's control connection to a memory node, and the queue pairs that it
//! opens for sessions.

use std::sync::Arc;
use std::time::Duration;

use farleaf_types::OwnerWord;
use thiserror::Error;

use crate::control::{Control, ControlError, SessionLife};
use crate::tcp::{Rights, TcpClient, TcpConnectOptions, TcpEndpoint};
use crate::verbs::buffers::Buffers;
use crate::verbs::connection::{Connection, Parts, RemoteRegion};
use crate::verbs::device::Device;
use crate::verbs::link::{OpenQueue, REQUEST_COUNT_MAX};
use crate::verbs::sys::{Access, Domain};
use crate::verbs::{VerbsEndpoint, VerbsError};

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
    control: TcpClient,
    device: Device,
    domain: Arc<Domain>,
    answer_time_max: Duration,
}

impl VerbsClient {
    /// Connects to the node at `HOST:PORT`, where it listens for control connections.
    ///
    /// # Errors
    /// This host has no device that fits the options; no node listens there, or it does not let
    /// this process in.
    pub fn connect(address: &str, options: &TcpConnectOptions) -> Result<Self, VerbsConnectError> {
        let device = Device::open(&options.verbs)?;
        let domain = Domain::new(&device.context)
            .map_err(|source| device.error("make a protection domain", source))?;
        Ok(Self {
            control: TcpClient::connect(address, options)?,
            device,
            domain,
            answer_time_max: options.answer_time_max,
        })
    }

    /// What its sessions may do. The card lets `Write` do all that `Admin` may do to memory.
    pub fn rights(&self) -> Rights {
        self.control.rights()
    }

    /// Size of the node's region, in bytes.
    pub fn region_size_bytes(&self) -> u64 {
        self.control.region_size_bytes()
    }

    /// A connection for the process as such, over TCP: it reads, and writes the words by which the
    /// process keeps its sessions alive.
    ///
    /// # Errors
    /// The node cannot be reached.
    pub fn process_endpoint(&self) -> Result<TcpEndpoint, ControlError> {
        self.control.endpoint(None)
    }

    /// Opens the queue pair of a session.
    ///
    /// # Errors
    /// The node cannot be reached, does not know the session, or serves no verbs; or a device has
    /// no queue pair left.
    pub fn endpoint(&self, owner: OwnerWord) -> Result<VerbsEndpoint, VerbsConnectError> {
        let device = &self.device;
        let open = OpenQueue::new(device, &self.domain, REQUEST_COUNT_MAX, Access::Local)?;
        let (lifeline, node) = self.control.open_queue(owner, open.own)?;
        let queue = open.connect(device, &node.parameters, self.answer_time_max)?;
        let connection = Connection::new(Parts {
            queue,
            buffers: Buffers::new(&self.domain),
            region: RemoteRegion {
                addr: node.region_addr,
                key: node.region_key,
                word_count: self.region_size_bytes() / 8,
            },
            may_change: self.rights() != Rights::Read,
            lifeline: Some(lifeline),
            message_size_bytes_max: device.status.message_size_bytes_max,
            answer_time_max: self.answer_time_max,
        });
        Ok(VerbsEndpoint::new([connection]))
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
