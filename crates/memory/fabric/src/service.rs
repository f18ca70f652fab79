//! What the listeners of a memory node have in common: whom they register sessions with, and how
//! they are stopped.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use farleaf_types::OwnerWord;
use rustix::event::EventfdFlags;

/// What a listener needs of the memory node: the sessions. Called from the listener's thread.
pub trait SessionService {
    /// Brings a session of process `pid` (0: of another host) to life; the error is told to the
    /// client.
    ///
    /// # Errors
    /// Why there is none.
    fn register(&mut self, pid: u32) -> Result<OwnerWord, String>;
    /// The session has drained, or its process is dead: it is fenced now (F6), or will be without
    /// anybody's doing more.
    fn fence(&mut self, owner: OwnerWord);
    /// The process of a session that is not fenced.
    fn process_of(&mut self, owner: OwnerWord) -> Option<u32>;
}

/// Stops a listener from any thread.
#[derive(Clone, Debug)]
pub struct StopSignal(Arc<OwnedFd>);

impl StopSignal {
    /// # Errors
    /// The process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self(Arc::new(rustix::event::eventfd(0, flags)?)))
    }

    /// Makes whoever listens to it return soon.
    pub fn stop(&self) {
        // The only failure is an eventfd that has been stopped 2^64 times: stopped it is.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }

    /// Readable once it has been stopped.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
