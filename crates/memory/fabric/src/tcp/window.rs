//! The node's access to the window of a session with a data connection (FABRIC-10).

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::tcp::frame::encode_window;
use crate::window::WindowWriter;
use farleaf_base::locks::lock;

/// Maximum number of bytes, plus one frame, that wait for the connection's thread. If the peer also
/// lets as many bytes wait in the outbox, the connection is closed. Correct clients have smaller
/// windows.
const WAITING_SIZE_BYTES_MAX: usize = 1 << 20;

/// Notifies the thread that serves a connection.
#[derive(Debug)]
pub(super) struct WindowNotifier {
    token: u64,
    due: Arc<Mutex<Vec<u64>>>,
    wake: Arc<OwnedFd>,
}

impl WindowNotifier {
    pub(super) fn new(token: u64, due: Arc<Mutex<Vec<u64>>>, wake: Arc<OwnedFd>) -> Self {
        Self { token, due, wake }
    }

    fn notify(&self) {
        let mut due = lock(&self.due);
        due.push(self.token);
        drop(due);
        // The only possible failure is an eventfd whose counter is full, which wakes the thread
        // anyway.
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
    }
}

/// Words that the node's threads have written into a window, until the connection's thread sends
/// them.
#[derive(Debug)]
pub(super) struct TcpWindowWriter {
    frames: Mutex<Vec<u8>>,
    is_notified: AtomicBool,
    /// True once something was written.
    is_used: AtomicBool,
    /// True if words were left out.
    is_overrun: AtomicBool,
    post: WindowNotifier,
}

impl TcpWindowWriter {
    pub(super) fn new(post: WindowNotifier) -> Self {
        Self {
            frames: Mutex::default(),
            is_notified: AtomicBool::new(false),
            is_used: AtomicBool::new(false),
            is_overrun: AtomicBool::new(false),
            post,
        }
    }

    /// Returns true if something was written to the session, so it makes calls.
    pub(super) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    /// Appends the written words to the outgoing bytes, of which `waiting_size_bytes` wait.
    ///
    /// # Errors
    /// The peer has let too much wait.
    pub(super) fn take(&self, out: &mut Vec<u8>, waiting_size_bytes: usize) -> io::Result<()> {
        // Reset the flag before reading the frames: a later write sets it again.
        if !self.is_notified.swap(false, Ordering::SeqCst) {
            return Ok(());
        }
        let mut frames = lock(&self.frames);
        let is_overrun = self.is_overrun.load(Ordering::SeqCst);
        if is_overrun || frames.len() + waiting_size_bytes > 2 * WAITING_SIZE_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        out.append(&mut frames);
        Ok(())
    }
}

impl WindowWriter for TcpWindowWriter {
    fn write(&self, index: u64, words: &[u64]) {
        let mut frames = lock(&self.frames);
        if frames.len() <= WAITING_SIZE_BYTES_MAX {
            encode_window(&mut frames, index, words);
        } else {
            // The order is broken: no later word may reach the window.
            self.is_overrun.store(true, Ordering::SeqCst);
        }
    }

    fn send(&self) {
        self.is_used.store(true, Ordering::Relaxed);
        if !self.is_notified.swap(true, Ordering::SeqCst) {
            self.post.notify();
        }
    }
}
