//! Many futures of one type on one thread.

use std::fmt;
use std::task::{Context, Poll};
use std::thread;

use crate::backoff::{self, RestScope, Resting};
use crate::completions::Completions;
use crate::idle::{Idle, IdlePolicy};
use crate::ready::Registration;
use crate::slab::Slab;
use crate::waker::{SLOT_COUNT_MAX, WakeToken};

/// How many tasks a set can hold.
pub const TASK_COUNT_MAX: usize = SLOT_COUNT_MAX;

/// A set of futures of one type, at most `capacity` at a time, without an allocation per future.
///
/// The futures stand pinned in one allocation. A round trip through the set (wake, poll) costs some
/// 20 ns and no atomic operation, whatever the capacity. A set belongs to the thread that made it.
///
/// A future that panics is dropped; the panic leaves through the method that polled it, and the set
/// stays usable. Dropping the set drops its pending futures where they stand.
///
/// ```
/// # use farleaf_executor::{TaskSet, yield_now};
/// async fn double(x: u32) -> u32 {
///     yield_now().await;
///     x * 2
/// }
/// let mut set = TaskSet::with_capacity(2);
/// let mut results = Vec::new();
/// for x in 0..5 {
///     while set.is_full() {
///         // Here a client asks its fabric for completions.
///         set.run_ready(|output| results.push(output));
///     }
///     assert!(matches!(set.spawn(double(x)), Ok(None)));
/// }
/// set.drain(|| 0, |output| results.push(output));
/// assert_eq!(results, [0, 2, 4, 6, 8]);
/// ```
pub struct TaskSet<F: Future> {
    // Dropped first: futures may wake each other while they are dropped.
    slab: Slab<F>,
    vacant: Vec<u32>,
    registration: Registration,
    idle_policy: IdlePolicy,
}

/// What one turn over the ready tasks did.
pub(crate) struct Turn {
    polled_count: usize,
    completed_count: usize,
    pub(crate) resting: Resting,
}

impl Turn {
    /// Whether any task did more than rest.
    pub(crate) fn has_progress(&self) -> bool {
        self.polled_count > self.resting.task_count()
    }
}

impl<F: Future> TaskSet<F> {
    /// Makes an empty set; allocates all it will ever need.
    ///
    /// # Panics
    ///
    /// If `capacity` is above [`TASK_COUNT_MAX`], or if there are
    /// [`EXECUTOR_COUNT_MAX`](crate::EXECUTOR_COUNT_MAX) executors already.
    pub fn with_capacity(capacity: usize) -> Self {
        assert!(
            capacity <= TASK_COUNT_MAX,
            "a set holds at most {TASK_COUNT_MAX} tasks"
        );
        Self {
            slab: Slab::new(capacity),
            vacant: (0..capacity as u32).rev().collect(),
            registration: Registration::new(capacity),
            idle_policy: IdlePolicy::default(),
        }
    }

    /// Says how [`drain`](Self::drain) waits.
    #[must_use]
    pub fn with_idle_policy(mut self, idle_policy: IdlePolicy) -> Self {
        self.idle_policy = idle_policy;
        self
    }

    /// How many futures are pending.
    pub fn len(&self) -> usize {
        self.slab.capacity() - self.vacant.len()
    }

    /// Whether no future is pending.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether [`spawn`](Self::spawn) would give its future back.
    pub fn is_full(&self) -> bool {
        self.vacant.is_empty()
    }

    /// How many futures fit in.
    pub fn capacity(&self) -> usize {
        self.slab.capacity()
    }

    /// Adds a future and polls it at once.
    ///
    /// Returns its output if it was ready at its first poll, `None` if it is pending.
    ///
    /// # Errors
    ///
    /// Gives the future back, unpolled, if the set is full.
    pub fn spawn(&mut self, future: F) -> Result<Option<F::Output>, F> {
        let Some(&slot) = self.vacant.last() else {
            return Err(future);
        };
        // Inserted before the slot counts as taken: nothing below can fail until it is.
        self.slab.insert(slot, future);
        self.vacant.pop();
        let token = self.registration.queue().occupy(slot);
        // A future that rests at its first poll has not been seen by a turn yet.
        let _scope = RestScope::enter();
        Ok(match self.poll(token) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        })
    }

    /// Polls each task that is woken, once, in the order of the wakes; calls `done` with the output
    /// of each that completes. Returns how many completed.
    ///
    /// Tasks that are woken meanwhile wait for the next call. Does not sleep; lets other threads
    /// run if all that was ready is tasks that [`backoff`](crate::backoff).
    pub fn run_ready(&mut self, done: impl FnMut(F::Output)) -> usize {
        let turn = self.run_turn(done);
        if !turn.has_progress() && turn.resting.task_count() > 0 {
            thread::yield_now();
        }
        turn.completed_count
    }

    /// Runs until the set is empty.
    ///
    /// Between turns in which nothing happens the thread waits by its [`IdlePolicy`].
    /// Returns only when all tasks have completed.
    pub fn drain(&mut self, completions: impl Completions, done: impl FnMut(F::Output)) {
        self.run_while(|set| !set.is_empty(), completions, done);
    }

    /// Runs until there is room for one more. Waits as [`drain`](Self::drain) does.
    pub fn make_room(&mut self, completions: impl Completions, done: impl FnMut(F::Output)) {
        self.run_while(Self::is_full, completions, done);
    }

    fn run_while(
        &mut self,
        goes_on: impl Fn(&Self) -> bool,
        mut completions: impl Completions,
        mut done: impl FnMut(F::Output),
    ) {
        let mut idle = Idle::new(self.idle_policy);
        while goes_on(self) {
            let completion_count = completions.poll();
            let turn = self.run_turn(&mut done);
            if completion_count > 0 || turn.has_progress() || self.has_woken_besides(&turn) {
                idle.reset();
            } else {
                let rest = turn.resting.advice(self.len());
                backoff::note(idle.wait(rest, |at_most| completions.wait(at_most)));
            }
        }
    }

    /// Whether any task waits for the next turn besides those that rested in this one.
    pub(crate) fn has_woken_besides(&self, turn: &Turn) -> bool {
        self.registration
            .queue()
            .has_more_than(turn.resting.task_count())
    }

    /// [`run_ready`](Self::run_ready), with a report.
    pub(crate) fn run_turn(&mut self, mut done: impl FnMut(F::Output)) -> Turn {
        let scope = RestScope::enter();
        let mut turn = Turn {
            polled_count: 0,
            completed_count: 0,
            resting: Resting::default(),
        };
        self.registration.queue().collect_mail();
        for _ in 0..self.registration.queue().ring_len() {
            let Some(token) = self.registration.queue().pop() else {
                continue;
            };
            turn.polled_count += 1;
            if let Poll::Ready(output) = self.poll(token) {
                turn.completed_count += 1;
                scope.take();
                done(output);
            } else {
                turn.resting = turn.resting.with(scope.take());
            }
        }
        turn
    }

    /// Polls the future of a task; ends the task if that completes or panics.
    #[inline]
    fn poll(&mut self, token: WakeToken) -> Poll<F::Output> {
        let slot = token.slot();
        let end = EndTask { set: self, slot };
        let waker = token.waker();
        let future = end
            .set
            .slab
            .get(slot)
            .expect("an occupied slot has a future");
        let poll = future.poll(&mut Context::from_waker(&waker));
        if poll.is_pending() {
            std::mem::forget(end);
        }
        poll
    }
}

impl<F: Future + Unpin> TaskSet<F> {
    /// Doubles the capacity; false if it is [`TASK_COUNT_MAX`] already.
    pub(crate) fn grow(&mut self) -> bool {
        let old = self.capacity();
        let new = (old * 2).clamp(1, TASK_COUNT_MAX);
        if old >= new {
            return false;
        }
        self.slab.grow(new);
        self.registration.queue().grow(new);
        self.vacant.extend((old as u32..new as u32).rev());
        true
    }
}

/// Ends a task when dropped, also by a panic of its future.
struct EndTask<'a, F: Future> {
    set: &'a mut TaskSet<F>,
    slot: u32,
}

impl<F: Future> Drop for EndTask<'_, F> {
    #[inline]
    fn drop(&mut self) {
        // First the books, which cannot fail, then the future, whose destructor may panic.
        self.set.registration.queue().vacate(self.slot);
        self.set.vacant.push(self.slot);
        self.set.slab.clear(self.slot);
    }
}

impl<F: Future> fmt::Debug for TaskSet<F> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("TaskSet")
            .field("len", &self.len())
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}
