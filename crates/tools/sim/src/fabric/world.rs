//! The simulated world: virtual time, due events, the nodes' memory, and clients. Its network
//! (`network`) decides when batches take effect.
//!
//! | module | content |
//! |---|---|
//! | `client` | which clients are connected or fenced, and what was executed for each |
//! | `holding` | leaf locks that are held too long, or too many of them |
//! | `memory` | the nodes' memory, and the effects of verbs on it |
//! | `nodes` | nodes that are lost, or have left |
//! | `windows` | memory of clients into which their node writes (FABRIC-10) |
//! | `watch` | tasks that wait for the middle of a batch |
//!
//! This file has the list of due events, the trace, and the random numbers of the run.

mod client;
mod holding;
mod memory;
mod nodes;
mod watch;
mod windows;

use core::cmp::Reverse;
use std::collections::BinaryHeap;

use farleaf_fabric::Cost;

use farleaf_base::random::Random;

use super::event::DueEvent;
pub use super::fingerprint::Fingerprint;
pub use super::ids::{ClientId, Nanos, TaskId};
pub use client::{ClientLife, Progress};
pub use holding::LockHolding;
use holding::LockWatch;
pub(super) use memory::execute;
pub use nodes::NodeLife;
use watch::BatchWatch;
pub use watch::WantedBatches;
use windows::WindowPlaces;

/// State of a run except its tasks and its network.
#[derive(Debug)]
pub struct World {
    pub(super) now: Nanos,
    sequence: u64,
    due: BinaryHeap<Reverse<(Nanos, u64, DueEvent)>>,
    pub(super) nodes: Vec<Vec<u64>>,
    node_lives: Vec<NodeLife>,
    windows: WindowPlaces,
    clients: Vec<ClientLife>,
    pub(super) random: Random,
    /// Task that is being polled.
    pub(super) current: Option<TaskId>,
    /// Cost of each client: batches and verbs as they are posted, bytes and atomics where they take
    /// effect.
    pub(super) executed: Vec<Cost>,
    progress: Vec<Progress>,
    /// Clients whose verbs took effect and that have read strings which had been overwritten.
    stale_strings: Vec<ClientId>,
    stale_parts: Vec<ClientId>,
    watches: Vec<BatchWatch>,
    pub(super) locks: LockWatch,
    pub(super) fingerprint: Fingerprint,
    trace: Option<Vec<String>>,
    /// Whether batches are done at once, without time passing.
    pub(super) is_still: bool,
}

impl World {
    /// Creates a world with these memories of nodes.
    pub(super) fn new(nodes: Vec<Vec<u64>>, random: Random) -> Self {
        Self {
            now: 0,
            sequence: 0,
            due: BinaryHeap::new(),
            node_lives: vec![NodeLife::Here; nodes.len()],
            windows: WindowPlaces::behind(nodes.len()),
            nodes,
            clients: Vec::new(),
            random,
            current: None,
            executed: Vec::new(),
            progress: Vec::new(),
            stale_strings: Vec::new(),
            stale_parts: Vec::new(),
            watches: Vec::new(),
            locks: LockWatch::default(),
            fingerprint: Fingerprint::default(),
            trace: None,
            is_still: false,
        }
    }

    /// Stops virtual time, or lets it continue. While it stands still, every endpoint's batches are
    /// done when they are posted.
    pub fn stand_still(&mut self, is_still: bool) {
        self.is_still = is_still;
    }

    /// Returns whether virtual time stands still.
    pub fn is_still(&self) -> bool {
        self.is_still
    }

    /// Returns the virtual time.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Starts a trace of all events from now on.
    pub fn keep_trace(&mut self) {
        self.trace = Some(Vec::new());
    }

    /// Takes the lines of the trace.
    pub fn take_trace(&mut self) -> Vec<String> {
        self.trace.take().unwrap_or_default()
    }

    /// Adds a line to the trace, if there is one.
    pub fn note(&mut self, text: impl FnOnce() -> String) {
        let now = self.now;
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{now:>10} ns  {}", text()));
        }
    }

    /// Returns the fingerprint of all events.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Adds to the fingerprint what layers above saw.
    pub fn print(&mut self, word: u64) {
        self.fingerprint.add(word);
    }

    /// Returns the random numbers of the run.
    pub fn random(&mut self) -> &mut Random {
        &mut self.random
    }

    pub(super) fn schedule(&mut self, at: Nanos, due: DueEvent) {
        self.sequence += 1;
        self.due.push(Reverse((at, self.sequence, due)));
    }

    /// Moves time to the next due event, and takes it.
    pub(super) fn take_due(&mut self) -> Option<DueEvent> {
        let Reverse((at, _, due)) = self.due.pop()?;
        self.now = self.now.max(at);
        Some(due)
    }
}
