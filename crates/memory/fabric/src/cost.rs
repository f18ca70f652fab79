//! Cost of operations, in units that do not depend on hardware (FABRIC-9).

use core::cell::Cell;
use core::ops::AddAssign;

use crate::batch::{Verb, VerbKind};

/// Cost of one operation, or a sum of costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Number of batches awaited one after the other.
    pub round_trips: u64,
    /// Number of posts to a node; a batch to two nodes is one round trip and two doorbells.
    pub doorbells: u64,
    /// Number of verbs posted.
    pub verbs: u64,
    /// Payload of READs, in bytes.
    pub bytes_read: u64,
    /// Payload of WRITEs, in bytes.
    pub bytes_written: u64,
    /// Number of CAS and FAA verbs; their words are not included in the bytes.
    pub atomics: u64,
    /// Number of repeated rounds, after torn images and locks that were held.
    pub retries: u64,
    /// Number of leaf images read, including repeated reads.
    pub leaves_read: u64,
    /// Number of links followed because a hint was outdated: to the right from a leaf or inner node
    /// that has split, and from a retired leaf to its successor. A scan that moves from leaf to
    /// leaf follows none.
    pub links: u64,
}

impl AddAssign for Cost {
    #[inline]
    fn add_assign(&mut self, other: Self) {
        self.round_trips += other.round_trips;
        self.doorbells += other.doorbells;
        self.verbs += other.verbs;
        self.bytes_read += other.bytes_read;
        self.bytes_written += other.bytes_written;
        self.atomics += other.atomics;
        self.retries += other.retries;
        self.leaves_read += other.leaves_read;
        self.links += other.links;
    }
}

impl Cost {
    /// Counts posted verbs and their bytes; round trips and doorbells are counted elsewhere
    /// (FABRIC-9).
    #[inline]
    pub(crate) fn count_posted(&mut self, verbs: &[Verb]) {
        self.verbs += verbs.len() as u64;
        for verb in verbs {
            let bytes = u64::from(verb.word_count) * 8;
            match verb.kind {
                VerbKind::Read => self.bytes_read += bytes,
                VerbKind::Write => self.bytes_written += bytes,
                VerbKind::CompareSwap | VerbKind::FetchAdd => self.atomics += 1,
            }
        }
    }
}

/// Kind of operation that a cost belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OperationKind {
    /// Reads one key.
    Get,
    /// Reads many keys in one batch.
    MultiGet,
    /// Writes a key whether present or not.
    Put,
    /// Writes a key that must be absent.
    Insert,
    /// Writes a key that must be present.
    Update,
    /// Removes a key.
    Delete,
    /// Writes a key if it has a given value.
    CompareSwap,
    /// Reads keys in order.
    Scan,
    /// Fills an empty table from a sorted sequence.
    BulkLoad,
    /// Other work: catalog, leases, snapshots, recovery.
    Control,
}

impl OperationKind {
    /// All kinds, in the order of their declaration.
    pub const ALL: [Self; 10] = [
        Self::Get,
        Self::MultiGet,
        Self::Put,
        Self::Insert,
        Self::Update,
        Self::Delete,
        Self::CompareSwap,
        Self::Scan,
        Self::BulkLoad,
        Self::Control,
    ];

    /// Returns the kind's name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::MultiGet => "multi_get",
            Self::Put => "put",
            Self::Insert => "insert",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::CompareSwap => "compare_and_swap",
            Self::Scan => "scan",
            Self::BulkLoad => "bulk_load",
            Self::Control => "control",
        }
    }
}

/// Sums over the operations of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindCounters {
    /// Number of finished operations.
    pub operations: u64,
    /// Number of operations that read exactly one leaf image.
    pub one_leaf_operations: u64,
    /// Sum of the operations' costs.
    pub cost: Cost,
}

impl AddAssign for KindCounters {
    fn add_assign(&mut self, other: Self) {
        self.operations += other.operations;
        self.one_leaf_operations += other.one_leaf_operations;
        self.cost += other.cost;
    }
}

/// Counters of one endpoint; used by one thread.
#[derive(Debug, Default)]
pub struct Counters {
    kinds: [Cell<KindCounters>; OperationKind::ALL.len()],
}

impl Counters {
    /// Counts one finished operation.
    #[inline]
    pub fn record(&self, kind: OperationKind, cost: &Cost) {
        let cell = &self.kinds[kind as usize];
        let mut counters = cell.get();
        counters.operations += 1;
        counters.one_leaf_operations += u64::from(cost.leaves_read == 1);
        counters.cost += *cost;
        cell.set(counters);
    }

    /// Returns the sums of one kind so far.
    pub fn kind(&self, kind: OperationKind) -> KindCounters {
        self.kinds[kind as usize].get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_counted_apart_and_indexed_by_declaration() {
        for (index, kind) in OperationKind::ALL.into_iter().enumerate() {
            assert_eq!(
                kind as usize,
                index,
                "{} is out of order in ALL",
                kind.name()
            );
        }
        let counters = Counters::default();
        let one = Cost {
            round_trips: 1,
            bytes_read: 160,
            leaves_read: 1,
            ..Cost::default()
        };
        let two = Cost {
            round_trips: 2,
            bytes_read: 320,
            leaves_read: 2,
            ..Cost::default()
        };
        counters.record(OperationKind::Get, &one);
        counters.record(OperationKind::Get, &two);
        let get = counters.kind(OperationKind::Get);
        assert_eq!((get.operations, get.one_leaf_operations), (2, 1));
        assert_eq!((get.cost.round_trips, get.cost.bytes_read), (3, 480));
        assert_eq!(counters.kind(OperationKind::Put), KindCounters::default());
    }
}
