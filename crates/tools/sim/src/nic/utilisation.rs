//! How busy the stages of the network were.

use serde::Serialize;

/// How busy stages were, as shares of the time between two looks: of each kind the busiest one.
/// None is ever above 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Utilisation {
    /// The memory nodes' pipelines.
    pub memory_pipeline: f64,
    /// The memory nodes' way out: what READs bring.
    pub memory_transmit: f64,
    /// The memory nodes' way in: requests, and what WRITEs bring.
    pub memory_receive: f64,
    /// The slots of the memory nodes' locking tables.
    pub memory_slot: f64,
    /// The compute nodes' pipelines.
    pub compute_pipeline: f64,
    /// The compute nodes' way out: requests, and what WRITEs bring.
    pub compute_transmit: f64,
    /// The compute nodes' way in: what READs bring.
    pub compute_receive: f64,
    /// The client threads' processors.
    pub processor: f64,
    /// The memory nodes' cores for background work. No operation waits for one.
    pub memory_core: f64,
}

impl Utilisation {
    /// Each kind of stage: its name in files, its name for people, and its share.
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

    /// Those of them that operations go through.
    pub fn stages_of_operations(&self) -> [(&'static str, &'static str, f64); 8] {
        let [stages @ .., _memory_core] = self.stages();
        stages
    }
}
