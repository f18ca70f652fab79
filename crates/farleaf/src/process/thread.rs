//! Thread that polls the pool for a process.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use farleaf_executor::block_on;
use farleaf_fabric::{BatchErrorKind, Endpoint};

use super::SequencePublisher;

/// Time between two reads of the sequence number.
const TICK: Duration = Duration::from_millis(20);

/// Handle of the process's thread, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct ProcessThread {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ProcessThread {
    /// Starts the thread. It calls `lose` when the keeper's connection to the pool is lost, after
    /// which nothing is published for the sessions.
    pub(crate) fn start<E>(
        publisher: SequencePublisher<E>,
        lose: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self>
    where
        E: Endpoint + Send + 'static,
    {
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new().name("farleaf-process".to_owned());
        let thread = thread.spawn(move || {
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(TICK) {
                let Err(error) = block_on(publisher.tick(), publisher.endpoint().completions())
                else {
                    continue;
                };
                tracing::error!(%error, "cannot read changes of the pool");
                // A lost node never returns.
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
            tracing::error!("the thread that maintains this process's sessions panicked");
        }
    }
}
