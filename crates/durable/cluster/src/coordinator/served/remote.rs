//! Client of a coordinator in another process.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farleaf_net::request::{ClusterTag, ConnectOptions, Connection, Membership, NetError};

use super::message::{
    CoordinatorReply, CoordinatorRequest, check_events, check_snapshot, decode, encode,
};
use super::service::POLL_TIME_MAX;
use crate::coordinator::{
    Coordinator, CoordinatorError, Event, KeepAlive, LeaseId, Revision, Snapshot, Transaction,
    TransactionOutcome, Watch,
};
use crate::ids::ClusterId;
use crate::record::start::Start;
use crate::record::{CLUSTER_KEY, Record as _, START_KEY};

/// Number of idle connections that are kept.
const IDLE_COUNT_MAX: usize = 4;

/// A coordinator in another process. Clones share it.
///
/// A call takes an idle connection, or opens one, which costs a round trip to connect and two more.
/// The client never retries a call by itself. Each watch has a connection of its own.
#[derive(Clone)]
pub struct RemoteCoordinator {
    shared: Arc<RemoteShared>,
}

struct RemoteShared {
    address: String,
    options: ConnectOptions,
    idle: Mutex<Vec<Connection>>,
    /// Newest revision seen; a coordinator at a lower one has lost data.
    seen: AtomicU64,
    /// Record of the coordinator's cluster at that time.
    cluster: Mutex<Option<Vec<u8>>>,
    /// Whether the last range presented a start. Then users of the coordinator compare its start,
    /// and the comparison of revisions does not apply.
    has_start: AtomicBool,
}

impl fmt::Debug for RemoteCoordinator {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "RemoteCoordinator at {}", self.shared.address)
    }
}

impl RemoteCoordinator {
    /// Connects to the coordinator served at `HOST:PORT`.
    ///
    /// # Errors
    /// - [`CoordinatorError::Unavailable`]: the coordinator cannot be reached.
    /// - [`CoordinatorError::Invalid`]: the coordinator refuses the connection permanently, for
    ///   example because of the secret or the version.
    pub fn connect(address: &str, options: &ConnectOptions) -> Result<Self, CoordinatorError> {
        let mut options = options.clone();
        // The expectation applies to this coordinator only, so it is not shared with other
        // connections.
        let expected = options.membership.cluster();
        options.membership = expected.map_or_else(Membership::default, Membership::of);
        let shared = RemoteShared {
            address: address.to_owned(),
            options: options.clone(),
            idle: Mutex::default(),
            seen: AtomicU64::new(0),
            cluster: Mutex::default(),
            has_start: AtomicBool::new(false),
        };
        let connection = Connection::connect(address, &options).map_err(|error| match error {
            error @ NetError::OtherCluster { .. } => shared.not_connected(error),
            NetError::NoSecret { .. }
            | NetError::SecretFile { .. }
            | NetError::MemoryNode { .. }
            | NetError::Tls { .. }
            | NetError::NotProven { .. }
            | NetError::Refused { .. }
            | NetError::WrongSecret { .. }
            | NetError::Version { .. } => CoordinatorError::Invalid {
                what: format!("cannot connect to the coordinator tcp:{address}: {error}"),
            },
            other => shared.unavailable(other.to_string()),
        })?;
        shared.put_back(connection);
        Ok(Self {
            shared: Arc::new(shared),
        })
    }
}

/// Reason why there is no reply.
struct NoReply {
    is_unsent: bool,
    how: String,
    /// Expected and found cluster, if the coordinator has another cluster.
    other: Option<(ClusterTag, Option<ClusterTag>)>,
}

impl From<NetError> for NoReply {
    fn from(error: NetError) -> Self {
        Self {
            is_unsent: error.is_unsent(),
            how: error.to_string(),
            other: match error {
                NetError::OtherCluster {
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

/// Sends a request and waits for the reply. Costs one round trip.
fn ask(
    connection: &mut Connection,
    request: &CoordinatorRequest,
    wait: Duration,
) -> Result<CoordinatorReply, NoReply> {
    let mut bytes = Vec::new();
    encode(request, &mut bytes);
    let reply = connection.call_within(&bytes, wait)?;
    decode(reply).map_err(|what| NoReply {
        is_unsent: false,
        how: format!("invalid reply: {what}"),
        other: None,
    })
}

impl RemoteShared {
    fn name(&self) -> String {
        format!("at {}", self.address)
    }

    fn unavailable(&self, how: String) -> CoordinatorError {
        let name = self.name();
        CoordinatorError::Unavailable { name, how }
    }

    fn invalid_reply(&self, what: &str) -> CoordinatorError {
        self.unavailable(format!("invalid reply: {what}"))
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an idle connection that is not known to be broken, or a new one.
    fn connection(&self) -> Result<Connection, NetError> {
        loop {
            let idle = self.idle().pop();
            let expected = self.options.membership.cluster();
            let is_expected = |it: &Connection| expected.is_none() || it.cluster() == expected;
            match idle {
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

    /// Sends a request and returns its reply. Never retries.
    fn ask(&self, request: &CoordinatorRequest) -> Result<CoordinatorReply, CoordinatorError> {
        let answered = self.connection().map_err(NoReply::from);
        let answered = answered.and_then(|mut connection| {
            let reply = ask(&mut connection, request, self.options.answer_timeout)?;
            self.put_back(connection);
            Ok(reply)
        });
        match answered {
            Ok(CoordinatorReply::Failed(failure)) => Err(failure.into_error(self.name())),
            Ok(reply) => Ok(reply),
            Err(NoReply {
                other: Some((expected, found)),
                ..
            }) => Err(other_cluster(expected, found)),
            Err(NoReply { is_unsent, how, .. }) => Err(self.unanswered(request, is_unsent, how)),
        }
    }

    /// Converts a failure to connect to an error.
    fn not_connected(&self, error: NetError) -> CoordinatorError {
        match error {
            NetError::OtherCluster {
                expected, found, ..
            } => other_cluster(expected, found),
            other => self.unavailable(other.to_string()),
        }
    }

    /// Returns the error for a request without a valid reply. A change that was sent has an unknown
    /// outcome.
    fn unanswered(
        &self,
        request: &CoordinatorRequest,
        is_unsent: bool,
        how: String,
    ) -> CoordinatorError {
        if is_unsent || !request.is_change() {
            return self.unavailable(how);
        }
        let name = self.name();
        CoordinatorError::OutcomeUnknown { name, how }
    }

    fn unexpected(&self, request: &CoordinatorRequest) -> CoordinatorError {
        let how = "invalid reply: it does not match the request".to_owned();
        self.unanswered(request, false, how)
    }

    /// Checks that a reply's `revision` is not below `before`, which was seen before the request.
    fn check(&self, before: u64, revision: Revision) -> Result<(), String> {
        self.seen.fetch_max(revision.0, Ordering::Relaxed);
        if revision.0 >= before || self.has_start.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(format!(
            "it is at {revision}, but was at {}: it has lost data, or is another coordinator; \
             restore its directory, or restart this client or server",
            Revision(before)
        ))
    }

    /// Checks the revision of a reply that has the cluster's record. If the cluster differs from
    /// before, revisions do not count, and [`Bound`](crate::coordinator::Bound) reports the
    /// mismatch. If the coordinator presents a start, the revision is not checked here either:
    /// `Bound` reports an older copy of the same start, until its loss is accepted.
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
        let request = CoordinatorRequest::Range(prefix.to_owned());
        let CoordinatorReply::Range(snapshot) = shared.ask(&request)? else {
            return Err(shared.unexpected(&request));
        };
        check_snapshot(prefix, &snapshot).map_err(|what| shared.invalid_reply(&what))?;
        let checked = shared.check_range(before, &snapshot);
        checked.map_err(|how| shared.unavailable(how))?;
        Ok(snapshot)
    }

    fn transact(&self, transaction: &Transaction) -> Result<TransactionOutcome, CoordinatorError> {
        transaction.check()?;
        let shared = &*self.shared;
        let before = shared.seen();
        let request = CoordinatorRequest::Transact(transaction.clone());
        match shared.ask(&request)? {
            CoordinatorReply::Committed(revision) => match shared.check(before, revision) {
                Ok(()) => Ok(TransactionOutcome::Committed(revision)),
                Err(how) => Err(shared.unanswered(&request, false, how)),
            },
            CoordinatorReply::Refused => Ok(TransactionOutcome::Refused),
            CoordinatorReply::LeaseGone => Ok(TransactionOutcome::LeaseGone),
            _ => Err(shared.unexpected(&request)),
        }
    }

    fn grant_lease(&self, time_to_live: Duration) -> Result<(LeaseId, Duration), CoordinatorError> {
        let request = CoordinatorRequest::Grant(time_to_live);
        match self.shared.ask(&request)? {
            CoordinatorReply::Granted(lease, granted) if granted >= time_to_live => {
                Ok((lease, granted))
            }
            _ => Err(self.shared.unexpected(&request)),
        }
    }

    fn keep_alive(&self, lease: LeaseId) -> Result<KeepAlive, CoordinatorError> {
        let request = CoordinatorRequest::KeepAlive(lease);
        match self.shared.ask(&request)? {
            CoordinatorReply::Alive(time) => Ok(KeepAlive::Alive(time)),
            CoordinatorReply::Gone => Ok(KeepAlive::Gone),
            _ => Err(self.shared.unexpected(&request)),
        }
    }

    fn revoke_lease(&self, lease: LeaseId) -> Result<(), CoordinatorError> {
        let request = CoordinatorRequest::Revoke(lease);
        match self.shared.ask(&request)? {
            CoordinatorReply::Revoked => Ok(()),
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

/// A watch with a connection of its own; it ends with that connection.
struct RemoteWatch {
    shared: Arc<RemoteShared>,
    connection: Connection,
    prefix: String,
    /// Revision up to which changes were returned.
    after: Revision,
}

impl RemoteWatch {
    /// Executes one long poll.
    fn poll(&mut self, wait: Duration) -> Result<Vec<Event>, CoordinatorError> {
        let shared = &self.shared;
        let request = CoordinatorRequest::Changes {
            prefix: self.prefix.clone(),
            after: self.after,
            wait,
        };
        let time = shared.options.answer_timeout.saturating_add(wait);
        let reply = ask(&mut self.connection, &request, time);
        let events = match reply.map_err(|error| shared.unavailable(error.how))? {
            CoordinatorReply::Changes(events) => events,
            CoordinatorReply::Failed(failure) => return Err(failure.into_error(shared.name())),
            _ => return Err(shared.unexpected(&request)),
        };
        let checked = check_events(&self.prefix, self.after, &events);
        checked.map_err(|what| shared.invalid_reply(&what))?;
        if let Some(last) = events.last() {
            self.after = last.revision();
            shared.seen.fetch_max(self.after.0, Ordering::Relaxed);
        }
        Ok(events)
    }
}

impl Watch for RemoteWatch {
    fn next(&mut self, timeout: Duration) -> Result<Vec<Event>, CoordinatorError> {
        let start = Instant::now();
        loop {
            let left = timeout.saturating_sub(start.elapsed());
            let events = self.poll(left.min(POLL_TIME_MAX))?;
            if !events.is_empty() || start.elapsed() >= timeout {
                return Ok(events);
            }
        }
    }
}
