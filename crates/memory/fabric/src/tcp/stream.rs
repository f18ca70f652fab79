//! A connected socket, and the buffers on both of its sides.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use crate::tcp::tls::TlsLayer;

/// Silence after which the kernel asks, how often it asks again, and how many times.
const KEEP_ALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEP_ALIVE_COUNT: u32 = 3;

/// Room that a buffer has at first, in bytes.
const BUFFER_SIZE_BYTES_MIN: usize = 16 << 10;
/// Room that a buffer gets when it was filled to its end, in bytes.
const BUFFER_SIZE_BYTES_MAX: usize = 256 << 10;

/// A connection to the peer. Never blocks, unless it is told to.
#[derive(Debug)]
pub(super) struct Stream {
    socket: TcpStream,
    tls: Option<Box<TlsLayer>>,
}

impl Stream {
    /// Takes a connected socket over, with or without encryption. Small frames are sent at once.
    pub(super) fn new(socket: TcpStream, tls: Option<TlsLayer>) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        keep_alive(&socket)?;
        let tls = tls.map(Box::new);
        Ok(Self { socket, tls })
    }

    pub(super) fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Whether something that was taken to be sent waits for room.
    #[inline]
    pub(super) fn wants_to_send(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_to_send())
    }

    /// Sends what was taken to be sent, as far as there is room.
    ///
    /// # Errors
    /// The connection is gone; never `WouldBlock`.
    #[inline]
    pub(super) fn flush(&mut self) -> io::Result<()> {
        match &mut self.tls {
            None => Ok(()),
            Some(tls) => tls.flush(&self.socket),
        }
    }

    /// Sleeps until something has come or there is room to send, if something waits for that.
    ///
    /// # Errors
    /// `TimedOut`: the moment has come.
    pub(super) fn wait(&self, until: Instant) -> io::Result<()> {
        let time = until.saturating_duration_since(Instant::now());
        if time.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let timeout = rustix::event::Timespec {
            tv_sec: time.as_secs().min(i32::MAX as u64) as i64,
            tv_nsec: i64::from(time.subsec_nanos()),
        };
        let mut waiting = [self.awaited(false)];
        match rustix::event::poll(&mut waiting, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// What is waited for; `sends`: there is more to be sent than the stream knows of.
    pub(super) fn awaited(&self, sends: bool) -> PollFd<'_> {
        let mut events = PollFlags::IN;
        if sends || self.wants_to_send() {
            events |= PollFlags::OUT;
        }
        PollFd::from_borrowed_fd(self.socket.as_fd(), events)
    }

    /// Receives what is there: 0 bytes when the peer has ended, `WouldBlock` when nothing is there.
    #[inline]
    pub(super) fn receive(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if let Some(tls) = &mut self.tls {
            return tls.receive(&self.socket, to);
        }
        let flags = RecvFlags::DONTWAIT;
        match rustix::net::recv(&self.socket, to, flags) {
            Ok((count, _)) => Ok(count),
            Err(Errno::INTR) => Err(io::ErrorKind::WouldBlock.into()),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends as much as there is room for; `WouldBlock` when there is none.
    #[inline]
    pub(super) fn send(&mut self, from: &[u8]) -> io::Result<usize> {
        if let Some(tls) = &mut self.tls {
            return tls.send(&self.socket, from);
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match rustix::net::send(&self.socket, from, flags) {
            Ok(count) => Ok(count),
            Err(Errno::INTR) => Err(io::ErrorKind::WouldBlock.into()),
            Err(error) => Err(error.into()),
        }
    }

    /// Ends the connection in both directions; who waits for it wakes.
    pub(super) fn shut_down(&self) {
        // A connection that is gone already needs no end.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Bytes that have come and have not been read.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Inbox {
    /// What has not been read.
    #[inline]
    pub(super) fn unread(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// So many bytes have been read.
    #[inline]
    pub(super) fn consume(&mut self, size_bytes: usize) {
        self.start += size_bytes;
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
    }

    /// Receives once, after making room for at least `wanted_bytes` from the first unread one on.
    /// Returns whether the peer may have sent more than that.
    ///
    /// # Errors
    /// As [`Stream::receive`]; a peer that has ended is `UnexpectedEof`.
    #[inline]
    pub(super) fn fill(&mut self, stream: &mut Stream, wanted_bytes: usize) -> io::Result<bool> {
        let wanted_bytes = wanted_bytes.max(BUFFER_SIZE_BYTES_MIN);
        if self.bytes.len() - self.start < wanted_bytes {
            self.make_room(wanted_bytes);
        }
        let count = stream.receive(&mut self.bytes[self.end..])?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.end += count;
        let is_full = self.end == self.bytes.len();
        if is_full && self.bytes.len() < BUFFER_SIZE_BYTES_MAX {
            self.bytes.resize(self.bytes.len() * 4, 0);
        }
        Ok(is_full)
    }

    #[cold]
    fn make_room(&mut self, wanted_bytes: usize) {
        self.bytes.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        if self.bytes.len() < wanted_bytes {
            self.bytes.resize(wanted_bytes.next_power_of_two(), 0);
        }
    }
}

/// Bytes that wait to be sent. It takes at most twice the room of those: a peer that reads slowly
/// but steadily never lets it become empty.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    pub(super) bytes: Vec<u8>,
    sent: usize,
}

impl Outbox {
    /// Whether something waits for room, here or in the stream.
    #[inline]
    pub(super) fn waits(&self, stream: &Stream) -> bool {
        self.len() > 0 || stream.wants_to_send()
    }

    /// How many bytes wait here.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Sends what can be sent now.
    ///
    /// # Errors
    /// The connection is gone; never `WouldBlock`.
    #[inline]
    pub(super) fn flush(&mut self, stream: &mut Stream) -> io::Result<()> {
        while self.sent < self.bytes.len() {
            match stream.send(&self.bytes[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.forget_sent();
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        stream.flush()?;
        self.sent = 0;
        self.bytes.clear();
        Ok(())
    }

    /// Moves what waits to the front, once that is the smaller part.
    #[cold]
    fn forget_sent(&mut self) {
        if self.sent > self.bytes.len() / 2 {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
    }
}

/// Lets the kernel ask now and then whether a peer that says nothing is still there, so that hosts
/// that have vanished are noticed, and connections on which nothing goes are not forgotten on the
/// way.
fn keep_alive(socket: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEP_ALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(socket, KEEP_ALIVE_INTERVAL)?;
    Ok(sockopt::set_tcp_keepcnt(socket, KEEP_ALIVE_COUNT)?)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;

    use super::*;

    /// Promise: what a peer has fetched is forgotten, even if the outbox never becomes empty.
    #[test]
    fn an_outbox_that_is_never_empty_does_not_grow() {
        const STEP_SIZE_BYTES: usize = 256 << 10;
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let mut peer = TcpStream::connect(address).expect("it listens");
        let (socket, _) = listener.accept().expect("it has connected");
        let mut stream = Stream::new(socket, None).expect("a socket");
        let mut outbox = Outbox::default();
        while outbox.len() < 2 * STEP_SIZE_BYTES {
            outbox.bytes.resize(outbox.bytes.len() + STEP_SIZE_BYTES, 7);
            outbox.flush(&mut stream).expect("connected");
        }
        let mut fetched = vec![0; STEP_SIZE_BYTES];
        for step in 0..400 {
            peer.read_exact(&mut fetched).expect("it was sent");
            assert!(fetched.iter().all(|byte| *byte == 7));
            while outbox.len() < 2 * STEP_SIZE_BYTES {
                outbox.bytes.resize(outbox.bytes.len() + STEP_SIZE_BYTES, 7);
            }
            outbox.flush(&mut stream).expect("connected");
            let kept = outbox.bytes.len();
            assert!(
                kept <= 6 * STEP_SIZE_BYTES,
                "{kept} bytes kept in step {step}"
            );
        }
    }
}
