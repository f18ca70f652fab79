//! Queue pairs of a device, and how two of them are connected.

use std::sync::Arc;
use std::time::Duration;

use crate::tcp::fill_randomly;
use crate::verbs::VerbsError;
use crate::verbs::device::{Device, mtu_bytes, mtu_number};
use crate::verbs::parameters::QueueParameters;
use crate::verbs::sys::{Access, Capacity, Domain, Peer, QueuePair};

/// Requests of a queue pair that posts; longer batches are posted in parts.
pub(super) const REQUEST_COUNT_MAX: u32 = 512;
/// WRITEs up to here go with the request, if the device can.
const INLINE_SIZE_BYTES_MAX: u32 = 128;
/// A lost packet is sent so many times more before the connection is given up. Soft-RoCE takes 7,
/// the most there is, for ever.
const RETRY_COUNT: u8 = 6;
/// 4.096 us, the unit of acknowledgement times, in nanoseconds.
const TIMEOUT_UNIT_NS: u128 = 4096;
const TIMEOUT_EXPONENTS: core::ops::RangeInclusive<u8> = 10..=20;

/// The acknowledgement time, as an exponent, with which a silent peer is given up after about a
/// quarter of `answer_time_max`, as cards may wait up to four times as long as they are told.
fn timeout_exponent(answer_time_max: Duration) -> u8 {
    let attempts_ns = u128::from(RETRY_COUNT + 1) * TIMEOUT_UNIT_NS;
    let (least, most) = (*TIMEOUT_EXPONENTS.start(), *TIMEOUT_EXPONENTS.end());
    let fits = |exponent: &u8| attempts_ns << exponent <= answer_time_max.as_nanos() / 4;
    (least..=most).rev().find(fits).unwrap_or(least)
}

/// A queue pair of a device, not connected yet, and what its peer must know of it.
#[derive(Debug)]
pub(super) struct OpenQueue {
    pub(super) queue: QueuePair,
    pub(super) own: QueueParameters,
}

impl OpenQueue {
    /// With room for so many requests of its own; the peer may do to this side's memory what
    /// `access` says.
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
            .map_err(|source| device.error("make a queue pair", source))?;
        let mut random = [0; 4];
        fill_randomly(&mut random)
            .map_err(|source| device.error("draw a packet's number", source))?;
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

    /// Connects it; a peer that does not answer is given up in `answer_time_max`.
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

    /// Promise: all attempts together, each up to four times as long as the card is told, end
    /// within the time that a node has to answer.
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
