//! Work that may come to wait for a client which does not go on: says so, and hears an interrupt
//! meanwhile.
//!
//! A put waits for a leaf's lock as long as its holder lives, and a stopped process lives.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};

/// Time between two looks at the work.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Work that has not come on for so long is said to wait.
const TOLD_AFTER: Duration = Duration::from_secs(5);
/// Work that has not stopped by itself so long after an interrupt is given up.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(1);

/// How far the work came, and whether it is to stop.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    done_count: AtomicUsize,
    /// The work has ended, or is given up: whoever sets it decides which.
    is_over: AtomicBool,
    is_interrupted: Arc<AtomicBool>,
}

impl Watched {
    /// Hears SIGINT and SIGTERM from now on.
    pub(crate) fn new() -> std::io::Result<Self> {
        let watched = Self::default();
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&watched.is_interrupted))?;
        }
        Ok(watched)
    }

    /// Notes that so many parts are done. Returns whether the work is to stop.
    pub(crate) fn note(&self, done_count: usize) -> bool {
        self.done_count.store(done_count, Ordering::Relaxed);
        self.is_interrupted.load(Ordering::Relaxed)
    }

    /// Does the work, which notes how far it came. While nothing is noted for long, `tell_waiting`
    /// is called once; and if the work does not stop after an interrupt, `give_up`, which should
    /// end the process. Both are told how many parts were done. Returns when neither is under way.
    pub(crate) fn run<T>(
        &self,
        work: impl FnOnce() -> T,
        tell_waiting: impl Fn(usize) + Sync,
        give_up: impl Fn(usize) + Sync,
    ) -> T {
        thread::scope(|scope| {
            let looking = scope.spawn(|| self.look(&tell_waiting, &give_up));
            let _over = Over {
                watched: self,
                looking: looking.thread().clone(),
            };
            work()
        })
    }

    fn look(&self, tell_waiting: &impl Fn(usize), give_up: &impl Fn(usize)) {
        let mut seen = (0, Instant::now());
        let mut interrupted: Option<Instant> = None;
        let mut is_told = false;
        loop {
            thread::park_timeout(LOOK_INTERVAL);
            let done_count = self.done_count.load(Ordering::Relaxed);
            if self.is_over.load(Ordering::Relaxed) {
                return;
            }
            if done_count != seen.0 {
                seen = (done_count, Instant::now());
                is_told = false;
            }
            if seen.1.elapsed() >= TOLD_AFTER && !is_told {
                tell_waiting(done_count);
                is_told = true;
            }
            if self.is_interrupted.load(Ordering::Relaxed) {
                let since = *interrupted.get_or_insert_with(Instant::now);
                let waited = since.max(seen.1).elapsed();
                if waited >= GIVEN_UP_AFTER && !self.is_over.swap(true, Ordering::Relaxed) {
                    give_up(done_count);
                    return;
                }
            }
        }
    }
}

/// Ends the watching, also when the work panics.
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

    /// Promise: work that does not come on is given up a second after an interrupt, and is told how
    /// far it came; work that does come on is not.
    #[test]
    fn work_that_waits_is_given_up_when_interrupted() {
        let watched = Watched::default();
        let given_up = AtomicUsize::new(0);
        let begun = Instant::now();
        watched.run(
            || {
                assert!(!watched.note(7));
                watched.is_interrupted.store(true, Ordering::Relaxed);
                while given_up.load(Ordering::Relaxed) == 0 && begun.elapsed().as_secs() < 60 {
                    thread::sleep(Duration::from_millis(5));
                }
            },
            |_| {},
            |done_count| given_up.store(done_count, Ordering::Relaxed),
        );
        assert_eq!(given_up.load(Ordering::Relaxed), 7);
        assert!(begun.elapsed() >= GIVEN_UP_AFTER);

        let watched = Watched::default();
        watched.is_interrupted.store(true, Ordering::Relaxed);
        let stopped = watched.run(|| watched.note(1), |_| {}, |_| unreachable!("it stopped"));
        assert!(stopped);
    }
}
