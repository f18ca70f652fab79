//! What the executor promises, seen from outside. See `fake_queue` for the other side.

#[cfg(not(loom))]
mod executor;
#[cfg(not(loom))]
mod fake_queue;
#[cfg(not(loom))]
mod task_set;
#[cfg(not(loom))]
mod waking;
