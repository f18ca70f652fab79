//! One thread's operations: asked, timed, judged, noted.

use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use farleaf::{Error, HintCounters, Session, Table};
use rand::Rng;

use super::clock::Clock;
use super::course::{Course, Write};
use super::crew::Faults;
use super::interval::{GetTotals, IntervalRecorder};
use super::watch::Part;
use crate::distribution::{Random, below};
use crate::verify::Verdict;

/// How long a thread without anything to do does nothing.
const IDLE: Duration = Duration::from_millis(1);

/// Records that are drawn for a get, at the most: those that were refused are not asked for.
const DRAW_COUNT_MAX: usize = 64;

/// One thread's operations.
pub(super) struct Client<'a> {
    pub(super) thread_index: usize,
    pub(super) course: &'a Course,
    pub(super) clock: &'a Clock,
    pub(super) session: &'a Session,
    pub(super) table: &'a Table,
    pub(super) parts: Sender<Part>,
    pub(super) random: Random,
    /// Of random numbers below this a get is made.
    pub(super) reads_below: u64,
}

/// What a thread has noted.
#[derive(Debug, Default)]
pub(super) struct Notes {
    pub(super) faults: Faults,
    /// Gets that ended before the last write.
    pub(super) gets: GetTotals,
    /// The interval under way, and what has been noted in it.
    number: u64,
    recorder: Box<IntervalRecorder>,
    /// How often hints had not been right when it began.
    hints: HintCounters,
}

/// How an operation went.
struct Ended<T> {
    result: Result<T, Error>,
    now_ns: u64,
    latency_ns: u64,
}

impl Client<'_> {
    /// Works until it is time to stop.
    pub(super) fn run(mut self) -> Notes {
        let mut notes = Notes::default();
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
        self.clock.begun().elapsed().as_nanos() as u64
    }

    /// Gets a key that is known to be there. Returns whether there is one.
    fn read(&mut self, notes: &mut Notes) -> bool {
        let (random, course) = (&mut self.random, self.course);
        let mut draw = || course.known_present(|count| below(random, count));
        let Some(index) = (0..DRAW_COUNT_MAX).find_map(|_| draw()) else {
            return false;
        };
        let (key, value) = self.course.record(index);
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
                match found {
                    Some(found) if found == value => {}
                    Some(found) => notes.faults.wrong_value(key, found),
                    // Somebody may have deleted it meanwhile.
                    None if self.course.may_be_deleted(index) => {}
                    None => notes.faults.judge(Verdict::Missing { key }),
                }
            }
            Err(error) => notes.faults.failed("get", key, &error),
        }
        true
    }

    /// Puts the next key, deletes the next one, or both. Returns whether there was any.
    fn write(&mut self, notes: &mut Notes) -> bool {
        let put = self.course.take_put();
        if let Some(put) = put {
            self.put(put, notes);
        }
        let delete = self.course.take_delete();
        if let Some(delete) = delete {
            self.delete(delete, notes);
        }
        put.is_some() || delete.is_some()
    }

    fn put(&mut self, write: Write, notes: &mut Notes) {
        let Write::Put { index, .. } = write else {
            unreachable!("take_put takes puts");
        };
        let (key, value) = self.course.record(index);
        let ended = self.timed(|table| table.put(key, value));
        match ended.result {
            Ok(before) => {
                let recorder = self.recorder(notes, ended.now_ns);
                recorder.write(ended.latency_ns, self.session.last_cost());
                self.course.acknowledge(write);
                if let Some(before) = before {
                    notes.faults.found_present(key, before);
                }
            }
            Err(error) => {
                self.course.abandon(write);
                notes.faults.refused(key, &error);
            }
        }
    }

    fn delete(&mut self, write: Write, notes: &mut Notes) {
        let Write::Delete { index } = write else {
            unreachable!("take_delete takes deletes");
        };
        // Another thread may still be putting it: then the window is as wide as it may be.
        while !self.course.is_put(index) {
            if self.clock.is_over(self.now_ns()) {
                return self.course.abandon(write);
            }
            thread::yield_now();
        }
        let (key, value) = self.course.record(index);
        let ended = self.timed(|table| table.delete(key));
        match ended.result {
            Ok(before) => {
                let recorder = self.recorder(notes, ended.now_ns);
                recorder.write(ended.latency_ns, self.session.last_cost());
                self.course.acknowledge(write);
                match before {
                    Some(before) if before == value => {}
                    Some(before) => notes.faults.wrong_value(key, before),
                    None if self.course.is_refused(index) => {}
                    None => notes.faults.judge(Verdict::Missing { key }),
                }
            }
            Err(error) => {
                self.course.abandon(write);
                notes.faults.failed("delete", key, &error);
            }
        }
    }

    fn timed<T>(&self, operation: impl FnOnce(&Table) -> Result<T, Error>) -> Ended<T> {
        let start = Instant::now();
        let result = operation(self.table);
        let end = Instant::now();
        Ended {
            result,
            now_ns: (end - self.clock.begun()).as_nanos() as u64,
            latency_ns: (end - start).as_nanos() as u64,
        }
    }

    /// What is noted in the interval in which something ended; the one before is over.
    fn recorder<'n>(&self, notes: &'n mut Notes, now_ns: u64) -> &'n mut IntervalRecorder {
        let number = self.clock.interval_at(now_ns).max(notes.number);
        if number > notes.number {
            self.send(notes, number);
        }
        &mut notes.recorder
    }

    fn send(&self, notes: &mut Notes, next: u64) {
        let hints = self.table.hint_counters();
        notes.recorder.hints(notes.hints, hints);
        notes.hints = hints;
        let part = Part {
            thread_index: self.thread_index,
            number: notes.number,
            next,
            recorder: std::mem::take(&mut notes.recorder),
        };
        notes.number = next;
        // Whoever listened has failed, and the run with it.
        let _ = self.parts.send(part);
    }
}
