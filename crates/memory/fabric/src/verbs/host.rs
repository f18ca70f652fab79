//! What this host posts verbs with: a device, and a protection domain for what they bring.

use std::sync::Arc;

use farleaf_types::OwnerWord;

use crate::tcp::{Rights, TcpClient};
use crate::verbs::buffers::Buffers;
use crate::verbs::client::VerbsConnectError;
use crate::verbs::connection::{Parts, RemoteRegion, VerbsConnection};
use crate::verbs::device::Device;
use crate::verbs::link::{OpenQueue, REQUEST_COUNT_MAX};
use crate::verbs::sys::{Access, Domain};
use crate::verbs::{VerbsError, VerbsOptions};

/// An open device of this host, and a protection domain of it. Nothing in the domain can be reached
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

    /// On a device that is open already.
    pub(super) fn on(device: &Arc<Device>) -> Result<Arc<Self>, VerbsError> {
        let domain = Domain::new(&device.context);
        let domain = domain.map_err(|source| device.error("make a protection domain", source))?;
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
        let (lifeline, node) = client.open_queue(owner, open.own)?;
        let answer_time_max = client.answer_time_max();
        let queue = open.connect(device, &node.parameters, answer_time_max)?;
        Ok(VerbsConnection::new(Parts {
            queue,
            buffers: Buffers::new(&self.domain),
            region: RemoteRegion {
                addr: node.region_addr,
                key: node.region_key,
                word_count: client.region_size_bytes() / 8,
            },
            may_change: client.rights() != Rights::Read,
            lifeline: Some(lifeline),
            message_size_bytes_max: device.status.message_size_bytes_max,
            answer_time_max,
        }))
    }
}
