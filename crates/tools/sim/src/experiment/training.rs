//! A memory node's threads that train models for clients, in time: the library's own trainer, whose
//! training takes a core as long as the testbed says before anything of it is written.

use core::cell::{Cell, RefCell};
use std::rc::Rc;

use farleaf_fabric::{Batch, BatchError, Counters, Endpoint, ProtocolCheck};
use farleaf_node::xstore::Employer;
use farleaf_types::{NodeId, OwnerWord};
use serde::Serialize;

use super::machine::Registry;
use crate::fabric::endpoint::StillEndpoint;
use crate::fabric::executor::sleep;
use crate::fabric::world::{Nanos, SharedWorld};

/// What all memory nodes trained in a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Training {
    /// What was due and is trained: sub-models, or all of them at once.
    pub done_count: u64,
    /// Sub-models.
    pub sub_model_count: u64,
    /// Leaves that they were fitted to.
    pub leaf_count: u64,
    /// How long everything that was due has been so, until it was trained, together.
    pub waited_ns: u64,
}

impl Training {
    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            done_count: self.done_count + other.done_count,
            sub_model_count: self.sub_model_count + other.sub_model_count,
            leaf_count: self.leaf_count + other.leaf_count,
            waited_ns: self.waited_ns + other.waited_ns,
        }
    }

    /// What has been trained since then.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            done_count: self.done_count - before.done_count,
            sub_model_count: self.sub_model_count - before.sub_model_count,
            leaf_count: self.leaf_count - before.leaf_count,
            waited_ns: self.waited_ns - before.waited_ns,
        }
    }

    /// How long something is due until it is trained, in the mean; none: nothing was trained. What
    /// is due at any time, over what is trained in so long (Little's law): right where as much
    /// becomes due as is trained.
    pub fn waited_ns_mean(&self) -> Option<f64> {
        (self.done_count > 0).then(|| self.waited_ns as f64 / self.done_count as f64)
    }
}

/// What a memory node has trained, and how long it was due.
#[derive(Debug, Default)]
pub(super) struct TrainingTally {
    done: Cell<Training>,
    /// What is being trained.
    under_way_count: Cell<usize>,
    /// How much was due or being trained when that changed last, and when.
    due: Cell<(usize, Nanos)>,
}

impl TrainingTally {
    /// So much is due now, beside what is being trained.
    pub(super) fn note_due(&self, now: Nanos, due_count: usize) {
        let count = due_count + self.under_way_count.get();
        let (before, since) = self.due.replace((count, now));
        let mut done = self.done.get();
        done.waited_ns += before as u64 * (now - since);
        self.done.set(done);
    }

    /// A thread takes something that is due, if there is something.
    pub(super) fn begin(&self) {
        self.under_way_count.update(|count| count + 1);
    }

    /// It is trained, or there was nothing.
    pub(super) fn end(&self, trained: Training) {
        self.under_way_count.update(|count| count - 1);
        self.done.set(self.done.get().and(trained));
    }

    /// Until now.
    pub(super) fn done(&self) -> Training {
        self.done.get()
    }
}

/// Cores of a memory node, each with what it has been given.
#[derive(Debug)]
pub(super) struct Cores {
    world: SharedWorld,
    /// When each has done that.
    free_at: RefCell<Vec<Nanos>>,
}

impl Cores {
    /// So many, idle.
    pub(super) fn new(world: &SharedWorld, count: usize) -> Rc<Self> {
        Rc::new(Self {
            world: SharedWorld::clone(world),
            free_at: RefCell::new(vec![0; count]),
        })
    }

    /// Others get so many for themselves; false: there are no more than these.
    pub(super) fn give_away(&self, count: usize) -> bool {
        let mut free_at = self.free_at.borrow_mut();
        let Some(left) = free_at.len().checked_sub(count).filter(|left| *left > 0) else {
            return false;
        };
        free_at.truncate(left);
        true
    }

    /// Gives the core that is free first something to do; returns how long it takes until that is
    /// done.
    pub(super) fn take(&self, duration_ns: Nanos) -> Nanos {
        let now = self.world.borrow().now();
        let mut free_at = self.free_at.borrow_mut();
        let first = free_at.iter_mut().min().expect("there is a core");
        *first = (*first).max(now) + duration_ns;
        *first - now
    }
}

/// How long training takes.
#[derive(Debug)]
pub(super) struct TrainTime {
    pub(super) ns_per_leaf: f64,
    /// None: each thread has a core for itself.
    pub(super) cores: Option<Rc<Cores>>,
}

/// A trainer's way to its node's memory, for which the world stands still but for what it has
/// trained since its last batch: that comes first.
#[derive(Debug)]
pub(super) struct TrainingEndpoint {
    world: SharedWorld,
    still: StillEndpoint,
    time: Rc<TrainTime>,
    owed_leaf_count: Cell<u64>,
}

impl Endpoint for TrainingEndpoint {
    async fn execute(&self, batch: &mut Batch) -> Result<(), BatchError> {
        let leaf_count = self.owed_leaf_count.take();
        if leaf_count > 0 {
            let duration_ns = leaf_count as f64 * self.time.ns_per_leaf;
            let duration_ns = (duration_ns as Nanos).max(1);
            let cores = self.time.cores.as_ref();
            let taken_ns = cores.map_or(duration_ns, |cores| cores.take(duration_ns));
            sleep(&self.world, taken_ns).await;
        }
        self.still.execute(batch).await
    }

    fn note_training(&self, leaf_count: u64, _record_count: u64) {
        self.owed_leaf_count.update(|count| count + leaf_count);
    }

    fn leaves_out(&self, check: ProtocolCheck) -> bool {
        self.still.leaves_out(check)
    }

    fn poll_completions(&self) -> usize {
        self.still.poll_completions()
    }

    fn counters(&self) -> &Counters {
        self.still.counters()
    }

    fn region_word_count(&self, node: NodeId) -> Option<u64> {
        self.still.region_word_count(node)
    }
}

/// Gives trainers sessions.
#[derive(Debug)]
pub(super) struct TrainingEmployer {
    pub(super) world: SharedWorld,
    pub(super) registry: Rc<Registry>,
    pub(super) time: Rc<TrainTime>,
}

impl Employer for TrainingEmployer {
    type Endpoint = TrainingEndpoint;

    fn hire(&self) -> Result<(TrainingEndpoint, OwnerWord), String> {
        let still = StillEndpoint::new(&self.world);
        let owner = self.registry.open(still.client());
        let owner = owner.map_err(|error| error.to_string())?;
        let endpoint = TrainingEndpoint {
            world: SharedWorld::clone(&self.world),
            still,
            time: Rc::clone(&self.time),
            owed_leaf_count: Cell::new(0),
        };
        Ok((endpoint, owner))
    }

    fn dismiss(&self, owner: OwnerWord) {
        self.registry.close(owner);
    }
}
