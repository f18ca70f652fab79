//! Requests of a thread: its operations with their keys, resolved a few ahead.
//!
//! The keys of a large run are in no cache, and each lookup waits more than 100 ns for memory: as
//! much as a third of a get. Consecutive lookups without other work between them overlap, and take
//! some 10 ns each. Without inserts only: otherwise an operation depends on the inserts that were
//! acknowledged before it.

use crate::dataset::KeySet;
use crate::workload::{Operation, OperationStream, WorkloadSpec};

/// Operations whose keys are read together.
const AHEAD_COUNT: u64 = 16;

/// Operation with its keys; see [`Operation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    Read { key: u64 },
    Update { key: u64 },
    Insert { insert_index: u64, key: u64 },
    Scan { from: u64, length: u32 },
    ReadModifyWrite { key: u64 },
}

/// Requests of one thread.
#[derive(Debug)]
pub(super) struct Requests<'a> {
    stream: &'a mut OperationStream,
    keys: &'a KeySet,
    ahead_count: u64,
    untaken_count: u64,
    drawn: Vec<Operation>,
    /// Resolved requests, the next one last.
    ready: Vec<Request>,
}

impl<'a> Requests<'a> {
    /// Creates the first `request_count` requests of `stream`, or fewer if it ends.
    pub(super) fn new(
        spec: &WorkloadSpec,
        stream: &'a mut OperationStream,
        keys: &'a KeySet,
        request_count: u64,
    ) -> Self {
        let ahead_count = if spec.mix.insert > 0.0 {
            1
        } else {
            AHEAD_COUNT
        };
        Self {
            stream,
            keys,
            ahead_count,
            untaken_count: request_count,
            drawn: Vec::with_capacity(AHEAD_COUNT as usize),
            ready: Vec::with_capacity(AHEAD_COUNT as usize),
        }
    }

    fn look_up(&mut self) {
        let count = self.ahead_count.min(self.untaken_count);
        self.untaken_count -= count;
        self.drawn.clear();
        self.drawn.extend(self.stream.by_ref().take(count as usize));
        let keys = self.keys;
        self.ready.extend(
            self.drawn
                .iter()
                .rev()
                .map(|operation| request(keys, *operation)),
        );
    }
}

impl Iterator for Requests<'_> {
    type Item = Request;

    #[inline]
    fn next(&mut self) -> Option<Request> {
        if self.ready.is_empty() {
            self.look_up();
        }
        self.ready.pop()
    }
}

#[inline]
fn request(keys: &KeySet, operation: Operation) -> Request {
    match operation {
        Operation::Read(index) => Request::Read {
            key: keys.key(index),
        },
        Operation::Update(index) => Request::Update {
            key: keys.key(index),
        },
        Operation::Insert(insert_index) => Request::Insert {
            insert_index,
            key: keys.inserts()[insert_index as usize],
        },
        Operation::Scan { index, length } => Request::Scan {
            from: keys.key(index),
            length,
        },
        Operation::ReadModifyWrite(index) => Request::ReadModifyWrite {
            key: keys.key(index),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::dataset::Dataset;
    use crate::workload::{InsertLedger, WorkloadLetter};

    /// Promise: requests are the stream's operations in their order, exactly as many as requested.
    /// With inserts, none is drawn before the previous one is taken.
    #[test]
    fn requests_are_the_operations_in_their_order() {
        let keys = KeySet::generate(&Dataset::Uniform, 1_000, 200, 1).expect("keys");
        for letter in WorkloadLetter::ALL {
            let spec = WorkloadSpec::of(letter);
            let stream = |ledger: &Arc<InsertLedger>| {
                OperationStream::new(&spec, None, Arc::clone(ledger), 1, 0).expect("a stream")
            };
            let [ledger, other] = [(); 2].map(|()| Arc::new(InsertLedger::new(1_000, 200)));
            let mut operations = stream(&ledger);
            let mut other_stream = stream(&other);
            let mut count = 0;
            for request in Requests::new(&spec, &mut operations, &keys, 1_001) {
                count += 1;
                assert_eq!(
                    Some(request),
                    other_stream.next().map(|next| super::request(&keys, next))
                );
                assert_eq!(ledger.taken_count(), other.taken_count(), "{letter}");
                if let Request::Insert { insert_index, .. } = request {
                    ledger.acknowledge(insert_index);
                    other.acknowledge(insert_index);
                }
            }
            assert_eq!(count, 1_001, "{letter}");
        }
    }
}
