//! A small executor per thread that keeps many far-memory operations in flight.
//!
//! A far-memory operation takes two or three round trips of a few microseconds. A thread that waits
//! for each round trip is idle most of the time; a thread that keeps 64 operations in flight does
//! 64 times the work. With this crate an operation is straight-line `async` code and still one of
//! 64. The executor polls the operation's future when its completion arrives. This costs about 20
//! ns (`examples/wake_cost.rs`), little compared with the round trip.
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
//!   it is free; waking it pushes a slot index on a ring.
//! * Wakers are `Send + Sync`, so they can be used on any thread and at any later time. A wake
//!   looks up its executor among the executors *of the calling thread*. If the executor is there,
//!   the wake goes to its ring. Otherwise it goes to the executor's inbox, which is never freed,
//!   and the inbox's owner is unparked. The generation makes wakes of finished tasks harmless.
//! * There is no reactor. The owner of the loop passes [`Completions`], usually a closure that
//!   polls the fabric for completions, wakes their tasks and returns the number of completions. So
//!   the same loop serves shared memory, TCP, a NIC, and the simulator, where it advances virtual
//!   time. If a fabric can sleep until a completion arrives, it sleeps instead of the loop.
//!
//! # What to use
//!
//! | you have | use |
//! |---|---|
//! | one operation, blocking API | [`block_on`] |
//! | a stream of operations of one type, N at a time | [`TaskSet`] |
//! | operations of many types, handles to await | [`Executor`] |
//! | a few futures, all of whose outputs are needed | [`together`], with [`AllCompletions`] |
//! | a lock that another client holds | [`backoff`] |
//!
//! Futures of this crate also run under any other executor.
//!
//! # Guarantees
//!
//! * **Threads.** *A task is polled only by the thread that owns its set.* All three drivers are
//!   `!Send`.
//! * **Wakes.** *No wake is lost.* A wake during a poll leads to another poll. A wake from another
//!   thread that arrives while the owner goes to sleep ends the sleep.
//! * **Spurious polls.** *A poll without a wake is allowed*, as for every `Future`, and rare:
//!   [`block_on`] and the main future of [`Executor::run_until`] are polled in every turn, tasks
//!   when woken.
//! * **Order.** *The order of tasks depends only on the wakes.* Tasks run in the order in which
//!   they were woken, so a deterministic `poll_completions` gives a deterministic run. Only wakes
//!   from other threads and the length of sleeps depend on the clock.
//! * **Panics.** *A panic in a task* drops that task and propagates through the call that polled
//!   it. The set stays usable and no other task is lost.
//! * **Detached tasks.** *Dropping a [`JoinHandle`] detaches its task; it does not stop it.*
//!   Dropping a whole set or executor drops its pending tasks in place; [`TaskSet::drain`] and
//!   [`Executor::drain`] finish them.
//!
//! # Limits
//!
//! The crate has no work stealing, timers, I/O or priorities, and cannot cancel single tasks. It
//! requires a 64-bit target, because the waker's number must fit in a pointer.
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
mod together;
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
pub use together::{AllCompletions, together};
