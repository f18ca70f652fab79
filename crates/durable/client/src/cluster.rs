//! Client of a cluster: its map of regions, its connections, and how an operation finds its server.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use farleaf_cluster::admin;
use farleaf_cluster::client::{AfterStale, Lookup, MapCache, Route};
use farleaf_cluster::coordinator::{Bound, SharedCoordinator};
use farleaf_cluster::ids::{ClusterId, TableId};
use farleaf_cluster::record::region::Key;
use farleaf_cluster::record::{TABLE_PREFIX, TableRecord, table_key};
use farleaf_cluster::view::View;
use farleaf_net::request::NetError;
use farleaf_net::secret::Secret;
use farleaf_net::tls::TlsClient;

use crate::connections::{Connections, PooledConnection};
use crate::error::ClientError;
use crate::protocol::{Body, Header, Malformed, Reply, Request, Status};
use crate::table::{Durability, PersistentTable};

/// Options of a client.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Secret of the cluster. Without one, the client uses the secret that a server on this host
    /// has stored for its user's programs.
    pub secret: Option<Secret>,
    /// Authorities that the certificates of servers and coordinator must lead to; if given, all
    /// connections are encrypted.
    pub tls: Option<TlsClient>,
    /// Longest time for which an operation is retried while its region has no primary.
    pub patience: Duration,
    /// Timeout for connecting to a server.
    pub connect_timeout: Duration,
    /// Timeout for a server's reply.
    pub answer_timeout: Duration,
}

impl Default for ClientOptions {
    /// Returns options without a secret, with 30 s of patience, 2 s for connecting and 10 s for a
    /// reply.
    fn default() -> Self {
        Self {
            secret: None,
            tls: None,
            patience: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(2),
            answer_timeout: Duration::from_secs(10),
        }
    }
}

/// Shortest and longest time between two retries.
const RETRY_BACKOFF: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// Options of a new table.
#[derive(Clone, Debug)]
pub struct PersistentTableOptions {
    /// Number of replicas of each region.
    pub replica_count: usize,
    /// First keys of all regions but the first.
    pub split_keys: Vec<Vec<u8>>,
}

impl Default for PersistentTableOptions {
    /// Returns options for three replicas and one region.
    fn default() -> Self {
        Self {
            replica_count: 3,
            split_keys: Vec::new(),
        }
    }
}

/// Handle of a cluster for clients. Can be used by any number of threads; clones share the same
/// connections and map.
#[derive(Clone)]
pub struct Cluster {
    shared: Arc<ClusterShared>,
}

struct ClusterShared {
    coordinator: Bound<SharedCoordinator>,
    map: Mutex<MapCache<Bound<SharedCoordinator>>>,
    connections: Connections,
    options: ClientOptions,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "a cluster by {:?}", self.shared.coordinator)
    }
}

/// Location of an operation in a table.
#[derive(Clone, Copy, Debug)]
pub(crate) enum KeyLocation<'k> {
    /// Region that contains this key.
    At(&'k [u8]),
    /// Region of the keys directly below this key, or of the largest keys if `None`.
    Below(Option<&'k [u8]>),
}

/// Request to a server, and how its reply is read.
pub(crate) trait RegionOperation {
    type Answer;

    /// Returns the request to the server of this route.
    fn body(&self, route: &Route) -> Body<'_>;

    /// Reads the reply.
    fn read(&mut self, route: &Route, reply: &mut Reply<'_>) -> Result<Self::Answer, Malformed>;
}

/// Result of one attempt.
enum Attempt<T> {
    Over(T),
    /// The request had no effect, for this reason, and can be retried.
    Retry(String),
}

impl Cluster {
    /// Creates a client of this coordinator's cluster. Sends nothing yet.
    pub fn new(coordinator: SharedCoordinator, options: ClientOptions) -> Self {
        let secret = options.secret.clone();
        let connections = Connections::new(secret, &options);
        let coordinator = Bound::to_first_seen(coordinator);
        Self {
            shared: Arc::new(ClusterShared {
                map: Mutex::new(MapCache::new(coordinator.clone())),
                coordinator,
                connections,
                options,
            }),
        }
    }

    /// Returns the coordinator, for administration. It is bound to the first cluster id that it
    /// reports.
    pub fn coordinator(&self) -> &Bound<SharedCoordinator> {
        &self.shared.coordinator
    }

    /// Creates a table. The leader then assigns its regions to servers, and operations wait for
    /// that. Costs three round trips to the coordinator.
    ///
    /// # Errors
    /// [`ClusterError::TableExists`](farleaf_cluster::ClusterError::TableExists),
    /// [`BadTable`](farleaf_cluster::ClusterError::BadTable), and those of the coordinator.
    pub fn create_table(
        &self,
        name: &str,
        options: &PersistentTableOptions,
    ) -> Result<PersistentTable, ClientError> {
        let keys: Vec<Key> = options.split_keys.iter().cloned().map(Key).collect();
        let coordinator = &self.shared.coordinator;
        let table = admin::create_table(coordinator, name, options.replica_count, &keys)?;
        PersistentTable::new(self.clone(), &table)
    }

    /// Opens an existing table. Costs two round trips to the coordinator.
    ///
    /// # Errors
    /// [`ClusterError::NoTable`](farleaf_cluster::ClusterError::NoTable), and those of the
    /// coordinator.
    pub fn open_table(&self, name: &str) -> Result<PersistentTable, ClientError> {
        let coordinator = &self.shared.coordinator;
        let table = admin::table_named(coordinator, name)?;
        let record = admin::read::<TableRecord>(coordinator, &table_key(table))?;
        let record = record.filter(|it| !it.record.dropping);
        let record = record.ok_or_else(|| ClientError::TableGone {
            name: name.to_owned(),
        })?;
        PersistentTable::new(self.clone(), &record.record)
    }

    /// Drops a table and all its records. The servers delete the data in the background.
    ///
    /// # Errors
    /// The same as those of [`open_table`](Self::open_table).
    pub fn drop_table(&self, name: &str) -> Result<(), ClientError> {
        let coordinator = &self.shared.coordinator;
        let table = admin::table_named(coordinator, name)?;
        Ok(admin::drop_table(coordinator, table)?)
    }

    /// Returns all tables that are not being dropped, by name. Costs one round trip to the
    /// coordinator.
    ///
    /// # Errors
    /// The errors of the coordinator.
    pub fn tables(&self) -> Result<Vec<TableRecord>, ClientError> {
        use farleaf_cluster::ClusterError;
        use farleaf_cluster::coordinator::Coordinator;
        let snapshot = self.shared.coordinator.range(TABLE_PREFIX);
        let snapshot = snapshot.map_err(ClusterError::from)?;
        let view = View::of(snapshot.revision, &snapshot.entries);
        let tables = view.tables.into_values().map(|seen| seen.record);
        let mut tables: Vec<TableRecord> = tables.filter(|it| !it.dropping).collect();
        tables.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(tables)
    }

    fn map(&self) -> std::sync::MutexGuard<'_, MapCache<Bound<SharedCoordinator>>> {
        self.shared
            .map
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds the region's primary and sends it the request, and retries with backoff while there is
    /// none (CONTROL-21). Costs one round trip if the map is up to date.
    pub(crate) fn ask<A: RegionOperation>(
        &self,
        table: &PersistentTable,
        place: KeyLocation<'_>,
        ask: &mut A,
    ) -> Result<A::Answer, ClientError> {
        let since = Instant::now();
        let mut backoff_time = RETRY_BACKOFF.0;
        loop {
            let last = match self.find_route(table, place) {
                Ok(Lookup::Found(route)) => match self.attempt_at(&route, table, ask)? {
                    Attempt::Over(answer) => return Ok(answer),
                    Attempt::Retry(how) => how,
                },
                Ok(Lookup::NotServed) => "its region has no primary now".to_owned(),
                Ok(Lookup::NoTable) => {
                    let name = table.name().to_owned();
                    return Err(ClientError::TableGone { name });
                }
                // The coordinator may recover before the operation times out.
                Err(error) => error.to_string(),
            };
            let waited = since.elapsed();
            if waited >= self.shared.options.patience {
                let waited_ms = waited.as_millis() as u64;
                return Err(ClientError::NotServed { waited_ms, last });
            }
            thread::sleep(backoff_time);
            backoff_time = (backoff_time * 2).min(RETRY_BACKOFF.1);
        }
    }

    fn find_route(
        &self,
        table: &PersistentTable,
        place: KeyLocation<'_>,
    ) -> Result<Lookup, farleaf_cluster::ClusterError> {
        let table: TableId = table.id();
        match place {
            KeyLocation::At(key) => self.map().lookup(table, key),
            KeyLocation::Below(key) => self.map().lookup_below(table, key),
        }
    }

    fn attempt_at<A: RegionOperation>(
        &self,
        route: &Route,
        table: &PersistentTable,
        ask: &mut A,
    ) -> Result<Attempt<A::Answer>, ClientError> {
        let connections = &self.shared.connections;
        let cluster = || self.shared.coordinator.cluster().and_then(ClusterId::tag);
        let mut pooled = match connections.take(&route.address, cluster) {
            Ok(pooled) => pooled,
            Err(error) => {
                connections.forget(&route.address);
                self.map().lost(route);
                return retry_or_reject(error);
            }
        };
        let PooledConnection {
            connection,
            request,
            ..
        } = &mut pooled;
        let body = ask.body(route);
        let is_read = body.is_read();
        let header = Header {
            table: route.table,
            region: route.region,
            epoch: route.epoch,
            incarnation: table.incarnation(),
            is_durable: table.durability() == Durability::Sync,
            // A table with one replica and durability `memory` accepts the risk.
            is_one_enough: table.replica_count() == 1,
        };
        Request { header, body }.encode(request);
        let answered = connection.call(request);
        let server = || format!("{} at {}", route.server, route.address);
        let bytes = match answered {
            Ok(bytes) => bytes,
            Err(error) => {
                connections.forget(&route.address);
                self.map().lost(route);
                if is_read || error.is_unsent() {
                    return retry_or_reject(error);
                }
                let how = format!("{}: {error}", server());
                return Err(ClientError::OutcomeUnknown { how });
            }
        };
        let outcome = self.outcome(route, bytes, table, ask);
        let outcome = outcome.map_err(|error| match error {
            ReplyError::Malformed(Malformed(how)) if is_read => ClientError::Malformed {
                server: server(),
                how,
            },
            ReplyError::Malformed(Malformed(how)) => ClientError::OutcomeUnknown {
                how: format!("invalid reply from {}: {how}", server()),
            },
            ReplyError::Failed(how) => ClientError::Failed {
                server: server(),
                how,
            },
            ReplyError::Error(error) => error,
        })?;
        connections.return_connection(&route.address, pooled);
        Ok(outcome)
    }

    /// Interprets a reply.
    fn outcome<A: RegionOperation>(
        &self,
        route: &Route,
        bytes: &[u8],
        table: &PersistentTable,
        ask: &mut A,
    ) -> Result<Attempt<A::Answer>, ReplyError> {
        let mut reply = Reply::decode(bytes).map_err(ReplyError::Malformed)?;
        match std::mem::replace(&mut reply.status, Status::Done) {
            Status::Done => {
                let answer = ask.read(route, &mut reply).map_err(ReplyError::Malformed)?;
                reply.end().map_err(ReplyError::Malformed)?;
                Ok(Attempt::Over(answer))
            }
            Status::Stale(stale) => {
                let after = self.map().stale(route, stale);
                Ok(Attempt::Retry(match after {
                    AfterStale::LookAgain => format!(
                        "{} at {} does not serve the region",
                        route.server, route.address
                    ),
                    AfterStale::AskAgain => "its new primary has not taken over yet".to_owned(),
                }))
            }
            Status::OtherTable => {
                let name = table.name().to_owned();
                Err(ReplyError::Error(ClientError::OtherTable { name }))
            }
            Status::NotNow(how) => {
                // The condition may last, and the region may move to another server meanwhile.
                self.map().lost(route);
                Ok(Attempt::Retry(how))
            }
            Status::Refused(how) => Err(ReplyError::Error(ClientError::Refused { how })),
            Status::Failed { is_unknown, how } if is_unknown => {
                Err(ReplyError::Error(ClientError::OutcomeUnknown { how }))
            }
            Status::Failed { how, .. } => Err(ReplyError::Failed(how)),
        }
    }
}

/// Decides whether a request that had no effect is retried: not if the error is permanent.
fn retry_or_reject<T>(error: NetError) -> Result<Attempt<T>, ClientError> {
    match error {
        NetError::RequestTooLarge { .. }
        | NetError::NotProven { .. }
        | NetError::NoSecret { .. }
        | NetError::Tls { .. }
        | NetError::Version { .. } => Err(ClientError::Refused {
            how: error.to_string(),
        }),
        error => Ok(Attempt::Retry(error.to_string())),
    }
}

/// Reason why a reply has no result.
enum ReplyError {
    Malformed(Malformed),
    Failed(String),
    Error(ClientError),
}
