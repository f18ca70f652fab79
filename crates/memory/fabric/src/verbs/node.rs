//! The node's side: its memory, registered with a device, and the queue pairs of its clients.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use farleaf_types::OwnerWord;

use crate::mapped::MappedRegion;
use crate::network::{Home, NodeDirectory, Others};
use crate::verbs::buffers::Buffers;
use crate::verbs::connection::{Parts, RemoteRegion, VerbsConnection};
use crate::verbs::device::Device;
use crate::verbs::link::{OpenQueue, REQUEST_COUNT_MAX};
use crate::verbs::parameters::{NodeQueue, QueueParameters};
use crate::verbs::sys::{Access, Domain, QueuePair, RegisteredMemory};
use crate::verbs::{VerbsEndpoint, VerbsError, VerbsHost, VerbsOptions};

/// The node's own verbs go nowhere; this is for a device that has died.
const LOOPBACK_TIME_MAX: Duration = Duration::from_secs(10);

/// A region that a device knows, for clients with certain rights.
#[derive(Debug)]
struct Shown {
    domain: Arc<Domain>,
    memory: RegisteredMemory,
}

/// A region, registered whole with a device of this host.
///
/// Queue pairs with all rights and those that may only read have different protection domains and
/// keys, so that a reader does not get further with a key that it has guessed.
#[derive(Debug)]
pub struct VerbsNode {
    device: Arc<Device>,
    region: Arc<MappedRegion>,
    all: Shown,
    /// Made for the first reader.
    readable: Mutex<Option<Arc<Shown>>>,
}

impl VerbsNode {
    /// Registers the region; takes about a second for 4 GiB of ordinary pages.
    ///
    /// # Errors
    /// There is no device that fits the options, or it cannot register so much.
    pub fn start(region: &Arc<MappedRegion>, options: &VerbsOptions) -> Result<Self, VerbsError> {
        let device = Arc::new(Device::open(options)?);
        let all = show(&device, region, Access::All)?;
        Ok(Self {
            device,
            region: Arc::clone(region),
            all,
            readable: Mutex::default(),
        })
    }

    /// F4: an endpoint to the node's own memory, whose atomics are the device's.
    ///
    /// # Errors
    /// The device has no queue pair left.
    pub fn loopback(&self) -> Result<VerbsEndpoint, VerbsError> {
        Ok(VerbsEndpoint::to_one(self.own_queue()?))
    }

    /// [`loopback`](Self::loopback) at the home of a pool, and in the name of a session to the
    /// other nodes as they are needed: everybody's words are changed by their own devices.
    ///
    /// # Errors
    /// As for [`loopback`](Self::loopback).
    pub fn pool_endpoint(
        &self,
        owner: OwnerWord,
        nodes: Arc<dyn NodeDirectory>,
    ) -> Result<VerbsEndpoint, VerbsError> {
        let others = Others {
            directory: nodes,
            owner: Some(owner),
            means: VerbsHost::on(&self.device)?,
        };
        let home = Home::Connected(self.own_queue()?);
        Ok(VerbsEndpoint::to_pool(home, others))
    }

    /// A queue pair that is connected to itself.
    fn own_queue(&self) -> Result<VerbsConnection, VerbsError> {
        let (device, domain) = (&self.device, &self.all.domain);
        let open = OpenQueue::new(device, domain, REQUEST_COUNT_MAX, Access::All)?;
        let own = open.own;
        let queue = open.connect(device, &own, LOOPBACK_TIME_MAX)?;
        Ok(VerbsConnection::new(Parts {
            queue,
            buffers: Buffers::new(domain),
            region: RemoteRegion {
                addr: self.all.memory.address(),
                key: self.all.memory.remote_key(),
                word_count: self.region.word_count(),
            },
            may_change: true,
            lifeline: None,
            message_size_bytes_max: device.status.message_size_bytes_max,
            answer_time_max: LOOPBACK_TIME_MAX,
        }))
    }

    /// A text that names what is used.
    pub fn describe(&self) -> String {
        let device = &self.device;
        let gid = std::net::Ipv6Addr::from(device.gid);
        let (name, port, index) = (&device.name, device.port, device.gid_index);
        let mtu = crate::verbs::device::mtu_bytes(device.mtu_number);
        format!("{name} port {port}, GID {index} ({gid}), MTU {mtu}")
    }

    /// Connects a client's queue pair, which may change the region or only read it.
    pub(crate) fn accept(
        &self,
        peer: &QueueParameters,
        may_change: bool,
        answer_time_max: Duration,
    ) -> Result<(ServedQueue, NodeQueue), VerbsError> {
        if may_change {
            return self.accept_in(&self.all, Access::All, peer, answer_time_max);
        }
        let mut readable = self.readable.lock().unwrap_or_else(PoisonError::into_inner);
        let shown = if let Some(shown) = &*readable {
            Arc::clone(shown)
        } else {
            let shown = Arc::new(show(&self.device, &self.region, Access::Read)?);
            Arc::clone(readable.insert(shown))
        };
        drop(readable);
        self.accept_in(&shown, Access::Read, peer, answer_time_max)
    }

    fn accept_in(
        &self,
        shown: &Shown,
        access: Access,
        peer: &QueueParameters,
        answer_time_max: Duration,
    ) -> Result<(ServedQueue, NodeQueue), VerbsError> {
        let open = OpenQueue::new(&self.device, &shown.domain, 1, access)?;
        let parameters = open.own;
        let queue = open.connect(&self.device, peer, answer_time_max)?;
        let answer = NodeQueue {
            parameters,
            region_addr: shown.memory.address(),
            region_key: shown.memory.remote_key(),
        };
        Ok((ServedQueue { queue }, answer))
    }
}

fn show(device: &Device, region: &Arc<MappedRegion>, access: Access) -> Result<Shown, VerbsError> {
    let domain = Domain::new(&device.context)
        .map_err(|source| device.error("make a protection domain", source))?;
    let memory =
        RegisteredMemory::new(&domain, region, access).map_err(|source| VerbsError::Memory {
            device: device.name.clone(),
            size_bytes: region.word_count() * 8,
            source,
        })?;
    Ok(Shown { domain, memory })
}

/// The node's end of a client's connection.
#[derive(Debug)]
pub(crate) struct ServedQueue {
    queue: QueuePair,
}

impl ServedQueue {
    /// F6: returns when no verb of the client can take effect over it any more. In the state ERROR
    /// the device executes nothing that comes; destroying the queue pair waits for what it was
    /// executing.
    pub(crate) fn end(mut self) {
        if let Err(error) = self.queue.stop() {
            tracing::error!(%error, "cannot move a queue pair to ERROR; it is destroyed");
        }
        let destroyed = self.queue.destroy();
        // Who is told that the session is fenced relies on it, and who gets its locks next.
        assert!(
            destroyed.is_ok(),
            "a queue pair ends when it is destroyed: {destroyed:?}"
        );
    }
}
