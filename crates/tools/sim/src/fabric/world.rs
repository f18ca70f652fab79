//! The simulated world: virtual time, the nodes' memory, and batches in flight.
//!
//! | module | content |
//! |---|---|
//! | `client` | which clients are connected or fenced, and what was executed for each |
//! | `flight` | batches: posted, taking effect, cut off, complete |
//! | `holding` | leaf locks that are held too long, or too many of them |
//! | `memory` | the nodes' memory, and the effects of verbs on it |
//! | `nodes` | nodes that are lost, or have left |
//! | `windows` | memory of clients into which their node writes (FABRIC-10) |
//! | `watch` | tasks that wait for the middle of a batch |
//!
//! This file has the list of due events, the trace, and the random numbers of the run.

mod client;
mod flight;
mod holding;
mod memory;
mod nodes;
mod watch;
mod windows;

use core::cell::RefCell;
use core::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::rc::Rc;

use farleaf_fabric::Cost;

pub use super::fingerprint::Fingerprint;
use super::modelled::{BatchEvent, Modelled};
use super::schedule::Freedoms;
pub use client::{ClientLife, Progress};
use farleaf_base::random::Random;
pub(super) use flight::BatchOutcome;
use flight::PostedBatch;
pub use holding::LockHolding;
use holding::LockWatch;
pub(super) use memory::execute;
pub use nodes::NodeLife;
use watch::BatchWatch;
pub use watch::WantedBatches;
use windows::WindowPlaces;

/// Virtual time in nanoseconds since the beginning of a run.
pub type Nanos = u64;

/// Client of the world: the unit that FABRIC-6 fences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u32);

/// Task of the executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub u32);

/// Event that is due at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DueEvent {
    /// A piece of a batch takes effect.
    Piece { batch: u64, piece_index: usize },
    /// A batch is reported complete.
    Complete { batch: u64 },
    /// Event of a batch of a modelled world.
    Modelled { batch: u64, moment: BatchEvent },
    /// A task is polled.
    Poll(TaskId),
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

/// State of a run except its tasks.
#[derive(Debug)]
pub struct World {
    now: Nanos,
    sequence: u64,
    due: BinaryHeap<Reverse<(Nanos, u64, DueEvent)>>,
    pub(super) nodes: Vec<Vec<u64>>,
    node_lives: Vec<NodeLife>,
    windows: WindowPlaces,
    flights: BTreeMap<u64, PostedBatch>,
    next_flight: u64,
    clients: Vec<ClientLife>,
    freedoms: Freedoms,
    random: Random,
    /// Task that is being polled.
    pub(super) current: Option<TaskId>,
    /// Cost of each client: batches and verbs as they are posted, bytes and atomics where they take
    /// effect.
    executed: Vec<Cost>,
    progress: Vec<Progress>,
    /// Clients whose verbs took effect and that have read strings which had been overwritten.
    stale_strings: Vec<ClientId>,
    stale_parts: Vec<ClientId>,
    watches: Vec<BatchWatch>,
    locks: LockWatch,
    fingerprint: Fingerprint,
    trace: Option<Vec<String>>,
    /// Whether batches are done at once, without time passing.
    pub(super) is_still: bool,
    /// Modelled network; if present, batches take its time and have no faults.
    pub(super) modelled: Option<Modelled>,
}

/// World as its clients share it.
pub type SharedWorld = Rc<RefCell<World>>;

impl World {
    /// Creates a world with one zeroed memory of this size per node.
    pub fn new(memory_word_counts: &[usize], freedoms: Freedoms, random: Random) -> SharedWorld {
        let nodes = memory_word_counts.iter().map(|count| vec![0; *count]);
        let world = Self::with_nodes(nodes.collect(), freedoms, random);
        Rc::new(RefCell::new(world))
    }

    pub(super) fn with_modelled(nodes: Vec<Vec<u64>>, modelled: Modelled, random: Random) -> Self {
        Self {
            modelled: Some(modelled),
            ..Self::with_nodes(nodes, Freedoms::CALM, random)
        }
    }

    fn with_nodes(nodes: Vec<Vec<u64>>, freedoms: Freedoms, random: Random) -> Self {
        Self {
            now: 0,
            sequence: 0,
            due: BinaryHeap::new(),
            node_lives: vec![NodeLife::Here; nodes.len()],
            windows: WindowPlaces::behind(nodes.len()),
            nodes,
            flights: BTreeMap::new(),
            next_flight: 0,
            clients: Vec::new(),
            freedoms,
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
            modelled: None,
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

    /// Executes the next due event, at its time. Effects and completions happen here; polls are
    /// left to the executor.
    pub(super) fn step(&mut self) -> Step {
        let Some(Reverse((at, _, due))) = self.due.pop() else {
            return Step::Over;
        };
        self.now = self.now.max(at);
        match due {
            DueEvent::Piece { batch, piece_index } => {
                let is_flying = self
                    .flights
                    .get(&batch)
                    .is_some_and(|flight| flight.cut.is_none());
                if is_flying {
                    self.take_effect(batch, piece_index);
                }
                Step::Happened
            }
            DueEvent::Complete { batch } => match self.complete(batch) {
                Some(task) => Step::Poll(task),
                None => Step::Happened,
            },
            DueEvent::Modelled { batch, moment } => self.step_modelled(batch, moment),
            DueEvent::Poll(task) => Step::Poll(task),
        }
    }
}
