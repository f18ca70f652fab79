//! Threads of a run: prepared, started together, timed together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use farleaf::SessionOptions;

use super::client::{Client, RunShared};
use super::cluster::ClusterTable;
use super::fault_counts::FaultCounts;
use super::gate::{Place, StartGate};
use super::pools::Pools;
use super::requests::Requests;
use super::store::TableLocation;
use super::subject::{OneTable, StringTable, Subject, TableOfParts};
use super::{BenchError, ProgressSink, RunConfig};
use crate::dataset::KeySet;
use crate::report::RunRecorder;
use crate::verify::{ScanChecker, WriterId};
use crate::workload::{InsertLedger, OperationStream, WorkloadSpec};

/// Time between two progress reports while operations run.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

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
    let thread_count = assignment.config.threads;
    let gate = StartGate::new(thread_count);
    let done_count = AtomicU64::new(0);
    thread::scope(|scope| {
        let mut places: Vec<Place<'_>> = (0..thread_count).map(|_| gate.place()).collect();
        let mut handles = Vec::with_capacity(thread_count);
        for thread_index in 0..thread_count {
            let place = places.pop().expect("a place for each");
            let done_count = &done_count;
            // If it fails, the places of threads that were not started are dropped, so that no
            // thread waits for them.
            let handle = thread::Builder::new()
                .name(format!("ycsb-{thread_index}"))
                .spawn_scoped(scope, move || {
                    let told = (done_count, place);
                    match assignment.site {
                        TableLocation::Pools(Pools::One(pool)) => {
                            work::<OneTable>(pool, assignment, thread_index, told)
                        }
                        TableLocation::Pools(Pools::Several(pools)) => {
                            work::<TableOfParts>(pools, assignment, thread_index, told)
                        }
                        TableLocation::Pools(Pools::Strings(pool)) => {
                            work::<StringTable>(pool, assignment, thread_index, told)
                        }
                        TableLocation::Cluster(loaded_table) => work::<ClusterTable>(
                            loaded_table.place(),
                            assignment,
                            thread_index,
                            told,
                        ),
                    }
                })
                .map_err(|source| BenchError::Thread {
                    thread_count,
                    source,
                })?;
            handles.push(handle);
        }
        while !gate.wait_done(REPORT_INTERVAL) {
            progress.advance(done_count.load(Relaxed));
        }
        progress.advance(done_count.load(Relaxed));
        merge(handles)
    })
}

fn merge(
    handles: Vec<ScopedJoinHandle<'_, Result<ThreadResult, BenchError>>>,
) -> Result<OperationResults, BenchError> {
    let mut all = OperationResults::default();
    let mut span: Option<(Instant, Instant)> = None;
    for handle in handles {
        let joined = handle
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let one = joined?;
        all.recorder.merge(&one.recorder);
        all.fault_counts.merge(one.fault_counts);
        all.fallback_count += one.fallback_count;
        all.metadata_bytes_max = all.metadata_bytes_max.max(one.metadata_bytes);
        span = Some(match span {
            None => (one.started, one.ended),
            Some((started, ended)) => (started.min(one.started), ended.max(one.ended)),
        });
    }
    all.wall_time = span.map_or(Duration::ZERO, |(started, ended)| ended - started);
    Ok(all)
}

/// Executes the operations of one thread.
fn work<S: Subject>(
    pool: &S::Place,
    assignment: ThreadSettings<'_>,
    thread_index: usize,
    (done_count, mut place): (&AtomicU64, Place<'_>),
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
