//! A client's resources for posting verbs: a device, and a protection domain for results.

use std::sync::Arc;

use farleaf_base::OwnerWord;

use crate::tcp::TcpClient;
use crate::verbs::buffers::Buffers;
use crate::verbs::client::VerbsConnectError;
use crate::verbs::connection::{Parts, RemoteMemory, VerbsConnection};
use crate::verbs::device::Device;
use crate::verbs::link::{OpenQueue, REQUEST_COUNT_MAX};
use crate::verbs::sys::{Access, Domain};
use crate::verbs::{VerbsError, VerbsOptions};
use farleaf_net::secret::Rights;

/// An open device of this host with a protection domain. Memory in the domain cannot be accessed
/// from outside.
#[derive(Debug)]
pub struct VerbsHost {
    device: Arc<Device>,
    domain: Arc<Domain>,
}

impl VerbsHost {
    pub(super) fn open(options: &VerbsOptions) -> Result<Arc<Self>, VerbsError> {
        Self::on(&Arc::new(Device::open(options)?))
    }

    /// Uses a device that is already open.
    pub(super) fn on(device: &Arc<Device>) -> Result<Arc<Self>, VerbsError> {
        let domain = Domain::new(&device.context);
        let domain = domain.map_err(|source| device.error("create a protection domain", source))?;
        let device = Arc::clone(device);
        Ok(Arc::new(Self { device, domain }))
    }

    /// Opens a session's queue pair to the node that a client is connected to.
    pub(super) fn connect(
        &self,
        client: &TcpClient,
        owner: OwnerWord,
    ) -> Result<VerbsConnection, VerbsConnectError> {
        let device = &self.device;
        let open = OpenQueue::new(device, &self.domain, REQUEST_COUNT_MAX, Access::Local)?;
        let (queue_monitor, node) = client.open_queue(owner, open.own)?;
        let answer_time_max = client.answer_time_max();
        let queue = open.connect(device, &node.parameters, answer_time_max)?;
        Ok(VerbsConnection::new(Parts {
            queue,
            buffers: Buffers::new(&self.domain),
            memory: RemoteMemory {
                addr: node.memory_addr,
                key: node.memory_key,
                word_count: client.memory_size_bytes() / 8,
            },
            may_change: client.rights() != Rights::Read,
            queue_monitor: Some(queue_monitor),
            message_size_bytes_max: device.status.message_size_bytes_max,
            answer_time_max,
        }))
    }
}
