//! Events that become due, and results of batches.

use std::collections::BTreeSet;

use farleaf_base::{NodeId, WORD_SIZE_BYTES};
use farleaf_fabric::{BatchError, Cost, Verb, VerbKind};

use super::ids::TaskId;

/// Event that is due at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DueEvent {
    /// A batch gets on in its network.
    Batch { batch: u64, event: BatchEvent },
    /// A task is polled.
    Poll(TaskId),
}

/// Next event of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum BatchEvent {
    /// Adversarial network: a piece of the batch takes effect.
    Piece(usize),
    /// Adversarial network: the batch is reported complete.
    Complete,
    /// Event in a modeled network.
    Modelled(ModelledEvent),
}

/// Next event of a batch in a modeled network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ModelledEvent {
    /// The client's thread has rung the doorbell for its verbs to a node.
    Rung(u8),
    /// The verbs for a node have arrived there.
    Arrived(u8),
    /// A verb takes effect.
    Effect(u32),
    /// The reply of a node has arrived.
    Replied(u8),
    /// All data from a node has arrived.
    Received(u8),
    /// The client's thread has polled the completions, and checked the data.
    TakenUp,
}

/// Result of a step of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// An event was executed.
    Happened,
    /// A task is to be polled.
    Poll(TaskId),
    /// No event is left.
    Over,
}

/// Result of a batch.
#[derive(Debug)]
pub(super) struct BatchOutcome {
    pub(super) words: Vec<u64>,
    pub(super) cost: Cost,
    pub(super) result: Result<(), BatchError>,
}

/// Returns what an endpoint counts for a batch of which this many verbs were executed (FABRIC-9).
pub(super) fn cost_of(verbs: &[Verb], executed_count: usize) -> Cost {
    let nodes: BTreeSet<NodeId> = verbs.iter().map(|verb| verb.addr.node()).collect();
    let mut cost = Cost {
        round_trips: 1,
        doorbells: nodes.len() as u64,
        verbs: verbs.len() as u64,
        ..Cost::default()
    };
    for verb in &verbs[..executed_count] {
        count_effect(&mut cost, verb.kind, verb.word_count as usize);
    }
    cost
}

/// Counts words of a verb that have taken effect (FABRIC-9). An atomic has only one.
pub(super) fn count_effect(executed: &mut Cost, kind: VerbKind, word_count: usize) {
    let bytes = word_count as u64 * WORD_SIZE_BYTES;
    match kind {
        VerbKind::Read => executed.bytes_read += bytes,
        VerbKind::Write => executed.bytes_written += bytes,
        VerbKind::CompareSwap | VerbKind::FetchAdd => executed.atomics += 1,
    }
}
