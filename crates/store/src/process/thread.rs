//! The thread in which a process looks at its pool.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use farleaf_executor::block_on;
use farleaf_fabric::Endpoint;

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
    pub(crate) fn start<E>(keeper: ProcessKeeper<E>) -> io::Result<Self>
    where
        E: Endpoint + Send + 'static,
    {
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new().name("farleaf-process".to_owned());
        let thread = thread.spawn(move || {
            let mut told = String::new();
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(TICK) {
                let ticked = block_on(keeper.tick(), keeper.endpoint().completions());
                // A node that is gone stays gone: once is enough.
                let failure = ticked.map_or_else(|error| error.to_string(), |()| String::new());
                if !failure.is_empty() && failure != told {
                    tracing::error!(error = failure, "cannot follow the pool");
                }
                told = failure;
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
