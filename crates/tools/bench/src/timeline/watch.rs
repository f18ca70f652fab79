//! Combines the results of threads and pool, interval by interval.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use farleaf::{Pool, RetrainCounters};

use super::clock::Clock;
use super::interval::{Interval, IntervalRecorder, Sample};
use super::rows::interval_row;
use super::{Record, TimelineConfig};
use crate::runner::{BenchError, ProgressSink, Row};

/// Results of one thread in one interval.
#[derive(Debug)]
pub(super) struct ThreadInterval {
    pub(super) thread_index: usize,
    pub(super) number: u64,
    /// Next interval in which it records; `u64::MAX` if it has stopped.
    pub(super) next: u64,
    pub(super) recorder: Box<IntervalRecorder>,
}

/// State of the intervals that are not over for all threads.
pub(super) struct IntervalCollector<'a> {
    pool: &'a Pool,
    clock: &'a Clock,
    sink: &'a dyn ProgressSink,
    /// Name of the search layer.
    index: &'static str,
    /// Current interval of each thread.
    reached: Vec<u64>,
    pending: BTreeMap<u64, IntervalRecorder>,
    /// State of the pool at the end of each interval that has not been reported.
    samples: VecDeque<Sample>,
    /// Retraining counters at the end of the last reported interval.
    tally: RetrainCounters,
    reported: Vec<Interval>,
}

impl<'a> IntervalCollector<'a> {
    pub(super) fn new(
        pool: &'a Pool,
        clock: &'a Clock,
        config: &TimelineConfig,
        sink: &'a dyn ProgressSink,
    ) -> Self {
        Self {
            pool,
            clock,
            sink,
            index: config.layer.name(),
            reached: vec![0; config.threads],
            pending: BTreeMap::new(),
            samples: VecDeque::new(),
            tally: RetrainCounters::default(),
            reported: Vec::new(),
        }
    }

    /// Listens until all threads have stopped; `done_count` returns the number of writes so far.
    ///
    /// # Errors
    /// The pool could not be read.
    pub(super) fn listen(
        mut self,
        parts: &Receiver<ThreadInterval>,
        done_count: &dyn Fn() -> u64,
    ) -> Result<Vec<Interval>, BenchError> {
        loop {
            match parts.recv_timeout(self.until_sample()) {
                Ok(part) => self.take(&part),
                Err(RecvTimeoutError::Timeout) => {
                    self.sample()?;
                    self.sink.advance(done_count());
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.report_complete();
        }
        let unsampled = |it: &Self| it.reported.len() + it.samples.len();
        while self
            .last_pending()
            .is_some_and(|last| unsampled(&self) as u64 <= last)
        {
            self.sample()?;
        }
        self.report_complete();
        Ok(self.reported)
    }

    /// Returns the time until the end of the interval that is to be sampled next.
    fn until_sample(&self) -> Duration {
        let number = (self.reported.len() + self.samples.len()) as u64 + 1;
        let end = Duration::from_nanos(number.saturating_mul(self.clock.interval_ns()));
        end.saturating_sub(self.clock.start_instant().elapsed())
    }

    fn last_pending(&self) -> Option<u64> {
        self.pending.last_key_value().map(|(number, _)| *number)
    }

    fn sample(&mut self) -> Result<(), BenchError> {
        let sample = || -> Result<Sample, farleaf::Error> {
            Ok(Sample {
                used_bytes: self.pool.usage()?.used_bytes,
                retraining: self.pool.retraining()?,
            })
        };
        let sample = sample().map_err(BenchError::table("reading the state of the pool"))?;
        self.samples.push_back(sample);
        Ok(())
    }

    fn take(&mut self, part: &ThreadInterval) {
        let pending = self.pending.entry(part.number).or_default();
        pending.merge(&part.recorder);
        self.reached[part.thread_index] = part.next;
    }

    /// Reports the intervals that are over for all threads and have been sampled.
    fn report_complete(&mut self) {
        let reached = self.reached.iter().min().copied().unwrap_or(u64::MAX);
        loop {
            let number = self.reported.len() as u64;
            // After the last one nothing is pending, and no thread has recorded anything.
            let is_behind = self.last_pending().is_none_or(|last| number > last);
            if number >= reached || is_behind {
                return;
            }
            let Some(sample) = self.samples.pop_front() else {
                return;
            };
            let recorder = self.pending.remove(&number).unwrap_or_default();
            let interval_ns = self.clock.interval_ns();
            let interval = Interval::new(number, interval_ns, &recorder, &self.tally, &sample);
            self.tally = sample.retraining.tally;
            let record = Record {
                kind: "interval",
                index: Some(self.index),
                of: &interval,
            };
            self.sink.row(&Row::new(interval_row(&interval), &record));
            self.reported.push(interval);
        }
    }
}
