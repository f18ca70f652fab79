//! Processor time by part.
//!
//! The measure is the threads' running time according to the system's clocks. Hardware counters are
//! not used: virtual machines mostly have none, and the system often forbids them. Other work on
//! the machine affects the measure only through the caches.

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::time::{ClockId, Timespec, clock_gettime};
use serde::Serialize;

use crate::named::named;

/// Returns the running time of the calling thread so far. A system call: some hundreds of
/// nanoseconds.
pub(super) fn thread_time_ns() -> u64 {
    to_ns(clock_gettime(ClockId::ThreadCPUTime))
}

/// Returns the running time of all threads of this process so far.
pub(super) fn process_time_ns() -> u64 {
    to_ns(clock_gettime(ClockId::ProcessCPUTime))
}

const fn to_ns(time: Timespec) -> u64 {
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Part of the work that takes processor time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// Gets and puts at the primary, including the replication of the log.
    Operations,
    /// Flushes, merges and reclamation at the primary.
    PrimaryIndex,
    /// Sending of trees and edits to backups (Send-Index).
    Sending,
    /// Writing of the log from a backup's buffers to its device.
    BackupLog,
    /// Receiving of trees and edits by a backup (Send-Index).
    BackupReceived,
    /// L0, flushes and merges of a backup (Build-Index).
    BackupBuilt,
    /// Polls of background threads that found no work.
    Looking,
}

named!(
    Part,
    Operations = "operations",
    PrimaryIndex = "primary: flush, merge",
    Sending = "primary: send trees",
    BackupLog = "backup: log",
    BackupReceived = "backup: take trees in",
    BackupBuilt = "backup: build trees",
    Looking = "looking for work",
);

/// Nanoseconds of each part, in the order of [`Part::ALL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PartTimes(pub [u64; Part::ALL.len()]);

impl PartTimes {
    /// Returns the nanoseconds of one part.
    pub const fn of(&self, part: Part) -> u64 {
        self.0[part as usize]
    }

    /// Returns the nanoseconds of all parts.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Returns the difference from an earlier count.
    pub(super) fn since(&self, before: &Self) -> Self {
        Self(std::array::from_fn(|part| self.0[part] - before.0[part]))
    }
}

/// Sum of the times that all threads record.
#[derive(Debug, Default)]
pub(super) struct PartMeter([AtomicU64; Part::ALL.len()]);

impl PartMeter {
    pub(super) fn add(&self, part: Part, time_ns: u64) {
        self.0[part as usize].fetch_add(time_ns, Ordering::Relaxed);
    }

    pub(super) fn times(&self) -> PartTimes {
        let all = self.0.each_ref();
        PartTimes(all.map(|it| it.load(Ordering::Relaxed)))
    }
}

/// Stopwatch of one thread's running time.
#[derive(Debug)]
pub(super) struct ThreadStopwatch {
    since_ns: u64,
}

impl ThreadStopwatch {
    /// Starts the stopwatch.
    pub(super) fn begin() -> Self {
        Self {
            since_ns: thread_time_ns(),
        }
    }

    /// Returns the running time since the start or the last call, and restarts the stopwatch.
    pub(super) fn end(&mut self) -> u64 {
        let now_ns = thread_time_ns();
        let time_ns = now_ns - self.since_ns;
        self.since_ns = now_ns;
        time_ns
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// Promise: a sleeping thread takes no running time; a working thread and its process do.
    #[test]
    fn only_work_counts() {
        let mut lap = ThreadStopwatch::begin();
        std::thread::sleep(Duration::from_millis(60));
        assert!(lap.end() < 30_000_000);
        let before_ns = process_time_ns();
        lap.end();
        let until = Instant::now() + Duration::from_secs(10);
        let mut worked_ns = 0;
        while worked_ns < 20_000_000 {
            assert!(
                Instant::now() < until,
                "the clock of this thread stands still"
            );
            worked_ns += lap.end();
        }
        assert!(process_time_ns() - before_ns >= 20_000_000);
    }

    /// Promise: parts are in the order of their declaration, with distinct names.
    #[test]
    fn parts_are_in_order() {
        let meter = PartMeter::default();
        for (index, part) in Part::ALL.into_iter().enumerate() {
            assert_eq!(part as usize, index);
            meter.add(part, index as u64 + 1);
        }
        let times = meter.times();
        assert_eq!((times.of(Part::Sending), times.total()), (3, 28));
        let names: std::collections::BTreeSet<_> = Part::ALL.map(Part::name).into();
        assert_eq!(names.len(), Part::ALL.len());
    }
}
