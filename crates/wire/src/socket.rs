//! What all sockets here have set, and how long a frame may take.

use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::net::sockopt;

/// W12: a frame that has begun takes no longer than its time and a second for each of these.
const SECOND_SIZE_BYTES: usize = 1 << 20;

/// The kernel asks whether a peer that says nothing is still there (W13).
const KEEP_ALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEP_ALIVE_COUNT: u32 = 3;

/// The shortest time limit that a socket takes as one.
const TIME_MIN: Duration = Duration::from_millis(1);

/// Nothing waits for more to be sent; vanished hosts are noticed.
pub(crate) fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEP_ALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(socket, KEEP_ALIVE_INTERVAL)?;
    Ok(sockopt::set_tcp_keepcnt(socket, KEEP_ALIVE_COUNT)?)
}

/// How long one call that reads may wait.
pub(crate) fn set_read_time(socket: &TcpStream, time: Duration) -> io::Result<()> {
    socket.set_read_timeout(Some(time.max(TIME_MIN)))
}

/// How long one call that writes may wait.
pub(crate) fn set_write_time(socket: &TcpStream, time: Duration) -> io::Result<()> {
    socket.set_write_timeout(Some(time.max(TIME_MIN)))
}

/// Whether a call has waited for as long as it may.
pub(crate) fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

/// Since when a frame is under way (W12). No clock is read for one that is there at once.
#[derive(Debug)]
pub(crate) struct Patience {
    time: Duration,
    begun_at: Option<Instant>,
}

impl Patience {
    pub(crate) fn new(time: Duration) -> Self {
        Self {
            time,
            begun_at: None,
        }
    }

    /// A part of a frame of so many bytes is there, and not all of it. False: it takes too long.
    #[cold]
    pub(crate) fn goes_on(&mut self, frame_size_bytes: usize) -> bool {
        let now = Instant::now();
        let begun_at = *self.begun_at.get_or_insert(now);
        let extra = Duration::from_secs((frame_size_bytes / SECOND_SIZE_BYTES) as u64);
        now.duration_since(begun_at) <= self.time.saturating_add(extra)
    }
}
