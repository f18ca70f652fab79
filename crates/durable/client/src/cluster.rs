//! A client's cluster: its map, its connections, and how an operation finds its server.

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
use farleaf_wire::{Secret, WireError};

use crate::connections::{Connections, Way};
use crate::error::{ClientError, unknown};
use crate::protocol::{Body, Header, Malformed, Reply, Request, Status};
use crate::table::{Durability, PersistentTable};

/// How a client works.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// What servers ask for; without one, those of this host are asked whether they have left one.
    pub secret: Option<Secret>,
    /// For how long an operation looks for a server that serves its key, while there is none.
    pub patience: Duration,
    /// For how long a connection is tried.
    pub connect_timeout: Duration,
    /// For how long an answer is waited for.
    pub answer_timeout: Duration,
}

impl Default for ClientOptions {
    /// No secret; 30 s of patience; 2 s for a connection, 10 s for an answer.
    fn default() -> Self {
        Self {
            secret: None,
            patience: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(2),
            answer_timeout: Duration::from_secs(10),
        }
    }
}

/// The least and the longest time between two tries.
const REST: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// What a new table is like.
#[derive(Clone, Debug)]
pub struct PersistentTableOptions {
    /// How many servers have each record.
    pub replica_count: usize,
    /// The first keys of all regions but the first.
    pub split_keys: Vec<Vec<u8>>,
}

impl Default for PersistentTableOptions {
    /// Three replicas, one region.
    fn default() -> Self {
        Self {
            replica_count: 3,
            split_keys: Vec::new(),
        }
    }
}

/// The servers of a cluster, as a client sees them. Any number of threads may use it; clones are
/// the same one.
#[derive(Clone)]
pub struct Cluster {
    shared: Arc<Shared>,
}

struct Shared {
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

/// Where an operation takes place.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place<'k> {
    /// In the region that has a key.
    At(&'k [u8]),
    /// In the region of the keys before a key, or of the last ones.
    Below(Option<&'k [u8]>),
}

/// What a server is asked, and how its answer is read.
pub(crate) trait Ask {
    type Answer;

    /// What is asked of the server that this route leads to.
    fn body(&self, route: &Route) -> Body<'_>;

    /// Reads the answer.
    fn read(&mut self, route: &Route, reply: &mut Reply<'_>) -> Result<Self::Answer, Malformed>;
}

/// One try.
enum Tried<T> {
    Over(T),
    /// Nothing was done, because of this.
    Again(String),
}

impl Cluster {
    /// The cluster that this coordinator knows. Nothing is asked yet.
    pub fn new(coordinator: SharedCoordinator, options: ClientOptions) -> Self {
        let timeouts = (options.connect_timeout, options.answer_timeout);
        let connections = Connections::new(options.secret.clone(), timeouts);
        let coordinator = Bound::to_first_seen(coordinator);
        Self {
            shared: Arc::new(Shared {
                map: Mutex::new(MapCache::new(coordinator.clone())),
                coordinator,
                connections,
                options,
            }),
        }
    }

    /// Its coordinator, for what administrators do. It belongs to the first cluster that it was
    /// seen to have (ID2).
    pub fn coordinator(&self) -> &Bound<SharedCoordinator> {
        &self.shared.coordinator
    }

    /// Makes a table, of which a master gives the regions to servers: operations wait for that.
    /// Three round trips to the coordinator.
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

    /// A table that there is. Two round trips to the coordinator.
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

    /// Drops a table and all its records. Its servers do that by and by.
    ///
    /// # Errors
    /// As of [`open_table`](Self::open_table).
    pub fn drop_table(&self, name: &str) -> Result<(), ClientError> {
        let coordinator = &self.shared.coordinator;
        let table = admin::table_named(coordinator, name)?;
        Ok(admin::drop_table(coordinator, table)?)
    }

    /// All tables that are not being dropped, by name. One round trip to the coordinator.
    ///
    /// # Errors
    /// Those of the coordinator.
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

    /// Finds the server and asks it, again and again while there is none (CP21, KQ3). One round
    /// trip where the map is right.
    pub(crate) fn ask<A: Ask>(
        &self,
        table: &PersistentTable,
        place: Place<'_>,
        ask: &mut A,
    ) -> Result<A::Answer, ClientError> {
        let since = Instant::now();
        let mut rest = REST.0;
        loop {
            let last = match self.look(table, place) {
                Ok(Lookup::Found(route)) => match self.try_at(&route, table, ask)? {
                    Tried::Over(answer) => return Ok(answer),
                    Tried::Again(how) => how,
                },
                Ok(Lookup::NotServed) => "its region has no primary now".to_owned(),
                Ok(Lookup::NoTable) => {
                    let name = table.name().to_owned();
                    return Err(ClientError::TableGone { name });
                }
                // The coordinator may be back before our patience is at an end.
                Err(error) => error.to_string(),
            };
            let waited = since.elapsed();
            if waited >= self.shared.options.patience {
                let waited_ms = waited.as_millis() as u64;
                return Err(ClientError::NotServed { waited_ms, last });
            }
            thread::sleep(rest);
            rest = (rest * 2).min(REST.1);
        }
    }

    fn look(
        &self,
        table: &PersistentTable,
        place: Place<'_>,
    ) -> Result<Lookup, farleaf_cluster::ClusterError> {
        let table: TableId = table.id();
        match place {
            Place::At(key) => self.map().lookup(table, key),
            Place::Below(key) => self.map().lookup_below(table, key),
        }
    }

    fn try_at<A: Ask>(
        &self,
        route: &Route,
        table: &PersistentTable,
        ask: &mut A,
    ) -> Result<Tried<A::Answer>, ClientError> {
        let connections = &self.shared.connections;
        let cluster = || self.shared.coordinator.cluster().and_then(ClusterId::tag);
        let mut way = match connections.take(&route.address, cluster) {
            Ok(way) => way,
            Err(error) => {
                connections.forget(&route.address);
                self.map().lost(route);
                return again(error);
            }
        };
        let Way {
            connection,
            request,
            ..
        } = &mut way;
        let body = ask.body(route);
        let is_read = body.is_read();
        let header = Header {
            table: route.table,
            region: route.region,
            epoch: route.epoch,
            incarnation: table.incarnation(),
            is_durable: table.durability() == Durability::Sync,
            // Who has one replica, and says memory, means it.
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
                    return again(error);
                }
                return Err(unknown(&server(), &error));
            }
        };
        let outcome = self.outcome(route, (bytes, table), ask);
        let outcome = outcome.map_err(|error| match error {
            Answered::Malformed(Malformed(how)) if is_read => ClientError::Malformed {
                server: server(),
                how,
            },
            Answered::Malformed(Malformed(how)) => ClientError::OutcomeUnknown {
                how: format!("{} gave no answer that can be: {how}", server()),
            },
            Answered::Failed(how) => ClientError::Failed {
                server: server(),
                how,
            },
            Answered::Error(error) => error,
        })?;
        connections.give_back(&route.address, way);
        Ok(outcome)
    }

    /// What an answer means.
    fn outcome<A: Ask>(
        &self,
        route: &Route,
        (bytes, table): (&[u8], &PersistentTable),
        ask: &mut A,
    ) -> Result<Tried<A::Answer>, Answered> {
        let mut reply = Reply::decode(bytes).map_err(Answered::Malformed)?;
        match std::mem::replace(&mut reply.status, Status::Done) {
            Status::Done => {
                let answer = ask.read(route, &mut reply).map_err(Answered::Malformed)?;
                reply.end().map_err(Answered::Malformed)?;
                Ok(Tried::Over(answer))
            }
            Status::Stale(stale) => {
                let after = self.map().stale(route, stale);
                Ok(Tried::Again(match after {
                    AfterStale::LookAgain => format!(
                        "{} at {} does not serve its region, or not any more",
                        route.server, route.address
                    ),
                    AfterStale::AskAgain => "its new primary does not know of it yet".to_owned(),
                }))
            }
            Status::OtherTable => {
                let name = table.name().to_owned();
                Err(Answered::Error(ClientError::OtherTable { name }))
            }
            Status::NotNow(how) => {
                // It may take long, and be somebody else's by then.
                self.map().lost(route);
                Ok(Tried::Again(how))
            }
            Status::Refused(how) => Err(Answered::Error(ClientError::Refused { how })),
            Status::Failed { is_unknown, how } if is_unknown => {
                Err(Answered::Error(ClientError::OutcomeUnknown { how }))
            }
            Status::Failed { how, .. } => Err(Answered::Failed(how)),
        }
    }
}

/// What was not done may be tried again, unless it will be the same for ever.
fn again<T>(error: WireError) -> Result<Tried<T>, ClientError> {
    match error {
        WireError::RequestTooLarge { .. }
        | WireError::NotProven { .. }
        | WireError::NoSecret { .. }
        | WireError::Version { .. } => Err(ClientError::Refused {
            how: error.to_string(),
        }),
        error => Ok(Tried::Again(error.to_string())),
    }
}

/// What an answer said that is no answer.
enum Answered {
    Malformed(Malformed),
    Failed(String),
    Error(ClientError),
}
