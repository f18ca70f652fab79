//! The node's side of the socket, and the supervision of its clients' processes.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use farleaf_base::OwnerWord;
use rustix::event::{PollFd, PollFlags};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, sockopt,
};
use rustix::process::PidfdFlags;
use thiserror::Error;

use crate::service::{SessionService, StopSignal};
use crate::shm::PoolName;
use crate::shm::place::NameLock;
use crate::shm::wire::{FRAME_SIZE_BYTES, Frame, ShmReply, ShmRequest};

/// Maximum number of connections, each with a descriptor of its process; further clients are
/// refused.
const CONNECTION_COUNT_MAX: usize = 1024;
const BACKLOG: i32 = 64;
/// Pause of the listener if it cannot even refuse a client.
const DESCRIPTOR_WAIT: Duration = Duration::from_millis(10);

/// Reason why a node cannot listen.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ListenError {
    /// Another node of the same name is running.
    #[error("{0} is already served by another process; stop that process, or use another name")]
    AlreadyServed(PoolName),
    /// The system returned an error for the socket.
    #[error("cannot listen for {pool} at {}: {source}", path.display())]
    Socket {
        /// Name of the pool.
        pool: PoolName,
        /// Path of the socket.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
}

/// A connected client: its socket, its process and its sessions.
#[derive(Debug)]
struct ShmPeer {
    socket: Option<OwnedFd>,
    process: OwnedFd,
    pid: u32,
    sessions: Vec<OwnerWord>,
}

/// The listening socket of a memory node.
#[derive(Debug)]
pub struct ShmListener {
    socket: OwnedFd,
    path: PathBuf,
    memory: OwnedFd,
    memory_size_bytes: u64,
    clients: Vec<ShmPeer>,
    /// Reason why the memory is passed to no client, if it is not.
    refusal: Option<&'static str>,
    /// Spare descriptor, closed briefly when the process has no other left, so that a client can be
    /// refused. Otherwise `accept` would fail for ever and `run` would spin.
    reserve: Option<OwnedFd>,
    /// Lock that prevents other nodes from using the name.
    _claim: NameLock,
}

impl ShmListener {
    /// Claims the name and listens. `memory` is passed to every client that sends a hello.
    ///
    /// # Errors
    /// The name is taken, or the system returned an error.
    pub fn bind(name: &PoolName, memory: OwnedFd, size_bytes: u64) -> Result<Self, ListenError> {
        let path = name.socket_path();
        let socket_error = |source: io::Error| ListenError::Socket {
            pool: name.clone(),
            path: path.clone(),
            source,
        };
        let claim = name.claim().map_err(socket_error)?;
        let claim = claim.ok_or_else(|| ListenError::AlreadyServed(name.clone()))?;
        let socket = listen_at(&path).map_err(socket_error)?;
        let reserve = memory.try_clone().map_err(socket_error)?;
        Ok(Self {
            socket,
            path,
            memory,
            memory_size_bytes: size_bytes,
            clients: Vec::new(),
            refusal: None,
            reserve: Some(reserve),
            _claim: claim,
        })
    }

    /// Refuses the memory to all clients from now on; they receive the reason.
    pub fn refuse_all(&mut self, reason: &'static str) {
        self.refusal = Some(reason);
    }

    /// Serves until stopped. Sessions of a process that dies are fenced as soon as the kernel
    /// reports its death.
    ///
    /// # Errors
    /// The system cannot wait any more.
    pub fn run(mut self, service: &mut dyn SessionService, stop: &StopSignal) -> io::Result<()> {
        loop {
            let ready = self.wait(stop)?;
            if ready.stop {
                return Ok(());
            }
            for (client, (socket, died)) in self.clients.iter_mut().zip(ready.clients) {
                if socket {
                    let memory = match self.refusal {
                        Some(reason) => Err(reason),
                        None => Ok((&self.memory, self.memory_size_bytes)),
                    };
                    client.serve(memory, service);
                }
                if died {
                    tracing::info!(
                        pid = client.pid,
                        sessions = client.sessions.len(),
                        "process ended"
                    );
                    client
                        .sessions
                        .drain(..)
                        .for_each(|owner| service.fence(owner));
                    client.socket = None;
                }
            }
            self.clients
                .retain(|client| client.socket.is_some() || !client.sessions.is_empty());
            if ready.accept {
                self.accept();
            }
        }
    }

    fn wait(&self, stop: &StopSignal) -> io::Result<Ready> {
        let mut descriptors = vec![
            PollFd::from_borrowed_fd(stop.descriptor(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN),
        ];
        for client in &self.clients {
            // A client without a socket has disconnected but still runs; only its process is
            // watched.
            let (socket, events) = match &client.socket {
                Some(socket) => (socket.as_fd(), PollFlags::IN),
                None => (client.process.as_fd(), PollFlags::empty()),
            };
            descriptors.push(PollFd::from_borrowed_fd(socket, events));
            descriptors.push(PollFd::from_borrowed_fd(
                client.process.as_fd(),
                PollFlags::IN,
            ));
        }
        match rustix::event::poll(&mut descriptors, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is_ready = |descriptor: &PollFd<'_>| !descriptor.revents().is_empty();
        Ok(Ready {
            stop: is_ready(&descriptors[0]),
            accept: is_ready(&descriptors[1]),
            clients: descriptors[2..]
                .chunks_exact(2)
                .zip(&self.clients)
                .map(|(pair, client)| {
                    (
                        client.socket.is_some() && is_ready(&pair[0]),
                        is_ready(&pair[1]),
                    )
                })
                .collect(),
        })
    }

    fn accept(&mut self) {
        let accepted = rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC);
        let socket = match accepted {
            Ok(socket) => socket,
            Err(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) => return self.refuse_next(),
            Err(_) => return,
        };
        if self.clients.len() >= CONNECTION_COUNT_MAX {
            refuse(
                &socket,
                "the limit on clients of the memory node is reached",
            );
            return;
        }
        match identify(&socket) {
            Ok((process, pid)) => {
                let socket = Some(socket);
                self.clients.push(ShmPeer {
                    socket,
                    process,
                    pid,
                    sessions: Vec::new(),
                });
            }
            Err(reason) => {
                tracing::warn!(reason, "client rejected");
                refuse(&socket, &reason);
            }
        }
    }

    /// Refuses the next client because the process has no descriptor left.
    fn refuse_next(&mut self) {
        tracing::warn!("client rejected: no file descriptor left");
        self.reserve = None;
        match rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC) {
            Ok(socket) => refuse(&socket, "the memory node has no file descriptor left"),
            // Another thread took the descriptor, or the whole system has none.
            Err(_) => std::thread::sleep(DESCRIPTOR_WAIT),
        }
        self.reserve = self.memory.try_clone().ok();
    }
}

impl Drop for ShmListener {
    fn drop(&mut self) {
        // If removal fails, the next node of this name removes the socket.
        let _ = std::fs::remove_file(&self.path);
    }
}

struct Ready {
    stop: bool,
    accept: bool,
    clients: Vec<(bool, bool)>,
}

impl ShmPeer {
    fn serve(&mut self, memory: Result<(&OwnedFd, u64), &str>, service: &mut dyn SessionService) {
        let Some(socket) = &self.socket else { return };
        let mut frame = [0; FRAME_SIZE_BYTES];
        let size = match rustix::net::recv(socket, &mut frame, RecvFlags::DONTWAIT) {
            Ok((size, _)) if size > 0 => size,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return,
            _ => {
                self.socket = None;
                return;
            }
        };
        let request = ShmRequest::decode(&frame[..size]);
        let reply = match request {
            Ok(ShmRequest::Hello) => match memory {
                Ok((_, size_bytes)) => ShmReply::Memory { size_bytes },
                Err(reason) => ShmReply::Refused(reason.to_owned()),
            },
            Ok(ShmRequest::Register) => match service.register(self.pid) {
                Ok(owner) => {
                    self.sessions.push(owner);
                    ShmReply::Session(owner)
                }
                Err(reason) => ShmReply::Refused(reason),
            },
            Ok(ShmRequest::Close(owner)) => {
                match self.sessions.iter().position(|own| *own == owner) {
                    Some(index) => {
                        self.sessions.swap_remove(index);
                        service.fence(owner);
                        ShmReply::Closed
                    }
                    None => ShmReply::Refused(format!("{owner} is not a session of this process")),
                }
            }
            Ok(ShmRequest::Life(owner)) => ShmReply::Life(service.process_of(owner)),
            Err(ref malformed) => ShmReply::Refused(format!("this node received {}", malformed.0)),
        };
        let memory = memory
            .ok()
            .filter(|_| matches!(request, Ok(ShmRequest::Hello)));
        let descriptor = memory.map(|(memory, _)| memory.as_fd());
        if send(socket, &reply.encode(), descriptor).is_err() {
            self.socket = None;
        }
    }
}

fn listen_at(path: &PathBuf) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path.as_path())?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let kind = SocketType::SEQPACKET;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
    // We hold the claim, so an existing socket is left over from a node that was killed.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    rustix::net::bind(&socket, &address)?;
    // No client can connect before `listen`, so the mode applies from the start.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Returns the peer's process, as a descriptor and a number. Unlike the number, a descriptor never
/// refers to a later process.
fn identify(socket: &OwnedFd) -> Result<(OwnedFd, u32), String> {
    let credentials = sockopt::socket_peercred(socket)
        .map_err(|error| format!("cannot identify the client process: {error}"))?;
    let ours = rustix::process::geteuid();
    if credentials.uid != ours && !credentials.uid.is_root() {
        return Err(format!("this pool belongs to user {}", ours.as_raw()));
    }
    let process = rustix::process::pidfd_open(credentials.pid, PidfdFlags::empty())
        .map_err(|error| format!("cannot watch process {:?}: {error}", credentials.pid))?;
    // The peer is still connected, so the number was still its own when the descriptor was opened.
    let mut state = [PollFd::new(socket, PollFlags::empty())];
    let polled = rustix::event::poll(&mut state, Some(&rustix::event::Timespec::default()));
    if polled.is_err() || state[0].revents().contains(PollFlags::HUP) {
        return Err("the process has disconnected".to_owned());
    }
    Ok((
        process,
        credentials.pid.as_raw_nonzero().get().unsigned_abs(),
    ))
}

fn refuse(socket: &OwnedFd, reason: &str) {
    // If the refusal cannot be sent, the client sees the connection close.
    let _ = send(socket, &ShmReply::Refused(reason.to_owned()).encode(), None);
}

fn send(socket: &OwnedFd, frame: &Frame, memory: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = memory.map(|memory| [memory]);
    if let Some(descriptors) = &descriptors {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &[IoSlice::new(frame)], &mut ancillary, flags)?;
    Ok(())
}
