//! Executor: tasks in virtual time, on one thread.
//!
//! The schedule is the world's list of due events. A task is polled when its batch is complete or
//! its sleep is over. A task that woke itself, since it backs off from a lock, is polled after a
//! random delay. The seed alone decides the order in which tasks run, and may delay a task
//! arbitrarily.

use core::cell::RefCell;
use core::future::{Future, poll_fn};
use core::pin::Pin;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Context, Poll, Waker};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Wake;

use farleaf_executor::RestScope;

use super::event::{DueEvent, Step};
use super::shared::SharedWorld;
use super::world::{ClientId, Nanos, TaskId, WantedBatches};

type Task<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Tasks of one run.
pub struct Tasks<'a> {
    world: SharedWorld,
    /// Tasks by id; `None` if a task has ended or is being polled.
    list: RefCell<Vec<Option<Task<'a>>>>,
    woken: Arc<WakeFlag>,
    /// Tasks that do not run before a moment.
    paused: RefCell<BTreeMap<TaskId, Nanos>>,
}

/// Whether the task that is being polled woke itself.
#[derive(Debug, Default)]
struct WakeFlag(AtomicBool);

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Outcome of a run of tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecutorOutcome {
    /// All tasks are done.
    Done,
    /// No event is due, and some task is not done: it waits for something that never comes.
    Stuck,
    /// The step limit was reached; the run would probably never end.
    Endless,
}

impl core::fmt::Debug for Tasks<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Tasks").finish_non_exhaustive()
    }
}

impl<'a> Tasks<'a> {
    /// Creates an executor without tasks.
    pub fn new(world: &SharedWorld) -> Rc<Self> {
        Rc::new(Self {
            world: SharedWorld::clone(world),
            list: RefCell::default(),
            woken: Arc::default(),
            paused: RefCell::default(),
        })
    }

    /// Adds a task, which is first polled after a random delay.
    pub fn spawn(&self, task: impl Future<Output = ()> + 'a) -> TaskId {
        let after = self.world.borrow_mut().random().magnitude(1000);
        self.spawn_after(after, task)
    }

    /// Adds a task, which is first polled after this time, whatever the seed.
    pub fn spawn_after(&self, after: Nanos, task: impl Future<Output = ()> + 'a) -> TaskId {
        let mut tasks = self.list.borrow_mut();
        tasks.push(Some(Box::pin(task)));
        let id = TaskId(tasks.len() as u32 - 1);
        let mut world = self.world.borrow_mut();
        let at = world.now() + after;
        world.schedule(at, DueEvent::Poll(id));
        id
    }

    /// Stops a task forever, at any point, and returns whether it had not ended. Posted verbs
    /// continue.
    pub fn kill(&self, task: TaskId) -> bool {
        let stopped = self.list.borrow_mut()[task.0 as usize].take();
        // What the drop posts is not awaited by any task.
        stopped.is_some()
    }

    /// Keeps tasks from running until a moment.
    pub fn pause(&self, tasks: &[TaskId], until: Nanos) {
        let tasks = tasks.iter().map(|task| (*task, until));
        self.paused.borrow_mut().extend(tasks);
    }

    /// Stops all tasks that still wait.
    pub fn abandon(&self) {
        let remaining = self.list.take();
        drop(remaining);
    }

    /// Runs until all tasks are done, or for `step_count_max` steps.
    pub fn run(&self, step_count_max: u64) -> ExecutorOutcome {
        for _ in 0..step_count_max {
            match self.world.step() {
                Step::Poll(task) => self.poll(task),
                Step::Happened => {}
                Step::Over if self.list.borrow().iter().all(Option::is_none) => {
                    return ExecutorOutcome::Done;
                }
                Step::Over => return ExecutorOutcome::Stuck,
            }
        }
        ExecutorOutcome::Endless
    }

    fn poll(&self, id: TaskId) {
        let until = self.paused.borrow().get(&id).copied().unwrap_or(0);
        if until > self.world.borrow().now() {
            self.world.borrow_mut().schedule(until, DueEvent::Poll(id));
            return;
        }
        // Taken out: a task may spawn and kill others.
        let Some(mut task) = self.list.borrow_mut()[id.0 as usize].take() else {
            return;
        };
        self.world.borrow_mut().current = Some(id);
        self.woken.0.store(false, Ordering::Relaxed);
        let waker = Waker::from(Arc::clone(&self.woken));
        let polled = {
            let _scope = RestScope::enter();
            task.as_mut().poll(&mut Context::from_waker(&waker))
        };
        self.world.borrow_mut().current = None;
        if polled.is_ready() {
            return;
        }
        if self.woken.0.load(Ordering::Relaxed) {
            let turn = self.world.backoff_turn();
            let mut world = self.world.borrow_mut();
            let at = world.now() + turn;
            world.schedule(at, DueEvent::Poll(id));
        }
        self.list.borrow_mut()[id.0 as usize] = Some(task);
    }
}

/// Waits in virtual time.
pub async fn sleep(world: &SharedWorld, duration: Nanos) {
    let until = world.borrow().now() + duration;
    let mut is_scheduled = false;
    poll_fn(|_| {
        let mut world = world.borrow_mut();
        if world.now() >= until && is_scheduled {
            return Poll::Ready(());
        }
        if !is_scheduled {
            is_scheduled = true;
            let task = world.current.expect("only tasks sleep");
            world.schedule(until, DueEvent::Poll(task));
        }
        Poll::Pending
    })
    .await;
}

/// Waits for a moment between the effects of a client's batch: the `number`-th wanted one, counted
/// from 1. Also ends when the client posts no more.
pub async fn sleep_until_during(
    world: &SharedWorld,
    client: ClientId,
    number: u64,
    wanted: WantedBatches,
) {
    let mut is_watching = false;
    poll_fn(|_| {
        if is_watching {
            return Poll::Ready(());
        }
        is_watching = true;
        let mut world = world.borrow_mut();
        let task = world.current.expect("only tasks wait");
        world.watch(task, client, number, wanted);
        Poll::Pending
    })
    .await;
}
