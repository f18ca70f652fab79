//! What clients did and saw, with when.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// A value; each is written once.
pub(crate) type Value = u64;

/// What was done with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// It got a value, or lost it.
    Write(Option<Value>),
    /// It had this.
    Read(Option<Value>),
    /// It had the first, and got the second; whether it did is the third.
    Swap(Option<Value>, Option<Value>, bool),
}

/// An operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    pub(crate) act: Act,
    /// Nanoseconds since the history began.
    pub(crate) begun_ns: u64,
    /// None: it is not known whether it took place, nor when.
    pub(crate) ended_ns: Option<u64>,
}

/// Operations of all clients, by key.
pub(crate) struct History {
    since: Instant,
    by_key: Mutex<BTreeMap<u64, Vec<Operation>>>,
}

impl History {
    pub(crate) fn new() -> Self {
        Self {
            since: Instant::now(),
            by_key: Mutex::default(),
        }
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.since.elapsed().as_nanos() as u64
    }

    pub(crate) fn note(&self, key: u64, operation: Operation) {
        let mut by_key = self.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        by_key.entry(key).or_default().push(operation);
    }

    pub(crate) fn into_keys(self) -> BTreeMap<u64, Vec<Operation>> {
        let by_key = self.by_key.into_inner();
        by_key.unwrap_or_else(PoisonError::into_inner)
    }
}
