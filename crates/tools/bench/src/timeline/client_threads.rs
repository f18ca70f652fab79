//! The threads of a run: started together, listened to, joined.

use std::fmt::Display;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, ScopedJoinHandle};

use farleaf::{Error, Pool};

use super::client::{Client, Notes};
use super::clock::Clock;
use super::course::Course;
use super::interval::{GetTotals, Interval};
use super::store::TABLE_NAME;
use super::watch::{Part, Watch};
use super::{TimelineConfig, TimelineError, TimelineSink};
use crate::distribution::numbered_stream;
use crate::runner::gate::{Gate, Place};
use crate::runner::tally::Tally;
use crate::verify::Verdict;

/// What the threads of a run did.
#[derive(Debug)]
pub(super) struct CrewResult {
    pub(super) intervals: Vec<Interval>,
    pub(super) faults: Faults,
    /// Gets that ended before the last write.
    pub(super) gets: GetTotals,
    /// When the last write was done.
    pub(super) written_s: f64,
}

/// What went wrong.
#[derive(Debug, Default)]
pub(super) struct Faults {
    tally: Tally,
    /// Puts that the store refused.
    pub(super) refused: u64,
}

impl Faults {
    pub(super) fn errors(&self) -> u64 {
        self.tally.errors
    }

    pub(super) fn missing(&self) -> u64 {
        self.tally.missing
    }

    /// The first faults, in words.
    pub(super) fn descriptions(&self) -> &[String] {
        &self.tally.descriptions
    }

    #[inline]
    pub(super) fn judge(&mut self, verdict: Verdict) {
        self.tally.judge(verdict);
    }

    #[cold]
    pub(super) fn wrong(&mut self, description: impl Display) {
        self.tally.wrong(description);
    }

    #[cold]
    pub(super) fn wrong_value(&mut self, key: u64, found: u64) {
        self.wrong(format_args!("key {key} has the wrong value {found:#018x}"));
    }

    #[cold]
    pub(super) fn found_present(&mut self, key: u64, found: u64) {
        let fault = format_args!("put of key {key} found it present, as {found:#018x}");
        self.wrong(fault);
    }

    #[cold]
    pub(super) fn failed(&mut self, what: &str, key: u64, error: &Error) {
        self.wrong(format_args!("{what} of key {key} failed: {error}"));
    }

    #[cold]
    pub(super) fn refused(&mut self, key: u64, error: &Error) {
        self.refused += 1;
        self.tally
            .describe(&format_args!("put of key {key} was refused: {error}"));
    }

    fn merge(&mut self, other: Self) {
        self.tally.merge(other.tally);
        self.refused += other.refused;
    }
}

/// What a thread is told.
#[derive(Clone, Copy)]
struct Assignment<'a> {
    config: &'a TimelineConfig,
    course: &'a Course,
    pool: &'a Pool,
    clock: &'a Clock,
}

/// Makes the change, and watches it.
///
/// # Errors
/// A thread could not be started, has no session, or the pool could not be looked at.
pub(super) fn run(
    config: &TimelineConfig,
    course: &Course,
    pool: &Pool,
    sink: &dyn TimelineSink,
) -> Result<CrewResult, TimelineError> {
    let clock = Clock::new(config.threads, config.interval, config.settle);
    let assignment = Assignment {
        config,
        course,
        pool,
        clock: &clock,
    };
    let gate = Gate::new(config.threads + 1);
    let (sender, parts) = mpsc::channel();
    thread::scope(|scope| {
        let mut places: Vec<Place<'_>> = (0..=config.threads).map(|_| gate.place()).collect();
        let mut own_place = places.pop().expect("a place for each, and this one");
        // Should a thread not start, the others do not work on.
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
        let watch = Watch::new(pool, &clock, config.threads, sink);
        let watched = watch.listen(&parts, &|| course.taken_count());
        if watched.is_err() {
            clock.abandon();
        }
        let merged = merge(handles)?;
        let written_ns = clock.written_ns().unwrap_or(0);
        Ok(CrewResult {
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
    handles: Vec<ScopedJoinHandle<'_, Result<Notes, TimelineError>>>,
) -> Result<(Faults, GetTotals), TimelineError> {
    let (mut faults, mut gets) = (Faults::default(), GetTotals::default());
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

/// One thread of a run.
fn work(
    assignment: Assignment<'_>,
    thread_index: usize,
    parts: Sender<Part>,
    mut place: Place<'_>,
) -> Result<Notes, TimelineError> {
    let Assignment {
        config,
        course,
        pool,
        clock,
    } = assignment;
    // A thread that fails would never say that it has written everything.
    let guard = Guard(clock);
    let session = pool
        .session()
        .map_err(TimelineError::store("opening a session"))?;
    let table = session
        .open_table(TABLE_NAME)
        .map_err(TimelineError::store("opening the table"))?;
    let client = Client {
        thread_index,
        course,
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
