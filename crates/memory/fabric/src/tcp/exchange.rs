//! Sending and receiving on a client's connection within a time limit.

use std::io;
use std::time::{Duration, Instant};

use farleaf_net::greeting::Transport;
use farleaf_net::stream::Stream;

use crate::tcp::messages::{FRAME_SIZE_BYTES, Frame};

/// Returns the error of a handshake, which says so if the node has closed the connection.
pub(super) fn during_handshake(source: io::Error) -> io::Error {
    if !is_hang_up(&source) && source.kind() != io::ErrorKind::UnexpectedEof {
        return source;
    }
    io::Error::new(
        source.kind(),
        "the node closed the connection during the handshake",
    )
}

/// Stream with a time limit.
pub(super) struct Limited<'s> {
    stream: &'s mut Stream,
    until: Instant,
}

impl<'s> Limited<'s> {
    pub(super) fn new(stream: &'s mut Stream, time_max: Duration) -> Self {
        let until = Instant::now() + time_max;
        Self { stream, until }
    }
}

impl Transport for Limited<'_> {
    fn send_all(&mut self, from: &[u8]) -> io::Result<()> {
        let mut sent = 0;
        while sent < from.len() {
            match self.stream.send(&from[sent..]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.stream.wait(self.until)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn receive_some(&mut self, to: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.stream.receive(to) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.stream.wait(self.until)?;
                }
                received => return received,
            }
        }
    }

    fn binding(&self) -> io::Result<Vec<u8>> {
        self.stream.binding()
    }

    fn is_encrypted(&self) -> bool {
        self.stream.is_encrypted()
    }
}

/// Sends a request and returns the reply.
///
/// # Errors
/// The connection has ended, or the time limit has passed.
pub(super) fn exchange(
    stream: &mut Stream,
    request: &Frame,
    time_max: Duration,
) -> io::Result<Frame> {
    let mut limited = Limited::new(stream, time_max);
    match limited.send_all(request) {
        // A node that refused this client closed the connection, but may have sent the reason
        // first.
        Err(error) if !is_hang_up(&error) => return Err(error),
        _ => {}
    }
    let mut frame = [0; FRAME_SIZE_BYTES];
    let mut filled = 0;
    while filled < frame.len() {
        match limited.receive_some(&mut frame[filled..])? {
            0 => {
                let kind = io::ErrorKind::ConnectionReset;
                return Err(io::Error::new(kind, "the node closed the connection"));
            }
            count => filled += count,
        }
    }
    Ok(frame)
}

fn is_hang_up(error: &io::Error) -> bool {
    let kind = error.kind();
    matches!(
        kind,
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
    )
}
