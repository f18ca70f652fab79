//! Settings of all sockets, and time limits of frames.

use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::stream::keep_alive;

/// A frame may take a second more for each of these many bytes.
const SECOND_SIZE_BYTES: usize = 1 << 20;

/// Shortest time that a socket accepts as a timeout.
const TIME_MIN: Duration = Duration::from_millis(1);

/// Disables Nagle's algorithm, and enables probes that detect vanished hosts.
pub(crate) fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    keep_alive(socket)
}

/// Sets the timeout of one read call.
pub(crate) fn set_read_time(socket: &TcpStream, time: Duration) -> io::Result<()> {
    socket.set_read_timeout(Some(time.max(TIME_MIN)))
}

/// Sets the timeout of one write call.
pub(crate) fn set_write_time(socket: &TcpStream, time: Duration) -> io::Result<()> {
    socket.set_write_timeout(Some(time.max(TIME_MIN)))
}

/// Returns whether a call timed out.
pub(crate) fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

/// Time limit of a frame in transit. Does not read the clock for a frame that is complete at once.
#[derive(Debug)]
pub(crate) struct FrameTimeLimit {
    time: Duration,
    started_at: Option<Instant>,
}

impl FrameTimeLimit {
    pub(crate) fn new(time: Duration) -> Self {
        Self {
            time,
            started_at: None,
        }
    }

    /// Records that a frame has arrived in part, and returns whether it may continue; false if it
    /// takes too long.
    #[cold]
    pub(crate) fn is_in_time(&mut self, frame_size_bytes: usize) -> bool {
        let now = Instant::now();
        let started_at = *self.started_at.get_or_insert(now);
        let extra = Duration::from_secs((frame_size_bytes / SECOND_SIZE_BYTES) as u64);
        now.duration_since(started_at) <= self.time.saturating_add(extra)
    }
}
