//! Echo over TCP: the simplest possible server, as a baseline.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// Size of a message: that of a call's request and of its reply (a segment of a ring).
pub(super) const MESSAGE_SIZE_BYTES: usize = 128;

/// Echo thread, with a connection to it.
#[derive(Debug)]
pub(super) struct Echo {
    stream: TcpStream,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Echo {
    /// Starts the echo thread on loopback.
    pub(super) fn start() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let stream = TcpStream::connect(listener.local_addr()?)?;
        stream.set_nodelay(true)?;
        let (mut peer, _) = listener.accept()?;
        peer.set_nodelay(true)?;
        let thread = thread::spawn(move || {
            let mut bytes = vec![0; 1 << 16];
            loop {
                let count = peer.read(&mut bytes)?;
                if count == 0 {
                    return Ok(());
                }
                peer.write_all(&bytes[..count])?;
            }
        });
        Ok(Self {
            stream,
            thread: Some(thread),
        })
    }

    /// Sends messages with a fixed number in flight, and reports the latency of each in ns. Returns
    /// the number of messages that came back changed.
    pub(super) fn run(
        &mut self,
        operation_count: u64,
        in_flight: u32,
        mut record_latency: impl FnMut(u64),
    ) -> io::Result<u64> {
        let (mut sent_count, mut back_count, mut wrong_count) = (0_u64, 0_u64, 0_u64);
        let mut send_times = VecDeque::with_capacity(in_flight as usize);
        let (mut out, mut unread) = (Vec::new(), Vec::new());
        let mut bytes = vec![0; 1 << 16];
        while back_count < operation_count {
            out.clear();
            let now = Instant::now();
            while send_times.len() < in_flight as usize && sent_count < operation_count {
                out.extend_from_slice(&message(sent_count));
                send_times.push_back(now);
                sent_count += 1;
            }
            self.stream.write_all(&out)?;
            let count = self.stream.read(&mut bytes)?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            unread.extend_from_slice(&bytes[..count]);
            let whole = unread.len() / MESSAGE_SIZE_BYTES * MESSAGE_SIZE_BYTES;
            for back in unread[..whole].chunks_exact(MESSAGE_SIZE_BYTES) {
                wrong_count += u64::from(back != message(back_count));
                back_count += 1;
                if let Some(sent_at) = send_times.pop_front() {
                    record_latency(sent_at.elapsed().as_nanos() as u64);
                }
            }
            unread.drain(..whole);
        }
        Ok(wrong_count)
    }
}

fn message(number: u64) -> [u8; MESSAGE_SIZE_BYTES] {
    let mut bytes = [0; MESSAGE_SIZE_BYTES];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

impl Drop for Echo {
    fn drop(&mut self) {
        // A connection that is already closed needs no shutdown.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            // A failure of the thread is reported by the caller that waited for its answers.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: every message comes back once, whatever the number in flight.
    #[test]
    fn everything_comes_back() {
        let mut echo = Echo::start().expect("loopback");
        for in_flight in [1, 7, 300] {
            let mut count = 0;
            let wrong_count = echo.run(1000, in_flight, |_| count += 1);
            assert_eq!((wrong_count.expect("it answers"), count), (0, 1000));
        }
    }
}
