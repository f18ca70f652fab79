//! Pool of idle connections to servers.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farleaf_net::request::{ClusterTag, ConnectOptions, Connection, Membership, NetError};
use farleaf_net::secret::Secret;

use crate::cluster::ClientOptions;

/// Largest number of idle connections per server.
const IDLE_COUNT_MAX: usize = 64;

/// A connection used within this time is reused without a check, which would cost a system call.
const FRESH_TIME: Duration = Duration::from_millis(1);

/// Connection with a buffer for its requests.
#[derive(Debug)]
pub(crate) struct PooledConnection {
    pub(crate) connection: Connection,
    pub(crate) request: Vec<u8>,
    used_at: Instant,
}

/// Connections to servers. Each is used by one thread at a time; there are as many as have been
/// used concurrently.
#[derive(Debug)]
pub(crate) struct Connections {
    idle: Mutex<BTreeMap<String, Vec<PooledConnection>>>,
    options: ConnectOptions,
}

impl Connections {
    /// Creates the pool of a client with these options, which proves this secret.
    pub(crate) fn new(secret: Option<Secret>, client: &ClientOptions) -> Self {
        let options = ConnectOptions {
            secret,
            tls: client.tls.clone(),
            membership: Membership::default(),
            connect_timeout: client.connect_timeout,
            answer_timeout: client.answer_timeout,
        };
        Self {
            idle: Mutex::default(),
            options,
        }
    }

    fn idle(&self) -> MutexGuard<'_, BTreeMap<String, Vec<PooledConnection>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a connection for exclusive use, usually without a round trip.
    pub(crate) fn take(
        &self,
        address: &str,
        expected: impl FnOnce() -> Option<ClusterTag>,
    ) -> Result<PooledConnection, NetError> {
        loop {
            let idle = self.idle().get_mut(address).and_then(Vec::pop);
            let Some(pooled) = idle else {
                break;
            };
            // Checked because a write sent to a server that has ended would have an unknown
            // outcome.
            let is_fresh = pooled.used_at.elapsed() < FRESH_TIME;
            if is_fresh || pooled.connection.is_usable() {
                return Ok(pooled);
            }
        }
        if let Some(expected) = expected() {
            self.options.membership.set(expected);
        }
        Ok(PooledConnection {
            connection: Connection::connect(address, &self.options)?,
            request: Vec::new(),
            used_at: Instant::now(),
        })
    }

    /// Returns a working connection to the pool.
    pub(crate) fn return_connection(&self, address: &str, mut pooled: PooledConnection) {
        pooled.used_at = Instant::now();
        let mut idle = self.idle();
        match idle.get_mut(address) {
            Some(connections) if connections.len() < IDLE_COUNT_MAX => connections.push(pooled),
            Some(_) => {}
            None => {
                idle.insert(address.to_owned(), vec![pooled]);
            }
        }
    }

    /// Removes all idle connections to a server after one has failed. The others may have failed,
    /// too, and a write sent on one would needlessly have an unknown outcome.
    pub(crate) fn forget(&self, address: &str) {
        self.idle().remove(address);
    }
}
