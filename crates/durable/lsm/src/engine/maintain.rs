//! Background work: which step is next, and a thread that does them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::Engine;
use crate::error::LsmError;

/// A worker looks so often whether anything became free; what is frozen wakes it.
const IDLE: Duration = Duration::from_millis(200);
/// After a failure, such as a full disk, it waits so long.
const RETRY: Duration = Duration::from_secs(1);

/// What a step of background work did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Worked {
    /// There is nothing to do, or others do it.
    Nothing,
    /// A frozen L0 became a tree.
    Flushed,
    /// This level is being merged into the one below: a step of it was done.
    Merging(usize),
    /// This level was merged into the one below.
    Merged(usize),
    /// Trees or log segments became free.
    Freed,
    /// Log segments were reserved for writes to come.
    Reserved,
}

impl Engine {
    /// Does the step of background work that is next: reserves segments of the log, or flushes what
    /// is frozen, or merges a level that is due, or frees what nobody needs. Any thread may call
    /// it; a flush and a merge may go on at the same time. As long as one does something, there may
    /// be more to do.
    ///
    /// A flush writes one tree, a merge one of the size of two levels; both one sync of the trees
    /// and one edit of the manifest.
    ///
    /// # Errors
    /// Those of the storage, the log and the trees. Either nothing was changed, and it can be tried
    /// again; or the engine has stopped writing. A merge that meets damage says so once for each
    /// try, and rests between them (LC7): all else is done meanwhile.
    pub fn maintain(&self) -> Result<Worked, LsmError> {
        let core = &self.core;
        core.check()?;
        let reserved = core.log.reserve_ahead();
        let reserved = reserved.inspect_err(|error| core.stop_with_manifest(error));
        if matches!(reserved, Ok(true)) {
            return Ok(Worked::Reserved);
        }
        let written = reserved.and_then(|_| self.flush_or_merge());
        match &written {
            Ok(Some(worked)) => return Ok(*worked),
            Err(error) if !error.is_no_room() => return written.map(|_| Worked::Nothing),
            // Where there is no room for a tree, freeing gives some back.
            Ok(None) | Err(_) => {}
        }
        if let Some(_guard) = try_lock(&core.freeing)
            && core.reclaim()?
        {
            return Ok(Worked::Freed);
        }
        written.map(|_| Worked::Nothing)
    }

    /// A flush, or a step of a merge; none: there is nothing to do, or others do it.
    fn flush_or_merge(&self) -> Result<Option<Worked>, LsmError> {
        let core = &self.core;
        if let Some(_guard) = try_lock(&core.flushing)
            && core.flush()?
        {
            return Ok(Some(Worked::Flushed));
        }
        if let Some(mut merges) = try_lock(&core.merging) {
            return core.merge(&mut merges);
        }
        Ok(None)
    }

    /// Merges all levels into the last one, L0 included: then each key is there once, and deletes
    /// are not. Reads and writes all trees. A merge that rests (LC7) is tried at once.
    ///
    /// # Errors
    /// As those of [`Self::maintain`].
    pub fn merge_all(&self) -> Result<(), LsmError> {
        self.freeze();
        while self.maintain()? != Worked::Nothing {}
        let core = &self.core;
        let mut merges = lock(&core.merging);
        loop {
            // One that somebody else has begun comes first.
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
        while self.maintain()? != Worked::Nothing {}
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
                    Ok(Worked::Nothing) => engine.core.wakes.wait(IDLE),
                    Ok(_) => {}
                    Err(error @ LsmError::Stopped { .. }) => {
                        tracing::warn!(%error, "background work ends");
                        return;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "background work failed");
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

/// A thread that does the background work. Dropping it waits for the step that it is at; a merge
/// that was begun stays begun, for whoever calls [`Engine::maintain`] next.
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
            // If it has panicked, that was told where it did.
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

/// Wakes workers that wait.
#[derive(Debug, Default)]
pub(super) struct Wakes {
    wake_count: Mutex<u64>,
    has_changed: Condvar,
}

impl Wakes {
    pub(super) fn wake(&self) {
        let mut count = self
            .wake_count
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *count += 1;
        drop(count);
        self.has_changed.notify_all();
    }

    /// Waits for the next wake, or so long.
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
