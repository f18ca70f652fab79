//! The side that asks.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farleaf_wire::{ClusterTag, ConnectOptions, Connection, Membership, WireError};

use super::message::{Reply, Request, decode, encode, events, snapshot};
use super::service::POLL_TIME_MAX;
use crate::coordinator::{
    Coordinator, CoordinatorError, Event, KeepAlive, LeaseId, Revision, Snapshot, Transaction,
    TransactionOutcome, Watch,
};
use crate::ids::ClusterId;
use crate::record::start::Start;
use crate::record::{CLUSTER_KEY, Record as _, START_KEY};

/// So many connections that nobody uses are kept.
const IDLE_COUNT_MAX: usize = 4;

/// A coordinator in another process. Clones are the same one.
///
/// A call takes a connection that nobody uses, or makes one, which costs a round trip to connect
/// and two more; none is made twice (CS3). Each watch has a connection of its own.
#[derive(Clone)]
pub struct RemoteCoordinator {
    shared: Arc<Shared>,
}

struct Shared {
    address: String,
    options: ConnectOptions,
    idle: Mutex<Vec<Connection>>,
    /// The newest revision that was told (CS5).
    seen: AtomicU64,
    /// The record of its cluster by then.
    cluster: Mutex<Option<Vec<u8>>>,
    /// Whether the last range presented a start: then its users judge by that (ID5), and CS5 does
    /// not apply.
    has_start: AtomicBool,
}

impl fmt::Debug for RemoteCoordinator {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "RemoteCoordinator at {}", self.shared.address)
    }
}

impl RemoteCoordinator {
    /// Connects to the one that is served at `HOST:PORT`.
    ///
    /// # Errors
    /// [`CoordinatorError::Unavailable`]: it is not reached. [`CoordinatorError::Invalid`]: it is,
    /// and does not let us in, or the secret or the version is such that it never will.
    pub fn connect(address: &str, options: &ConnectOptions) -> Result<Self, CoordinatorError> {
        let mut options = options.clone();
        // What is expected of this coordinator is nobody else's.
        let expected = options.membership.cluster();
        options.membership = expected.map_or_else(Membership::default, Membership::of);
        let shared = Shared {
            address: address.to_owned(),
            options: options.clone(),
            idle: Mutex::default(),
            seen: AtomicU64::new(0),
            cluster: Mutex::default(),
            has_start: AtomicBool::new(false),
        };
        let connection = Connection::connect(address, &options).map_err(|error| match error {
            error @ WireError::OtherCluster { .. } => shared.not_connected(error),
            WireError::NoSecret { .. }
            | WireError::SecretFile { .. }
            | WireError::DerivedKey { .. }
            | WireError::NotProven { .. }
            | WireError::Refused { .. }
            | WireError::Version { .. } => CoordinatorError::Invalid {
                what: format!("the coordinator tcp:{address} cannot be asked: {error}"),
            },
            other => shared.unavailable(other.to_string()),
        })?;
        shared.put_back(connection);
        Ok(Self {
            shared: Arc::new(shared),
        })
    }
}

/// Why there is no reply.
struct NoReply {
    is_unsent: bool,
    how: String,
    /// It is another cluster's: which was expected, and which was found.
    other: Option<(ClusterTag, Option<ClusterTag>)>,
}

impl From<WireError> for NoReply {
    fn from(error: WireError) -> Self {
        Self {
            is_unsent: error.is_unsent(),
            how: error.to_string(),
            other: match error {
                WireError::OtherCluster {
                    expected, found, ..
                } => Some((expected, found)),
                _ => None,
            },
        }
    }
}

fn other_cluster(expected: ClusterTag, found: Option<ClusterTag>) -> CoordinatorError {
    CoordinatorError::OtherCluster {
        own: expected.into(),
        found: found.map_or_else(|| "no cluster".to_owned(), |it| it.to_string()),
    }
}

/// One round trip.
fn ask(connection: &mut Connection, request: &Request, wait: Duration) -> Result<Reply, NoReply> {
    let mut bytes = Vec::new();
    encode(request, &mut bytes);
    let reply = connection.call_within(&bytes, wait)?;
    decode(reply).map_err(|what| NoReply {
        is_unsent: false,
        how: format!("it sent {what}"),
        other: None,
    })
}

impl Shared {
    fn name(&self) -> String {
        format!("at {}", self.address)
    }

    fn unavailable(&self, how: String) -> CoordinatorError {
        let name = self.name();
        CoordinatorError::Unavailable { name, how }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection that nobody uses and that is whole, as far as is known, or else a new one.
    fn connection(&self) -> Result<Connection, WireError> {
        loop {
            let kept = self.idle().pop();
            let expected = self.options.membership.cluster();
            let is_expected = |it: &Connection| expected.is_none() || it.cluster() == expected;
            match kept {
                Some(it) if is_expected(&it) && it.is_usable() => return Ok(it),
                Some(_) => {}
                None => return Connection::connect(&self.address, &self.options),
            }
        }
    }

    fn put_back(&self, connection: Connection) {
        let mut idle = self.idle();
        if connection.is_usable() && idle.len() < IDLE_COUNT_MAX {
            idle.push(connection);
        }
    }

    /// What is answered to a request (CS3).
    fn ask(&self, request: &Request) -> Result<Reply, CoordinatorError> {
        let asked = self.connection().map_err(NoReply::from);
        let asked = asked.and_then(|mut connection| {
            let reply = ask(&mut connection, request, self.options.answer_timeout)?;
            self.put_back(connection);
            Ok(reply)
        });
        match asked {
            Ok(Reply::Failed(failure)) => Err(failure.into_error(self.name())),
            Ok(reply) => Ok(reply),
            Err(NoReply {
                other: Some((expected, found)),
                ..
            }) => Err(other_cluster(expected, found)),
            Err(NoReply { is_unsent, how, .. }) => Err(self.unanswered(request, is_unsent, how)),
        }
    }

    /// What it means that there is no connection.
    fn not_connected(&self, error: WireError) -> CoordinatorError {
        match error {
            WireError::OtherCluster {
                expected, found, ..
            } => other_cluster(expected, found),
            other => self.unavailable(other.to_string()),
        }
    }

    /// CS3: what it means that a request has no reply, or none that can be.
    fn unanswered(&self, request: &Request, is_unsent: bool, how: String) -> CoordinatorError {
        if is_unsent || !request.is_change() {
            return self.unavailable(how);
        }
        let name = self.name();
        CoordinatorError::OutcomeUnknown { name, how }
    }

    fn unexpected(&self, request: &Request) -> CoordinatorError {
        let how = "it sent the reply to another request".to_owned();
        self.unanswered(request, false, how)
    }

    /// CS5: `before` was told before what now is told as of `revision`.
    fn check(&self, before: u64, revision: Revision) -> Result<(), String> {
        self.seen.fetch_max(revision.0, Ordering::Relaxed);
        if revision.0 >= before || self.has_start.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(format!(
            "it is at {revision} and was at {}: it has lost what it had, or is another one; have \
             it serve the directory that it had, or start anew whoever has asked it",
            Revision(before)
        ))
    }

    /// CS5, where it says which cluster it has. If that is another one than before, its revisions
    /// say nothing, and whoever expects the cluster reports it
    /// ([`Bound`](crate::coordinator::Bound)). If it presents a start, that says more than its
    /// revision does: the same one reports an older copy, until its loss is accepted (ID5).
    fn check_range(&self, before: u64, read: &Snapshot) -> Result<(), String> {
        let start = read.identity.iter().find(|it| it.key == START_KEY);
        let has_start = start.is_some_and(|it| Start::decode(&it.key, &it.value).is_ok());
        self.has_start.store(has_start, Ordering::Relaxed);
        let cluster = read.identity.iter().find(|it| it.key == CLUSTER_KEY);
        let cluster = cluster.map(|it| it.value.clone());
        let known = self.cluster.lock();
        let mut known = known.unwrap_or_else(PoisonError::into_inner);
        if known.is_some() && *known != cluster && read.revision.0 < before {
            return Ok(());
        }
        *known = cluster;
        self.check(before, read.revision)
    }

    fn seen(&self) -> u64 {
        self.seen.load(Ordering::Relaxed)
    }
}

impl Coordinator for RemoteCoordinator {
    fn range(&self, prefix: &str) -> Result<Snapshot, CoordinatorError> {
        let shared = &*self.shared;
        let before = shared.seen();
        let request = Request::Range(prefix.to_owned());
        let Reply::Range {
            revision,
            entries,
            identity,
        } = shared.ask(&request)?
        else {
            return Err(shared.unexpected(&request));
        };
        let read = snapshot(prefix, revision, (entries, identity));
        let read = read.map_err(|what| shared.unavailable(format!("it sent {what}")))?;
        let checked = shared.check_range(before, &read);
        checked.map_err(|how| shared.unavailable(how))?;
        Ok(read)
    }

    fn transact(&self, transaction: &Transaction) -> Result<TransactionOutcome, CoordinatorError> {
        transaction.check()?;
        let shared = &*self.shared;
        let before = shared.seen();
        let request = Request::transact(transaction);
        match shared.ask(&request)? {
            Reply::Committed(revision) => match shared.check(before, revision) {
                Ok(()) => Ok(TransactionOutcome::Committed(revision)),
                Err(how) => Err(shared.unanswered(&request, false, how)),
            },
            Reply::Refused => Ok(TransactionOutcome::Refused),
            Reply::LeaseGone => Ok(TransactionOutcome::LeaseGone),
            _ => Err(shared.unexpected(&request)),
        }
    }

    fn grant_lease(&self, time_to_live: Duration) -> Result<(LeaseId, Duration), CoordinatorError> {
        let request = Request::Grant(time_to_live);
        match self.shared.ask(&request)? {
            Reply::Granted(lease, granted) if granted >= time_to_live => Ok((lease, granted)),
            _ => Err(self.shared.unexpected(&request)),
        }
    }

    fn keep_alive(&self, lease: LeaseId) -> Result<KeepAlive, CoordinatorError> {
        let request = Request::KeepAlive(lease);
        match self.shared.ask(&request)? {
            Reply::Alive(time) => Ok(KeepAlive::Alive(time)),
            Reply::Gone => Ok(KeepAlive::Gone),
            _ => Err(self.shared.unexpected(&request)),
        }
    }

    fn revoke_lease(&self, lease: LeaseId) -> Result<(), CoordinatorError> {
        let request = Request::Revoke(lease);
        match self.shared.ask(&request)? {
            Reply::Revoked => Ok(()),
            _ => Err(self.shared.unexpected(&request)),
        }
    }

    fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>, CoordinatorError> {
        let shared = Arc::clone(&self.shared);
        let connected = shared.connection();
        let connection = connected.map_err(|error| shared.not_connected(error))?;
        Ok(Box::new(RemoteWatch {
            shared,
            connection,
            prefix: prefix.to_owned(),
            after,
        }))
    }

    fn expect(&self, cluster: ClusterId) {
        if let Some(tag) = cluster.tag() {
            self.shared.options.membership.set(tag);
        }
    }
}

/// A watch, over a connection of its own: it is as broken as that (CS4).
struct RemoteWatch {
    shared: Arc<Shared>,
    connection: Connection,
    prefix: String,
    /// Up to where changes were told.
    after: Revision,
}

impl RemoteWatch {
    /// One long poll.
    fn poll(&mut self, wait: Duration) -> Result<Vec<Event>, CoordinatorError> {
        let shared = &self.shared;
        let request = Request::Changes {
            prefix: self.prefix.clone(),
            after: self.after,
            wait,
        };
        let time = shared.options.answer_timeout.saturating_add(wait);
        let reply = ask(&mut self.connection, &request, time);
        let images = match reply.map_err(|error| shared.unavailable(error.how))? {
            Reply::Changes(images) => images,
            Reply::Failed(failure) => return Err(failure.into_error(shared.name())),
            _ => return Err(shared.unexpected(&request)),
        };
        let told = events(&self.prefix, self.after, images);
        let told = told.map_err(|what| shared.unavailable(format!("it sent {what}")))?;
        if let Some(last) = told.last() {
            self.after = last.revision();
            shared.seen.fetch_max(self.after.0, Ordering::Relaxed);
        }
        Ok(told)
    }
}

impl Watch for RemoteWatch {
    fn next(&mut self, timeout: Duration) -> Result<Vec<Event>, CoordinatorError> {
        let start = Instant::now();
        loop {
            let left = timeout.saturating_sub(start.elapsed());
            let told = self.poll(left.min(POLL_TIME_MAX))?;
            if !told.is_empty() || start.elapsed() >= timeout {
                return Ok(told);
            }
        }
    }
}
