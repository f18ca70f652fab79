//! What clients did and saw, with when.

use core::ops::Range;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// A value; each is written once.
pub type Value = u64;

/// What was done with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// It got a value, or lost it.
    Write(Option<Value>),
    /// It lost its value, if it had one, and whether it had was told.
    Remove(bool),
    /// It had this.
    Read(Option<Value>),
    /// It had the first, and got the second; whether it did is the third.
    Swap(Option<Value>, Option<Value>, bool),
}

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// What it was.
    pub act: Act,
    /// Nanoseconds since the history began.
    pub begun_ns: u64,
    /// None: it is not known whether it took place, nor when.
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
    /// Nanoseconds since it began.
    pub fn now_ns(&self) -> u64 {
        self.since.elapsed().as_nanos() as u64
    }

    /// An operation more.
    pub fn note(&self, key: u64, operation: Operation) {
        let mut by_key = self.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        by_key.entry(key).or_default().push(operation);
    }

    /// What had not begun before this time, and was acknowledged in it.
    pub fn acknowledged(&self, time_ns: Range<u64>) -> Vec<Operation> {
        let by_key = self.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        let all = by_key.values().flatten().copied();
        all.filter(|it| {
            let is_ended = it.ended_ns.is_some_and(|ended| ended < time_ns.end);
            it.begun_ns >= time_ns.start && is_ended
        })
        .collect()
    }

    /// What was done with each key, in no order.
    pub fn into_keys(self) -> BTreeMap<u64, Vec<Operation>> {
        let by_key = self.by_key.into_inner();
        by_key.unwrap_or_else(PoisonError::into_inner)
    }
}
