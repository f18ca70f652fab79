//! Operation stream of one thread.

use std::sync::Arc;

use super::{InsertLedger, OperationKind, WorkloadSpec};
use crate::distribution::{
    Distribution, IndexChooser, Random, below, numbered_stream, unit_interval,
};

/// One operation over record indexes; [`KeySet::key`](crate::dataset::KeySet::key) names the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads the record with this index.
    Read(u64),
    /// Writes a new value to the record with this index.
    Update(u64),
    /// Inserts the key with this *insert* index (its record index is larger by the loaded count);
    /// the ledger must receive the outcome.
    Insert(u64),
    /// Reads records in key order.
    Scan {
        /// Index of the first record.
        index: u64,
        /// Number of records, including the first one: 1 or more.
        length: u32,
    },
    /// Reads the record with this index, then writes a new value.
    ReadModifyWrite(u64),
}

impl Operation {
    /// Returns the kind of the operation.
    pub const fn kind(&self) -> OperationKind {
        match self {
            Self::Read(_) => OperationKind::Read,
            Self::Update(_) => OperationKind::Update,
            Self::Insert(_) => OperationKind::Insert,
            Self::Scan { .. } => OperationKind::Scan,
            Self::ReadModifyWrite(_) => OperationKind::ReadModifyWrite,
        }
    }
}

/// Errors of workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkloadError {
    /// There are no records.
    #[error("a workload needs at least one loaded record")]
    NoRecords,
    /// The workload inserts, but no keys were prepared for it.
    #[error("workload {0} inserts records, but there are no keys to insert")]
    NoInsertKeys(super::WorkloadLetter),
}

/// Operations of a thread, endless except for inserts: the iterator ends when an insert is needed
/// and all insert keys are handed out.
///
/// A thread and a seed determine kinds and scan lengths. As in YCSB, indexes depend on the inserts
/// of other threads. They are the same in every run without inserts, or with one thread that
/// acknowledges its inserts at the same points. Costs about 40 ns per operation.
#[derive(Debug)]
pub struct OperationStream {
    ledger: Arc<InsertLedger>,
    chooser: IndexChooser,
    /// Upper ends of the shares of all kinds in `[0, 1)`, in the order of [`OperationKind::ALL`].
    thresholds: [f64; OperationKind::ALL.len()],
    scan_length_max: u32,
    /// Random numbers for kinds and scan lengths.
    kind_random: Random,
    /// Random numbers for record indexes: separate, because the number of draws depends on other
    /// threads.
    index_random: Random,
}

impl OperationStream {
    /// Creates the operations of thread `thread_index` of `spec`, optionally with another request
    /// distribution than the workload's.
    pub fn new(
        spec: &WorkloadSpec,
        distribution: Option<Distribution>,
        ledger: Arc<InsertLedger>,
        seed: u64,
        thread_index: usize,
    ) -> Result<Self, WorkloadError> {
        if ledger.loaded_count() == 0 {
            return Err(WorkloadError::NoRecords);
        }
        if spec.mix.insert > 0.0 && ledger.insert_count() == 0 {
            return Err(WorkloadError::NoInsertKeys(spec.letter));
        }
        let distribution = distribution.unwrap_or(spec.distribution);
        let chooser = IndexChooser::new(distribution, ledger.loaded_count(), ledger.insert_count());
        let mut end = 0.0;
        let thresholds = OperationKind::ALL.map(|kind| {
            end += spec.mix.share(kind);
            end
        });
        Ok(Self {
            ledger,
            chooser,
            thresholds,
            scan_length_max: spec.scan_length_max.max(1),
            kind_random: numbered_stream(seed, 2 * thread_index),
            index_random: numbered_stream(seed, 2 * thread_index + 1),
        })
    }

    #[inline]
    fn kind(&mut self) -> OperationKind {
        let drawn = unit_interval(&mut self.kind_random);
        let place = self.thresholds.iter().position(|end| drawn < *end);
        // If the shares add up to slightly less than 1 by rounding: the last kind with a share.
        place.map_or_else(|| self.last_kind(), |place| OperationKind::ALL[place])
    }

    #[cold]
    fn last_kind(&self) -> OperationKind {
        let end = self.thresholds[OperationKind::ALL.len() - 1];
        let place = self
            .thresholds
            .iter()
            .position(|threshold| *threshold >= end);
        OperationKind::ALL[place.unwrap_or(0)]
    }

    #[inline]
    fn index(&mut self) -> u64 {
        loop {
            let index = self
                .chooser
                .choose(&mut self.index_random, self.ledger.existing_count());
            if !self.ledger.is_abandoned(index) {
                return index;
            }
        }
    }
}

impl Iterator for OperationStream {
    type Item = Operation;

    #[inline]
    fn next(&mut self) -> Option<Operation> {
        Some(match self.kind() {
            OperationKind::Read => Operation::Read(self.index()),
            OperationKind::Update => Operation::Update(self.index()),
            OperationKind::Insert => Operation::Insert(self.ledger.take()?),
            OperationKind::Scan => {
                let length_less_one = below(&mut self.kind_random, self.scan_length_max.into());
                Operation::Scan {
                    index: self.index(),
                    length: length_less_one as u32 + 1,
                }
            }
            OperationKind::ReadModifyWrite => Operation::ReadModifyWrite(self.index()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::WorkloadLetter;
    use super::*;

    fn stream(letter: WorkloadLetter, insert_count: u64, thread: usize) -> OperationStream {
        let ledger = Arc::new(InsertLedger::new(10_000, insert_count));
        OperationStream::new(&WorkloadSpec::of(letter), None, ledger, 42, thread).expect("records")
    }

    /// Draws `count` operations, acknowledges each insert at once, and checks each index.
    fn run(stream: &mut OperationStream, count: usize) -> Vec<Operation> {
        let ledger = Arc::clone(&stream.ledger);
        let mut operations = Vec::with_capacity(count);
        for operation in stream.take(count) {
            match operation {
                Operation::Insert(insert_index) => ledger.acknowledge(insert_index),
                Operation::Read(index)
                | Operation::Update(index)
                | Operation::Scan { index, .. }
                | Operation::ReadModifyWrite(index) => assert!(index < ledger.existing_count()),
            }
            operations.push(operation);
        }
        operations
    }

    /// Promise: every workload has exactly YCSB's mix (0.5 % of all operations, five standard
    /// deviations of 250,000).
    #[test]
    fn every_workload_has_its_mix() {
        for letter in WorkloadLetter::ALL {
            let operations = run(&mut stream(letter, 30_000, 0), 250_000);
            let mix = WorkloadSpec::of(letter).mix;
            for kind in OperationKind::ALL {
                let count = operations
                    .iter()
                    .filter(|operation| operation.kind() == kind)
                    .count();
                let share = count as f64 / operations.len() as f64;
                assert!(
                    (share - mix.share(kind)).abs() < 0.005,
                    "{letter} {kind}: {share}"
                );
                assert_eq!(count == 0, mix.share(kind) == 0.0, "{letter} {kind}");
            }
        }
    }

    /// Promise: scan lengths are 1 to 100, each about equally often.
    #[test]
    fn scan_lengths_are_uniform_from_1_to_100() {
        let mut counts = [0_u32; 101];
        for operation in run(&mut stream(WorkloadLetter::E, 30_000, 0), 200_000) {
            if let Operation::Scan { length, .. } = operation {
                counts[length as usize] += 1;
            }
        }
        assert_eq!(counts[0], 0);
        // 190,000 scans: mean 1,900, standard deviation 43.
        assert!(
            counts[1..].iter().all(|count| count.abs_diff(1_900) < 240),
            "{counts:?}"
        );
    }

    /// Promise: in D reads follow the inserts: the newest hundred records get the share that a
    /// zipfian over all of them gives them, about 40 %.
    #[test]
    fn reads_of_d_follow_the_inserts() {
        let mut stream = stream(WorkloadLetter::D, 30_000, 0);
        run(&mut stream, 200_000);
        let existing = stream.ledger.existing_count();
        assert!(existing > 19_000);
        let operations: Vec<Operation> = stream.by_ref().take(2_000).collect();
        let reads = operations.iter().filter_map(|operation| match operation {
            Operation::Read(index) => Some(*index),
            _ => None,
        });
        // None of these inserts is acknowledged: no read may request them.
        assert!(reads.clone().all(|index| index < existing));
        let newest = reads
            .clone()
            .filter(|index| *index >= existing - 100)
            .count();
        let share = newest as f64 / reads.count() as f64;
        assert!((0.4..0.6).contains(&share), "{share}");
    }

    /// Promise: abandoned inserts are never requested.
    #[test]
    fn abandoned_inserts_are_never_asked_for() {
        let mut stream = stream(WorkloadLetter::D, 30_000, 0);
        let ledger = Arc::clone(&stream.ledger);
        for operation in stream.by_ref().take(100_000) {
            match operation {
                Operation::Insert(index) if index % 2 == 0 => ledger.abandon(index),
                Operation::Insert(index) => ledger.acknowledge(index),
                Operation::Read(index) => assert!(index < 10_000 || index % 2 == 1, "{index}"),
                other => panic!("not in D: {other:?}"),
            }
        }
        assert!(ledger.existing_count() > 14_000);
    }

    /// Promise: the stream ends when the insert keys are used up, not before.
    #[test]
    fn the_stream_ends_with_the_insert_keys() {
        let mut stream = stream(WorkloadLetter::D, 100, 0);
        let operations = run(&mut stream, 100_000);
        let inserts = operations
            .iter()
            .filter(|o| o.kind() == OperationKind::Insert)
            .count();
        assert_eq!(inserts, 100);
        assert!(operations.len() < 4_000, "{}", operations.len());
    }

    /// Promise: seed and thread determine the operations, and threads differ.
    #[test]
    fn seed_and_thread_decide_the_operations() {
        for letter in WorkloadLetter::ALL {
            let operations = |thread| run(&mut stream(letter, 1_000, thread), 1_000);
            assert_eq!(operations(0), operations(0), "{letter}");
            assert_ne!(operations(0), operations(1), "{letter}");
        }
    }

    /// Promise: the operations of a seed never change.
    #[test]
    fn golden_operations() {
        let operations = run(&mut stream(WorkloadLetter::E, 1_000, 0), 4);
        let golden = [(4_275, 32), (9_061, 71), (6_531, 59), (2_253, 61)]
            .map(|(index, length)| Operation::Scan { index, length });
        assert_eq!(operations, golden);
    }

    /// Promise: a workload without records or without keys to insert is refused.
    #[test]
    fn what_cannot_run_is_refused() {
        let refused = |letter, loaded_count| {
            let ledger = Arc::new(InsertLedger::new(loaded_count, 0));
            OperationStream::new(&WorkloadSpec::of(letter), None, ledger, 1, 0).err()
        };
        assert_eq!(
            refused(WorkloadLetter::C, 0),
            Some(WorkloadError::NoRecords)
        );
        let no_keys = WorkloadError::NoInsertKeys(WorkloadLetter::D);
        assert_eq!(refused(WorkloadLetter::D, 1), Some(no_keys));
        assert_eq!(refused(WorkloadLetter::C, 1), None);
    }
}
