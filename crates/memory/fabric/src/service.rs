//! Interface between the listeners and the memory node: registration of sessions, and the stop
//! signal.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use farleaf_base::OwnerWord;
use rustix::event::EventfdFlags;

/// The memory node's sessions, as listeners use them. Called from the listener's thread.
pub trait SessionService {
    /// Registers a session of process `pid` (0: on another host). The client receives the error.
    ///
    /// # Errors
    /// The reason why the node registers no session.
    fn register(&mut self, pid: u32) -> Result<OwnerWord, String>;
    /// Records that the session has drained or its process is dead. It is fenced now (FABRIC-6), or
    /// will be without further calls.
    fn fence(&mut self, owner: OwnerWord);
    /// Returns the process of an unfenced session.
    fn process_of(&mut self, owner: OwnerWord) -> Option<u32>;
}

/// Signal that stops a listener from any thread.
#[derive(Clone, Debug)]
pub struct StopSignal(Arc<OwnedFd>);

impl StopSignal {
    /// Creates a signal.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self(Arc::new(rustix::event::eventfd(0, flags)?)))
    }

    /// Makes the listeners that wait for this signal return soon.
    pub fn stop(&self) {
        // The only possible failure is an eventfd whose counter is full, which is signaled anyway.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }

    /// Returns the descriptor, which is readable once the signal was sent.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
