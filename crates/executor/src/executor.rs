//! An executor for tasks of any type, with handles, on one thread.

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
use crate::idle::{Idle, IdlePolicy, RestRequest};
use crate::join::{JoinHandle, TaskCompletion};
use crate::task_set::TaskSet;

type Task = Pin<Box<dyn Future<Output = ()>>>;
type Incoming = RefCell<VecDeque<Task>>;

const FIRST_CAPACITY: usize = 64;

/// An executor for tasks of different types.
///
/// Each task costs one allocation, and one more for its handle; otherwise the executor is a
/// [`TaskSet`] that grows. Tasks run only while their thread is in [`run_until`](Self::run_until)
/// or [`drain`](Self::drain).
///
/// A task belongs to the executor: dropping its [`JoinHandle`] detaches it. Dropping the executor
/// drops all tasks in place, and their handles report [`TaskLost`](crate::TaskLost).
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
    /// Tasks that were spawned but not polled yet. Shared with the spawners, which tasks may own.
    incoming: Rc<Incoming>,
    idle_policy: IdlePolicy,
}

/// Handle that spawns tasks on an [`Executor`] of the same thread, also from inside its tasks.
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
    /// Creates an executor of the calling thread, without tasks.
    ///
    /// # Panics
    ///
    /// If the process already has [`EXECUTOR_COUNT_MAX`](crate::EXECUTOR_COUNT_MAX) executors.
    pub fn new() -> Self {
        Self {
            tasks: RefCell::new(TaskSet::with_capacity(FIRST_CAPACITY)),
            incoming: Rc::default(),
            idle_policy: IdlePolicy::default(),
        }
    }

    /// Sets the policy by which the executor waits while nothing happens.
    #[must_use]
    pub fn with_idle_policy(mut self, idle_policy: IdlePolicy) -> Self {
        self.idle_policy = idle_policy;
        self
    }

    /// Adds a task. The next [`run_until`](Self::run_until) or [`drain`](Self::drain), or the next
    /// turn of the current one, polls it first.
    pub fn spawn<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        self.spawner().spawn(future)
    }

    /// Returns a handle for tasks that spawn others. The handle does not keep the executor alive.
    pub fn spawner(&self) -> Spawner {
        Spawner {
            incoming: Rc::downgrade(&self.incoming),
        }
    }

    /// Runs the tasks until `future` completes; unfinished tasks remain for the next call.
    ///
    /// The future is polled in every turn.
    ///
    /// # Panics
    ///
    /// If a task panics (that task is dropped, the executor stays usable), or if called from inside
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

    /// Runs until no task is left, including detached ones.
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

    fn run_turn(
        &self,
        completions: &mut impl Completions,
        main: Option<RestRequest>,
    ) -> TurnReport {
        let completion_count = completions.poll();
        let mut tasks = self
            .tasks
            .try_borrow_mut()
            .expect("an executor is not run from inside one of its own tasks");
        let turn = tasks.run_turn(|()| {});
        let admitted_count = self.admit(&mut tasks);
        TurnReport {
            has_progress: completion_count > 0
                || admitted_count > 0
                || turn.has_progress()
                || tasks.has_woken_besides(&turn),
            rest: turn.resting.with(main).advice(tasks.len() + 1),
        }
    }

    /// Polls the tasks spawned before this call for the first time; returns their number.
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

struct TurnReport {
    has_progress: bool,
    rest: RestRequest,
}

impl Spawner {
    /// Adds a task, as [`Executor::spawn`] does. If the executor is gone, the future is dropped and
    /// the handle reports [`TaskLost`](crate::TaskLost).
    pub fn spawn<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        let (completion, handle) = TaskCompletion::new();
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
