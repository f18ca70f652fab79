//! The thread in which a process looks at its pool.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use farleaf_executor::block_on;
use farleaf_fabric::{BatchErrorKind, Endpoint};

use super::ProcessKeeper;

/// Time between two looks at the sequence number.
const TICK: Duration = Duration::from_millis(20);

/// The process's thread; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct ProcessThread {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ProcessThread {
    /// `lose` is called when the keeper's way to the pool is gone: what it does for the sessions
    /// nobody does any more.
    pub(crate) fn start<E>(
        keeper: ProcessKeeper<E>,
        lose: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self>
    where
        E: Endpoint + Send + 'static,
    {
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new().name("farleaf-process".to_owned());
        let thread = thread.spawn(move || {
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(TICK) {
                let Err(error) = block_on(keeper.tick(), keeper.endpoint().completions()) else {
                    continue;
                };
                tracing::error!(%error, "cannot follow the pool");
                // A node that is gone stays gone.
                if matches!(error.kind(), BatchErrorKind::Unreachable { .. }) {
                    return lose();
                }
            }
        })?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for ProcessThread {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the process's thread panicked");
        }
    }
}
