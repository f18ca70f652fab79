//! Threads of a run: started together, monitored, joined.

use std::sync::mpsc::{self, Sender};
use std::thread::{self, ScopedJoinHandle};

use farleaf::Pool;

use super::TimelineConfig;
use super::change_state::ChangeState;
use super::client::{Client, ThreadRecords};
use super::clock::Clock;
use super::interval::{GetTotals, Interval};
use super::store::TABLE_NAME;
use super::watch::{IntervalCollector, ThreadInterval};
use crate::distribution::numbered_stream;
use crate::runner::fault_counts::FaultCounts;
use crate::runner::gate::{Place, StartGate};
use crate::runner::{BenchError, ProgressSink};

/// Combined results of the threads of a run.
#[derive(Debug)]
pub(super) struct ChangeResults {
    pub(super) intervals: Vec<Interval>,
    pub(super) faults: FaultCounts,
    /// Gets that ended before the last write.
    pub(super) gets: GetTotals,
    /// Time of the last write, in seconds.
    pub(super) written_s: f64,
}

/// Settings of a thread.
#[derive(Clone, Copy)]
struct ChangeSettings<'a> {
    config: &'a TimelineConfig,
    change_state: &'a ChangeState,
    pool: &'a Pool,
    clock: &'a Clock,
}

/// Executes the change, and monitors it.
///
/// # Errors
/// A thread could not be started, has no session, or the pool could not be read.
pub(super) fn run(
    config: &TimelineConfig,
    change_state: &ChangeState,
    pool: &Pool,
    sink: &dyn ProgressSink,
) -> Result<ChangeResults, BenchError> {
    let clock = Clock::new(config.threads, config.interval, config.settle);
    let assignment = ChangeSettings {
        config,
        change_state,
        pool,
        clock: &clock,
    };
    let gate = StartGate::new(config.threads + 1);
    let (sender, parts) = mpsc::channel();
    thread::scope(|scope| {
        let mut places: Vec<Place<'_>> = (0..=config.threads).map(|_| gate.place()).collect();
        let mut own_place = places.pop().expect("a place for each, and this one");
        // If a thread does not start, the others stop.
        let _guard = Guard(&clock);
        let mut handles = Vec::with_capacity(config.threads);
        for (thread_index, place) in places.into_iter().enumerate() {
            let sender = sender.clone();
            let handle = thread::Builder::new()
                .name(format!("timeline-{thread_index}"))
                .spawn_scoped(scope, move || work(assignment, thread_index, sender, place))
                .map_err(|source| BenchError::Thread {
                    thread_count: config.threads,
                    source,
                })?;
            handles.push(handle);
        }
        drop(sender);
        own_place.ready();
        let watch = IntervalCollector::new(pool, &clock, config, sink);
        let watched = watch.listen(&parts, &|| change_state.taken_count());
        if watched.is_err() {
            clock.abandon();
        }
        let merged = merge(handles)?;
        let written_ns = clock.written_ns().unwrap_or(0);
        Ok(ChangeResults {
            intervals: watched?,
            faults: merged.0,
            gets: merged.1,
            written_s: written_ns as f64 / 1e9,
        })
    })
}

/// Ends the run when it is dropped.
struct Guard<'a>(&'a Clock);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

fn merge(
    handles: Vec<ScopedJoinHandle<'_, Result<ThreadRecords, BenchError>>>,
) -> Result<(FaultCounts, GetTotals), BenchError> {
    let (mut faults, mut gets) = (FaultCounts::default(), GetTotals::default());
    for handle in handles {
        let joined = handle
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let notes = joined?;
        faults.merge(notes.faults);
        gets.merge(notes.gets);
    }
    Ok((faults, gets))
}

/// Executes the operations of one thread.
fn work(
    assignment: ChangeSettings<'_>,
    thread_index: usize,
    parts: Sender<ThreadInterval>,
    mut place: Place<'_>,
) -> Result<ThreadRecords, BenchError> {
    let ChangeSettings {
        config,
        change_state,
        pool,
        clock,
    } = assignment;
    // A failing thread would never report that it has no more writes.
    let guard = Guard(clock);
    let session = pool
        .session()
        .map_err(BenchError::table("opening a session"))?;
    let table = session
        .open_table(TABLE_NAME)
        .map_err(BenchError::table("opening the table"))?;
    let client = Client {
        thread_index,
        change_state,
        clock,
        session: &session,
        table: &table,
        parts,
        random: numbered_stream(config.seed, thread_index),
        reads_below: (u64::MAX / 100) * u64::from(config.reads_percent),
    };
    place.ready();
    let notes = client.run();
    std::mem::forget(guard);
    drop(table);
    session
        .close()
        .map_err(BenchError::table("closing a session"))?;
    Ok(notes)
}
