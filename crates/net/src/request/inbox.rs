//! Frames from a socket: small ones are borrowed from a buffer, large ones have their own memory.

use std::io::{self, Read};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::request::budget::{MemoryBudget, MemoryRefusal, Reservation};
use crate::request::frame::{HEADER_SIZE_BYTES, Header, Kind};
use crate::request::socket::{FrameTimeLimit, is_timeout};

/// Largest frame, including its header, that goes through the buffer, in bytes.
const WINDOW_SIZE_BYTES: usize = 64 << 10;
/// Bytes of a large frame that are allocated at a time, when the previous ones are filled.
const STEP_SIZE_BYTES: usize = 1 << 20;
/// Memory of a client's frame that is larger than this is freed when it has been read. A server
/// frees that of every large frame, because its connections are many.
const RETAINED_SIZE_BYTES_MAX: usize = 1 << 20;

/// Limits for a peer's frames.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Largest payload in bytes.
    pub(crate) size_bytes_max: usize,
    /// Longest time for a frame that has begun.
    pub(crate) time: Duration,
}

/// Result of receiving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// Frame whose payload is in [`Inbox::payload`].
    Frame(Kind),
    /// Nothing arrived within the read timeout.
    Quiet,
    /// End of the stream between two frames.
    End,
}

/// Reason why no frame was received.
#[derive(Debug)]
pub(crate) enum ReceiveError {
    /// The stream ended within a frame.
    Cut,
    /// A frame has begun, and is not completed or is too slow.
    TooSlow,
    /// Text that completes "the peer sent ...".
    Malformed(String),
    /// Memory for a frame of this many bytes cannot be allocated.
    Memory(usize),
    /// The memory for frames is in use; nothing of this frame was stored.
    Refused(MemoryRefusal),
    /// The connection failed.
    Gone(io::Error),
}

impl ReceiveError {
    /// Returns a text that completes "connection closed: ...".
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Cut => "the peer closed the connection in the middle of a frame".to_owned(),
            Self::TooSlow => "timed out in the middle of a frame".to_owned(),
            Self::Malformed(what) => format!("the peer sent {what}"),
            Self::Memory(size_bytes) => format!("cannot allocate {size_bytes} bytes for a frame"),
            Self::Refused(refusal) => refusal.to_string(),
            Self::Gone(error) => error.to_string(),
        }
    }
}

/// What large frames are reserved from.
#[derive(Debug)]
struct FrameMemory {
    budget: Arc<MemoryBudget>,
    client: IpAddr,
    /// Longest wait for memory.
    time: Duration,
}

/// Location of the last received frame.
#[derive(Clone, Copy, Debug)]
enum BorrowedFrame {
    Nothing,
    Window { end: usize },
    Large { size_bytes: usize },
}

/// Received bytes, from which one frame is borrowed at a time.
pub(crate) struct Inbox {
    window: Box<[u8]>,
    /// Start of the header of the borrowed frame, or else of the next one.
    start: usize,
    end: usize,
    /// Payload of a large borrowed frame, or of an earlier one; not cleared before the next one.
    large: Vec<u8>,
    lent: BorrowedFrame,
    memory: Option<FrameMemory>,
    /// Reservation of `large`, if its frame is borrowed and memory is limited.
    reservation: Option<Reservation>,
}

impl Inbox {
    pub(crate) fn new() -> Self {
        Self {
            window: vec![0; WINDOW_SIZE_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
            large: Vec::new(),
            lent: BorrowedFrame::Nothing,
            memory: None,
            reservation: None,
        }
    }

    /// Creates an inbox that reserves the memory of large frames, for which it waits up to `time`.
    pub(crate) fn limited(budget: &Arc<MemoryBudget>, client: IpAddr, time: Duration) -> Self {
        let memory = FrameMemory {
            budget: Arc::clone(budget),
            client,
            time,
        };
        Self {
            memory: Some(memory),
            ..Self::new()
        }
    }

    /// Returns whether the last received frame has its own memory.
    pub(crate) fn is_large(&self) -> bool {
        matches!(self.lent, BorrowedFrame::Large { .. })
    }

    /// Returns the payload of the last received frame.
    pub(crate) fn payload(&self) -> &[u8] {
        match self.lent {
            BorrowedFrame::Nothing => &[],
            BorrowedFrame::Window { end } => &self.window[self.start + HEADER_SIZE_BYTES..end],
            BorrowedFrame::Large { size_bytes } => &self.large[..size_bytes],
        }
    }

    /// Returns whether no bytes follow the last received frame.
    pub(crate) fn is_empty(&self) -> bool {
        match self.lent {
            BorrowedFrame::Window { end } => end == self.end,
            BorrowedFrame::Nothing | BorrowedFrame::Large { .. } => self.start == self.end,
        }
    }

    /// Releases the last received frame.
    pub(crate) fn release_frame(&mut self) {
        match self.lent {
            BorrowedFrame::Window { end } => self.start = end,
            BorrowedFrame::Large { .. } => {
                if self.memory.is_some() || self.large.capacity() > RETAINED_SIZE_BYTES_MAX {
                    self.large = Vec::new();
                }
                self.reservation = None;
            }
            BorrowedFrame::Nothing => {}
        }
        self.lent = BorrowedFrame::Nothing;
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
    }

    /// Receives the next frame. Costs no system call if it is already in the buffer, and one if it
    /// arrives whole.
    pub(crate) fn receive(
        &mut self,
        from: &mut impl Read,
        limits: Limits,
    ) -> Result<Received, ReceiveError> {
        self.release_frame();
        let mut time_limit = FrameTimeLimit::new(limits.time);
        loop {
            let unread = &self.window[self.start..self.end];
            let mut wanted_bytes = HEADER_SIZE_BYTES;
            if let Some(bytes) = unread.first_chunk() {
                let header = Header::decode(*bytes, limits.size_bytes_max)
                    .map_err(ReceiveError::Malformed)?;
                wanted_bytes += header.size_bytes;
                if wanted_bytes > WINDOW_SIZE_BYTES {
                    return self.receive_large(from, header, limits.time);
                }
                if unread.len() >= wanted_bytes {
                    let end = self.start + wanted_bytes;
                    self.lent = BorrowedFrame::Window { end };
                    return Ok(Received::Frame(header.kind));
                }
            }
            let has_begun = self.start < self.end;
            if has_begun && !time_limit.is_in_time(wanted_bytes) {
                return Err(ReceiveError::TooSlow);
            }
            if self.start + wanted_bytes > WINDOW_SIZE_BYTES {
                self.window.copy_within(self.start..self.end, 0);
                self.end -= self.start;
                self.start = 0;
            }
            match read(from, &mut self.window[self.end..])? {
                Some(0) if has_begun => return Err(ReceiveError::Cut),
                Some(0) => return Ok(Received::End),
                Some(count) => self.end += count,
                None if has_begun => return Err(ReceiveError::TooSlow),
                None => return Ok(Received::Quiet),
            }
        }
    }

    /// Receives the rest of a frame that does not fit the buffer, and no byte of the next one. The
    /// address space is reserved at once and filled as bytes arrive, so that an announced size
    /// alone uses no memory. With limited memory, it counts as used nevertheless. The wait for it
    /// is not part of the frame's time, since nothing is read meanwhile.
    #[cold]
    fn receive_large(
        &mut self,
        from: &mut impl Read,
        header: Header,
        time: Duration,
    ) -> Result<Received, ReceiveError> {
        let size_bytes = header.size_bytes;
        if let Some(memory) = &self.memory {
            let reserved = (memory.budget).reserve(memory.client, size_bytes, memory.time);
            self.reservation = Some(reserved.map_err(ReceiveError::Refused)?);
        }
        let mut time_limit = FrameTimeLimit::new(time);
        let more_bytes = size_bytes.saturating_sub(self.large.len());
        let reserved = self.large.try_reserve_exact(more_bytes);
        reserved.map_err(|_| ReceiveError::Memory(size_bytes))?;
        let begin = &self.window[self.start + HEADER_SIZE_BYTES..self.end];
        let mut filled_bytes = begin.len();
        if self.large.len() < filled_bytes {
            self.large.resize(filled_bytes, 0);
        }
        self.large[..filled_bytes].copy_from_slice(begin);
        self.start = 0;
        self.end = 0;
        while filled_bytes < size_bytes {
            if !time_limit.is_in_time(size_bytes) {
                return Err(ReceiveError::TooSlow);
            }
            if filled_bytes == self.large.len() {
                let capacity_bytes = size_bytes.min(filled_bytes + STEP_SIZE_BYTES);
                self.large.resize(capacity_bytes, 0);
            }
            let end = self.large.len().min(size_bytes);
            match read(from, &mut self.large[filled_bytes..end])? {
                Some(0) => return Err(ReceiveError::Cut),
                Some(count) => filled_bytes += count,
                None => return Err(ReceiveError::TooSlow),
            }
        }
        self.lent = BorrowedFrame::Large { size_bytes };
        Ok(Received::Frame(header.kind))
    }
}

/// Reads once; `None` if nothing arrived within the read timeout.
fn read(from: &mut impl Read, to: &mut [u8]) -> Result<Option<usize>, ReceiveError> {
    loop {
        match from.read(to) {
            Ok(count) => return Ok(Some(count)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if is_timeout(&error) => return Ok(None),
            Err(error) => return Err(ReceiveError::Gone(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const LIMITS: Limits = Limits {
        size_bytes_max: 4 << 20,
        time: Duration::from_secs(9),
    };

    /// Reader that returns one piece per call; an empty piece is a timeout. Then the stream ends.
    struct Pieces(VecDeque<Vec<u8>>);

    impl Read for Pieces {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            let Some(piece) = self.0.front_mut() else {
                return Ok(0);
            };
            let count = piece.len().min(to.len());
            if count == 0 {
                self.0.pop_front();
                return Err(io::ErrorKind::WouldBlock.into());
            }
            to[..count].copy_from_slice(&piece[..count]);
            piece.drain(..count);
            if piece.is_empty() {
                self.0.pop_front();
            }
            Ok(count)
        }
    }

    fn frame(payload: &[u8]) -> Vec<u8> {
        let kind = Kind::Request;
        let size_bytes = payload.len();
        [Header { kind, size_bytes }.encode().as_slice(), payload].concat()
    }

    fn payload(size_bytes: usize) -> Vec<u8> {
        (0..size_bytes).map(|index| (index % 251) as u8).collect()
    }

    /// Promise: frames of any size, in pieces of any size, are received whole and in order.
    #[test]
    fn frames_come_in_any_pieces() {
        let sizes = [
            0,
            1,
            7,
            65_527,
            65_528,
            65_529,
            100,
            3 << 20,
            0,
            900_000,
            70_000,
            60_000,
            60_000,
        ];
        let stream: Vec<u8> = sizes.iter().flat_map(|it| frame(&payload(*it))).collect();
        for piece_size_bytes in [3, 4093, 1 << 30] {
            let pieces = stream.chunks(piece_size_bytes).map(<[u8]>::to_vec);
            let mut from = Pieces(pieces.collect());
            let mut inbox = Inbox::new();
            for size_bytes in sizes {
                let received = inbox.receive(&mut from, LIMITS).expect("a frame");
                assert_eq!(received, Received::Frame(Kind::Request));
                assert!(inbox.payload() == payload(size_bytes), "{size_bytes}");
            }
            assert!(inbox.is_empty());
            let received = inbox.receive(&mut from, LIMITS).expect("the end");
            assert_eq!(received, Received::End);
            assert!(inbox.large.capacity() <= RETAINED_SIZE_BYTES_MAX);
        }
    }

    /// Promise: silence or the end between frames is not an error, and within a frame it is.
    #[test]
    fn silence_and_ends_are_told_apart() {
        for size_bytes in [10, 100_000] {
            let whole = frame(&payload(size_bytes));
            for cut in [1, 7, 8, 9, whole.len() - 1] {
                let begin = whole[..cut].to_vec();
                let mut from = Pieces([Vec::new(), begin.clone(), Vec::new()].into());
                let mut inbox = Inbox::new();
                let quiet = inbox.receive(&mut from, LIMITS).expect("nothing yet");
                assert_eq!(quiet, Received::Quiet);
                let error = inbox.receive(&mut from, LIMITS).expect_err("half a frame");
                assert!(matches!(error, ReceiveError::TooSlow), "{error:?}");
                let mut from = Pieces([begin].into());
                let error = Inbox::new().receive(&mut from, LIMITS);
                let error = error.expect_err("half a frame");
                assert!(matches!(error, ReceiveError::Cut), "{error:?}");
            }
        }
    }
}
