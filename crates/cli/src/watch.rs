//! Watches work that may block on a client that does not continue: reports the wait, and handles
//! interrupts meanwhile.
//!
//! A put waits for a leaf's lock as long as its holder lives, and a stopped process counts as
//! alive.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};

/// Interval at which the work is checked.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Time without progress after which the work is reported as waiting.
const REPORTED_AFTER: Duration = Duration::from_secs(5);
/// Time after an interrupt at which work that has not stopped is abandoned.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(1);

/// Progress of the work, and whether it should stop.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    done_count: AtomicUsize,
    /// Set when the work has ended or is abandoned; the side that sets it first decides which.
    is_over: AtomicBool,
    is_interrupted: Arc<AtomicBool>,
}

impl Watched {
    /// Creates the state and registers handlers for SIGINT and SIGTERM.
    pub(crate) fn new() -> std::io::Result<Self> {
        let watched = Self::default();
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&watched.is_interrupted))?;
        }
        Ok(watched)
    }

    /// Records the number of finished parts. Returns whether the work should stop.
    pub(crate) fn note(&self, done_count: usize) -> bool {
        self.done_count.store(done_count, Ordering::Relaxed);
        self.is_interrupted.load(Ordering::Relaxed)
    }

    /// Runs the work, which records its progress. After a long time without progress, calls
    /// `tell_waiting` once. If the work does not stop after an interrupt, calls `give_up`, which
    /// should end the process. Both receive the number of finished parts. Returns when neither is
    /// running.
    pub(crate) fn run<T>(
        &self,
        work: impl FnOnce() -> T,
        report_waiting: impl Fn(usize) + Sync,
        give_up: impl Fn(usize) + Sync,
    ) -> T {
        thread::scope(|scope| {
            let looking = scope.spawn(|| self.look(&report_waiting, &give_up));
            let _over = Over {
                watched: self,
                looking: looking.thread().clone(),
            };
            work()
        })
    }

    fn look(&self, report_waiting: &impl Fn(usize), give_up: &impl Fn(usize)) {
        let mut last_progress = (0, Instant::now());
        let mut interrupted: Option<Instant> = None;
        let mut is_reported = false;
        loop {
            thread::park_timeout(LOOK_INTERVAL);
            let done_count = self.done_count.load(Ordering::Relaxed);
            if self.is_over.load(Ordering::Relaxed) {
                return;
            }
            if done_count != last_progress.0 {
                last_progress = (done_count, Instant::now());
                is_reported = false;
            }
            if last_progress.1.elapsed() >= REPORTED_AFTER && !is_reported {
                report_waiting(done_count);
                is_reported = true;
            }
            if self.is_interrupted.load(Ordering::Relaxed) {
                let since = *interrupted.get_or_insert_with(Instant::now);
                let waited = since.max(last_progress.1).elapsed();
                if waited >= GIVEN_UP_AFTER && !self.is_over.swap(true, Ordering::Relaxed) {
                    give_up(done_count);
                    return;
                }
            }
        }
    }
}

/// Guard that ends the watching, also when the work panics.
struct Over<'a> {
    watched: &'a Watched,
    looking: thread::Thread,
}

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.watched.is_over.store(true, Ordering::Relaxed);
        self.looking.unpark();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: work without progress is abandoned a second after an interrupt, and the number of
    /// finished parts is reported. Work that makes progress is not abandoned.
    #[test]
    fn work_that_waits_is_given_up_when_interrupted() {
        let watched = Watched::default();
        let given_up = AtomicUsize::new(0);
        let started_at = Instant::now();
        watched.run(
            || {
                assert!(!watched.note(7));
                watched.is_interrupted.store(true, Ordering::Relaxed);
                while given_up.load(Ordering::Relaxed) == 0 && started_at.elapsed().as_secs() < 60 {
                    thread::sleep(Duration::from_millis(5));
                }
            },
            |_| {},
            |done_count| given_up.store(done_count, Ordering::Relaxed),
        );
        assert_eq!(given_up.load(Ordering::Relaxed), 7);
        assert!(started_at.elapsed() >= GIVEN_UP_AFTER);

        let watched = Watched::default();
        watched.is_interrupted.store(true, Ordering::Relaxed);
        let stopped = watched.run(|| watched.note(1), |_| {}, |_| unreachable!("it stopped"));
        assert!(stopped);
    }
}
