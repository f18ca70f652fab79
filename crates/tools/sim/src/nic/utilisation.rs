//! Utilization of the stages of the network.

use serde::Serialize;

/// Utilization of stages between two moments, as a share of the time: the busiest one of each kind.
/// At most 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Utilisation {
    /// Pipelines of the memory nodes.
    pub memory_pipeline: f64,
    /// Outgoing links of the memory nodes: data of READs.
    pub memory_transmit: f64,
    /// Incoming links of the memory nodes: requests, and data of WRITEs.
    pub memory_receive: f64,
    /// Slots of the memory nodes' locking tables.
    pub memory_slot: f64,
    /// Pipelines of the compute nodes.
    pub compute_pipeline: f64,
    /// Outgoing links of the compute nodes: requests, and data of WRITEs.
    pub compute_transmit: f64,
    /// Incoming links of the compute nodes: data of READs.
    pub compute_receive: f64,
    /// Processors of the client threads.
    pub processor: f64,
    /// Cores of the memory nodes for background work. No operation waits for one.
    pub memory_core: f64,
}

impl Utilisation {
    /// Returns each kind of stage: its name in files, its name for people, and its share.
    pub fn stages(&self) -> [(&'static str, &'static str, f64); 9] {
        [
            (
                "memory_pipeline_use",
                "memory node's pipeline",
                self.memory_pipeline,
            ),
            (
                "memory_transmit_use",
                "memory node's link out",
                self.memory_transmit,
            ),
            (
                "memory_receive_use",
                "memory node's link in",
                self.memory_receive,
            ),
            (
                "memory_slot_use",
                "one slot of a memory node's locking table",
                self.memory_slot,
            ),
            (
                "compute_pipeline_use",
                "compute node's pipeline",
                self.compute_pipeline,
            ),
            (
                "compute_transmit_use",
                "compute node's link out",
                self.compute_transmit,
            ),
            (
                "compute_receive_use",
                "compute node's link in",
                self.compute_receive,
            ),
            ("processor_use", "client thread's processor", self.processor),
            (
                "memory_core_use",
                "memory node's core for retraining",
                self.memory_core,
            ),
        ]
    }

    /// Returns the stages through which operations pass.
    pub fn stages_of_operations(&self) -> [(&'static str, &'static str, f64); 8] {
        let [stages @ .., _memory_core] = self.stages();
        stages
    }
}
