//! Listening socket with its secret and limits.

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::greeting::Penalties;
use crate::secret::{LocalSecret, Rights, Secret, given_or_created};

use crate::request::admit::{Admission, Rejection};
use crate::request::channel::Channel;
use crate::request::cluster::{ClusterTag, Membership};
use crate::request::details::PROTOCOL;
use crate::request::error::NetError;
use crate::request::frame::FRAME_SIZE_BYTES_MAX;
use crate::request::server::{Server, Service};
use crate::tls::TlsServer;

/// Pause between two checks for incoming connections.
const PROBE_PAUSE: Duration = Duration::from_millis(5);

/// Options of a listener.
#[derive(Clone, Debug)]
pub struct ListenOptions {
    /// Address to listen at; port 0 takes a free one.
    pub address: SocketAddr,
    /// Secret that clients must prove. Without one, a listener on a loopback address creates one
    /// and stores it where only programs of its user find it, which then use it by default.
    pub secret: Option<Secret>,
    /// Certificate of the server; if given, all connections are encrypted.
    pub tls: Option<TlsServer>,
    /// Cluster of the server: clients that expect another one are rejected.
    pub membership: Membership,
    /// Largest number of concurrent connections, each of which has a thread.
    pub connection_count_max: usize,
    /// Largest size of a request in bytes, up to
    /// [`FRAME_SIZE_BYTES_MAX`](crate::request::FRAME_SIZE_BYTES_MAX).
    pub request_size_bytes_max: usize,
    /// Largest sum of the sizes of requests and replies above 64 KiB that are in memory at the same
    /// time, in bytes; at least two of the largest requests. One client (IP address) gets at most
    /// half of it. A request that would exceed it waits unread; after half of `frame_time_max` its
    /// connection is closed with the reason. Replies can exceed the limit; then their client's next
    /// requests wait.
    pub request_memory_bytes_max: usize,
    /// Longest time for a frame that has begun, plus a second per MiB of it. Idle connections have
    /// no limit.
    pub frame_time_max: Duration,
}

impl ListenOptions {
    /// Returns options for this address, with 1024 connections, requests of up to 65 MiB, which fit
    /// a value of 64 MiB, 512 MiB for all requests, and 10 s for a frame.
    pub fn at(address: SocketAddr) -> Self {
        Self {
            address,
            secret: None,
            tls: None,
            membership: Membership::default(),
            connection_count_max: 1024,
            request_size_bytes_max: 65 << 20,
            request_memory_bytes_max: 512 << 20,
            frame_time_max: Duration::from_secs(10),
        }
    }
}

/// Checks that a secret is the one from which all keys are derived, and strong enough.
fn require_secret(secret: &Secret, address: SocketAddr) -> Result<(), NetError> {
    match secret.rights() {
        Rights::Admin if secret.is_too_weak_for(address) => Err(NetError::WeakSecret { address }),
        Rights::Admin => Ok(()),
        rights => Err(NetError::DerivedKey { address, rights }),
    }
}

/// Listening socket that does not serve yet. Clients that connect meanwhile wait.
#[derive(Debug)]
pub struct Listener {
    pub(crate) socket: TcpListener,
    pub(crate) address: SocketAddr,
    pub(crate) options: ListenOptions,
    pub(crate) secret: Secret,
    pub(crate) local_secret: Option<LocalSecret>,
}

impl Listener {
    /// Binds the socket and listens.
    ///
    /// # Errors
    /// [`NetError::NeedsSecret`], [`WeakSecret`](NetError::WeakSecret),
    /// [`DerivedKey`](NetError::DerivedKey),
    /// [`Bind`](NetError::Bind), [`LocalSecret`](NetError::LocalSecret).
    pub fn bind(options: &ListenOptions) -> Result<Self, NetError> {
        let address = options.address;
        if options.secret.is_none() && !address.ip().is_loopback() {
            return Err(NetError::NeedsSecret { address });
        }
        if let Some(secret) = &options.secret {
            require_secret(secret, address)?;
        }
        let failed = |source| NetError::Bind { address, source };
        let socket = TcpListener::bind(address).map_err(failed)?;
        let address = socket.local_addr().map_err(failed)?;
        let created = given_or_created(options.secret.as_ref(), PROTOCOL, address);
        let (secret, local_secret) =
            created.map_err(|(path, source)| NetError::LocalSecret { path, source })?;
        let mut options = options.clone();
        options.request_size_bytes_max = options.request_size_bytes_max.min(FRAME_SIZE_BYTES_MAX);
        Ok(Self {
            socket,
            address,
            options,
            secret,
            local_secret,
        })
    }

    /// Returns the listener's address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the secret that clients must prove: the given one, or the one that the listener has
    /// created.
    pub fn secret(&self) -> Secret {
        self.secret.clone()
    }

    /// Answers greetings for some time without admitting clients. Returns the cluster that an
    /// authenticated client expected, if any: this address had a server of that cluster before.
    ///
    /// # Errors
    /// [`NetError::Start`]: waiting for connections failed.
    pub fn detect_cluster(&self, time: Duration) -> Result<Option<ClusterTag>, NetError> {
        let address = self.address;
        let failed = |source| NetError::Start { address, source };
        let nobody = Membership::default();
        let penalties = Mutex::new(Penalties::default());
        let until = Instant::now() + time;
        self.socket.set_nonblocking(true).map_err(failed)?;
        while Instant::now() < until && nobody.expected_by_peer().is_none() {
            match self.socket.accept() {
                Ok((socket, peer)) => {
                    let greeted = socket.set_nonblocking(false).map_err(Rejection::from);
                    let mut channel = Channel::plain(Arc::new(socket));
                    let admission = Admission {
                        secret: &self.secret,
                        tls: self.options.tls.as_ref(),
                        request_size_bytes_max: self.options.request_size_bytes_max,
                        membership: &nobody,
                        penalties: &penalties,
                    };
                    // The client is not welcomed, so it will connect again.
                    let _ =
                        greeted.and_then(|()| admission.admit(&mut channel, peer.ip(), || false));
                }
                Err(_) => std::thread::sleep(PROBE_PAUSE),
            }
        }
        self.socket.set_nonblocking(false).map_err(failed)?;
        Ok(nobody.expected_by_peer())
    }

    /// Answers requests by `service`, in its own threads, until the server is stopped.
    ///
    /// # Errors
    /// [`NetError::Start`]: a thread cannot be started.
    pub fn serve(self, service: Arc<dyn Service>) -> Result<Server, NetError> {
        Server::start(self, service)
    }
}
