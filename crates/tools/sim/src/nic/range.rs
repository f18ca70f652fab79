//! Permitted values of a model's parameters.

use super::model::{ComputeNodes, MemoryNodes, ModelError, NetworkModel, NicParameters, Parameter};

/// Maximal number of client threads of a compute node.
pub const THREADS_PER_NODE_MAX: usize = 256;

/// Permitted values of a parameter.
#[derive(Clone, Copy)]
pub(super) enum Range {
    /// Integers in a range.
    Count(f64, f64),
    /// Numbers in a range.
    Amount(f64, f64),
}

/// Parameter with its key and its permitted values.
pub(super) type Ranged<'a> = (&'static str, &'a Parameter, Range);

impl NetworkModel {
    /// Returns every parameter with its permitted values.
    pub(super) fn ranges(&self) -> Vec<Ranged<'_>> {
        let machines = self.compute.ranges().into_iter();
        let machines = machines.chain(self.memory.ranges());
        machines.chain(self.nic.ranges()).collect()
    }
}

/// Permitted numbers of machines of a kind.
const MACHINES: Range = Range::Count(1.0, 64.0);
/// Permitted numbers of NICs of a machine.
const NICS: Range = Range::Count(1.0, 8.0);
const NANOS: Range = Range::Amount(0.0, 1e6);

impl ComputeNodes {
    fn ranges(&self) -> [Ranged<'_>; 10] {
        let backoff_min = self.backoff_turn_ns_min.value.clamp(1.0, 1e6);
        [
            ("compute.node_count", &self.node_count, MACHINES),
            ("compute.nics_per_node", &self.nics_per_node, NICS),
            (
                "compute.threads_per_node",
                &self.threads_per_node,
                Range::Count(1.0, THREADS_PER_NODE_MAX as f64),
            ),
            ("compute.operation_ns", &self.operation_ns, NANOS),
            ("compute.doorbell_ns", &self.doorbell_ns, NANOS),
            ("compute.completion_ns", &self.completion_ns, NANOS),
            ("compute.verb_ns", &self.verb_ns, NANOS),
            (
                "compute.checksum_ns_per_kib",
                &self.checksum_ns_per_kib,
                NANOS,
            ),
            (
                "compute.backoff_turn_ns_min",
                &self.backoff_turn_ns_min,
                Range::Count(1.0, 1e6),
            ),
            (
                "compute.backoff_turn_ns_max",
                &self.backoff_turn_ns_max,
                Range::Count(backoff_min, 1e6),
            ),
        ]
    }
}

impl MemoryNodes {
    fn ranges(&self) -> [Ranged<'_>; 7] {
        [
            ("memory.node_count", &self.node_count, MACHINES),
            ("memory.nics_per_node", &self.nics_per_node, NICS),
            (
                "memory.cores_per_node",
                &self.cores_per_node,
                Range::Count(1.0, 256.0),
            ),
            ("memory.call_ns", &self.call_ns, NANOS),
            ("memory.call_record_ns", &self.call_record_ns, NANOS),
            ("memory.retrain_ns_per_key", &self.retrain_ns_per_key, NANOS),
            ("memory.loopback_ns", &self.loopback_ns, NANOS),
        ]
    }
}

impl NicParameters {
    fn ranges(&self) -> [Ranged<'_>; 10] {
        let rate = Range::Amount(1.0, 1e12);
        let bytes = Range::Count(0.0, 1024.0);
        [
            (
                "nic.bandwidth_gbit_per_s",
                &self.bandwidth_gbit_per_s,
                Range::Amount(0.1, 1e4),
            ),
            ("nic.verb_rate_per_s", &self.verb_rate_per_s, rate),
            ("nic.atomic_rate_per_s", &self.atomic_rate_per_s, rate),
            ("nic.atomic_same_slot_ns", &self.atomic_same_slot_ns, NANOS),
            (
                "nic.atomic_slot_count",
                &self.atomic_slot_count,
                Range::Count(1.0, 65536.0),
            ),
            ("nic.doorbell_ns", &self.doorbell_ns, NANOS),
            ("nic.one_way_ns", &self.one_way_ns, NANOS),
            (
                "nic.mtu_bytes",
                &self.mtu_bytes,
                Range::Count(64.0, 65536.0),
            ),
            (
                "nic.request_header_bytes",
                &self.request_header_bytes,
                bytes,
            ),
            (
                "nic.response_header_bytes",
                &self.response_header_bytes,
                bytes,
            ),
        ]
    }
}

/// Refuses a number that is out of range, or has no source.
pub(super) fn check(
    key: &'static str,
    parameter: &Parameter,
    range: Range,
) -> Result<(), ModelError> {
    if parameter.source.trim().is_empty() {
        return Err(ModelError::NoSource { key });
    }
    let value = parameter.value;
    let (is_right, kind, from, to) = match range {
        Range::Count(from, to) => (value.fract() == 0.0, "a whole number", from, to),
        Range::Amount(from, to) => (true, "a number", from, to),
    };
    if is_right && (from..=to).contains(&value) {
        return Ok(());
    }
    Err(ModelError::OutOfRange {
        key,
        value,
        expected: format!("{kind} from {from} to {to}"),
    })
}
