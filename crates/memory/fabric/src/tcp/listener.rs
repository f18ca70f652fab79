//! The node's side: who may connect, and the sessions of those who did.
//!
//! One thread accepts, greets and answers control connections; batches are executed by the threads
//! of [`SoftNic`]. A client is its control connection: when that ends, or nothing has come from the
//! client on any of its connections for [`TcpListenOptions::silence_max`], its gates are closed and
//! its sessions are fenced (F6). That is safe at any time, as it is the node that executes its
//! verbs.

use std::io;
use std::net::{SocketAddr, TcpListener as Socket};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use thiserror::Error;

use crate::mapped::MappedRegion;
use crate::service::StopSignal;
use crate::tcp::clients::Clients;
use crate::tcp::greeter::Greeter;
use crate::tcp::local_secret::{LocalSecret, PROTOCOL, local_secret_path};
use crate::tcp::nic::SoftNic;
use crate::tcp::pass::PassKey;
use crate::tcp::permit::Permits;
use crate::tcp::secret::Secret;
use crate::tcp::service::TcpService;
use crate::tcp::stream::Stream;
use crate::tcp::tls::{TlsLayer, TlsServer};
use crate::tcp::warnings::Warnings;
use crate::verbs::VerbsNode;
use crate::window::Doors;

/// How long the listener rests when the process has no descriptor left.
const DESCRIPTOR_WAIT: Duration = Duration::from_millis(10);
/// How many are let in before others have their turn.
const ACCEPT_COUNT_MAX: usize = 64;
/// How often it looks who has been silent, at least.
const TICK: Duration = Duration::from_millis(250);

/// How a node listens.
#[derive(Clone, Debug)]
pub struct TcpListenOptions {
    /// Where; port 0 takes a free one.
    pub address: SocketAddr,
    /// What clients must prove to know. Without one, on a loopback address, the node makes one and
    /// leaves it where only programs of its user find it, which they do by themselves.
    pub secret: Option<Secret>,
    /// Its certificate; with one, all connections are encrypted.
    pub tls: Option<TlsServer>,
    /// Threads that execute batches; more than cores are no use.
    pub nic_thread_count: usize,
    /// The most connections at a time. A process has two, and one for each session.
    pub connection_count_max: usize,
    /// A client from which nothing comes for so long is given up: its sessions are fenced.
    pub silence_max: Duration,
    /// The most sessions of one client at a time. A process is one for each time that it opens the
    /// pool.
    pub session_count_max: usize,
}

impl TcpListenOptions {
    /// At this address; no TLS; one NIC thread per core, at most 4; 1024 connections; 30 s of
    /// silence; 512 sessions of a client.
    pub fn at(address: SocketAddr) -> Self {
        let core_count = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            address,
            secret: None,
            tls: None,
            nic_thread_count: core_count.min(4),
            connection_count_max: 1024,
            silence_max: Duration::from_secs(30),
            session_count_max: 512,
        }
    }
}

/// Why a node cannot listen.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TcpListenError {
    /// Others than this host could connect, and there is no secret.
    #[error(
        "{address} can be reached from other hosts, so clients must prove that they know a secret, \
         and none was given"
    )]
    NeedsSecret {
        /// Where it would listen.
        address: SocketAddr,
    },
    /// The system said no.
    #[error("cannot listen at {address}: {source}")]
    Socket {
        /// Where.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The secret for programs of this user cannot be left for them.
    #[error("cannot write the secret for this host's programs to {}: {source}", path.display())]
    LocalSecret {
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// The socket of a memory node, its clients, and the threads that serve them.
#[derive(Debug)]
pub struct TcpListener {
    socket: Socket,
    address: SocketAddr,
    greeter: Greeter,
    clients: Clients,
    permits: Permits,
    tls: Option<TlsServer>,
    /// Given up for a moment when the process has no descriptor left; see [`Self::accept`].
    reserve: Option<OwnedFd>,
    _local_secret: Option<LocalSecret>,
    /// What the passes of its sessions are made from.
    secret: Secret,
    /// H4, of those who are hung up on at the door.
    warnings: Warnings,
}

impl TcpListener {
    /// Listens; clients are served once [`run`](Self::run) runs.
    ///
    /// # Errors
    /// The address is taken or not this host's, or needs a secret.
    pub fn bind(
        region: &Arc<MappedRegion>,
        options: &TcpListenOptions,
    ) -> Result<Self, TcpListenError> {
        let address = options.address;
        if options.secret.is_none() && !address.ip().is_loopback() {
            return Err(TcpListenError::NeedsSecret { address });
        }
        let socket_error = |source| TcpListenError::Socket { address, source };
        let socket = Socket::bind(address).map_err(socket_error)?;
        socket.set_nonblocking(true).map_err(socket_error)?;
        let address = socket.local_addr().map_err(socket_error)?;
        let (secret, local_secret) = if let Some(secret) = &options.secret {
            (secret.clone(), None)
        } else {
            let left = LocalSecret::leave(PROTOCOL, address.ip(), address.port());
            let (secret, kept) = left.map_err(|source| TcpListenError::LocalSecret {
                path: local_secret_path(PROTOCOL, address.ip(), address.port()),
                source,
            })?;
            (secret, Some(kept))
        };
        let nic = SoftNic::start(region, options.nic_thread_count).map_err(socket_error)?;
        let reserve = socket.as_fd().try_clone_to_owned().map_err(socket_error)?;
        let region_size_bytes = region.word_count() * 8;
        Ok(Self {
            socket,
            address,
            greeter: Greeter::new(secret.clone()),
            clients: Clients::new(nic, region_size_bytes, options),
            permits: Permits::new(options.connection_count_max),
            tls: options.tls.clone(),
            reserve: Some(reserve),
            _local_secret: local_secret,
            secret,
            warnings: Warnings::new("connections hung up on"),
        })
    }

    /// F10: from now on what is written into windows by these doors reaches the sessions that come
    /// here. To be called before it runs.
    pub fn offer_windows(&mut self, doors: Arc<Doors>) {
        self.clients.offer_windows(doors);
    }

    /// From now on sessions may have queue pairs of the node's RDMA device, and nobody changes the
    /// region otherwise (F4). To be called before it runs.
    pub fn offer_verbs(&mut self, verbs: Arc<VerbsNode>) {
        self.clients.offer_verbs(verbs);
    }

    /// What the passes of a pool's sessions are made with that is served here; `None`: what clients
    /// have to know here is a derived key.
    pub fn pass_key(&self, pool_id: u64) -> Option<PassKey> {
        self.secret.pass_key(pool_id)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until it is stopped; then all connections are closed and all sessions fenced.
    ///
    /// # Errors
    /// The system cannot wait any more.
    pub fn run(mut self, service: &mut dyn TcpService, stop: &StopSignal) -> io::Result<()> {
        let pool_id = Some(service.pool_id()).filter(|pool_id| *pool_id != 0);
        let pass_key = pool_id.and_then(|pool_id| self.pass_key(pool_id));
        self.clients.give_passes(pass_key);
        let served = self.serve(service, stop);
        self.clients.end_all(service);
        served
    }

    fn serve(&mut self, service: &mut dyn TcpService, stop: &StopSignal) -> io::Result<()> {
        loop {
            let ready = self.wait(stop)?;
            if ready.stop {
                return Ok(());
            }
            self.clients.hear(&ready.clients, service);
            for guest in self.greeter.hear(&ready.strangers) {
                self.clients.welcome(guest, service);
            }
            let now = Instant::now();
            self.greeter.expire(now);
            self.warnings.tell(now);
            self.clients.end_silent(service);
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
        let strangers = &self.greeter.strangers;
        // Of one that is not listened to, `poll` would tell for ever that it has hung up.
        for stranger in strangers.iter().filter(|stranger| stranger.is_heard()) {
            let stream = stranger.stream.as_fd();
            descriptors.push(PollFd::from_borrowed_fd(stream, PollFlags::IN));
        }
        for descriptor in self.clients.descriptors() {
            descriptors.push(PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
        }
        let now = Instant::now();
        let expiry = strangers.iter().map(|stranger| stranger.until).min();
        let time = expiry.map_or(TICK, |expiry| expiry.saturating_duration_since(now));
        let time = time.clamp(Duration::from_millis(1), TICK);
        let timeout = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: i64::from(time.subsec_nanos()),
        };
        match rustix::event::poll(&mut descriptors, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is_ready = |descriptor: &PollFd<'_>| !descriptor.revents().is_empty();
        let mut polled = descriptors[2..].iter().map(is_ready);
        let strangers = strangers.iter();
        Ok(Ready {
            stop: is_ready(&descriptors[0]),
            accept: is_ready(&descriptors[1]),
            strangers: strangers
                .map(|stranger| stranger.is_heard() && polled.next().unwrap_or(false))
                .collect(),
            clients: polled.collect(),
        })
    }

    /// Takes those who wait at the door, some at a time. Who is one too many takes a stranger's
    /// place (H3), or is hung up on if there is none.
    fn accept(&mut self) {
        for _ in 0..ACCEPT_COUNT_MAX {
            match self.socket.accept() {
                Ok((socket, peer)) => {
                    let mut permit = self.permits.take();
                    if permit.is_none() && self.greeter.make_room() {
                        permit = self.permits.take();
                    }
                    let Some(permit) = permit else {
                        if self.warnings.admits(peer, Instant::now()) {
                            tracing::warn!(
                                %peer,
                                "hung up on: as many connections as there may be"
                            );
                        }
                        continue;
                    };
                    let tls = self.tls.as_ref().map(TlsLayer::of_node).transpose();
                    match tls.and_then(|tls| Stream::new(socket, tls)) {
                        Ok(stream) => self.greeter.add(stream, peer, permit),
                        Err(error) => tracing::debug!(%peer, %error, "hung up"),
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if is_out_of_descriptors(&error) => {
                    if !self.greeter.make_room() {
                        return self.turn_away();
                    }
                }
                // The peer has hung up before it was accepted.
                Err(error) => return tracing::debug!(%error, "cannot accept"),
            }
        }
    }

    /// Hangs up on the next one: it would stay at the door, and `poll` would tell so for ever.
    fn turn_away(&mut self) {
        tracing::warn!("hung up on a client: no descriptor left");
        self.reserve = None;
        if self.socket.accept().is_err() {
            // Another thread took the descriptor, or the system as a whole has none.
            std::thread::sleep(DESCRIPTOR_WAIT);
        }
        self.reserve = self.socket.as_fd().try_clone_to_owned().ok();
    }
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    let number = error
        .raw_os_error()
        .map(rustix::io::Errno::from_raw_os_error);
    matches!(
        number,
        Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE)
    )
}

struct Ready {
    stop: bool,
    accept: bool,
    strangers: Vec<bool>,
    clients: Vec<bool>,
}
