//! Virtual time, the nodes' memory, and everything that is in flight.
//!
//! | module | what it holds |
//! |---|---|
//! | `client` | who may still do something, and what was executed for whom |
//! | `flight` | batches: posted, taking effect, cut off, complete |
//! | `holding` | leaf locks that are held too long, or too many of them |
//! | `memory` | the nodes' memory, and what verbs do to it |
//! | `nodes` | nodes that are lost, or have left |
//! | `windows` | memory of clients that their node writes into (F10) |
//! | `watch` | tasks that wait for the middle of somebody's batch |
//!
//! What is due when, what was noted of it, and the draws of the run are here.

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
use super::modelled::{Modelled, Moment};
use super::schedule::Freedoms;
use crate::random::Random;
pub use client::{ClientLife, Progress};
use flight::Flight;
pub(super) use flight::Landed;
pub use holding::Holding;
use holding::LockWatch;
pub(super) use memory::execute;
pub use nodes::NodeLife;
pub use watch::Wanted;
use watch::Watch;
use windows::WindowPlaces;

/// Virtual time in nanoseconds since the beginning of a run.
pub type Nanos = u64;

/// A client of the world: what F6 fences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u32);

/// A task of the executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub u32);

/// Something due at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    /// A piece of a batch takes effect.
    Piece { batch: u64, piece_index: usize },
    /// A batch is reported complete.
    Complete { batch: u64 },
    /// What becomes of a batch of a modelled world.
    Modelled { batch: u64, moment: Moment },
    /// A task is polled.
    Poll(TaskId),
}

/// What a step of the world was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Something took effect.
    Happened,
    /// A task is to be polled.
    Poll(TaskId),
    /// Nothing will ever happen again.
    Over,
}

/// Everything of a run but its tasks.
#[derive(Debug)]
pub struct World {
    now: Nanos,
    sequence: u64,
    due: BinaryHeap<Reverse<(Nanos, u64, Due)>>,
    pub(super) nodes: Vec<Vec<u64>>,
    node_lives: Vec<NodeLife>,
    windows: WindowPlaces,
    flights: BTreeMap<u64, Flight>,
    next_flight: u64,
    clients: Vec<ClientLife>,
    freedoms: Freedoms,
    random: Random,
    /// The task that is being polled.
    pub(super) current: Option<TaskId>,
    /// What each client has cost: batches and verbs as they are posted, bytes and atomics where
    /// they take effect.
    executed: Vec<Cost>,
    progress: Vec<Progress>,
    /// Clients whose verbs took effect, and that have met strings which had changed (BV2).
    stale_strings: Vec<ClientId>,
    stale_parts: Vec<ClientId>,
    watches: Vec<Watch>,
    locks: LockWatch,
    fingerprint: Fingerprint,
    trace: Option<Vec<String>>,
    /// Batches are done at once, and no time passes.
    pub(super) is_still: bool,
    /// Present: batches take the time that a network takes, and nothing befalls them.
    pub(super) modelled: Option<Modelled>,
}

/// The world, as its clients share it.
pub type SharedWorld = Rc<RefCell<World>>;

impl World {
    /// A world with one zeroed region of this size per node.
    pub fn new(region_word_counts: &[usize], freedoms: Freedoms, random: Random) -> SharedWorld {
        let nodes = region_word_counts.iter().map(|count| vec![0; *count]);
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

    /// Stands still from now on, or goes on: while it stands still every endpoint's batches are
    /// done when they are posted, and no time passes.
    pub fn stand_still(&mut self, is_still: bool) {
        self.is_still = is_still;
    }

    /// Whether it does.
    pub fn is_still(&self) -> bool {
        self.is_still
    }

    /// What time it is.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Notes everything that happens from now on, for a reader.
    pub fn keep_trace(&mut self) {
        self.trace = Some(Vec::new());
    }

    /// What was noted.
    pub fn take_trace(&mut self) -> Vec<String> {
        self.trace.take().unwrap_or_default()
    }

    /// Notes something, if anybody wants to know.
    pub fn note(&mut self, text: impl FnOnce() -> String) {
        let now = self.now;
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{now:>10} ns  {}", text()));
        }
    }

    /// Of all that happened.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Adds to the fingerprint what layers above saw.
    pub fn print(&mut self, word: u64) {
        self.fingerprint.add(word);
    }

    /// The draws of the run.
    pub fn random(&mut self) -> &mut Random {
        &mut self.random
    }

    pub(super) fn schedule(&mut self, at: Nanos, due: Due) {
        self.sequence += 1;
        self.due.push(Reverse((at, self.sequence, due)));
    }

    /// The next thing that is due, at its time. Effects and completions happen here; polls are
    /// the executor's.
    pub(super) fn step(&mut self) -> Step {
        let Some(Reverse((at, _, due))) = self.due.pop() else {
            return Step::Over;
        };
        self.now = self.now.max(at);
        match due {
            Due::Piece { batch, piece_index } => {
                let is_flying = self
                    .flights
                    .get(&batch)
                    .is_some_and(|flight| flight.cut.is_none());
                if is_flying {
                    self.take_effect(batch, piece_index);
                }
                Step::Happened
            }
            Due::Complete { batch } => match self.complete(batch) {
                Some(task) => Step::Poll(task),
                None => Step::Happened,
            },
            Due::Modelled { batch, moment } => self.step_modelled(batch, moment),
            Due::Poll(task) => Step::Poll(task),
        }
    }
}
