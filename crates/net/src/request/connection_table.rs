//! Number of a server's connections, and the choice of the one that is replaced by another.

use std::collections::BTreeMap;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::greeting::{UNAUTHENTICATED_COUNT_MAX, oldest_of_busiest};

/// Connections of a server.
#[derive(Debug)]
pub(crate) struct ConnectionTable {
    count_max: usize,
    state: Mutex<ConnectionTableState>,
    released: Condvar,
}

#[derive(Debug, Default)]
struct ConnectionTableState {
    /// Connections by their numbers, which ascend.
    connections: BTreeMap<u64, ConnectionEntry>,
    next_number: u64,
    /// Number of slots in use, including those of connections that were ended but whose threads
    /// still run.
    taken_count: usize,
    is_stopping: bool,
}

#[derive(Debug)]
struct ConnectionEntry {
    socket: Arc<TcpStream>,
    peer: IpAddr,
    is_stranger: bool,
}

/// Slot of a connection, held while its thread runs.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    connection_table: Arc<ConnectionTable>,
    number: u64,
}

impl ConnectionTable {
    pub(crate) fn new(count_max: usize) -> Self {
        Self {
            count_max,
            state: Mutex::default(),
            released: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionTableState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a slot for a connection without a completed greeting; `None` if all slots are in use
    /// or the server stops.
    pub(crate) fn take(
        self: &Arc<Self>,
        socket: &Arc<TcpStream>,
        peer: SocketAddr,
    ) -> Option<ConnectionSlot> {
        let mut state = self.lock();
        let stranger_count = state.connections.values().filter(|it| it.is_stranger);
        let is_crowded = stranger_count.count() >= UNAUTHENTICATED_COUNT_MAX;
        if is_crowded || state.connections.len() >= self.count_max {
            state.end_one_unauthenticated();
        }
        if state.is_stopping || state.connections.len() >= self.count_max {
            return None;
        }
        let number = state.next_number;
        state.next_number += 1;
        state.taken_count += 1;
        let entry = ConnectionEntry {
            socket: Arc::clone(socket),
            peer: peer.ip(),
            is_stranger: true,
        };
        state.connections.insert(number, entry);
        Some(ConnectionSlot {
            connection_table: Arc::clone(self),
            number,
        })
    }

    /// Ends a connection without a completed greeting, if there is one.
    pub(crate) fn end_unauthenticated(&self) {
        self.lock().end_one_unauthenticated();
    }

    /// Ends all connections and admits no more.
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

    /// Waits until all slots are free.
    pub(crate) fn wait_for_all(&self) {
        let mut state = self.lock();
        while state.taken_count > 0 {
            let waited = self.released.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl ConnectionTableState {
    /// Ends the oldest connection without a completed greeting of the address that has most of
    /// them.
    fn end_one_unauthenticated(&mut self) {
        let strangers = self.connections.iter().filter(|(_, it)| it.is_stranger);
        let oldest = oldest_of_busiest(strangers.clone().map(|(_, it)| it.peer));
        let number = oldest.and_then(|index| strangers.clone().nth(index));
        let number = number.map(|(number, _)| *number);
        if let Some(entry) = number.and_then(|it| self.connections.remove(&it)) {
            end(&entry.socket);
        }
    }
}

fn end(socket: &TcpStream) {
    // An error means that the connection has already ended.
    let _ = socket.shutdown(Shutdown::Both);
}

impl ConnectionSlot {
    /// Makes the slot permanent after the greeting. Returns false if the connection was ended
    /// meanwhile.
    pub(crate) fn keep(&self) -> bool {
        let mut state = self.connection_table.lock();
        let entry = state.connections.get_mut(&self.number);
        entry.map(|it| it.is_stranger = false).is_some()
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut state = self.connection_table.lock();
        state.connections.remove(&self.number);
        state.taken_count -= 1;
        self.connection_table.released.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Returns a socket whose properties do not matter.
    fn socket() -> Arc<TcpStream> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        Arc::new(TcpStream::connect(address).expect("it listens"))
    }

    fn peer(host: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, host], 1))
    }

    /// Promise: authenticated connections keep their slots, and the oldest unauthenticated one of
    /// the busiest address is replaced by a new one. No connection is admitted beyond that, or
    /// after the end.
    #[test]
    fn strangers_go_first() {
        let connection_table = Arc::new(ConnectionTable::new(4));
        let socket = socket();
        let take = |host| connection_table.take(&socket, peer(host));
        let (first, other) = (take(1).expect("room"), take(2).expect("room"));
        assert!(first.keep());
        let (old, new) = (take(1).expect("room"), take(1).expect("room"));
        let third = take(3).expect("the place of the old one of 1");
        assert!(!old.keep());
        assert!(new.keep() && third.keep() && other.keep());
        assert!(take(4).is_none(), "all have logged in");
        connection_table.end_unauthenticated();
        drop(old);
        assert!(take(4).is_none());
        drop(new);
        let again = take(4).expect("one has gone");
        assert!(
            first.keep() && other.keep() && third.keep(),
            "nobody else has"
        );
        connection_table.stop();
        drop(first);
        assert!(take(5).is_none(), "it has stopped");
        drop((other, third, again));
        connection_table.wait_for_all();
    }
}
