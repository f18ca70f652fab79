//! Who is let in, and the end.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use farleaf_fabric::tcp::{LocalSecret, Warnings};

use crate::error::WireError;
use crate::handshake::refuse;
use crate::host::Terms;
use crate::listener::Listener;
use crate::places::Places;
use crate::socket::set_write_time;

/// How long the door stays shut when the system can open no connection.
const REST_TIME: Duration = Duration::from_millis(10);
/// How long somebody who is not let in has to take that down; there is room for it in his socket.
const REFUSAL_TIME: Duration = Duration::from_millis(10);

/// What answers requests.
pub trait Service: Send + Sync {
    /// Answers one request; `reply` is empty, and what is appended to it is the answer, of up to
    /// [`FRAME_SIZE_BYTES_MAX`](crate::FRAME_SIZE_BYTES_MAX) bytes.
    ///
    /// Requests of one connection are answered one after the other, in order; those of several at
    /// the same time. The end of a server waits for the answers that are under way.
    fn answer(&self, request: &[u8], reply: &mut Vec<u8>);
}

impl<S: Service + ?Sized> Service for Arc<S> {
    fn answer(&self, request: &[u8], reply: &mut Vec<u8>) {
        (**self).answer(request, reply);
    }
}

/// A server that runs. When it is dropped it has ended: nobody listens, all connections are shut
/// down, and the service is not in use any more.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    places: Arc<Places>,
    /// The listening socket under another type, to be shut down by.
    door: TcpStream,
    porter: Option<JoinHandle<()>>,
    /// The file goes when nobody listens any more.
    _local_secret: Option<LocalSecret>,
}

impl Server {
    pub(crate) fn start(listener: Listener, service: Arc<dyn Service>) -> Result<Self, WireError> {
        let address = listener.address;
        let failed = |source| WireError::Start { address, source };
        let door = listener.socket.try_clone().map_err(failed)?;
        let places = Arc::new(Places::new(listener.options.connection_count_max));
        let terms = Terms {
            key: listener.key,
            membership: listener.options.membership,
            request_size_bytes_max: listener.options.request_size_bytes_max,
            frame_time: listener.options.frame_time_max,
            warnings: Mutex::new(Warnings::new("connections turned away")),
        };
        let porter = Porter {
            socket: listener.socket,
            places: Arc::clone(&places),
            terms: Arc::new(terms),
            service,
        };
        let thread = thread::Builder::new().name("farleaf-wire".to_owned());
        let porter = thread.spawn(move || porter.run()).map_err(failed)?;
        Ok(Self {
            address,
            places,
            door: TcpStream::from(OwnedFd::from(door)),
            porter: Some(porter),
            _local_secret: listener.local_secret,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends listening, and shuts down all connections; answers that are under way reach nobody.
    /// What waits for threads is the drop.
    pub fn stop(&self) {
        self.places.stop();
        // Wakes who waits for a connection. It fails if it was done before.
        let _ = self.door.shutdown(Shutdown::Both);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
        if let Some(porter) = self.porter.take() {
            // A panic was printed by who had it.
            let _ = porter.join();
        }
        self.places.wait_for_all();
    }
}

/// Who opens the door.
struct Porter {
    socket: TcpListener,
    places: Arc<Places>,
    terms: Arc<Terms>,
    service: Arc<dyn Service>,
}

impl Porter {
    fn run(self) {
        loop {
            let accepted = self.socket.accept();
            if self.places.is_stopping() {
                return;
            }
            match accepted {
                Ok((socket, peer)) => self.let_in(socket, peer),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::debug!(%error, "cannot accept a connection");
                    // Mostly: no descriptor is left. Somebody may have one who has not shown who he
                    // is (W14), and gives it back meanwhile.
                    self.places.make_room();
                    thread::sleep(REST_TIME);
                }
            }
        }
    }

    fn let_in(&self, socket: TcpStream, peer: SocketAddr) {
        let socket = Arc::new(socket);
        let Some(place) = self.places.take(&socket, peer) else {
            return turn_away(&socket, "it has as many connections as it may have");
        };
        let (terms, service) = (Arc::clone(&self.terms), Arc::clone(&self.service));
        let own = Arc::clone(&socket);
        let thread = thread::Builder::new().name("farleaf-wire".to_owned());
        let started = thread.spawn(move || {
            // The place is left when nothing else is held any more.
            let place = place;
            let (terms, service, own) = (terms, service, own);
            terms.serve(&own, peer, &place, &*service);
            drop((terms, service, own));
            drop(place);
        });
        if let Err(error) = started {
            tracing::warn!(%peer, %error, "turned away: no thread can be started");
            turn_away(&socket, "it can start no thread");
        }
    }
}

fn turn_away(socket: &TcpStream, reason: &str) {
    if set_write_time(socket, REFUSAL_TIME).is_ok() {
        refuse(socket, reason);
    }
}
