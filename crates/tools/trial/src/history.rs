//! History of clients' operations and results, with times.

use core::ops::Range;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Value of a key; each value is written only once.
pub type Value = u64;

/// Operation on a key, with its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Wrote a value, or deleted the key.
    Write(Option<Value>),
    /// Deleted the key; whether it was present.
    Remove(bool),
    /// Read this value.
    Read(Option<Value>),
    /// Compared the value with the first, to replace it by the second; whether it did.
    Swap(Option<Value>, Option<Value>, bool),
}

/// Operation with its times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Operation and result.
    pub act: Act,
    /// Begin, in nanoseconds since the history began.
    pub started_ns: u64,
    /// End, in nanoseconds since the history began; `None` if it is unknown whether and when the
    /// operation took effect.
    pub ended_ns: Option<u64>,
}

/// Operations of all clients, by key.
#[derive(Debug)]
pub struct History {
    since: Instant,
    by_key: Mutex<BTreeMap<u64, Vec<Operation>>>,
}

impl Default for History {
    fn default() -> Self {
        Self {
            since: Instant::now(),
            by_key: Mutex::default(),
        }
    }
}

impl History {
    /// Returns the nanoseconds since the history began.
    pub fn now_ns(&self) -> u64 {
        self.since.elapsed().as_nanos() as u64
    }

    /// Adds an operation.
    pub fn note(&self, key: u64, operation: Operation) {
        let mut by_key = self.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        by_key.entry(key).or_default().push(operation);
    }

    /// Returns the operations that began and were acknowledged within this time range.
    pub fn acknowledged(&self, time_ns: Range<u64>) -> Vec<Operation> {
        let by_key = self.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        let all = by_key.values().flatten().copied();
        all.filter(|it| {
            let is_ended = it.ended_ns.is_some_and(|ended| ended < time_ns.end);
            it.started_ns >= time_ns.start && is_ended
        })
        .collect()
    }

    /// Returns the operations of each key, in no order.
    pub fn into_keys(self) -> BTreeMap<u64, Vec<Operation>> {
        let by_key = self.by_key.into_inner();
        by_key.unwrap_or_else(PoisonError::into_inner)
    }
}
