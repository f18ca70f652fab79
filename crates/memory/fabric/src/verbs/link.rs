//! Queue pairs of a device, and their connection.

use std::sync::Arc;
use std::time::Duration;

use crate::verbs::VerbsError;
use crate::verbs::device::{Device, mtu_bytes, mtu_number};
use crate::verbs::parameters::QueueParameters;
use crate::verbs::sys::{Access, Capacity, Domain, Peer, QueuePair};
use farleaf_net::secret::fill_randomly;

/// Size of the send queue in requests; longer batches are posted in parts.
pub(super) const REQUEST_COUNT_MAX: u32 = 512;
/// Largest WRITE in bytes that is sent inline with its request, if the device supports that.
const INLINE_SIZE_BYTES_MAX: u32 = 128;
/// Number of retransmissions of a packet before the connection is given up. Soft-RoCE treats 7, the
/// maximum, as unlimited.
const RETRY_COUNT: u8 = 6;
/// Unit of acknowledgment times in nanoseconds (4.096 us).
const TIMEOUT_UNIT_NS: u128 = 4096;
const TIMEOUT_EXPONENTS: core::ops::RangeInclusive<u8> = 10..=20;

/// Returns the exponent of the acknowledgment time with which a silent peer is given up after about
/// a quarter of `answer_time_max`. Cards may wait up to four times the configured time.
fn timeout_exponent(answer_time_max: Duration) -> u8 {
    let attempts_ns = u128::from(RETRY_COUNT + 1) * TIMEOUT_UNIT_NS;
    let (least, most) = (*TIMEOUT_EXPONENTS.start(), *TIMEOUT_EXPONENTS.end());
    let fits = |exponent: &u8| attempts_ns << exponent <= answer_time_max.as_nanos() / 4;
    (least..=most).rev().find(fits).unwrap_or(least)
}

/// A queue pair that is not connected yet, with the parameters for its peer.
#[derive(Debug)]
pub(super) struct OpenQueue {
    pub(super) queue: QueuePair,
    pub(super) own: QueueParameters,
}

impl OpenQueue {
    /// Creates a queue pair for `request_count` own requests. `access` limits the peer's verbs on
    /// this side's memory.
    pub(super) fn new(
        device: &Device,
        domain: &Arc<Domain>,
        request_count: u32,
        access: Access,
    ) -> Result<Self, VerbsError> {
        let wanted = Capacity {
            request_count: request_count.clamp(1, device.limits.request_count_max.max(1)),
            inline_size_bytes: if request_count > 1 {
                INLINE_SIZE_BYTES_MAX
            } else {
                0
            },
        };
        let queue = QueuePair::new(domain, device.port, wanted, access)
            .map_err(|source| device.error("create a queue pair", source))?;
        let mut random = [0; 4];
        fill_randomly(&mut random)
            .map_err(|source| device.error("generate a packet sequence number", source))?;
        let own = QueueParameters {
            number: queue.number(),
            first_packet: u32::from_le_bytes(random) & 0xFF_FFFF,
            mtu_bytes: mtu_bytes(device.mtu_number),
            answered_reads_max: device.limits.answered_reads_max.max(1),
            lid: device.status.lid,
            gid: device.gid,
        };
        Ok(Self { queue, own })
    }

    /// Connects the queue pair; a peer that does not reply is given up within `answer_time_max`.
    pub(super) fn connect(
        mut self,
        device: &Device,
        peer: &QueueParameters,
        answer_time_max: Duration,
    ) -> Result<QueuePair, VerbsError> {
        let peer_mtu_number = mtu_number(peer.mtu_bytes).unwrap_or(device.mtu_number);
        let peer = Peer {
            number: peer.number,
            gid: peer.gid,
            lid: peer.lid,
            first_packet: peer.first_packet,
            own_first_packet: self.own.first_packet,
            own_port: device.port,
            own_gid_index: device.gid_index,
            mtu_number: device.mtu_number.min(peer_mtu_number),
            started_reads_max: (device.limits.started_reads_max.max(1))
                .min(peer.answered_reads_max),
            answered_reads_max: self.own.answered_reads_max,
            timeout_exponent: timeout_exponent(answer_time_max),
            retry_count: RETRY_COUNT,
        };
        self.queue
            .connect(&peer)
            .map_err(|source| device.error("connect a queue pair", source))?;
        Ok(self.queue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: all attempts together, each up to four times the configured time, end within the
    /// time that a node has for a reply.
    #[test]
    fn a_silent_peer_is_given_up_in_time() {
        for seconds in [1, 10, 60] {
            let time = Duration::from_secs(seconds);
            let exponent = timeout_exponent(time);
            let attempts_ns = u128::from(RETRY_COUNT + 1) * TIMEOUT_UNIT_NS << exponent;
            assert!(
                attempts_ns * 4 <= time.as_nanos(),
                "{seconds} s: {exponent}"
            );
        }
        assert_eq!(timeout_exponent(Duration::from_secs(10)), 16);
        assert_eq!(timeout_exponent(Duration::ZERO), 10);
    }
}
