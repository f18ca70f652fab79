//! A small executor per thread that keeps many far-memory operations in flight.
//!
//! A far-memory operation is two or three round trips of a few microseconds. A thread that waits
//! for each of them does nothing most of the time; a thread that keeps 64 operations in flight
//! does 64 times as much. This crate is what lets an operation be written as straight-line `async`
//! code and still be one of 64: it polls the operation's future when its completion arrives, and
//! costs so little (some 20 ns, `examples/wake_cost.rs`) that it does not show beside the round
//! trip.
//!
//! # How it works
//!
//! ```text
//!   poll_completions() -- wake --> ready queue -- run_ready() --> futures, pinned in a slab
//!   (the caller's)        |        (slot indices)
//!                         |            ^
//!     from another thread +-> inbox ---+
//! ```
//!
//! * A task's [`Waker`] is one 64-bit number: executor id, slot, generation. Cloning and dropping
//!   it costs nothing, waking it pushes a slot index on a ring.
//! * Wakers are `Send + Sync`, so one may be used on any thread and at any later time. A wake looks
//!   its executor id up among the executors *of the calling thread*. Found: the ring. Not found:
//!   the executor's inbox, which lives for ever, and whose owner is unparked. The generation makes
//!   wakes of finished tasks harmless.
//! * There is no reactor. The owner of the loop passes [`Completions`], mostly a closure that asks
//!   the fabric for completions, wakes what they belong to and returns how many there were. So the
//!   same loop serves shared memory, TCP, a NIC and the simulator, where it advances virtual time.
//!   Where a fabric can sleep until something comes, it does so in the place of the loop.
//!
//! # What to use
//!
//! | you have | use |
//! |---|---|
//! | one operation, blocking API | [`block_on`] |
//! | a stream of operations of one type, N at a time | [`TaskSet`] |
//! | operations of many types, handles to await | [`Executor`] |
//! | a lock that somebody else holds | [`backoff`] |
//!
//! Futures from here run under any other executor too: nothing in them knows who polls them.
//!
//! # Rules that hold throughout
//!
//! 1. *A task is polled only by the thread that owns its set.* All three drivers are `!Send`.
//! 2. *No wake is lost.* A wake during a poll leads to another poll. A wake from another thread
//!    that comes while the owner goes to sleep ends the sleep.
//! 3. *A poll without a wake is allowed* (as for every `Future`), and is rare: [`block_on`] and the
//!    main future of [`Executor::run_until`] are polled at every turn, tasks when woken.
//! 4. *Order is a function of the wakes.* Tasks run in the order in which they were woken, so a
//!    deterministic `poll_completions` gives a deterministic run. Only wakes from other threads and
//!    the length of sleeps depend on the clock.
//! 5. *A panic in a task* drops that task and leaves through the call that polled it. The set stays
//!    usable and no other task is lost.
//! 6. *Dropping a [`JoinHandle`] detaches its task; it does not stop it.* Dropping a whole set or
//!    executor drops its pending tasks where they stand; [`TaskSet::drain`] and
//!    [`Executor::drain`] finish them.
//!
//! # What it is not
//!
//! No work stealing, no timers, no I/O, no priorities, no cancellation of single tasks. It needs a
//! 64-bit target (the waker's number must fit in a pointer).
//!
//! [`Waker`]: std::task::Waker
#![deny(unsafe_code)]

mod backoff;
mod block_on;
mod completions;
mod executor;
mod idle;
mod inbox;
mod join;
mod ready;
mod registry;
#[expect(unsafe_code, reason = "projects a pinned slice to one of its elements")]
mod slab;
mod task_set;
#[expect(unsafe_code, reason = "builds wakers out of a number")]
mod waker;

pub use backoff::{RestScope, backoff, is_resting, yield_now};
pub use block_on::{block_on, block_on_with_policy};
pub use completions::{Completions, Wait};
pub use executor::{Executor, Spawner};
pub use idle::IdlePolicy;
pub use join::{JoinHandle, TaskLost};
pub use registry::EXECUTOR_COUNT_MAX;
pub use task_set::{TASK_COUNT_MAX, TaskSet};
