//! The node's way into the window of a session that has a data connection (F10, N5).

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::tcp::frame::encode_window;
use crate::window::Door;

/// Words that wait for the connection's thread at the most, and a frame more, in bytes. With as
/// much besides that waits for the peer, the peer is hung up on: honest ones have room for less in
/// their windows.
const WAITING_SIZE_BYTES_MAX: usize = 1 << 20;

/// Tells the thread that has a connection to look at it.
#[derive(Debug)]
pub(super) struct WindowPost {
    token: u64,
    due: Arc<Mutex<Vec<u64>>>,
    wake: Arc<OwnedFd>,
}

impl WindowPost {
    pub(super) fn new(token: u64, (due, wake): (Arc<Mutex<Vec<u64>>>, Arc<OwnedFd>)) -> Self {
        Self { token, due, wake }
    }

    fn tell(&self) {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        due.push(self.token);
        drop(due);
        // Fails only where it has been woken 2^64 times.
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
    }
}

/// What any thread of the node has written into a window, until the connection's thread sends it.
#[derive(Debug)]
pub(super) struct TcpDoor {
    frames: Mutex<Vec<u8>>,
    is_told: AtomicBool,
    /// Something was written once.
    is_used: AtomicBool,
    /// Words were left out.
    is_overrun: AtomicBool,
    post: WindowPost,
}

impl TcpDoor {
    pub(super) fn new(post: WindowPost) -> Self {
        Self {
            frames: Mutex::default(),
            is_told: AtomicBool::new(false),
            is_used: AtomicBool::new(false),
            is_overrun: AtomicBool::new(false),
            post,
        }
    }

    /// Whether its session has been answered, and so makes calls.
    pub(super) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    /// Appends what was written to what is sent, of which so much waits.
    ///
    /// # Errors
    /// The peer has let too much wait.
    pub(super) fn take(&self, out: &mut Vec<u8>, waiting_size_bytes: usize) -> io::Result<()> {
        // Before the frames are looked at: what comes after that is told anew.
        if !self.is_told.swap(false, Ordering::SeqCst) {
            return Ok(());
        }
        let mut frames = self.frames.lock().unwrap_or_else(PoisonError::into_inner);
        let is_overrun = self.is_overrun.load(Ordering::SeqCst);
        if is_overrun || frames.len() + waiting_size_bytes > 2 * WAITING_SIZE_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        out.append(&mut frames);
        Ok(())
    }
}

impl Door for TcpDoor {
    fn write(&self, index: u64, words: &[u64]) {
        let mut frames = self.frames.lock().unwrap_or_else(PoisonError::into_inner);
        if frames.len() <= WAITING_SIZE_BYTES_MAX {
            encode_window(&mut frames, index, words);
        } else {
            // Its order is broken: nothing that comes later may reach it.
            self.is_overrun.store(true, Ordering::SeqCst);
        }
    }

    fn leave(&self) {
        self.is_used.store(true, Ordering::Relaxed);
        if !self.is_told.swap(true, Ordering::SeqCst) {
            self.post.tell();
        }
    }
}
