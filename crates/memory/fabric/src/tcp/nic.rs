//! The soft NIC: threads of the memory node that execute what comes over data connections.
//!
//! A connection belongs to one thread for its life, so its frames are executed in order (N1). A
//! thread waits until something comes (see `patience`); it takes all that has come, executes it,
//! and answers it all at once. What a peer does not fetch is not produced: with more than
//! [`BACKLOG_SIZE_BYTES_MAX`] bytes of answers waiting, nothing more is read from it.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{Ordering, fence};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use farleaf_types::OwnerWord;
use rustix::event::{EventfdFlags, epoll};

use crate::mapped::MappedRegion;
use crate::tcp::execute::{execute_frame, refuse_frame};
use crate::tcp::frame::{Request, Status, frame_size_bytes};
use crate::tcp::gate::{ClientState, Gate};
use crate::tcp::patience::Patience;
use crate::tcp::permit::Permit;
use crate::tcp::stream::{Inbox, Outbox, Stream};
use crate::tcp::window::{TcpDoor, WindowPost};
use crate::window::Doors;

/// Answers that wait for a peer, beyond which it is not listened to, in bytes.
const BACKLOG_SIZE_BYTES_MAX: usize = 256 << 10;
/// How often a connection is read from before others have their turn.
const FILL_COUNT_MAX: usize = 8;
const EVENT_COUNT_MAX: usize = 64;
const WAKE_TOKEN: u64 = u64::MAX;

/// A connection that carries batches.
#[derive(Debug)]
pub(super) struct DataConnection {
    pub(super) stream: Stream,
    pub(super) gate: Arc<Gate>,
    pub(super) client: Arc<ClientState>,
    /// Of a session that may have a window (F10).
    pub(super) doors: Option<(OwnerWord, Arc<Doors>)>,
    pub(super) _permit: Permit,
}

enum Message {
    Serve(Box<DataConnection>),
    /// Gates have been closed: their connections can go.
    Sweep,
}

/// The threads. They end when this is dropped.
#[derive(Debug)]
pub(super) struct SoftNic {
    threads: Vec<NicThread>,
    next_index: usize,
}

#[derive(Debug)]
struct NicThread {
    messages: Option<Sender<Message>>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl SoftNic {
    pub(super) fn start(region: &Arc<MappedRegion>, thread_count: usize) -> io::Result<Self> {
        let threads = (0..thread_count.max(1)).map(|index| NicThread::start(region, index));
        Ok(Self {
            threads: threads.collect::<io::Result<_>>()?,
            next_index: 0,
        })
    }

    /// Hands a connection to the thread whose turn it is.
    pub(super) fn serve(&mut self, connection: DataConnection) {
        let thread = &self.threads[self.next_index % self.threads.len()];
        self.next_index += 1;
        thread.tell(Message::Serve(Box::new(connection)));
    }

    /// Lets go of the connections whose gates are closed.
    pub(super) fn sweep(&self) {
        self.threads
            .iter()
            .for_each(|thread| thread.tell(Message::Sweep));
    }
}

impl NicThread {
    fn start(region: &Arc<MappedRegion>, index: usize) -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = Arc::new(rustix::event::eventfd(0, flags)?);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let token = epoll::EventData::new_u64(WAKE_TOKEN);
        epoll::add(&epoll, &wake, token, epoll::EventFlags::IN)?;
        let (sender, messages) = channel();
        let worker = Worker {
            region: Arc::clone(region),
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

    fn tell(&self, message: Message) {
        if let Some(messages) = &self.messages {
            // A thread that has ended has logged why.
            let _ = messages.send(message);
        }
        self.wake();
    }

    fn wake(&self) {
        // Fails only where it has been woken 2^64 times.
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
            tracing::error!("a thread of the soft NIC panicked");
        }
    }
}

struct Worker {
    region: Arc<MappedRegion>,
    epoll: OwnedFd,
    wake: Arc<OwnedFd>,
    /// Connections that something is to be sent over which nobody has asked for (N5).
    due: Arc<Mutex<Vec<u64>>>,
    messages: Receiver<Message>,
    connections: HashMap<u64, Served>,
    next_token: u64,
}

impl Worker {
    fn run(mut self) {
        let mut events = Vec::with_capacity(EVENT_COUNT_MAX);
        let mut patience = Patience::new();
        loop {
            events.clear();
            let at_once = rustix::event::Timespec::default();
            let timeout = patience.is_awake().then_some(&at_once);
            let buffer = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, buffer, timeout) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "a thread of the soft NIC cannot wait");
                    return;
                }
            }
            if events.is_empty() {
                patience.wait();
                continue;
            }
            patience.begin();
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

    /// Takes what it is told; false: it is to end.
    fn listen(&mut self) -> bool {
        let mut count = [0; 8];
        // Nothing to read: another message's wake was taken with an earlier one.
        let _ = rustix::io::read(&*self.wake, &mut count);
        loop {
            match self.messages.try_recv() {
                Ok(Message::Serve(connection)) => self.add(*connection),
                Ok(Message::Sweep) => {
                    self.connections
                        .retain(|_, served| !served.connection.gate.is_closed());
                }
                Err(std::sync::mpsc::TryRecvError::Empty) => return true,
                Err(std::sync::mpsc::TryRecvError::Disconnected) => return false,
            }
        }
    }

    /// N5.
    fn take_due(&self) -> Vec<u64> {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *due)
    }

    fn add(&mut self, connection: DataConnection) {
        let token = self.next_token;
        self.next_token += 1;
        let data = epoll::EventData::new_u64(token);
        let added = epoll::add(&self.epoll, &connection.stream, data, epoll::EventFlags::IN);
        if let Err(error) = added {
            tracing::error!(%error, "a connection cannot be waited for, and is closed");
            return;
        }
        let door = connection.doors.as_ref().map(|(owner, doors)| {
            let due = (Arc::clone(&self.due), Arc::clone(&self.wake));
            let door = Arc::new(TcpDoor::new(WindowPost::new(token, due)));
            doors.add(*owner, Arc::clone(&door) as _);
            door
        });
        let served = Served {
            connection,
            door,
            inbox: Inbox::default(),
            outbox: Outbox::default(),
            is_skipping: false,
            is_ending: false,
            awaits_room: false,
        };
        self.connections.insert(token, served);
        // What came with the greeting's last message is in the socket and will be told.
    }

    fn turn(&mut self, token: u64) {
        let Some(served) = self.connections.get_mut(&token) else {
            return;
        };
        if let Err(error) = served.turn(&self.region) {
            if error.kind() != io::ErrorKind::UnexpectedEof {
                tracing::debug!(%error, "a connection ended");
            }
            self.connections.remove(&token);
            return;
        }
        let awaits_room = served.outbox.waits(&served.connection.stream);
        if awaits_room != served.awaits_room {
            served.awaits_room = awaits_room;
            let flags = if awaits_room {
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

/// Why no frame is executed.
enum Pause {
    /// So many bytes make the next one whole; 0: more than have come.
    Bytes(usize),
    /// Answers have to go first.
    Backlog,
}

/// A connection with what has come and what waits to go.
struct Served {
    connection: DataConnection,
    door: Option<Arc<TcpDoor>>,
    inbox: Inbox,
    outbox: Outbox,
    /// N3: the batch whose frames are coming has been refused.
    is_skipping: bool,
    /// N4, N6: nothing more is read from it.
    is_ending: bool,
    /// The kernel tells when there is room to send, not when something comes.
    awaits_room: bool,
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some((owner, doors)) = &self.connection.doors {
            doors.remove(*owner);
        }
    }
}

impl Served {
    /// Executes what has come, as far as answers can be kept. An error ends the connection.
    fn turn(&mut self, region: &MappedRegion) -> io::Result<()> {
        let mut fill_count = 0;
        let mut may_have_come = true;
        loop {
            let pause = self.serve(region)?;
            if let Some(door) = &self.door {
                // What a peer does not fetch is not kept for it.
                let waiting = self.outbox.len();
                door.take(&mut self.outbox.bytes, waiting)?;
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
            // Of what has been decrypted already the system will not tell again.
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
            self.connection.client.hear();
        }
    }

    /// Executes whole frames.
    fn serve(&mut self, region: &MappedRegion) -> io::Result<Pause> {
        let mut fence_due = false;
        let passage = self.connection.gate.pass();
        let words = region.words();
        let pause = loop {
            if self.is_ending || self.outbox.len() > BACKLOG_SIZE_BYTES_MAX {
                break Pause::Backlog;
            }
            let unread = self.inbox.unread();
            let size_bytes = match frame_size_bytes(unread) {
                Ok(Some(size_bytes)) if size_bytes <= unread.len() => size_bytes,
                Ok(size_bytes) => break Pause::Bytes(size_bytes.unwrap_or(0)),
                Err(bad) => {
                    tracing::warn!("a client sent {}, and is hung up on", bad.0);
                    return Err(io::ErrorKind::InvalidData.into());
                }
            };
            let request = Request::decode(&unread[..size_bytes]);
            let more = request.more;
            let out = &mut self.outbox.bytes;
            if passage.is_none() {
                refuse_frame(&request, Status::Fenced, out);
                self.is_ending = true;
            } else if self.is_skipping {
                refuse_frame(&request, Status::Skipped, out);
                self.is_skipping = more;
            } else {
                let executed = execute_frame(words, &self.connection.client, request, out);
                fence_due |= executed.fence_due;
                if executed.status != Status::Done {
                    tracing::debug!(status = ?executed.status, "a verb was refused");
                    self.is_skipping = more;
                    self.is_ending = executed.status.is_last();
                }
            }
            self.inbox.consume(size_bytes);
        };
        if fence_due {
            // F8: as in mapped memory, a store may sit in this processor's store buffer.
            fence(Ordering::SeqCst);
            let door = self.door.as_ref().filter(|door| door.is_used());
            if let (Some(_), Some((_, doors))) = (door, &self.connection.doors) {
                doors.bell().ring();
            }
        }
        Ok(pause)
    }
}
