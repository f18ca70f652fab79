//! Processor time, by part.
//!
//! Hardware counters are not asked for: virtual machines mostly have none, and the system often
//! forbids them. The measure is what the system's clocks say that threads have run. Other work on
//! the machine takes nothing away from it but through the caches.

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::time::{ClockId, Timespec, clock_gettime};
use serde::Serialize;

/// What the calling thread has run so far. A system call: some hundreds of nanoseconds.
pub(super) fn thread_time_ns() -> u64 {
    to_ns(clock_gettime(ClockId::ThreadCPUTime))
}

/// What all threads of this process have run so far.
pub(super) fn process_time_ns() -> u64 {
    to_ns(clock_gettime(ClockId::ProcessCPUTime))
}

const fn to_ns(time: Timespec) -> u64 {
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// What processor time goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// Gets and puts at the primary, with what brings the log to the backups.
    Operations,
    /// Flushes and merges at the primary, and what becomes free there.
    PrimaryIndex,
    /// Trees and edits on their way to backups (Send-Index).
    Sending,
    /// The log from a backup's buffers to its device.
    BackupLog,
    /// Trees and edits, as a backup takes them in (Send-Index).
    BackupReceived,
    /// L0, flushes and merges of a backup (Build-Index).
    BackupBuilt,
    /// Looks of background threads that found nothing to do.
    Looking,
}

impl Part {
    /// All of them, in the order of their declaration.
    pub const ALL: [Self; 7] = [
        Self::Operations,
        Self::PrimaryIndex,
        Self::Sending,
        Self::BackupLog,
        Self::BackupReceived,
        Self::BackupBuilt,
        Self::Looking,
    ];

    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Operations => "operations",
            Self::PrimaryIndex => "primary: flush, merge",
            Self::Sending => "primary: send trees",
            Self::BackupLog => "backup: log",
            Self::BackupReceived => "backup: take trees in",
            Self::BackupBuilt => "backup: build trees",
            Self::Looking => "looking for work",
        }
    }
}

/// Nanoseconds of each part, in the order of [`Part::ALL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PartTimes(pub [u64; Part::ALL.len()]);

impl PartTimes {
    /// Of one part.
    pub const fn of(&self, part: Part) -> u64 {
        self.0[part as usize]
    }

    /// Of all of them.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// What has come since.
    pub(super) fn since(&self, before: &Self) -> Self {
        Self(std::array::from_fn(|part| self.0[part] - before.0[part]))
    }
}

/// Adds up what all threads note.
#[derive(Debug, Default)]
pub(super) struct Meter([AtomicU64; Part::ALL.len()]);

impl Meter {
    pub(super) fn add(&self, part: Part, time_ns: u64) {
        self.0[part as usize].fetch_add(time_ns, Ordering::Relaxed);
    }

    pub(super) fn times(&self) -> PartTimes {
        let all = self.0.each_ref();
        PartTimes(all.map(|it| it.load(Ordering::Relaxed)))
    }
}

/// The clock of one thread.
#[derive(Debug)]
pub(super) struct Lap {
    since_ns: u64,
}

impl Lap {
    /// Begins now.
    pub(super) fn begin() -> Self {
        Self {
            since_ns: thread_time_ns(),
        }
    }

    /// What the thread has run since it began, or since the last time; begins anew.
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

    /// Promise: a thread that sleeps has not run; one that works has, and so has its process.
    #[test]
    fn only_work_counts() {
        let mut lap = Lap::begin();
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

    /// Promise: parts stand in the order of their declaration, under different names.
    #[test]
    fn parts_are_in_order() {
        let meter = Meter::default();
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
