//! Threads of a run: prepared, started together, timed together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use farleaf::SessionOptions;

use super::client::{Client, RunShared};
use super::cluster::ClusterStore;
use super::fault_counts::FaultCounts;
use super::gate::{Place, run_threads};
use super::pools::Pools;
use super::requests::Requests;
use super::store::TableLocation;
use super::string_table::{PoolStore, StringTable};
use super::subject::{OneTable, Subject, TableOfParts};
use super::{BenchError, ProgressSink, RunConfig};
use crate::dataset::KeySet;
use crate::report::RunRecorder;
use crate::verify::{ScanChecker, WriterId};
use crate::workload::{InsertLedger, OperationStream, WorkloadSpec};

/// Settings of the threads of a run.
#[derive(Clone, Copy)]
pub(super) struct ThreadSettings<'a> {
    pub(super) config: &'a RunConfig,
    pub(super) spec: WorkloadSpec,
    pub(super) site: &'a TableLocation,
    pub(super) keys: &'a KeySet,
    pub(super) ledger: &'a Arc<InsertLedger>,
    pub(super) checker: &'a ScanChecker,
}

/// Combined results of the threads of a run.
#[derive(Debug, Default)]
pub(super) struct OperationResults {
    pub(super) recorder: RunRecorder,
    pub(super) fault_counts: FaultCounts,
    /// Time from the start of the first operation to the end of the last.
    pub(super) wall_time: Duration,
    /// Bytes that one session held at the end to find leaves: the maximum of all.
    pub(super) metadata_bytes_max: Option<u64>,
    /// Number of keys for which the memory node was asked, since models did not lead to them.
    pub(super) fallback_count: u64,
}

/// Results of one thread.
struct ThreadResult {
    recorder: RunRecorder,
    fault_counts: FaultCounts,
    started: Instant,
    ended: Instant,
    metadata_bytes: Option<u64>,
    fallback_count: u64,
}

/// Executes all operations.
///
/// # Errors
/// A thread could not be started, or has no session or no operations.
pub(super) fn run_operations(
    assignment: ThreadSettings<'_>,
    progress: &dyn ProgressSink,
) -> Result<OperationResults, BenchError> {
    let done_count = &AtomicU64::new(0);
    let work = |index: usize, place: Place<'_>| match assignment.site {
        TableLocation::Pools(Pools::One(pool)) => {
            work::<OneTable>(pool, assignment, index, done_count, place)
        }
        TableLocation::Pools(Pools::Several(pools)) => {
            work::<TableOfParts>(pools, assignment, index, done_count, place)
        }
        TableLocation::Pools(Pools::Strings(pool)) => {
            work::<StringTable<PoolStore>>(pool, assignment, index, done_count, place)
        }
        TableLocation::Cluster(loaded_table) => {
            let store = loaded_table.store();
            work::<StringTable<ClusterStore>>(store, assignment, index, done_count, place)
        }
    };
    let report = || progress.advance(done_count.load(Relaxed));
    let results = run_threads(assignment.config.threads, "ycsb", work, report)?;
    let mut all = OperationResults::default();
    let started = results.iter().map(|one| one.started).min();
    let ended = results.iter().map(|one| one.ended).max();
    all.wall_time = started
        .zip(ended)
        .map_or(Duration::ZERO, |(started, ended)| ended - started);
    for one in results {
        all.recorder.merge(&one.recorder);
        all.fault_counts.merge(one.fault_counts);
        all.fallback_count += one.fallback_count;
        all.metadata_bytes_max = all.metadata_bytes_max.max(one.metadata_bytes);
    }
    Ok(all)
}

/// Executes the operations of one thread.
fn work<S: Subject>(
    pool: &S::Place,
    assignment: ThreadSettings<'_>,
    thread_index: usize,
    done_count: &AtomicU64,
    mut place: Place<'_>,
) -> Result<ThreadResult, BenchError> {
    let ThreadSettings {
        config,
        spec,
        site: _,
        keys,
        ledger,
        checker,
    } = assignment;
    let failed = |activity| BenchError::store(spec.letter, activity);
    let options = SessionOptions {
        metadata_budget_bytes: config.metadata_budget_bytes,
        link_count_max: config.link_count_max,
        model_cache: config.model_cache,
        does_not_speculate: config.does_not_speculate,
    };
    let table = S::open(pool, &options).map_err(failed("opening the table"))?;
    let mut stream = OperationStream::new(
        &spec,
        config.distribution,
        Arc::clone(ledger),
        config.seed,
        thread_index,
    )?;
    let writer = WriterId::thread(thread_index).expect("the count of threads has been checked");
    let shared = RunShared {
        spec,
        ledger,
        checker,
        done_count,
    };
    let client = Client::new(shared, &table, writer);
    let operation_count = share(config.operations, config.threads, thread_index);
    let requests = Requests::new(&spec, &mut stream, keys, operation_count);

    place.ready();
    let started = Instant::now();
    if config.in_flight == 1 {
        client.run_one_by_one(requests);
    } else {
        client.run_in_flight(requests, config.in_flight);
    }
    let ended = Instant::now();

    let (recorder, fault_counts) = client.into_results();
    let metadata_bytes = table.metadata_bytes();
    let fallback_count = table.hint_counters().fallback_count;
    table.close().map_err(failed("closing a session"))?;
    Ok(ThreadResult {
        recorder,
        fault_counts,
        started,
        ended,
        metadata_bytes,
        fallback_count,
    })
}

/// Returns the number of `total` operations that thread `thread_index` executes: equal shares, with
/// one more for the first threads.
fn share(total: u64, thread_count: usize, thread_index: usize) -> u64 {
    let (count, index) = (thread_count as u64, thread_index as u64);
    total / count + u64::from(index < total % count)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the shares add up to the total and differ by at most one.
    #[test]
    fn shares_add_up() {
        for (total, thread_count) in [(0, 1), (1, 3), (10, 3), (1_000_000, 7)] {
            let shares: Vec<u64> = (0..thread_count)
                .map(|index| share(total, thread_count, index))
                .collect();
            assert_eq!(shares.iter().sum::<u64>(), total);
            assert!(shares[0] - shares[thread_count - 1] <= 1);
        }
    }
}
