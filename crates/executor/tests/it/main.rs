//! Tests of the executor's public guarantees; `fake_queue` simulates the fabric.

#[cfg(not(loom))]
mod executor;
#[cfg(not(loom))]
mod fake_queue;
#[cfg(not(loom))]
mod task_set;
#[cfg(not(loom))]
mod waking;
