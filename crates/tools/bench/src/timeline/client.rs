//! Client of one thread: executes, times, checks and records operations.

use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use farleaf::{Error, HintCounters, Session, Table};
use rand::Rng;

use super::change_state::{ChangeState, Write};
use super::clock::Clock;
use super::interval::{GetTotals, IntervalRecorder};
use super::watch::ThreadInterval;
use crate::distribution::{Random, below};
use crate::runner::fault_counts::FaultCounts;

/// Sleep of a thread without work.
const IDLE: Duration = Duration::from_millis(1);

/// Maximal number of draws for a get: refused records are not requested.
const DRAW_COUNT_MAX: usize = 64;

/// Operations of one thread.
pub(super) struct Client<'a> {
    pub(super) thread_index: usize,
    pub(super) change_state: &'a ChangeState,
    pub(super) clock: &'a Clock,
    pub(super) session: &'a Session,
    pub(super) table: &'a Table,
    pub(super) parts: Sender<ThreadInterval>,
    pub(super) random: Random,
    /// Threshold: a random number below it means a get.
    pub(super) reads_below: u64,
}

/// Results of a thread.
#[derive(Debug, Default)]
pub(super) struct ThreadRecords {
    pub(super) faults: FaultCounts,
    /// Gets that ended before the last write.
    pub(super) gets: GetTotals,
    /// Number of the current interval.
    number: u64,
    recorder: Box<IntervalRecorder>,
    /// Counts of wrong hints at its start.
    hints: HintCounters,
}

/// Result of an operation.
struct TimedAnswer<T> {
    result: Result<T, Error>,
    now_ns: u64,
    latency_ns: u64,
}

impl Client<'_> {
    /// Executes operations until it is time to stop.
    pub(super) fn run(mut self) -> ThreadRecords {
        let mut notes = ThreadRecords::default();
        let mut is_writing = true;
        loop {
            let now_ns = self.now_ns();
            if self.clock.is_over(now_ns) {
                break;
            }
            let reads = !is_writing || self.random.next_u64() < self.reads_below;
            if reads && self.read(&mut notes) {
                continue;
            }
            if is_writing {
                is_writing = self.write(&mut notes);
                if !is_writing {
                    self.clock.has_written(self.now_ns());
                }
            } else if reads {
                thread::sleep(IDLE);
            }
        }
        self.send(&mut notes, u64::MAX);
        notes
    }

    fn now_ns(&self) -> u64 {
        self.clock.start_instant().elapsed().as_nanos() as u64
    }

    /// Gets a key that is known to exist. Returns whether there is one.
    fn read(&mut self, notes: &mut ThreadRecords) -> bool {
        let (random, change_state) = (&mut self.random, self.change_state);
        let mut draw = || change_state.known_present(|count| below(random, count));
        let Some(index) = (0..DRAW_COUNT_MAX).find_map(|_| draw()) else {
            return false;
        };
        let (key, value) = self.change_state.record(index);
        let ended = self.timed(|table| table.get(key));
        let is_growing = self.clock.written_ns().is_none();
        let recorder = self.recorder(notes, ended.now_ns);
        match ended.result {
            Ok(found) => {
                let cost = self.session.last_cost();
                recorder.get(ended.latency_ns, cost);
                if is_growing {
                    notes.gets.add(cost);
                }
                // Another thread may have deleted it meanwhile.
                let may_be_absent = self.change_state.may_be_deleted(index);
                notes.faults.count_value(key, found, value, may_be_absent);
            }
            Err(error) => notes.faults.failed("get", key, &error),
        }
        true
    }

    /// Puts the next key, deletes the next one, or both. Returns whether there was any.
    fn write(&mut self, notes: &mut ThreadRecords) -> bool {
        let put = self.change_state.take_put();
        if let Some(put) = put {
            self.execute(put, notes);
        }
        let delete = self.change_state.take_delete();
        if let Some(delete) = delete {
            self.execute(delete, notes);
        }
        put.is_some() || delete.is_some()
    }

    fn execute(&mut self, write: Write, notes: &mut ThreadRecords) {
        let (Write::Put { index, .. } | Write::Delete { index }) = write;
        let is_put = matches!(write, Write::Put { .. });
        // Another thread may still be putting it: then the window has its greatest width.
        while !is_put && !self.change_state.is_put(index) {
            if self.clock.is_over(self.now_ns()) {
                return self.change_state.abandon(write);
            }
            thread::yield_now();
        }
        let (key, value) = self.change_state.record(index);
        let ended = self.timed(|table| match write {
            Write::Put { .. } => table.put(key, value),
            Write::Delete { .. } => table.delete(key),
        });
        match ended.result {
            Ok(before) => {
                let recorder = self.recorder(notes, ended.now_ns);
                recorder.write(ended.latency_ns, self.session.last_cost());
                self.change_state.acknowledge(write);
                match before {
                    Some(before) if is_put => notes.faults.wrong(format_args!(
                        "put of key {key} found an existing value {before:#018x}"
                    )),
                    None if is_put => {}
                    before => {
                        let may_be_absent = self.change_state.is_refused(index);
                        notes.faults.count_value(key, before, value, may_be_absent);
                    }
                }
            }
            Err(error) => {
                self.change_state.abandon(write);
                if is_put {
                    notes.faults.refused(key, &error);
                } else {
                    notes.faults.failed("delete", key, &error);
                }
            }
        }
    }

    fn timed<T>(&self, operation: impl FnOnce(&Table) -> Result<T, Error>) -> TimedAnswer<T> {
        let start = Instant::now();
        let result = operation(self.table);
        let end = Instant::now();
        TimedAnswer {
            result,
            now_ns: (end - self.clock.start_instant()).as_nanos() as u64,
            latency_ns: (end - start).as_nanos() as u64,
        }
    }

    /// Returns the recorder of the interval in which an operation ended; ends the previous one.
    fn recorder<'n>(&self, notes: &'n mut ThreadRecords, now_ns: u64) -> &'n mut IntervalRecorder {
        let number = self.clock.interval_at(now_ns).max(notes.number);
        if number > notes.number {
            self.send(notes, number);
        }
        &mut notes.recorder
    }

    fn send(&self, notes: &mut ThreadRecords, next: u64) {
        let hints = self.table.hint_counters();
        notes.recorder.hints(notes.hints, hints);
        notes.hints = hints;
        let part = ThreadInterval {
            thread_index: self.thread_index,
            number: notes.number,
            next,
            recorder: std::mem::take(&mut notes.recorder),
        };
        notes.number = next;
        // The receiver has failed, and with it the run.
        let _ = self.parts.send(part);
    }
}
