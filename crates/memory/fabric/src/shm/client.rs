//! The client's side of the socket.

use core::convert::identity;
use std::io::{self, IoSliceMut};
use std::mem::{self, MaybeUninit};
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::time::Duration;

use farleaf_base::OwnerWord;
use farleaf_base::locks::lock;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, sockopt,
};

use crate::control::{Control, ControlError, SessionLife};
use crate::shm::PoolName;
use crate::shm::wire::{FRAME_SIZE_BYTES, Frame, ShmReply, ShmRequest};
use farleaf_net::runtime::DIRECTORY_VARIABLE;

/// Time after which a node that does not reply is reported as unreachable. Replies take
/// microseconds; the limit allows for a host that swaps.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

/// Connection of a process to the memory node of a pool.
#[derive(Debug)]
pub struct ShmClient {
    pool: String,
    /// The socket, or the error kind of the call that failed halfway. Replies do not identify their
    /// request. A late reply to the failed call would be taken for the reply to the next one: one
    /// session's "fenced" for another's (FABRIC-6).
    socket: Mutex<Result<OwnedFd, io::ErrorKind>>,
}

impl ShmClient {
    /// Connects to the node of this name and requests its memory. Returns the connection, the
    /// descriptor and the required size in bytes.
    ///
    /// # Errors
    /// No node of this name runs, it has another version, or the peer is not a node.
    pub fn connect(name: &PoolName) -> Result<(Self, OwnedFd, u64), ControlError> {
        Self::connect_within(name, ANSWER_TIME_MAX)
    }

    /// Connects as [`connect`](Self::connect) does, with another limit than 10 s for the reply to
    /// each call. The limit must not be 0. A call that reaches the limit ends the connection: later
    /// calls fail at once.
    ///
    /// # Errors
    /// As [`connect`](Self::connect), or no reply arrived in time.
    pub fn connect_within(
        name: &PoolName,
        answer_time_max: Duration,
    ) -> Result<(Self, OwnedFd, u64), ControlError> {
        let pool = name.to_string();
        let opened = open_socket(name, answer_time_max);
        let socket =
            opened.map_err(|source| unanswered(&pool, source, |it| at_socket(name, &it)))?;
        let client = Self {
            pool,
            socket: Mutex::new(Ok(socket)),
        };
        let (reply, descriptor) = client.call(ShmRequest::Hello)?;
        match (reply, descriptor) {
            (ShmReply::Memory { size_bytes }, Some(memory)) => Ok((client, memory, size_bytes)),
            (ShmReply::Memory { .. }, None) => {
                Err(client.malformed("a reply without the memory's descriptor"))
            }
            (reply, _) => Err(client.unexpected(&reply)),
        }
    }

    fn call(&self, request: ShmRequest) -> Result<(ShmReply, Option<OwnedFd>), ControlError> {
        let (frame, size_bytes, descriptor) = self
            .exchange_once(&request.encode())
            .map_err(|source| unanswered(&self.pool, source, identity))?;
        let reply = ShmReply::decode(&frame[..size_bytes])
            .map_err(|malformed| self.malformed(&malformed.0))?;
        match reply {
            ShmReply::Refused(reason) => Err(ControlError::Refused {
                pool: self.pool.clone(),
                reason,
            }),
            reply => Ok((reply, descriptor)),
        }
    }

    fn exchange_once(&self, request: &Frame) -> io::Result<(Frame, usize, Option<OwnedFd>)> {
        // The socket is taken out during the exchange. If a thread panics in an exchange, the next
        // call finds no socket, so a poisoned lock needs no other handling.
        let mut place = lock(&self.socket);
        let socket = mem::replace(&mut *place, Err(io::ErrorKind::NotConnected));
        let socket = socket.map_err(|kind| {
            *place = Err(kind);
            io::Error::new(kind, "an earlier request got no reply")
        })?;
        match exchange(&socket, request) {
            Ok(exchanged) => {
                *place = Ok(socket);
                Ok(exchanged)
            }
            Err(error) => {
                *place = Err(error.kind());
                Err(error)
            }
        }
    }

    fn malformed(&self, what: &str) -> ControlError {
        ControlError::Malformed {
            pool: self.pool.clone(),
            what: what.to_owned(),
        }
    }

    fn unexpected(&self, reply: &ShmReply) -> ControlError {
        self.malformed(&format!("an unexpected reply ({reply:?})"))
    }
}

impl Control for ShmClient {
    fn register_session(&self) -> Result<OwnerWord, ControlError> {
        match self.call(ShmRequest::Register)? {
            (ShmReply::Session(owner), _) => Ok(owner),
            (reply, _) => Err(self.unexpected(&reply)),
        }
    }

    fn close_session(&self, owner: OwnerWord) -> Result<(), ControlError> {
        match self.call(ShmRequest::Close(owner))? {
            (ShmReply::Closed, _) => Ok(()),
            (reply, _) => Err(self.unexpected(&reply)),
        }
    }

    fn session_life(&self, owner: OwnerWord) -> Result<SessionLife, ControlError> {
        match self.call(ShmRequest::Life(owner))? {
            (ShmReply::Life(Some(pid)), _) => Ok(SessionLife::Alive { pid }),
            (ShmReply::Life(None), _) => Ok(SessionLife::Fenced),
            (reply, _) => Err(self.unexpected(&reply)),
        }
    }
}

/// Converts an I/O error of a call. `WouldBlock`: the time limit has passed.
fn unanswered(
    pool: &str,
    source: io::Error,
    describe: impl FnOnce(io::Error) -> io::Error,
) -> ControlError {
    let pool = pool.to_owned();
    match source.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => ControlError::Silent { pool },
        _ => ControlError::Unreachable {
            source: describe(source),
            pool,
        },
    }
}

/// Adds the socket's path and the setting that selects it: the node may run in another directory.
fn at_socket(name: &PoolName, error: &io::Error) -> io::Error {
    let path = name.socket_path();
    let path = path.display();
    let message = if error.kind() == io::ErrorKind::PermissionDenied {
        format!(
            "{error} at {path}, which this user needs permission to write; run this program as the \
             user of the memory node, or connect over TCP (`farleaf serve --listen`)"
        )
    } else {
        format!("{error} at {path} ({DIRECTORY_VARIABLE} chooses another directory)")
    };
    io::Error::new(error.kind(), message)
}

/// Longest tick of the system's socket timers. They count the tick in progress, so they may expire
/// that much too early.
const SYSTEM_TICK_MAX: Duration = Duration::from_millis(10);

fn open_socket(name: &PoolName, answer_time_max: Duration) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(name.socket_path())?;
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let limit = answer_time_max.checked_add(SYSTEM_TICK_MAX);
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, limit)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, limit)?;
    rustix::net::connect(&socket, &address)?;
    let server = sockopt::socket_peercred(&socket)?.uid;
    let ours = rustix::process::geteuid();
    // Before the first node created the directory, any user could have created it in a place like
    // /tmp.
    if server != ours && !server.is_root() && !ours.is_root() {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("its socket belongs to user {}", server.as_raw()),
        ));
    }
    Ok(socket)
}

fn exchange(socket: &OwnedFd, request: &Frame) -> io::Result<(Frame, usize, Option<OwnedFd>)> {
    // A socket with a time limit is interrupted even by signals whose handlers restart calls.
    match retry_on_intr(|| rustix::net::send(socket, request, SendFlags::NOSIGNAL)) {
        // A node that refuses this client closes the connection, but sends the reason first.
        Ok(_) | Err(Errno::PIPE | Errno::CONNRESET) => {}
        Err(error) => return Err(error.into()),
    }
    let mut frame = [0; FRAME_SIZE_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut receive = || {
        let mut buffers = [IoSliceMut::new(&mut frame)];
        rustix::net::recvmsg(
            socket,
            &mut buffers,
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        )
    };
    // If the peer closed without reading our request, the kernel reports that once, before any
    // data.
    let received = match retry_on_intr(&mut receive) {
        Err(Errno::CONNRESET) => retry_on_intr(&mut receive),
        received => received,
    }?;
    if received.bytes == 0 {
        return Err(io::Error::new(
            io::ErrorKind::ConnectionReset,
            "the node closed the connection",
        ));
    }
    let mut descriptor = None;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            descriptor = descriptors.into_iter().next().or(descriptor);
        }
    }
    Ok((frame, received.bytes, descriptor))
}
