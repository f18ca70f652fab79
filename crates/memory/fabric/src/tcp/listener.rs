//! The node's side: accepts connections and serves control connections.
//!
//! One thread accepts, greets and answers control connections; the threads of [`SoftNic`] execute
//! batches. A client exists as long as its control connection. When that connection ends, or
//! nothing has arrived from the client on any of its connections for
//! [`TcpListenOptions::silence_max`], its gates are closed and its sessions are fenced (FABRIC-6).
//! This is safe at any time, because the node executes the client's verbs.

use std::io;
use std::net::{SocketAddr, TcpListener as Socket};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use thiserror::Error;

use crate::mapped::MappedMemory;
use crate::service::StopSignal;
use crate::tcp::PROTOCOL;
use crate::tcp::clients::Clients;
use crate::tcp::greeter::Greeter;
use crate::tcp::nic::SoftNic;
use crate::tcp::service::TcpService;
use crate::verbs::VerbsNode;
use crate::window::WindowRegistry;
use farleaf_net::permit::Permits;
use farleaf_net::secret::PassKey;
use farleaf_net::secret::{LocalSecret, given_or_created};
use farleaf_net::secret::{Secret, WEAK_SECRET};
use farleaf_net::stream::{Stream, why_not_bound};
use farleaf_net::tls::{TlsLayer, TlsServer};
use farleaf_net::warnings::Warnings;

/// Pause of the listener when the process has no descriptor left.
const DESCRIPTOR_WAIT: Duration = Duration::from_millis(10);
/// Maximum number of connections accepted before others are served.
const ACCEPT_COUNT_MAX: usize = 64;
/// Maximum time between two checks for silent clients.
const TICK: Duration = Duration::from_millis(250);

/// Options of a listener.
#[derive(Clone, Debug)]
pub struct TcpListenOptions {
    /// Address to listen on; port 0 selects a free one.
    pub address: SocketAddr,
    /// Secret that clients must prove. If `None` on a loopback address, the node creates one in a
    /// file that only programs of its user can read, and which they find by themselves.
    pub secret: Option<Secret>,
    /// The node's certificate; if given, all connections are encrypted.
    pub tls: Option<TlsServer>,
    /// Number of threads that execute batches; more than the number of cores are useless.
    pub nic_thread_count: usize,
    /// Maximum number of connections. A process has two, and one for each session.
    pub connection_count_max: usize,
    /// Silence after which the sessions of a client are fenced.
    pub silence_max: Duration,
    /// Maximum number of sessions of one client. A process is one client for each time that it
    /// opens the pool.
    pub session_count_max: usize,
}

impl TcpListenOptions {
    /// Returns options for this address: no TLS, one NIC thread per core but at most 4, 1024
    /// connections, 30 s of silence, 512 sessions per client.
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

/// Reason why a node cannot listen.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TcpListenError {
    /// Other hosts could connect, and no secret is configured.
    #[error(
        "{address} can be reached from other hosts, so a secret is required, and none was given"
    )]
    NeedsSecret {
        /// Address to listen on.
        address: SocketAddr,
    },
    /// Other hosts could connect, and the secret could be guessed.
    #[error("{address} {WEAK_SECRET}")]
    WeakSecret {
        /// Address to listen on.
        address: SocketAddr,
    },
    /// The system returned an error for the socket.
    #[error("cannot listen at {address}: {}", why_not_bound(source))]
    Socket {
        /// Address to listen on.
        address: SocketAddr,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The secret for programs of this user cannot be written to its file.
    #[error("cannot write the secret for this host's programs to '{}': {source}", path.display())]
    LocalSecret {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
}

/// The listening socket of a memory node, its clients, and the threads that serve them.
#[derive(Debug)]
pub struct TcpListener {
    socket: Socket,
    address: SocketAddr,
    greeter: Greeter,
    clients: Clients,
    permits: Permits,
    tls: Option<TlsServer>,
    /// Spare descriptor, closed briefly when the process has no other left; see [`Self::accept`].
    reserve: Option<OwnedFd>,
    _local_secret: Option<LocalSecret>,
    /// Secret from which the key for session passes is derived.
    secret: Secret,
    /// Limit of warnings about connections that are closed before their greeting.
    warnings: Warnings,
}

impl TcpListener {
    /// Listens; clients are served once [`run`](Self::run) runs.
    ///
    /// # Errors
    /// The address is in use, is not this host's, or requires a secret.
    pub fn bind(
        memory: &Arc<MappedMemory>,
        options: &TcpListenOptions,
    ) -> Result<Self, TcpListenError> {
        let address = options.address;
        if options.secret.is_none() && !address.ip().is_loopback() {
            return Err(TcpListenError::NeedsSecret { address });
        }
        let secret = options.secret.as_ref();
        if secret.is_some_and(|it| it.is_too_weak_for(address)) {
            return Err(TcpListenError::WeakSecret { address });
        }
        let socket_error = |source| TcpListenError::Socket { address, source };
        let socket = Socket::bind(address).map_err(socket_error)?;
        socket.set_nonblocking(true).map_err(socket_error)?;
        let address = socket.local_addr().map_err(socket_error)?;
        let created = given_or_created(options.secret.as_ref(), PROTOCOL, address);
        let (secret, local_secret) =
            created.map_err(|(path, source)| TcpListenError::LocalSecret { path, source })?;
        let nic = SoftNic::start(memory, options.nic_thread_count).map_err(socket_error)?;
        let reserve = socket.as_fd().try_clone_to_owned().map_err(socket_error)?;
        let memory_size_bytes = memory.word_count() * 8;
        Ok(Self {
            socket,
            address,
            greeter: Greeter::new(secret.clone()),
            clients: Clients::new(nic, memory_size_bytes, options),
            permits: Permits::new(options.connection_count_max),
            tls: options.tls.clone(),
            reserve: Some(reserve),
            _local_secret: local_secret,
            secret,
            warnings: Warnings::new("rejected connections"),
        })
    }

    /// Enables windows: writes through `windows` reach the sessions of this listener (FABRIC-10).
    /// To be called before [`run`](Self::run).
    pub fn offer_windows(&mut self, windows: Arc<WindowRegistry>) {
        self.clients.offer_windows(windows);
    }

    /// Enables queue pairs of the node's RDMA device; only the device changes the memory then
    /// (FABRIC-4). To be called before [`run`](Self::run).
    pub fn offer_verbs(&mut self, verbs: Arc<VerbsNode>) {
        self.clients.offer_verbs(verbs);
    }

    /// Returns the key for session passes of the pool served here; `None` if clients prove a
    /// derived key here.
    pub fn pass_key(&self, pool_id: u64) -> Option<PassKey> {
        self.secret.pass_key(pool_id)
    }

    /// Returns the address on which the node listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until stopped; then closes all connections and fences all sessions.
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
            self.clients.on_input(&ready.clients, service);
            let now = Instant::now();
            for authenticated in self.greeter.serve(&ready.pending_logins, now) {
                self.clients.welcome(authenticated, service);
            }
            self.warnings.log_withheld(now);
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
        let pending_logins = &self.greeter.pending_logins;
        // `poll` would report a closed connection without end if its data were never read.
        for pending_login in pending_logins
            .iter()
            .filter(|pending_login| pending_login.is_read())
        {
            let stream = pending_login.stream.as_fd();
            descriptors.push(PollFd::from_borrowed_fd(stream, PollFlags::IN));
        }
        for descriptor in self.clients.descriptors() {
            descriptors.push(PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
        }
        let now = Instant::now();
        let expiry = pending_logins
            .iter()
            .map(|pending_login| pending_login.until)
            .min();
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
        let pending_logins = pending_logins.iter();
        Ok(Ready {
            stop: is_ready(&descriptors[0]),
            accept: is_ready(&descriptors[1]),
            pending_logins: pending_logins
                .map(|pending_login| pending_login.is_read() && polled.next().unwrap_or(false))
                .collect(),
            clients: polled.collect(),
        })
    }

    /// Accepts waiting connections, some at a time. If the limit is reached, a connection replaces
    /// one without a log-in, or is closed if there is none.
    fn accept(&mut self) {
        for _ in 0..ACCEPT_COUNT_MAX {
            match self.socket.accept() {
                Ok((socket, peer)) => {
                    let mut permit = self.permits.take();
                    if permit.is_none() && self.greeter.evict_oldest() {
                        permit = self.permits.take();
                    }
                    let Some(permit) = permit else {
                        if self.warnings.admits(peer, Instant::now()) {
                            tracing::warn!(
                                %peer,
                                "connection rejected: the limit on connections is reached"
                            );
                        }
                        continue;
                    };
                    let tls = self.tls.as_ref().map(TlsLayer::of_node).transpose();
                    match tls.and_then(|tls| Ok((Stream::new(socket, None)?, tls))) {
                        Ok((stream, tls)) => self.greeter.add(stream, tls, peer, permit),
                        Err(error) => tracing::debug!(%peer, %error, "connection closed"),
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if is_out_of_descriptors(&error) => {
                    if !self.greeter.evict_oldest() {
                        return self.refuse_next();
                    }
                }
                // The peer closed the connection before it was accepted.
                Err(error) => return tracing::debug!(%error, "cannot accept a connection"),
            }
        }
    }

    /// Accepts and closes the next connection. If it stayed in the queue, `poll` would report it
    /// without end.
    fn refuse_next(&mut self) {
        tracing::warn!("connection rejected: no file descriptor left");
        self.reserve = None;
        if self.socket.accept().is_err() {
            // Another thread took the descriptor, or the whole system has none.
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
    pending_logins: Vec<bool>,
    clients: Vec<bool>,
}
