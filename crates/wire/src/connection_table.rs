//! How many connections a server has, and who has to go for another one (W14).

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// W14: the most connections that have not logged in.
const STRANGER_COUNT_MAX: usize = 256;

/// The connections of a server.
#[derive(Debug)]
pub(crate) struct Places {
    count_max: usize,
    state: Mutex<State>,
    left: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// By their numbers, which rise.
    connections: BTreeMap<u64, Entry>,
    next_number: u64,
    /// Places that have not been left, of connections that were ended, too.
    taken_count: usize,
    is_stopping: bool,
}

#[derive(Debug)]
struct Entry {
    socket: Arc<TcpStream>,
    peer: IpAddr,
    is_stranger: bool,
}

/// What one connection has while its thread runs.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    number: u64,
}

impl Places {
    pub(crate) fn new(count_max: usize) -> Self {
        Self {
            count_max,
            state: Mutex::default(),
            left: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for somebody who has not logged in; `None`: there is none, or the server stops.
    pub(crate) fn take(
        self: &Arc<Self>,
        socket: &Arc<TcpStream>,
        peer: SocketAddr,
    ) -> Option<Place> {
        let mut state = self.lock();
        let stranger_count = state.connections.values().filter(|it| it.is_stranger);
        let is_crowded = stranger_count.count() >= STRANGER_COUNT_MAX;
        if is_crowded || state.connections.len() >= self.count_max {
            state.end_one_stranger();
        }
        if state.is_stopping || state.connections.len() >= self.count_max {
            return None;
        }
        let number = state.next_number;
        state.next_number += 1;
        state.taken_count += 1;
        let entry = Entry {
            socket: Arc::clone(socket),
            peer: peer.ip(),
            is_stranger: true,
        };
        state.connections.insert(number, entry);
        Some(Place {
            places: Arc::clone(self),
            number,
        })
    }

    /// Ends the connection of somebody who has not logged in, if there is one.
    pub(crate) fn make_room(&self) {
        self.lock().end_one_stranger();
    }

    /// Ends all connections, and lets nobody in any more.
    pub(crate) fn stop(&self) {
        let mut state = self.lock();
        state.is_stopping = true;
        for entry in state.connections.values() {
            end(&entry.socket);
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.lock().is_stopping
    }

    /// Waits until all places have been left.
    pub(crate) fn wait_for_all(&self) {
        let mut state = self.lock();
        while state.taken_count > 0 {
            let waited = self.left.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl State {
    /// W14: the oldest of the address that has most of them.
    fn end_one_stranger(&mut self) {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        let strangers = self.connections.iter().filter(|(_, it)| it.is_stranger);
        for (_, stranger) in strangers.clone() {
            *counts.entry(stranger.peer).or_default() += 1;
        }
        let most = counts.values().max().copied();
        let mut oldest = strangers.filter(|(_, it)| counts.get(&it.peer).copied() == most);
        let number = oldest.next().map(|(number, _)| *number);
        if let Some(entry) = number.and_then(|it| self.connections.remove(&it)) {
            end(&entry.socket);
        }
    }
}

fn end(socket: &TcpStream) {
    // A connection that is gone already needs no end.
    let _ = socket.shutdown(Shutdown::Both);
}

impl Place {
    /// It has logged in. False: it was ended meanwhile.
    pub(crate) fn keep(&self) -> bool {
        let mut state = self.places.lock();
        let entry = state.connections.get_mut(&self.number);
        entry.map(|it| it.is_stranger = false).is_some()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.places.lock();
        state.connections.remove(&self.number);
        state.taken_count -= 1;
        self.places.left.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Connections of which it only matters that there are some.
    fn socket() -> Arc<TcpStream> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        Arc::new(TcpStream::connect(address).expect("it listens"))
    }

    fn peer(host: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, host], 1))
    }

    /// Promise: whoever has logged in keeps his place, the oldest stranger of the busiest address
    /// goes for a new one, and nobody is let in beyond that or after the end.
    #[test]
    fn strangers_go_first() {
        let places = Arc::new(Places::new(4));
        let socket = socket();
        let take = |host| places.take(&socket, peer(host));
        let (kept, other) = (take(1).expect("room"), take(2).expect("room"));
        assert!(kept.keep());
        let (old, new) = (take(1).expect("room"), take(1).expect("room"));
        let third = take(3).expect("the place of the old one of 1");
        assert!(!old.keep());
        assert!(new.keep() && third.keep() && other.keep());
        assert!(take(4).is_none(), "all have logged in");
        places.make_room();
        drop(old);
        assert!(take(4).is_none());
        drop(new);
        let again = take(4).expect("one has gone");
        assert!(
            kept.keep() && other.keep() && third.keep(),
            "nobody else has"
        );
        places.stop();
        drop(kept);
        assert!(take(5).is_none(), "it has stopped");
        drop((other, third, again));
        places.wait_for_all();
    }
}
