//! A connected socket, with its receive and send buffers.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use crate::tls::TlsLayer;

/// Silence before the kernel's first probe, the interval of the probes, and their number.
const KEEP_ALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEP_ALIVE_COUNT: u32 = 3;

/// Initial capacity of a buffer in bytes.
const BUFFER_SIZE_BYTES_MIN: usize = 16 << 10;
/// Capacity in bytes of a buffer that has been filled completely.
const BUFFER_SIZE_BYTES_MAX: usize = 256 << 10;

/// A connection to the peer. It never blocks, except in methods that say so.
#[derive(Debug)]
pub struct Stream {
    socket: TcpStream,
    tls: Option<Box<TlsLayer>>,
}

impl Stream {
    /// Takes over a connected socket, with or without encryption. Small frames are sent at once.
    pub fn new(socket: TcpStream, tls: Option<TlsLayer>) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        keep_alive(&socket)?;
        let tls = tls.map(Box::new);
        Ok(Self { socket, tls })
    }

    /// Returns the socket once more, so that it can be shut down while the stream is in use.
    ///
    /// # Errors
    /// No file descriptor is left.
    pub fn try_clone_socket(&self) -> io::Result<TcpStream> {
        self.socket.try_clone()
    }

    /// Returns the next byte without receiving it; `None` if none has arrived.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn peek(&self) -> io::Result<Option<u8>> {
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        let mut first = [0; 1];
        match rustix::net::recv(&self.socket, &mut first, flags) {
            Ok((0, _)) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(Some(first[0])),
            Err(Errno::INTR | Errno::AGAIN) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Encrypts what follows.
    pub fn encrypt(&mut self, tls: TlsLayer) {
        self.tls = Some(Box::new(tls));
    }

    /// Returns whether the stream uses TLS.
    pub fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Returns the [binding](TlsLayer::binding) of an encrypted stream, and nothing otherwise.
    ///
    /// # Errors
    /// The TLS handshake is not complete.
    pub fn binding(&self) -> io::Result<Vec<u8>> {
        TlsLayer::binding_of(self.tls.as_deref())
    }

    /// Returns true if accepted data still waits to be sent.
    #[inline]
    pub fn wants_to_send(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_to_send())
    }

    /// Sends accepted data as far as the socket takes it.
    ///
    /// # Errors
    /// The connection has ended; never `WouldBlock`.
    #[inline]
    pub fn flush(&mut self) -> io::Result<()> {
        match &mut self.tls {
            None => Ok(()),
            Some(tls) => tls.flush(&self.socket),
        }
    }

    /// Sleeps until data has arrived, or until waiting data can be sent.
    ///
    /// # Errors
    /// `TimedOut`: the time has come.
    pub fn wait(&self, until: Instant) -> io::Result<()> {
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

    /// Returns the events to wait for. `sends`: the caller has more to send than the stream knows
    /// of.
    pub fn awaited(&self, sends: bool) -> PollFd<'_> {
        let mut events = PollFlags::IN;
        if sends || self.wants_to_send() {
            events |= PollFlags::OUT;
        }
        PollFd::from_borrowed_fd(self.socket.as_fd(), events)
    }

    /// Receives available data: 0 bytes if the peer has ended, `WouldBlock` if there is none.
    #[inline]
    pub fn receive(&mut self, to: &mut [u8]) -> io::Result<usize> {
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

    /// Sends as much as the socket takes; `WouldBlock` if it takes nothing.
    #[inline]
    pub fn send(&mut self, from: &[u8]) -> io::Result<usize> {
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

    /// Ends the connection in both directions; threads that wait for it wake.
    pub fn shut_down(&self) {
        // The connection may have ended already.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Bytes that have been received and not yet read.
#[derive(Debug, Default)]
pub struct Inbox {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Inbox {
    /// Returns the unread bytes.
    #[inline]
    pub fn unread(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Marks `size_bytes` bytes as read.
    #[inline]
    pub fn consume(&mut self, size_bytes: usize) {
        self.start += size_bytes;
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
    }

    /// Receives once, after making space for at least `wanted_bytes` from the first unread byte on.
    /// Returns true if the peer may have sent more than was received.
    ///
    /// # Errors
    /// As [`Stream::receive`]; a peer that has ended is `UnexpectedEof`.
    #[inline]
    pub fn fill(&mut self, stream: &mut Stream, wanted_bytes: usize) -> io::Result<bool> {
        let wanted_bytes = wanted_bytes.max(BUFFER_SIZE_BYTES_MIN);
        if self.bytes.len() - self.start < wanted_bytes {
            self.make_space(wanted_bytes);
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
    fn make_space(&mut self, wanted_bytes: usize) {
        self.bytes.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        if self.bytes.len() < wanted_bytes {
            self.bytes.resize(wanted_bytes.next_power_of_two(), 0);
        }
    }
}

/// Bytes that wait to be sent. The buffer takes at most twice their space, even though a peer that
/// reads slowly but steadily never lets it become empty.
#[derive(Debug, Default)]
pub struct Outbox {
    /// Bytes that wait, after those that were sent already.
    pub bytes: Vec<u8>,
    sent: usize,
}

impl Outbox {
    /// Returns true if data waits to be sent, here or in the stream.
    #[inline]
    pub fn waits(&self, stream: &Stream) -> bool {
        self.size_bytes() > 0 || stream.wants_to_send()
    }

    /// Returns the number of bytes that wait here.
    #[inline]
    pub fn size_bytes(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Sends what can be sent now.
    ///
    /// # Errors
    /// The connection has ended; never `WouldBlock`.
    #[inline]
    pub fn flush(&mut self, stream: &mut Stream) -> io::Result<()> {
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

    /// Moves waiting bytes to the front, once they are the smaller part.
    #[cold]
    fn forget_sent(&mut self) {
        if self.sent > self.bytes.len() / 2 {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
    }
}

/// Returns why an address cannot be listened on, and what to do.
pub fn why_not_bound(source: &io::Error) -> String {
    match source.kind() {
        io::ErrorKind::AddrInUse => format!(
            "another process uses this address ({source}); stop that process, or choose another \
             port"
        ),
        io::ErrorKind::AddrNotAvailable => format!("{source}; choose an address of this host"),
        _ => source.to_string(),
    }
}

/// Makes the kernel probe silent peers, so that vanished hosts are noticed, and network devices do
/// not drop idle connections.
pub(crate) fn keep_alive(socket: &TcpStream) -> io::Result<()> {
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

    /// Promise: sent bytes are released, even if the outbox never becomes empty.
    #[test]
    fn an_outbox_that_is_never_empty_does_not_grow() {
        const STEP_SIZE_BYTES: usize = 256 << 10;
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let mut peer = TcpStream::connect(address).expect("it listens");
        let (socket, _) = listener.accept().expect("it has connected");
        let mut stream = Stream::new(socket, None).expect("a socket");
        let mut outbox = Outbox::default();
        while outbox.size_bytes() < 2 * STEP_SIZE_BYTES {
            outbox.bytes.resize(outbox.bytes.len() + STEP_SIZE_BYTES, 7);
            outbox.flush(&mut stream).expect("connected");
        }
        let mut fetched = vec![0; STEP_SIZE_BYTES];
        for step in 0..400 {
            peer.read_exact(&mut fetched).expect("it was sent");
            assert!(fetched.iter().all(|byte| *byte == 7));
            while outbox.size_bytes() < 2 * STEP_SIZE_BYTES {
                outbox.bytes.resize(outbox.bytes.len() + STEP_SIZE_BYTES, 7);
            }
            outbox.flush(&mut stream).expect("connected");
            let buffered_bytes = outbox.bytes.len();
            assert!(
                buffered_bytes <= 6 * STEP_SIZE_BYTES,
                "{buffered_bytes} bytes kept in step {step}"
            );
        }
    }
}
