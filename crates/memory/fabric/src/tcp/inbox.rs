//! Sending and receiving messages of the fixed size over a stream that never blocks.

use std::io;

use farleaf_net::greeting::{Arrival, MESSAGE_SIZE_BYTES};
use farleaf_net::stream::Stream;

use crate::tcp::messages::{ControlReply, FRAME_SIZE_BYTES, Frame};

const _: () = assert!(FRAME_SIZE_BYTES == MESSAGE_SIZE_BYTES);

/// Receives messages of the fixed size, in pieces as they arrive.
#[derive(Debug, Default)]
pub(super) struct MessageInbox(Arrival);

impl MessageInbox {
    /// Returns the next message if it is complete.
    ///
    /// # Errors
    /// The connection has ended; never `WouldBlock`.
    pub(super) fn receive(&mut self, stream: &mut Stream) -> io::Result<Option<Frame>> {
        let count = receive_some(stream, self.0.space())?;
        Ok(count.and_then(|count| self.0.add(count)))
    }
}

/// Receives what has arrived; `None` if nothing has.
///
/// # Errors
/// The connection has ended; never `WouldBlock`.
pub(super) fn receive_some(stream: &mut Stream, to: &mut [u8]) -> io::Result<Option<usize>> {
    match stream.receive(to) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(count) => Ok(Some(count)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// Sends a message of the fixed size, which the socket of a peer that reads always accepts.
///
/// # Errors
/// The peer does not read.
pub(super) fn send(stream: &mut Stream, reply: &ControlReply) -> io::Result<()> {
    send_frame(stream, &reply.encode())
}

/// Sends an encoded message like [`send`].
///
/// # Errors
/// The peer does not read.
pub(super) fn send_frame(stream: &mut Stream, frame: &Frame) -> io::Result<()> {
    if stream.send(frame)? == frame.len() {
        Ok(())
    } else {
        Err(io::ErrorKind::WriteZero.into())
    }
}
