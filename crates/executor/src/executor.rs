//! Tasks of any type, with handles, on one thread.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::task::Poll;

use crate::backoff::{self, RestScope};
use crate::block_on::MainTask;
use crate::completions::Completions;
use crate::idle::{Idle, IdlePolicy, Rest};
use crate::join::{Completion, JoinHandle};
use crate::task_set::TaskSet;

type Task = Pin<Box<dyn Future<Output = ()>>>;
type Incoming = RefCell<VecDeque<Task>>;

const FIRST_CAPACITY: usize = 64;

/// An executor for tasks of different types.
///
/// One allocation for each task and one for its handle; otherwise a [`TaskSet`] that grows. Nothing
/// runs by itself: tasks go on while their thread is in [`run_until`](Self::run_until) or
/// [`drain`](Self::drain).
///
/// A task belongs to the executor: dropping its [`JoinHandle`] detaches it. Dropping the executor
/// drops all tasks where they stand, and their handles report [`TaskLost`](crate::TaskLost).
///
/// ```
/// # use farleaf_executor::Executor;
/// let executor = Executor::new();
/// let one = executor.spawn(async { 1 });
/// let two = executor.spawn(async { "two" });
/// let both = executor.run_until(async { (one.await, two.await) }, || 0);
/// assert_eq!(both, (Ok(1), Ok("two")));
/// ```
pub struct Executor {
    tasks: RefCell<TaskSet<Task>>,
    /// Spawned, not yet polled. Shared with the spawners, which tasks may own.
    incoming: Rc<Incoming>,
    idle_policy: IdlePolicy,
}

/// Spawns tasks on an [`Executor`] of the same thread, also from inside its tasks.
#[derive(Clone)]
pub struct Spawner {
    incoming: Weak<Incoming>,
}

impl Default for Executor {
    fn default() -> Self {
        Self::new()
    }
}

impl Executor {
    /// Makes an executor of the calling thread, without tasks.
    ///
    /// # Panics
    ///
    /// If there are [`EXECUTOR_COUNT_MAX`](crate::EXECUTOR_COUNT_MAX) executors already.
    pub fn new() -> Self {
        Self {
            tasks: RefCell::new(TaskSet::with_capacity(FIRST_CAPACITY)),
            incoming: Rc::default(),
            idle_policy: IdlePolicy::default(),
        }
    }

    /// Says how the executor waits while nothing happens.
    #[must_use]
    pub fn with_idle_policy(mut self, idle_policy: IdlePolicy) -> Self {
        self.idle_policy = idle_policy;
        self
    }

    /// Adds a task. It is first polled by the next [`run_until`](Self::run_until) or
    /// [`drain`](Self::drain), or in the next turn of the present one.
    pub fn spawn<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        self.spawner().spawn(future)
    }

    /// A handle for tasks that spawn others. It does not keep the executor alive.
    pub fn spawner(&self) -> Spawner {
        Spawner {
            incoming: Rc::downgrade(&self.incoming),
        }
    }

    /// Runs the tasks until `future` completes; the others stay as they are, for the next call.
    ///
    /// The future is polled at every turn.
    ///
    /// # Panics
    ///
    /// If a task panics (that task is gone, the executor stays usable), or if called from inside
    /// one of the executor's own tasks.
    pub fn run_until<F: Future>(&self, future: F, mut completions: impl Completions) -> F::Output {
        let mut future = pin!(future);
        let main = MainTask::new();
        let mut idle = Idle::new(self.idle_policy);
        loop {
            let was_woken = main.take_woken();
            let scope = RestScope::enter();
            if let Poll::Ready(output) = main.poll(future.as_mut()) {
                return output;
            }
            let main_rest = scope.take();
            drop(scope);
            let turn = self.run_turn(&mut completions, main_rest);
            if turn.has_progress || (main_rest.is_none() && (was_woken || main.is_woken())) {
                idle.reset();
            } else {
                backoff::note(idle.wait(turn.rest, |at_most| completions.wait(at_most)));
            }
        }
    }

    /// Runs until no task is left, those that were detached included.
    ///
    /// # Panics
    ///
    /// As [`run_until`](Self::run_until).
    pub fn drain(&self, completions: impl Completions) {
        let is_done = poll_fn(|_| {
            let is_done = self.incoming.borrow().is_empty() && self.tasks.borrow().is_empty();
            if is_done {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        });
        self.run_until(is_done, completions);
    }

    fn run_turn(&self, completions: &mut impl Completions, main: Option<Rest>) -> Turn {
        let completion_count = completions.poll();
        let mut tasks = self
            .tasks
            .try_borrow_mut()
            .expect("an executor is not run from inside one of its own tasks");
        let turn = tasks.run_turn(|()| {});
        let admitted_count = self.admit(&mut tasks);
        Turn {
            has_progress: completion_count > 0
                || admitted_count > 0
                || turn.has_progress()
                || tasks.has_woken_besides(&turn),
            rest: turn.resting.with(main).advice(tasks.len() + 1),
        }
    }

    /// Polls the tasks that were spawned before this call for the first time; returns how many.
    fn admit(&self, tasks: &mut TaskSet<Task>) -> usize {
        let waiting_count = self.incoming.borrow().len();
        for admitted_count in 0..waiting_count {
            if tasks.is_full() && !tasks.grow() {
                return admitted_count;
            }
            let Some(task) = self.incoming.borrow_mut().pop_front() else {
                return admitted_count;
            };
            let spawned = tasks.spawn(task);
            assert!(spawned.is_ok(), "a set that is not full takes a task");
        }
        waiting_count
    }
}

struct Turn {
    has_progress: bool,
    rest: Rest,
}

impl Spawner {
    /// Adds a task, as [`Executor::spawn`] does. If the executor is gone, the future is dropped and
    /// the handle reports [`TaskLost`](crate::TaskLost).
    pub fn spawn<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        let (completion, handle) = Completion::new();
        let task: Task = Box::pin(async move { completion.finish(future.await) });
        if let Some(incoming) = self.incoming.upgrade() {
            incoming.borrow_mut().push_back(task);
        }
        handle
    }
}

impl fmt::Debug for Executor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Executor")
            .field("idle_policy", &self.idle_policy)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Spawner {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Spawner").finish_non_exhaustive()
    }
}
