//! The soft NIC: threads of the memory node that execute the frames of data connections.
//!
//! A connection belongs to one thread for life, so its frames are executed in order. A thread waits
//! until frames arrive (see `poll_timer`). It reads all that have arrived, executes them, and
//! answers them together. Replies that a peer does not fetch are not produced: while more than
//! [`BACKLOG_SIZE_BYTES_MAX`] bytes of replies wait, the thread reads nothing more from that peer.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{Ordering, fence};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use farleaf_base::OwnerWord;
use farleaf_base::locks::lock;
use rustix::event::{EventfdFlags, epoll};

use crate::mapped::MappedMemory;
use crate::tcp::execute::{execute_frame, refuse_frame};
use crate::tcp::frame::{FrameRequest, FrameStatus, frame_size_bytes};
use crate::tcp::gate::{ClientState, Gate};
use crate::tcp::poll_timer::PollTimer;
use crate::tcp::window::{TcpWindowWriter, WindowNotifier};
use crate::window::WindowRegistry;
use farleaf_net::permit::Permit;
use farleaf_net::stream::{Inbox, Outbox, Stream};

/// Bytes of replies waiting for a peer beyond which the thread does not read from it.
const BACKLOG_SIZE_BYTES_MAX: usize = 256 << 10;
/// Maximum number of reads from a connection before others are served.
const FILL_COUNT_MAX: usize = 8;
const EVENT_COUNT_MAX: usize = 64;
const WAKE_TOKEN: u64 = u64::MAX;

/// A connection that carries batches.
#[derive(Debug)]
pub(super) struct DataConnection {
    pub(super) stream: Stream,
    pub(super) gate: Arc<Gate>,
    pub(super) client: Arc<ClientState>,
    /// Session and window registry, if the session may have a window (FABRIC-10).
    pub(super) windows: Option<(OwnerWord, Arc<WindowRegistry>)>,
    pub(super) _permit: Permit,
}

enum NicMessage {
    Serve(Box<DataConnection>),
    /// Gates have been closed, so their connections can be dropped.
    Sweep,
}

/// The threads; dropping this value ends them.
#[derive(Debug)]
pub(super) struct SoftNic {
    threads: Vec<NicThread>,
    next_index: usize,
}

#[derive(Debug)]
struct NicThread {
    messages: Option<Sender<NicMessage>>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl SoftNic {
    pub(super) fn start(memory: &Arc<MappedMemory>, thread_count: usize) -> io::Result<Self> {
        let threads = (0..thread_count.max(1)).map(|index| NicThread::start(memory, index));
        Ok(Self {
            threads: threads.collect::<io::Result<_>>()?,
            next_index: 0,
        })
    }

    /// Passes a connection to the next thread in turn.
    pub(super) fn serve(&mut self, connection: DataConnection) {
        let thread = &self.threads[self.next_index % self.threads.len()];
        self.next_index += 1;
        thread.tell(NicMessage::Serve(Box::new(connection)));
    }

    /// Drops the connections whose gates are closed.
    pub(super) fn sweep(&self) {
        self.threads
            .iter()
            .for_each(|thread| thread.tell(NicMessage::Sweep));
    }
}

impl NicThread {
    fn start(memory: &Arc<MappedMemory>, index: usize) -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = Arc::new(rustix::event::eventfd(0, flags)?);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let token = epoll::EventData::new_u64(WAKE_TOKEN);
        epoll::add(&epoll, &wake, token, epoll::EventFlags::IN)?;
        let (sender, messages) = channel();
        let worker = Worker {
            memory: Arc::clone(memory),
            epoll,
            wake: Arc::clone(&wake),
            due: Arc::default(),
            messages,
            connections: HashMap::new(),
            next_token: 0,
        };
        let thread = std::thread::Builder::new().name(format!("farleaf-nic-{index}"));
        Ok(Self {
            messages: Some(sender),
            wake,
            thread: Some(thread.spawn(move || worker.run())?),
        })
    }

    fn tell(&self, message: NicMessage) {
        if let Some(messages) = &self.messages {
            // A thread that has ended has logged the reason.
            let _ = messages.send(message);
        }
        self.wake();
    }

    fn wake(&self) {
        // The only possible failure is an eventfd whose counter is full, which wakes the thread
        // anyway.
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
    }
}

impl Drop for NicThread {
    fn drop(&mut self) {
        self.messages = None;
        self.wake();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("soft NIC thread panicked");
        }
    }
}

struct Worker {
    memory: Arc<MappedMemory>,
    epoll: OwnedFd,
    wake: Arc<OwnedFd>,
    /// Tokens of connections with window words to send.
    due: Arc<Mutex<Vec<u64>>>,
    messages: Receiver<NicMessage>,
    connections: HashMap<u64, Served>,
    next_token: u64,
}

impl Worker {
    fn run(mut self) {
        let mut events = Vec::with_capacity(EVENT_COUNT_MAX);
        let mut poll_timer = PollTimer::new();
        loop {
            events.clear();
            let at_once = rustix::event::Timespec::default();
            let timeout = poll_timer.is_awake().then_some(&at_once);
            let buffer = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, buffer, timeout) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "soft NIC thread stopped: epoll_wait failed");
                    return;
                }
            }
            if events.is_empty() {
                poll_timer.wait();
                continue;
            }
            poll_timer.begin();
            for event in &events {
                let token = event.data.u64();
                if token == WAKE_TOKEN {
                    if !self.listen() {
                        return;
                    }
                    for token in self.take_due() {
                        self.turn(token);
                    }
                } else {
                    self.turn(token);
                }
            }
        }
    }

    /// Handles messages to this thread; returns false if the thread is to end.
    fn listen(&mut self) -> bool {
        let mut count = [0; 8];
        // The counter may be 0: an earlier read may have taken this message's wake.
        let _ = rustix::io::read(&*self.wake, &mut count);
        loop {
            match self.messages.try_recv() {
                Ok(NicMessage::Serve(connection)) => self.add(*connection),
                Ok(NicMessage::Sweep) => {
                    self.connections
                        .retain(|_, served| !served.connection.gate.is_closed());
                }
                Err(std::sync::mpsc::TryRecvError::Empty) => return true,
                Err(std::sync::mpsc::TryRecvError::Disconnected) => return false,
            }
        }
    }

    /// Takes the tokens of connections with window words to send.
    fn take_due(&self) -> Vec<u64> {
        let mut due = lock(&self.due);
        std::mem::take(&mut *due)
    }

    fn add(&mut self, connection: DataConnection) {
        let token = self.next_token;
        self.next_token += 1;
        let data = epoll::EventData::new_u64(token);
        let added = epoll::add(&self.epoll, &connection.stream, data, epoll::EventFlags::IN);
        if let Err(error) = added {
            tracing::error!(%error, "connection closed: cannot add it to epoll");
            return;
        }
        let window_writer = connection.windows.as_ref().map(|(owner, windows)| {
            let window_writer = Arc::new(TcpWindowWriter::new(WindowNotifier::new(
                token,
                Arc::clone(&self.due),
                Arc::clone(&self.wake),
            )));
            windows.add(*owner, Arc::clone(&window_writer) as _);
            window_writer
        });
        let served = Served {
            connection,
            window_writer,
            inbox: Inbox::default(),
            outbox: Outbox::default(),
            is_skipping: false,
            is_ending: false,
            awaits_writable: false,
        };
        self.connections.insert(token, served);
        // Data after the greeting's last message is still in the socket, which will report it.
    }

    fn turn(&mut self, token: u64) {
        let Some(served) = self.connections.get_mut(&token) else {
            return;
        };
        if let Err(error) = served.turn(&self.memory) {
            if error.kind() != io::ErrorKind::UnexpectedEof {
                tracing::debug!(%error, "connection ended");
            }
            self.connections.remove(&token);
            return;
        }
        let awaits_writable = served.outbox.waits(&served.connection.stream);
        if awaits_writable != served.awaits_writable {
            served.awaits_writable = awaits_writable;
            let flags = if awaits_writable {
                epoll::EventFlags::OUT
            } else {
                epoll::EventFlags::IN
            };
            let data = epoll::EventData::new_u64(token);
            if epoll::modify(&self.epoll, &served.connection.stream, data, flags).is_err() {
                self.connections.remove(&token);
            }
        }
    }
}

/// Reason why no further frame is executed now.
enum Pause {
    /// The next frame needs this many bytes; 0: more than have arrived.
    Bytes(usize),
    /// Replies must be sent first.
    Backlog,
}

/// A connection with its received and its outgoing data.
struct Served {
    connection: DataConnection,
    window_writer: Option<Arc<TcpWindowWriter>>,
    inbox: Inbox,
    outbox: Outbox,
    /// True while the remaining frames of a refused batch are skipped.
    is_skipping: bool,
    /// True if nothing more is read from the connection.
    is_ending: bool,
    /// True if the kernel reports space for sending, and not received data.
    awaits_writable: bool,
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some((owner, windows)) = &self.connection.windows {
            windows.remove(*owner);
        }
    }
}

impl Served {
    /// Executes what has arrived, as far as replies can be buffered. An error ends the connection.
    fn turn(&mut self, memory: &MappedMemory) -> io::Result<()> {
        let mut fill_count = 0;
        let mut may_have_come = true;
        loop {
            let pause = self.serve(memory)?;
            if let Some(window_writer) = &self.window_writer {
                // Words that a peer does not fetch are not buffered without limit.
                let waiting = self.outbox.size_bytes();
                window_writer.take(&mut self.outbox.bytes, waiting)?;
            }
            self.outbox.flush(&mut self.connection.stream)?;
            if self.outbox.waits(&self.connection.stream) {
                return Ok(());
            }
            if self.is_ending {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let Pause::Bytes(wanted_bytes) = pause else {
                continue;
            };
            // The system does not report data that is already decrypted.
            let stream = &self.connection.stream;
            let had_its_turn = fill_count >= FILL_COUNT_MAX && !stream.is_encrypted();
            if !may_have_come || had_its_turn {
                return Ok(());
            }
            let filled = self.inbox.fill(&mut self.connection.stream, wanted_bytes);
            may_have_come = match filled {
                Ok(may_have_come) => may_have_come,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            fill_count += 1;
            self.connection.client.on_input();
        }
    }

    /// Executes complete frames.
    fn serve(&mut self, memory: &MappedMemory) -> io::Result<Pause> {
        let mut fence_due = false;
        let passage = self.connection.gate.pass();
        let words = memory.words();
        let pause = loop {
            if self.is_ending || self.outbox.size_bytes() > BACKLOG_SIZE_BYTES_MAX {
                break Pause::Backlog;
            }
            let unread = self.inbox.unread();
            let size_bytes = match frame_size_bytes(unread) {
                Ok(Some(size_bytes)) if size_bytes <= unread.len() => size_bytes,
                Ok(size_bytes) => break Pause::Bytes(size_bytes.unwrap_or(0)),
                Err(bad) => {
                    tracing::warn!("connection closed: the client sent {}", bad.0);
                    return Err(io::ErrorKind::InvalidData.into());
                }
            };
            let request = FrameRequest::decode(&unread[..size_bytes]);
            let more = request.more;
            let out = &mut self.outbox.bytes;
            if passage.is_none() {
                refuse_frame(&request, FrameStatus::Fenced, out);
                self.is_ending = true;
            } else if self.is_skipping {
                refuse_frame(&request, FrameStatus::Skipped, out);
                self.is_skipping = more;
            } else {
                let executed = execute_frame(words, &self.connection.client, request, out);
                fence_due |= executed.fence_due;
                if executed.status != FrameStatus::Done {
                    tracing::debug!(status = ?executed.status, "verb refused");
                    self.is_skipping = more;
                    self.is_ending = executed.status.is_last();
                }
            }
            self.inbox.consume(size_bytes);
        };
        if fence_due {
            // FABRIC-8: as with mapped memory, a store may still be in this processor's store
            // buffer.
            fence(Ordering::SeqCst);
            let window_writer = self
                .window_writer
                .as_ref()
                .filter(|window_writer| window_writer.is_used());
            if let (Some(_), Some((_, windows))) = (window_writer, &self.connection.windows) {
                windows.wake_signal().ring();
            }
        }
        Ok(pause)
    }
}
