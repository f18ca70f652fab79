//! Frames into a socket: header and payload by one system call, if the socket has space.

use std::io::{self, IoSlice, Write};
use std::time::Duration;

use crate::request::frame::{Header, Kind};
use crate::request::socket::{FrameTimeLimit, is_timeout};

/// Sends one frame. An error means that the socket did not take all of it, so that the peer never
/// has the whole frame.
///
/// # Errors
/// `TimedOut`: the peer does not read, or reads too slowly. Any other error: the connection failed.
pub(crate) fn send(
    to: &mut impl Write,
    kind: Kind,
    payload: &[u8],
    time: Duration,
) -> io::Result<()> {
    let size_bytes = payload.len();
    let header = Header { kind, size_bytes }.encode();
    let mut parts = [IoSlice::new(&header), IoSlice::new(payload)];
    let mut unsent = &mut parts[..];
    let mut time_limit = FrameTimeLimit::new(time);
    loop {
        match to.write_vectored(unsent) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => IoSlice::advance_slices(&mut unsent, count),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if is_timeout(&error) => return Err(io::ErrorKind::TimedOut.into()),
            Err(error) => return Err(error),
        }
        if unsent.is_empty() {
            return Ok(());
        }
        if !time_limit.is_in_time(size_bytes) {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writer that takes a few bytes at a time, of the first nonempty part, and sometimes is
    /// interrupted.
    struct PartialWriter {
        taken: Vec<u8>,
        call_count: usize,
    }

    impl Write for PartialWriter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.call_count += 1;
            if self.call_count.is_multiple_of(3) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let count = bytes.len().min(3);
            self.taken.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Promise: a frame that the socket takes in pieces arrives whole, in order, once.
    #[test]
    fn pieces_make_a_frame() {
        let payload: Vec<u8> = (0..100).collect();
        let mut to = PartialWriter {
            taken: Vec::new(),
            call_count: 0,
        };
        for size_bytes in [100, 0] {
            to.taken.clear();
            let payload = &payload[..size_bytes];
            send(&mut to, Kind::Answer, payload, Duration::from_secs(9)).expect("taken");
            assert_eq!(
                to.taken[..8],
                [size_bytes as u8, 0, 0, 0, b'F', b'L', b'a', b'n']
            );
            assert_eq!(&to.taken[8..], payload);
        }
    }

    /// Writer that takes one byte and then times out.
    struct StalledWriter(bool);

    impl Write for StalledWriter {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            let first = std::mem::replace(&mut self.0, true);
            if first {
                Err(io::ErrorKind::WouldBlock.into())
            } else {
                Ok(1)
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Promise: a peer that does not read causes a specific error.
    #[test]
    fn a_peer_that_does_not_read_is_told() {
        let error = send(
            &mut StalledWriter(false),
            Kind::Request,
            b"x",
            Duration::from_secs(9),
        );
        let error = error.expect_err("not taken");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
