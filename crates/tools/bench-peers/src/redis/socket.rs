//! Waiting for bytes: polls for a while, then lets the system wake the thread.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

const AWAKE_TIME: Duration = Duration::from_micros(50);
const BUFFER_SIZE_BYTES: usize = 16 << 10;

/// Connection that can be polled without waiting.
pub(crate) trait Socket: Read + Write {
    fn set_nonblocking(&self, is_nonblocking: bool) -> io::Result<()>;
}

impl Socket for TcpStream {
    fn set_nonblocking(&self, is_nonblocking: bool) -> io::Result<()> {
        Self::set_nonblocking(self, is_nonblocking)
    }
}

impl Socket for UnixStream {
    fn set_nonblocking(&self, is_nonblocking: bool) -> io::Result<()> {
        Self::set_nonblocking(self, is_nonblocking)
    }
}

/// Waits until bytes have arrived, and appends them.
///
/// # Errors
/// The connection failed, or the peer closed it.
pub(crate) fn receive(socket: &mut impl Socket, inbox: &mut Vec<u8>) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    let mut since = None;
    let mut buffer = [0; BUFFER_SIZE_BYTES];
    loop {
        match socket.read(&mut buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                inbox.extend_from_slice(&buffer[..count]);
                return socket.set_nonblocking(false);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let since = *since.get_or_insert_with(Instant::now);
                if since.elapsed() < AWAKE_TIME {
                    std::thread::yield_now();
                } else {
                    socket.set_nonblocking(false)?;
                }
            }
            Err(error) => return Err(error),
        }
    }
}
