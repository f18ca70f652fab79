//! Gate at which threads start together, and through which their caller learns that they are done.

use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::BenchError;

/// Time between two progress reports while threads work.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// Runs this many threads, each with its index and its place at a gate, and calls `report` from
/// time to time and at the end. Returns the results in the order of the threads.
///
/// # Errors
/// A thread could not be started, or failed. The other threads end first.
pub(crate) fn run_threads<T: Send>(
    thread_count: usize,
    name: &str,
    work: impl Fn(usize, Place<'_>) -> Result<T, BenchError> + Sync,
    report: impl Fn(),
) -> Result<Vec<T>, BenchError> {
    let (gate, work) = (StartGate::new(thread_count), &work);
    thread::scope(|scope| {
        // All are taken, so that the gate does not wait for a thread that could not be started.
        let places: Vec<_> = (0..thread_count).map(|_| gate.place()).collect();
        let mut handles = Vec::with_capacity(thread_count);
        for (index, place) in places.into_iter().enumerate() {
            let handle = thread::Builder::new()
                .name(format!("{name}-{index}"))
                .spawn_scoped(scope, move || work(index, place))
                .map_err(|source| BenchError::Thread {
                    thread_count,
                    source,
                })?;
            handles.push(handle);
        }
        while !gate.wait_done(REPORT_INTERVAL) {
            report();
        }
        report();
        let joined = handles.into_iter().map(|handle| {
            handle
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        joined.collect()
    })
}

/// Waits for a number of threads, twice: until all are ready, and until all are done.
#[derive(Debug)]
pub(crate) struct StartGate {
    counts: Mutex<Counts>,
    changed: Condvar,
}

#[derive(Debug)]
struct Counts {
    unready: usize,
    undone: usize,
}

/// One thread's place at a gate. Once it is dropped, ready or not, also by an error or a panic, no
/// thread waits for it.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    gate: &'a StartGate,
    is_ready: bool,
}

impl StartGate {
    /// Creates a gate for `thread_count` threads.
    pub(crate) fn new(thread_count: usize) -> Self {
        let counts = Counts {
            unready: thread_count,
            undone: thread_count,
        };
        Self {
            counts: Mutex::new(counts),
            changed: Condvar::new(),
        }
    }

    /// Returns the place of one thread; each has to be taken, and dropped, once.
    pub(crate) fn place(&self) -> Place<'_> {
        Place {
            gate: self,
            is_ready: false,
        }
    }

    /// Waits until all places are dropped, for `timeout` at most. Returns whether they are.
    pub(crate) fn wait_done(&self, timeout: Duration) -> bool {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .changed
            .wait_timeout_while(counts, timeout, |counts| counts.undone > 0);
        let (counts, _) = waited.unwrap_or_else(PoisonError::into_inner);
        counts.undone == 0
    }

    fn change(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }
}

impl Place<'_> {
    /// Waits until all the others are ready as well, or dropped.
    pub(crate) fn ready(&mut self) {
        self.is_ready = true;
        self.gate.change(|counts| counts.unready -= 1);
        let counts = self
            .gate
            .counts
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .gate
            .changed
            .wait_while(counts, |counts| counts.unready > 0);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let was_ready = self.is_ready;
        self.gate.change(|counts| {
            counts.unready -= usize::from(!was_ready);
            counts.undone -= 1;
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::thread;

    use super::*;

    /// Promise: no thread passes before the last is ready, and the caller learns when all are done.
    #[test]
    fn nobody_starts_before_the_last_is_ready() {
        let gate = StartGate::new(2);
        let is_late_ready = AtomicBool::new(false);
        thread::scope(|scope| {
            let (mut early, mut late) = (gate.place(), gate.place());
            let early = scope.spawn(|| {
                early.ready();
                let seen = is_late_ready.load(SeqCst);
                drop(early);
                seen
            });
            assert!(!gate.wait_done(Duration::from_millis(5)));
            is_late_ready.store(true, SeqCst);
            late.ready();
            assert!(early.join().expect("no panic"));
            drop(late);
        });
        assert!(gate.wait_done(Duration::ZERO));
    }

    /// Promise: a thread that ends before it is ready does not block the others.
    #[test]
    fn who_fails_keeps_nobody_waiting() {
        let gate = StartGate::new(3);
        drop(gate.place());
        thread::scope(|scope| {
            let place = gate.place();
            scope
                .spawn(move || {
                    let _place = place;
                    std::panic::resume_unwind(Box::new("planted"));
                })
                .join()
                .expect_err("planted");
            gate.place().ready();
        });
        assert!(gate.wait_done(Duration::ZERO));
    }
}
