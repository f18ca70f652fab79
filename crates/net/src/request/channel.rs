//! A blocking socket, with or without encryption.

use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::request::socket::{FrameTimeLimit, is_timeout, set_read_time, set_write_time};
use crate::tls::{TlsClient, TlsLayer, TlsServer};

/// Connection to the peer, used by one thread. Reads and writes that take longer than the times set
/// return `WouldBlock` or `TimedOut`.
#[derive(Debug)]
pub(crate) struct Channel {
    socket: Arc<TcpStream>,
    tls: Option<Box<TlsLayer>>,
    read_time: Duration,
    write_time: Duration,
    /// End of all reads, for a peer that sends a record in small pieces.
    until: Option<Instant>,
}

impl Channel {
    /// Takes over a socket, without encryption.
    pub(crate) fn plain(socket: Arc<TcpStream>) -> Self {
        Self {
            socket,
            tls: None,
            read_time: Duration::MAX,
            write_time: Duration::MAX,
            until: None,
        }
    }

    /// Encrypts what follows, as the side that connected to `host`.
    pub(crate) fn encrypt_for(&mut self, tls: &TlsClient, host: &str) -> io::Result<()> {
        self.tls = Some(Box::new(TlsLayer::of_client(tls, host)?));
        Ok(())
    }

    /// Encrypts what follows, as the side that listens.
    pub(crate) fn encrypt(&mut self, tls: &TlsServer) -> io::Result<()> {
        self.tls = Some(Box::new(TlsLayer::of_node(tls)?));
        Ok(())
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Returns bytes for proofs: the [binding](TlsLayer::binding), or none without encryption.
    pub(crate) fn binding(&self) -> io::Result<Vec<u8>> {
        TlsLayer::binding_of(self.tls.as_deref())
    }

    /// Sets the timeout of a read. With encryption it is also that of a record that arrives in
    /// pieces.
    pub(crate) fn set_read_time(&mut self, time: Duration) -> io::Result<()> {
        self.read_time = time;
        set_read_time(&self.socket, time)
    }

    /// Sets the timeout of a write.
    pub(crate) fn set_write_time(&mut self, time: Duration) -> io::Result<()> {
        self.write_time = time;
        set_write_time(&self.socket, time)
    }

    /// Reads until a point in time.
    ///
    /// # Errors
    /// `TimedOut` if nothing has arrived until then.
    pub(crate) fn read_until(&mut self, to: &mut [u8], until: Instant) -> io::Result<usize> {
        self.until = Some(until);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.set_read_time(left)?;
            match self.read(to) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_timeout(&error) => return Err(io::ErrorKind::TimedOut.into()),
                result => return result,
            }
        }
    }

    /// Sets the end of all reads; `None` for no end.
    pub(crate) fn set_end(&mut self, until: Option<Instant>) {
        self.until = until;
    }
}

impl Read for Channel {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else {
            return (&*self.socket).read(to);
        };
        // Of a peer that sends a record in small pieces, each read of the socket returns in time.
        let mut begun_at = None;
        loop {
            if let Some(count) = tls.receive_once(&self.socket, to)? {
                return Ok(count);
            }
            let now = Instant::now();
            if let Some(until) = self.until {
                let left = until.saturating_duration_since(now);
                if left.is_zero() {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                set_read_time(&self.socket, left)?;
            } else if now.duration_since(*begun_at.get_or_insert(now)) > self.read_time {
                return Err(io::Error::other("timed out in the middle of a TLS record"));
            }
        }
    }
}

impl Write for Channel {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(from)])
    }

    /// Returns the number of bytes that the socket has taken: with encryption, all that were
    /// accepted.
    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else {
            return (&*self.socket).write_vectored(parts);
        };
        let accepted = tls.accept(parts)?;
        let mut time_limit = FrameTimeLimit::new(self.write_time);
        while tls.wants_to_send() {
            match tls.flush_once(&self.socket) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if tls.wants_to_send() && !time_limit.is_in_time(accepted) {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        Ok(accepted)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
