//! Threads of a run: started together, monitored, joined.

use std::fmt::Display;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, ScopedJoinHandle};

use farleaf::{Error, Pool};

use super::change_state::ChangeState;
use super::client::{Client, ThreadRecords};
use super::clock::Clock;
use super::interval::{GetTotals, Interval};
use super::store::TABLE_NAME;
use super::watch::{IntervalCollector, ThreadInterval};
use super::{TimelineConfig, TimelineError, TimelineSink};
use crate::distribution::numbered_stream;
use crate::runner::fault_counts::FaultCounts;
use crate::runner::gate::{Place, StartGate};
use crate::verify::Verdict;

/// Combined results of the threads of a run.
#[derive(Debug)]
pub(super) struct ChangeResults {
    pub(super) intervals: Vec<Interval>,
    pub(super) faults: ChangeFaults,
    /// Gets that ended before the last write.
    pub(super) gets: GetTotals,
    /// Time of the last write, in seconds.
    pub(super) written_s: f64,
}

/// Counters of a run's faults.
#[derive(Debug, Default)]
pub(super) struct ChangeFaults {
    fault_counts: FaultCounts,
    /// Puts that the store refused.
    pub(super) refused: u64,
}

impl ChangeFaults {
    pub(super) fn errors(&self) -> u64 {
        self.fault_counts.errors
    }

    pub(super) fn missing(&self) -> u64 {
        self.fault_counts.missing
    }

    /// Returns descriptions of the first faults.
    pub(super) fn descriptions(&self) -> &[String] {
        &self.fault_counts.descriptions
    }

    #[inline]
    pub(super) fn count_verdict(&mut self, verdict: Verdict) {
        self.fault_counts.count_verdict(verdict);
    }

    #[cold]
    pub(super) fn wrong(&mut self, description: impl Display) {
        self.fault_counts.wrong(description);
    }

    #[cold]
    pub(super) fn wrong_value(&mut self, key: u64, found: u64) {
        self.wrong(format_args!("key {key} has the wrong value {found:#018x}"));
    }

    #[cold]
    pub(super) fn found_present(&mut self, key: u64, found: u64) {
        let fault = format_args!("put of key {key} found an existing value {found:#018x}");
        self.wrong(fault);
    }

    #[cold]
    pub(super) fn failed(&mut self, what: &str, key: u64, error: &Error) {
        self.wrong(format_args!("{what} of key {key} failed: {error}"));
    }

    #[cold]
    pub(super) fn refused(&mut self, key: u64, error: &Error) {
        self.refused += 1;
        self.fault_counts
            .describe(&format_args!("put of key {key} was rejected: {error}"));
    }

    fn merge(&mut self, other: Self) {
        self.fault_counts.merge(other.fault_counts);
        self.refused += other.refused;
    }
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
    sink: &dyn TimelineSink,
) -> Result<ChangeResults, TimelineError> {
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
                .map_err(|source| TimelineError::Thread {
                    thread_count: config.threads,
                    source,
                })?;
            handles.push(handle);
        }
        drop(sender);
        own_place.ready();
        let watch = IntervalCollector::new(pool, &clock, config.threads, sink);
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
    handles: Vec<ScopedJoinHandle<'_, Result<ThreadRecords, TimelineError>>>,
) -> Result<(ChangeFaults, GetTotals), TimelineError> {
    let (mut faults, mut gets) = (ChangeFaults::default(), GetTotals::default());
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
) -> Result<ThreadRecords, TimelineError> {
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
        .map_err(TimelineError::store("opening a session"))?;
    let table = session
        .open_table(TABLE_NAME)
        .map_err(TimelineError::store("opening the table"))?;
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
        .map_err(TimelineError::store("closing a session"))?;
    Ok(notes)
}
