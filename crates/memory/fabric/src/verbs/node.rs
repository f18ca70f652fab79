//! The node's side: its memory, registered with a device, and the queue pairs of its clients.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use farleaf_base::OwnerWord;
use farleaf_base::locks::lock;

use crate::mapped::MappedMemory;
use crate::network::{MainNode, NodeDirectory, OtherNodes};
use crate::verbs::buffers::Buffers;
use crate::verbs::connection::{Parts, RemoteMemory, VerbsConnection};
use crate::verbs::device::Device;
use crate::verbs::link::{OpenQueue, REQUEST_COUNT_MAX};
use crate::verbs::parameters::{NodeQueue, QueueParameters};
use crate::verbs::sys::{Access, Domain, QueuePair, RegisteredMemory};
use crate::verbs::{VerbsEndpoint, VerbsError, VerbsHost, VerbsOptions};

/// Time limit of the node's own verbs. They do not leave the host; the limit is for a dead device.
const LOOPBACK_TIME_MAX: Duration = Duration::from_secs(10);

/// A node's memory, registered for clients with certain rights.
#[derive(Debug)]
struct NodeRegistration {
    domain: Arc<Domain>,
    memory: RegisteredMemory,
}

/// A node's memory, registered completely with a device of this host.
///
/// Queue pairs with all rights and those for reading have different protection domains and keys, so
/// a reader cannot use a guessed key of writers.
#[derive(Debug)]
pub struct VerbsNode {
    device: Arc<Device>,
    memory: Arc<MappedMemory>,
    all: NodeRegistration,
    /// Registration for readers, created for the first one.
    readable: Mutex<Option<Arc<NodeRegistration>>>,
}

impl VerbsNode {
    /// Registers the memory; takes about a second for 4 GiB of ordinary pages.
    ///
    /// # Errors
    /// There is no device that fits the options, or it cannot register so much memory.
    pub fn start(memory: &Arc<MappedMemory>, options: &VerbsOptions) -> Result<Self, VerbsError> {
        let device = Arc::new(Device::open(options)?);
        let all = show(&device, memory, Access::All)?;
        Ok(Self {
            device,
            memory: Arc::clone(memory),
            all,
            readable: Mutex::default(),
        })
    }

    /// Returns an endpoint to the node's own memory, whose atomics are the device's (FABRIC-4).
    ///
    /// # Errors
    /// The device has no queue pair left.
    pub fn loopback(&self) -> Result<VerbsEndpoint, VerbsError> {
        Ok(VerbsEndpoint::to_one(self.own_queue()?))
    }

    /// Returns a [`loopback`](Self::loopback) endpoint of a pool's main node, which connects to the
    /// other nodes, as a session, when they are needed. So each node's words are changed by its own
    /// device.
    ///
    /// # Errors
    /// As for [`loopback`](Self::loopback).
    pub fn pool_endpoint(
        &self,
        owner: OwnerWord,
        nodes: Arc<dyn NodeDirectory>,
    ) -> Result<VerbsEndpoint, VerbsError> {
        let others = OtherNodes {
            directory: nodes,
            owner: Some(owner),
            resources: VerbsHost::on(&self.device)?,
        };
        let main_node = MainNode::Connected(self.own_queue()?);
        Ok(VerbsEndpoint::to_pool(main_node, others))
    }

    /// Returns a queue pair that is connected to itself.
    fn own_queue(&self) -> Result<VerbsConnection, VerbsError> {
        let (device, domain) = (&self.device, &self.all.domain);
        let open = OpenQueue::new(device, domain, REQUEST_COUNT_MAX, Access::All)?;
        let own = open.own;
        let queue = open.connect(device, &own, LOOPBACK_TIME_MAX)?;
        Ok(VerbsConnection::new(Parts {
            queue,
            buffers: Buffers::new(domain),
            memory: RemoteMemory {
                addr: self.all.memory.address(),
                key: self.all.memory.remote_key(),
                word_count: self.memory.word_count(),
            },
            may_change: true,
            queue_monitor: None,
            message_size_bytes_max: device.status.message_size_bytes_max,
            answer_time_max: LOOPBACK_TIME_MAX,
        }))
    }

    /// Returns a text that names the device and its settings.
    pub fn describe(&self) -> String {
        let device = &self.device;
        let gid = std::net::Ipv6Addr::from(device.gid);
        let (name, port, index) = (&device.name, device.port, device.gid_index);
        let mtu = crate::verbs::device::mtu_bytes(device.mtu_number);
        format!("{name} port {port}, GID {index} ({gid}), MTU {mtu}")
    }

    /// Connects a client's queue pair, which may change the memory or only read it.
    pub(crate) fn accept(
        &self,
        peer: &QueueParameters,
        may_change: bool,
        answer_time_max: Duration,
    ) -> Result<(ServedQueue, NodeQueue), VerbsError> {
        if may_change {
            return self.accept_in(&self.all, Access::All, peer, answer_time_max);
        }
        let mut readable = lock(&self.readable);
        let registration = if let Some(registration) = &*readable {
            Arc::clone(registration)
        } else {
            let registration = Arc::new(show(&self.device, &self.memory, Access::Read)?);
            Arc::clone(readable.insert(registration))
        };
        drop(readable);
        self.accept_in(&registration, Access::Read, peer, answer_time_max)
    }

    fn accept_in(
        &self,
        registration: &NodeRegistration,
        access: Access,
        peer: &QueueParameters,
        answer_time_max: Duration,
    ) -> Result<(ServedQueue, NodeQueue), VerbsError> {
        let open = OpenQueue::new(&self.device, &registration.domain, 1, access)?;
        let parameters = open.own;
        let queue = open.connect(&self.device, peer, answer_time_max)?;
        let answer = NodeQueue {
            parameters,
            memory_addr: registration.memory.address(),
            memory_key: registration.memory.remote_key(),
        };
        Ok((ServedQueue { queue }, answer))
    }
}

fn show(
    device: &Device,
    memory: &Arc<MappedMemory>,
    access: Access,
) -> Result<NodeRegistration, VerbsError> {
    let domain = Domain::new(&device.context)
        .map_err(|source| device.error("create a protection domain", source))?;
    let memory =
        RegisteredMemory::new(&domain, memory, access).map_err(|source| VerbsError::Memory {
            device: device.name.clone(),
            size_bytes: memory.word_count() * 8,
            source,
        })?;
    Ok(NodeRegistration { domain, memory })
}

/// The node's end of a client's queue pair.
#[derive(Debug)]
pub(crate) struct ServedQueue {
    queue: QueuePair,
}

impl ServedQueue {
    /// Ends the queue pair; returns when no verb of the client can take effect over it any more
    /// (FABRIC-6). In the state ERROR the device executes nothing that arrives, and destroying the
    /// queue pair waits for verbs in execution.
    pub(crate) fn end(mut self) {
        if let Err(error) = self.queue.stop() {
            tracing::error!(%error, "cannot move a queue pair to ERROR; destroying it");
        }
        let destroyed = self.queue.destroy();
        // Callers that learn of the fencing rely on it, and so do later owners of the session's
        // locks.
        assert!(
            destroyed.is_ok(),
            "a queue pair ends when it is destroyed: {destroyed:?}"
        );
    }
}
