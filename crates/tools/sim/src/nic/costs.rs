//! Costs of a verb in each stage, as the queues need them.

use farleaf_fabric::{Verb, VerbKind};

use super::model::NetworkModel;
use super::queue::{Picos, picos};

/// Bytes of an atomic's request besides the headers: 28 bytes of `AtomicETH` in place of 16 of RETH
/// (InfiniBand Architecture Specification).
const ATOMIC_REQUEST_EXTRA_BYTES: u64 = 12;
/// Bytes of an atomic's reply besides the headers: the previous word.
const ATOMIC_RESPONSE_EXTRA_BYTES: u64 = 8;

/// Parameters of the model as the queues need them.
#[derive(Clone, Debug)]
pub(super) struct Costs {
    pub(super) verb: Picos,
    pub(super) atomic: Picos,
    pub(super) same_slot: Picos,
    pub(super) doorbell: Picos,
    pub(super) one_way: Picos,
    pub(super) loopback: Picos,
    pub(super) byte: f64,
    pub(super) processor: ProcessorCosts,
    pub(super) retrained_key_ns: f64,
    pub(super) mtu_bytes: u64,
    pub(super) request_header_bytes: u64,
    pub(super) response_header_bytes: u64,
}

/// Processor time of batches on a client thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProcessorCosts {
    pub(super) doorbell: Picos,
    pub(super) verb: Picos,
    pub(super) completion: Picos,
    pub(super) byte_read: f64,
}

impl Costs {
    pub(super) fn new(model: &NetworkModel) -> Self {
        let nic = &model.nic;
        let period = |rate_per_s: f64| picos(1e9 / rate_per_s);
        Self {
            verb: period(nic.verb_rate_per_s.value),
            atomic: period(nic.atomic_rate_per_s.value),
            same_slot: picos(nic.atomic_same_slot_ns.value),
            doorbell: picos(nic.doorbell_ns.value),
            one_way: picos(nic.one_way_ns.value),
            loopback: picos(model.memory.loopback_ns.value),
            // Bits per nanosecond are Gbit/s.
            byte: 8000.0 / nic.bandwidth_gbit_per_s.value,
            processor: ProcessorCosts {
                doorbell: picos(model.compute.doorbell_ns.value),
                verb: picos(model.compute.verb_ns.value),
                completion: picos(model.compute.completion_ns.value),
                byte_read: model.compute.checksum_ns_per_kib.value * 1000.0 / 1024.0,
            },
            retrained_key_ns: model.memory.retrain_ns_per_key.value,
            mtu_bytes: nic.mtu_bytes.value as u64,
            request_header_bytes: nic.request_header_bytes.value as u64,
            response_header_bytes: nic.response_header_bytes.value as u64,
        }
    }

    /// Returns the time from NIC to NIC, or of a loopback.
    pub(super) fn transit(&self, is_loopback: bool) -> Picos {
        if is_loopback {
            self.loopback
        } else {
            self.one_way
        }
    }

    #[inline]
    pub(super) fn wire(&self, bytes: u64) -> Picos {
        (bytes as f64 * self.byte) as Picos
    }

    fn packets(&self, payload_bytes: u64) -> u64 {
        payload_bytes.div_ceil(self.mtu_bytes).max(1)
    }

    pub(super) fn request_bytes(&self, verb: &Verb) -> u64 {
        let payload = u64::from(verb.word_count) * 8;
        match verb.kind {
            VerbKind::Read => self.request_header_bytes,
            VerbKind::Write => payload + self.packets(payload) * self.request_header_bytes,
            VerbKind::CompareSwap | VerbKind::FetchAdd => {
                self.request_header_bytes + ATOMIC_REQUEST_EXTRA_BYTES
            }
        }
    }

    pub(super) fn response_bytes(&self, verb: &Verb) -> u64 {
        let payload = u64::from(verb.word_count) * 8;
        match verb.kind {
            VerbKind::Read => payload + self.packets(payload) * self.response_header_bytes,
            VerbKind::Write => self.response_header_bytes,
            VerbKind::CompareSwap | VerbKind::FetchAdd => {
                self.response_header_bytes + ATOMIC_RESPONSE_EXTRA_BYTES
            }
        }
    }
}
