//! An address, a secret, and limits.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use farleaf_fabric::tcp::{LocalSecret, ProtocolKey, Secret, local_secret_path};

use crate::cluster::{ClusterTag, Membership};
use crate::error::WireError;
use crate::frame::FRAME_SIZE_BYTES_MAX;
use crate::handshake::{PROTOCOL, TurnedAway, admit, key_of};
use crate::server::{Server, Service};

/// Pause between two checks for incoming connections.
const SOUND_OUT_REST: Duration = Duration::from_millis(5);

/// How a server listens.
#[derive(Clone, Debug)]
pub struct ListenOptions {
    /// Where; port 0 takes a free one.
    pub address: SocketAddr,
    /// What who connects must prove to know. Without one, on a loopback address, the listener makes
    /// one and leaves it where only programs of its user find it, which they do by themselves (W4).
    pub secret: Option<Secret>,
    /// The cluster that it belongs to: who expects another one is turned away (W16).
    pub membership: Membership,
    /// The most connections at a time, each of which has a thread (W14).
    pub connection_count_max: usize,
    /// The most bytes of a request, up to [`FRAME_SIZE_BYTES_MAX`](crate::FRAME_SIZE_BYTES_MAX).
    pub request_size_bytes_max: usize,
    /// How long a frame that has begun may take, and a second more for each MiB of it; idle
    /// connections may be so for ever (W12).
    pub frame_time_max: Duration,
}

impl ListenOptions {
    /// At this address; 1024 connections; requests of up to 65 MiB, in which a value of 64 MiB has
    /// room; 10 s for a frame.
    pub fn at(address: SocketAddr) -> Self {
        Self {
            address,
            secret: None,
            membership: Membership::default(),
            connection_count_max: 1024,
            request_size_bytes_max: 65 << 20,
            frame_time_max: Duration::from_secs(10),
        }
    }
}

/// A socket that listens, and whom it will let in. Who connects before it serves waits.
#[derive(Debug)]
pub struct Listener {
    pub(crate) socket: TcpListener,
    pub(crate) address: SocketAddr,
    pub(crate) options: ListenOptions,
    pub(crate) key: ProtocolKey,
    secret: Secret,
    pub(crate) local_secret: Option<LocalSecret>,
}

impl Listener {
    /// Listens.
    ///
    /// # Errors
    /// [`WireError::NeedsSecret`], [`DerivedKey`](WireError::DerivedKey),
    /// [`Bind`](WireError::Bind), [`LocalSecret`](WireError::LocalSecret).
    pub fn bind(options: &ListenOptions) -> Result<Self, WireError> {
        let address = options.address;
        if options.secret.is_none() && !address.ip().is_loopback() {
            return Err(WireError::NeedsSecret { address });
        }
        if let Some(secret) = &options.secret {
            key_of(secret, &address.to_string())?;
        }
        let failed = |source| WireError::Bind { address, source };
        let socket = TcpListener::bind(address).map_err(failed)?;
        let address = socket.local_addr().map_err(failed)?;
        let (secret, local_secret) = if let Some(secret) = &options.secret {
            (secret.clone(), None)
        } else {
            let (ip, port) = (address.ip(), address.port());
            let left = LocalSecret::leave(PROTOCOL, ip, port);
            let (secret, kept) = left.map_err(|source| WireError::LocalSecret {
                path: local_secret_path(PROTOCOL, ip, port),
                source,
            })?;
            (secret, Some(kept))
        };
        let mut options = options.clone();
        options.request_size_bytes_max = options.request_size_bytes_max.min(FRAME_SIZE_BYTES_MAX);
        Ok(Self {
            socket,
            address,
            key: key_of(&secret, &address.to_string())?,
            options,
            secret,
            local_secret,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What who connects must prove to know: what it was given, or has made.
    pub fn secret(&self) -> &Secret {
        &self.secret
    }

    /// Greets whoever connects, for so long, and lets nobody in. The cluster that one of them
    /// expected, which has proven to know the secret: this address had a server of it before.
    ///
    /// # Errors
    /// [`WireError::Start`]: the socket cannot be waited for.
    pub fn sound_out(&self, time: Duration) -> Result<Option<ClusterTag>, WireError> {
        let address = self.address;
        let failed = |source| WireError::Start { address, source };
        let nobody = Membership::default();
        let until = Instant::now() + time;
        self.socket.set_nonblocking(true).map_err(failed)?;
        while Instant::now() < until && nobody.mistaken_for().is_none() {
            match self.socket.accept() {
                Ok((socket, _)) => {
                    let greeted = socket.set_nonblocking(false).map_err(TurnedAway::from);
                    let own = (self.options.request_size_bytes_max, &nobody);
                    // What it is told is that it is not let in: it comes again.
                    let _ = greeted.and_then(|()| admit(&socket, &self.key, own, || false));
                }
                Err(_) => std::thread::sleep(SOUND_OUT_REST),
            }
        }
        self.socket.set_nonblocking(false).map_err(failed)?;
        Ok(nobody.mistaken_for())
    }

    /// Answers requests by `service`, in threads of its own, until the server is stopped.
    ///
    /// # Errors
    /// [`WireError::Start`].
    pub fn serve(self, service: Arc<dyn Service>) -> Result<Server, WireError> {
        Server::start(self, service)
    }
}
