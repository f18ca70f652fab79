//! Identifiers of a simulated fabric, and its unit of time.

/// Virtual time in nanoseconds since the beginning of a run.
pub type Nanos = u64;

/// Client of the world: the unit that FABRIC-6 fences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u32);

/// Task of the executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub u32);
