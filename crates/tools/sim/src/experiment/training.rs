//! Threads of a memory node that train models for clients, in time: the library's own trainer. Its
//! training takes a core for the time that the testbed states, before any model is written.

use core::cell::{Cell, RefCell};
use std::rc::Rc;

use farleaf_base::{NodeId, OwnerWord};
use farleaf_fabric::{Batch, BatchError, Counters, Endpoint, ProtocolCheck};
use farleaf_node::xstore::SessionFactory;
use serde::Serialize;

use super::machine::SessionRegistry;
use crate::fabric::SharedWorld;
use crate::fabric::endpoint::StillEndpoint;
use crate::fabric::executor::sleep;
use crate::fabric::world::Nanos;

/// Training by all memory nodes in a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Training {
    /// Training tasks done: sub-models, or all of them at once.
    pub done_count: u64,
    /// Sub-models trained.
    pub sub_model_count: u64,
    /// Leaves to which the sub-models were fitted.
    pub leaf_count: u64,
    /// Total time between becoming due and being trained, in nanoseconds.
    pub waited_ns: u64,
}

impl Training {
    /// Adds the two.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            done_count: self.done_count + other.done_count,
            sub_model_count: self.sub_model_count + other.sub_model_count,
            leaf_count: self.leaf_count + other.leaf_count,
            waited_ns: self.waited_ns + other.waited_ns,
        }
    }

    /// Returns the difference from an earlier count.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            done_count: self.done_count - before.done_count,
            sub_model_count: self.sub_model_count - before.sub_model_count,
            leaf_count: self.leaf_count - before.leaf_count,
            waited_ns: self.waited_ns - before.waited_ns,
        }
    }

    /// Returns the mean time between becoming due and being trained; `None` if nothing was trained.
    /// The mean is the number of due tasks over the rate of training (Little's law), which holds
    /// when as much becomes due as is trained.
    pub fn waited_ns_mean(&self) -> Option<f64> {
        (self.done_count > 0).then(|| self.waited_ns as f64 / self.done_count as f64)
    }
}

/// Training of a memory node, and how long it was due.
#[derive(Debug, Default)]
pub(super) struct TrainingCounters {
    total: Cell<Training>,
    /// Number of tasks in training.
    under_way_count: Cell<usize>,
    /// Number of tasks due or in training at the last change, and the time of that change.
    due: Cell<(usize, Nanos)>,
}

impl TrainingCounters {
    /// Records the number of due tasks besides those in training.
    pub(super) fn note_due(&self, now: Nanos, due_count: usize) {
        let count = due_count + self.under_way_count.get();
        let (before, since) = self.due.replace((count, now));
        let mut total = self.total.get();
        total.waited_ns += before as u64 * (now - since);
        self.total.set(total);
    }

    /// Records that a thread takes a due task, if there is one.
    pub(super) fn begin(&self) {
        self.under_way_count.update(|count| count + 1);
    }

    /// Records that a task is trained, or that there was none.
    pub(super) fn end(&self, trained: Training) {
        self.under_way_count.update(|count| count - 1);
        self.total.set(self.total.get().and(trained));
    }

    /// Returns the training so far.
    pub(super) fn total(&self) -> Training {
        self.total.get()
    }
}

/// Cores of a memory node, each with its scheduled work.
#[derive(Debug)]
pub(super) struct Cores {
    world: SharedWorld,
    /// Time at which each core is free.
    free_at: RefCell<Vec<Nanos>>,
}

impl Cores {
    /// Creates this many idle cores.
    pub(super) fn new(world: &SharedWorld, count: usize) -> Rc<Self> {
        Rc::new(Self {
            world: SharedWorld::clone(world),
            free_at: RefCell::new(vec![0; count]),
        })
    }

    /// Reserves cores for other work; false if there are no more than these.
    pub(super) fn reserve(&self, count: usize) -> bool {
        let mut free_at = self.free_at.borrow_mut();
        let Some(left) = free_at.len().checked_sub(count).filter(|left| *left > 0) else {
            return false;
        };
        free_at.truncate(left);
        true
    }

    /// Schedules work on the core that is free first. Returns the time until it is done.
    pub(super) fn take(&self, duration_ns: Nanos) -> Nanos {
        let now = self.world.borrow().now();
        let mut free_at = self.free_at.borrow_mut();
        let first = free_at.iter_mut().min().expect("there is a core");
        *first = (*first).max(now) + duration_ns;
        *first - now
    }
}

/// Time that training takes.
#[derive(Debug)]
pub(super) struct TrainTime {
    pub(super) ns_per_leaf: f64,
    /// Cores of the node; if `None`, each thread has a core for itself.
    pub(super) cores: Option<Rc<Cores>>,
}

/// Trainer's endpoint for its node's memory. Virtual time stands still for it, but the time of the
/// training since its last batch passes first.
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

    fn skips_check(&self, check: ProtocolCheck) -> bool {
        self.still.skips_check(check)
    }

    fn poll_completions(&self) -> usize {
        self.still.poll_completions()
    }

    fn counters(&self) -> &Counters {
        self.still.counters()
    }

    fn memory_word_count(&self, node: NodeId) -> Option<u64> {
        self.still.memory_word_count(node)
    }
}

/// Gives trainers sessions.
#[derive(Debug)]
pub(super) struct TrainingSessionFactory {
    pub(super) world: SharedWorld,
    pub(super) registry: Rc<SessionRegistry>,
    pub(super) time: Rc<TrainTime>,
}

impl SessionFactory for TrainingSessionFactory {
    type Endpoint = TrainingEndpoint;

    fn open_worker_session(&self) -> Result<(TrainingEndpoint, OwnerWord), String> {
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

    fn end_worker_session(&self, owner: OwnerWord) {
        self.registry.close(owner);
    }
}
