//! Connections to servers that nobody uses at the moment.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farleaf_wire::{ClusterTag, ConnectOptions, Connection, Membership, Secret, WireError};

/// So many connections to a server are kept that nobody uses.
const IDLE_COUNT_MAX: usize = 64;

/// One that was used so shortly before is not looked at, which would be a system call.
const FRESH_TIME: Duration = Duration::from_millis(1);

/// A connection, and the buffer of its requests.
#[derive(Debug)]
pub(crate) struct Way {
    pub(crate) connection: Connection,
    pub(crate) request: Vec<u8>,
    used_at: Instant,
}

/// Connections to servers. Each is used by one thread at a time; there are as many as have been
/// used at once.
#[derive(Debug)]
pub(crate) struct Connections {
    idle: Mutex<BTreeMap<String, Vec<Way>>>,
    options: ConnectOptions,
}

impl Connections {
    pub(crate) fn new(secret: Option<Secret>, (connect, answer): (Duration, Duration)) -> Self {
        let options = ConnectOptions {
            secret,
            membership: Membership::default(),
            connect_timeout: connect,
            answer_timeout: answer,
        };
        Self {
            idle: Mutex::default(),
            options,
        }
    }

    fn idle(&self) -> MutexGuard<'_, BTreeMap<String, Vec<Way>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One that nobody else uses: as a rule no round trip.
    pub(crate) fn take(
        &self,
        address: &str,
        expected: impl FnOnce() -> Option<ClusterTag>,
    ) -> Result<Way, WireError> {
        loop {
            let idle = self.idle().get_mut(address).and_then(Vec::pop);
            let Some(way) = idle else {
                break;
            };
            // A write that is sent to a server which has ended would have an unknown outcome.
            let is_fresh = way.used_at.elapsed() < FRESH_TIME;
            if is_fresh || way.connection.is_usable() {
                return Ok(way);
            }
        }
        if let Some(expected) = expected() {
            self.options.membership.set(expected);
        }
        Ok(Way {
            connection: Connection::connect(address, &self.options)?,
            request: Vec::new(),
            used_at: Instant::now(),
        })
    }

    /// One that works can be used again.
    pub(crate) fn give_back(&self, address: &str, mut way: Way) {
        way.used_at = Instant::now();
        let mut idle = self.idle();
        match idle.get_mut(address) {
            Some(ways) if ways.len() < IDLE_COUNT_MAX => ways.push(way),
            Some(_) => {}
            None => {
                idle.insert(address.to_owned(), vec![way]);
            }
        }
    }

    /// One to a server has failed, so the others may have, too: a write that is sent on one of
    /// them might have an unknown outcome for nothing.
    pub(crate) fn forget(&self, address: &str) {
        self.idle().remove(address);
    }
}
