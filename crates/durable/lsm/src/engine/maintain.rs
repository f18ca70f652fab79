//! Background work: choosing the next step, and a thread that does the steps.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::Engine;
use crate::error::LsmError;

/// Interval at which a worker checks for anything to free; a frozen L0 wakes it earlier.
const IDLE: Duration = Duration::from_millis(200);
/// Time that a worker waits after a failure, such as a full disk.
const RETRY: Duration = Duration::from_secs(1);

/// Result of one step of background work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkDone {
    /// No work to do, or other threads do it already.
    Nothing,
    /// A frozen L0 became a tree.
    Flushed,
    /// One step was done of the merge of this level into the next.
    Merging(usize),
    /// This level was merged into the next.
    Merged(usize),
    /// Trees or log segments became free.
    Freed,
    /// Log segments were reserved for later writes.
    Reserved,
}

impl Engine {
    /// Does the next step of background work: reserves log segments, flushes a frozen L0, merges a
    /// level that is due, or frees data that is no longer needed.
    ///
    /// Any thread may call it; a flush and a merge may run at the same time. While a call does
    /// something, there may be more to do.
    ///
    /// A flush writes one tree, and a merge one of the size of two levels. Each costs one sync of
    /// the trees and one edit of the manifest.
    ///
    /// # Errors
    /// Errors of the storage, the log, and the trees. Either nothing was changed and the step can
    /// be retried, or the engine has stopped writing. A merge that hits corruption returns the
    /// error once per try. It pauses between tries, while all other work continues.
    pub fn maintain(&self) -> Result<WorkDone, LsmError> {
        let core = &self.core;
        core.check()?;
        let reserved = core.log.reserve_ahead();
        let reserved = reserved.inspect_err(|error| core.stop_with_manifest(error));
        if matches!(reserved, Ok(true)) {
            return Ok(WorkDone::Reserved);
        }
        let written = reserved.and_then(|_| self.flush_or_merge());
        match &written {
            Ok(Some(worked)) => return Ok(*worked),
            Err(error) if !error.is_out_of_space() => return written.map(|_| WorkDone::Nothing),
            // If the disk is too full for a tree, freeing returns space.
            Ok(None) | Err(_) => {}
        }
        if let Some(_guard) = try_lock(&core.freeing)
            && core.reclaim()?
        {
            return Ok(WorkDone::Freed);
        }
        written.map(|_| WorkDone::Nothing)
    }

    /// Does a flush, or a step of a merge. Returns `None` if there is nothing to do, or other
    /// threads do it already.
    fn flush_or_merge(&self) -> Result<Option<WorkDone>, LsmError> {
        let core = &self.core;
        if let Some(_guard) = try_lock(&core.flushing)
            && core.flush()?
        {
            return Ok(Some(WorkDone::Flushed));
        }
        if let Some(mut merges) = try_lock(&core.merging) {
            return core.merge(&mut merges);
        }
        Ok(None)
    }

    /// Merges all levels including L0 into the last one. Then each key has one entry, and no
    /// deletes are left. Reads and writes all trees. A merge that pauses after corruption is
    /// retried at once.
    ///
    /// # Errors
    /// Same as [`Self::maintain`].
    pub fn merge_all(&self) -> Result<(), LsmError> {
        self.freeze();
        while self.maintain()? != WorkDone::Nothing {}
        let core = &self.core;
        let mut merges = lock(&core.merging);
        loop {
            // An unfinished merge comes first.
            if merges.running.is_none() {
                let version = core.version();
                let mut levels = (1..).zip(&version.levels).filter(|(_, it)| !it.is_empty());
                let (level, other) = (levels.next(), levels.next());
                let Some((level, trees)) = level else {
                    break;
                };
                if other.is_none() && trees.len() == 1 {
                    break;
                }
                core.begin_merge(&mut merges, &version, level)?;
            }
            core.step_merge(&mut merges)?;
            core.log
                .reserve_ahead()
                .inspect_err(|error| core.stop_with_manifest(error))?;
            if let Some(_guard) = try_lock(&core.flushing) {
                core.flush()?;
            }
        }
        drop(merges);
        while self.maintain()? != WorkDone::Nothing {}
        Ok(())
    }

    /// Starts a thread that does the background work until the worker is dropped, or the engine has
    /// stopped.
    pub fn start_worker(&self) -> Worker {
        let engine = self.clone();
        let is_stopped = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&is_stopped);
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Acquire) {
                match engine.maintain() {
                    Ok(WorkDone::Nothing) => engine.core.wakes.wait(IDLE),
                    Ok(_) => {}
                    Err(error @ LsmError::Stopped { .. }) => {
                        tracing::warn!(%error, "background work stopped");
                        return;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "background work failed; retrying");
                        engine.core.wakes.wait(RETRY);
                    }
                }
            }
        });
        Worker {
            engine: self.clone(),
            is_stopped,
            thread: Some(thread),
        }
    }
}

/// Thread that does the background work. Dropping it waits for the current step. An unfinished
/// merge stays, and the next caller of [`Engine::maintain`] continues it.
#[derive(Debug)]
pub struct Worker {
    engine: Engine,
    is_stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Release);
        self.engine.core.wakes.wake();
        if let Some(thread) = self.thread.take() {
            // If the thread panicked, the panic was reported there.
            let _ = thread.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Notification of waiting workers.
#[derive(Debug, Default)]
pub(super) struct WorkerWakeups {
    wake_count: Mutex<u64>,
    has_changed: Condvar,
}

impl WorkerWakeups {
    pub(super) fn wake(&self) {
        let mut count = self
            .wake_count
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *count += 1;
        drop(count);
        self.has_changed.notify_all();
    }

    /// Waits for the next wake, or until the timeout.
    fn wait(&self, at_most: Duration) {
        let count = self
            .wake_count
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let before = *count;
        let waited = self
            .has_changed
            .wait_timeout_while(count, at_most, |count| *count == before);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}
