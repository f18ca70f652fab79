//! Accepting connections, and stopping the server.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::secret::{KeyId, LocalSecret, Rights, Scope};
use crate::warnings::Warnings;

use crate::request::admit::refuse;
use crate::request::budget::{MemoryBudget, MemoryLimits};
use crate::request::channel::Channel;
use crate::request::connection_table::ConnectionTable;
use crate::request::error::NetError;
use crate::request::host::ServerContext;
use crate::request::listener::Listener;

/// Pause before the next accept if the system cannot open a connection.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(10);
/// Longest time for sending a refusal; the socket's buffer has space for it.
const REFUSAL_TIME: Duration = Duration::from_millis(10);

/// Client that has proven a key.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Address from which it has connected.
    pub peer: SocketAddr,
    /// Rights that its key grants.
    pub rights: Rights,
    /// Part of the data to which its key is limited.
    pub scope: Scope,
    /// Id of its key.
    pub key: KeyId,
}

impl Caller {
    /// Returns whether the client has the secret itself, and with it all rights.
    pub fn is_administrator(&self) -> bool {
        self.rights == Rights::Admin && self.scope.is_everything()
    }
}

/// Handler of requests.
pub trait Service: Send + Sync {
    /// Answers one request, if the caller may send it. `reply` is empty; the handler appends the
    /// reply, of up to [`FRAME_SIZE_BYTES_MAX`](crate::request::FRAME_SIZE_BYTES_MAX) bytes.
    ///
    /// Requests of one connection are answered one after the other, in order; those of different
    /// connections concurrently. Dropping the server waits for handlers that are running.
    fn answer(&self, caller: &Caller, request: &[u8], reply: &mut Vec<u8>);

    /// Returns whether this request may wait while unread replies to its client exceed the limits
    /// of memory. False for requests without which a cluster does not work.
    fn may_wait(&self, request: &[u8]) -> bool {
        let _ = request;
        true
    }
}

impl<S: Service + ?Sized> Service for Arc<S> {
    fn answer(&self, caller: &Caller, request: &[u8], reply: &mut Vec<u8>) {
        (**self).answer(caller, request, reply);
    }

    fn may_wait(&self, request: &[u8]) -> bool {
        (**self).may_wait(request)
    }
}

/// Running server. When its drop returns, the socket is closed, all connections are shut down, and
/// the service is no longer in use.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    connection_table: Arc<ConnectionTable>,
    budget: Arc<MemoryBudget>,
    /// The listening socket, as a type that can be shut down.
    listening_socket: TcpStream,
    acceptor: Option<JoinHandle<()>>,
    /// Removes the file when the server has ended.
    _local_secret: Option<LocalSecret>,
}

impl Server {
    pub(crate) fn start(listener: Listener, service: Arc<dyn Service>) -> Result<Self, NetError> {
        let address = listener.address;
        let failed = |source| NetError::Start { address, source };
        let listening_socket = listener.socket.try_clone().map_err(failed)?;
        let connection_table =
            Arc::new(ConnectionTable::new(listener.options.connection_count_max));
        let limits = MemoryLimits::of_total(
            listener.options.request_memory_bytes_max,
            listener.options.request_size_bytes_max,
        );
        let budget = Arc::new(MemoryBudget::new(limits));
        let context = ServerContext {
            secret: listener.secret,
            tls: listener.options.tls,
            membership: listener.options.membership,
            request_size_bytes_max: listener.options.request_size_bytes_max,
            frame_time: listener.options.frame_time_max,
            budget: Arc::clone(&budget),
            warnings: Mutex::new(Warnings::new("rejected connections")),
            penalties: Mutex::default(),
        };
        let acceptor = Acceptor {
            socket: listener.socket,
            connection_table: Arc::clone(&connection_table),
            context: Arc::new(context),
            service,
        };
        let thread = thread::Builder::new().name("farleaf-net".to_owned());
        let acceptor = thread.spawn(move || acceptor.run()).map_err(failed)?;
        Ok(Self {
            address,
            connection_table,
            budget,
            listening_socket: TcpStream::from(OwnedFd::from(listening_socket)),
            acceptor: Some(acceptor),
            _local_secret: listener.local_secret,
        })
    }

    /// Returns the server's address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the largest sum of the sizes of large requests and replies that was in memory so
    /// far, in bytes ([`ListenOptions::request_memory_bytes_max`]).
    ///
    /// [`ListenOptions::request_memory_bytes_max`]:
    ///     crate::request::ListenOptions::request_memory_bytes_max
    pub fn request_memory_bytes_peak(&self) -> usize {
        self.budget.used_bytes_peak()
    }

    /// Closes the listening socket, and shuts down all connections, so that clients do not get
    /// replies to running requests. Does not wait for threads; the drop does.
    pub fn stop(&self) {
        self.connection_table.stop();
        self.budget.stop();
        // Wakes the accepting thread. Fails if it was done before.
        let _ = self.listening_socket.shutdown(Shutdown::Both);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
        if let Some(acceptor) = self.acceptor.take() {
            // The thread has already printed its panic.
            let _ = acceptor.join();
        }
        self.connection_table.wait_for_all();
    }
}

/// Thread that accepts connections.
struct Acceptor {
    socket: TcpListener,
    connection_table: Arc<ConnectionTable>,
    context: Arc<ServerContext>,
    service: Arc<dyn Service>,
}

impl Acceptor {
    fn run(self) {
        loop {
            let accepted = self.socket.accept();
            if self.connection_table.is_stopping() {
                return;
            }
            match accepted {
                Ok((socket, peer)) => self.serve_connection(socket, peer),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::debug!(%error, "cannot accept a connection");
                    // Usually the process has no free descriptor. Ending an unauthenticated
                    // connection frees one.
                    self.connection_table.end_unauthenticated();
                    thread::sleep(ACCEPT_RETRY_PAUSE);
                }
            }
        }
    }

    fn serve_connection(&self, socket: TcpStream, peer: SocketAddr) {
        let socket = Arc::new(socket);
        let Some(slot) = self.connection_table.take(&socket, peer) else {
            return refuse_connection(&socket, "the limit on connections is reached");
        };
        let (context, service) = (Arc::clone(&self.context), Arc::clone(&self.service));
        let own = Arc::clone(&socket);
        let thread = thread::Builder::new().name("farleaf-net".to_owned());
        let started = thread.spawn(move || {
            // Bound first, so that it is dropped last: the slot is free when everything else has
            // been released.
            let slot = slot;
            let (context, service, own) = (context, service, own);
            context.serve(&own, peer, &slot, &*service);
            drop((context, service, own));
            drop(slot);
        });
        if let Err(error) = started {
            tracing::warn!(%peer, %error, "connection rejected: cannot start a thread");
            refuse_connection(&socket, "the server cannot start a thread");
        }
    }
}

fn refuse_connection(socket: &Arc<TcpStream>, reason: &str) {
    let mut channel = Channel::plain(Arc::clone(socket));
    if channel.set_write_time(REFUSAL_TIME).is_ok() {
        refuse(&mut channel, reason);
    }
}
