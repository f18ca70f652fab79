//! What all replicas of a server have in common.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farleaf_cluster::ClusterError;
use farleaf_cluster::admin;
use farleaf_cluster::coordinator::{Bound, SharedCoordinator};
use farleaf_cluster::ids::{ClusterId, ServerId};
use farleaf_cluster::record::{ServerRecord, server_key};
use farleaf_lsm::EngineOptions;
use farleaf_lsm::follow::WriteFault;
use farleaf_replica::ReplicationOptions;
use farleaf_wire::{ConnectOptions, Connection, Membership, Secret, WireError};

use crate::open_storage::OpenStorage;

/// For how long another server's answer is waited for.
const PEER_ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
const PEER_CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// How replicas work.
#[derive(Clone, Debug)]
pub(crate) struct ReplicaOptions {
    pub(crate) engine: EngineOptions,
    pub(crate) replication: ReplicationOptions,
    /// Buffers for log segments, 2 MiB each, of each backup.
    pub(crate) slot_count: u64,
    /// A backup that cannot be reached, or filled, for so long has failed.
    pub(crate) link_patience: Duration,
    /// A backup's memory that does not answer for so long is lost.
    pub(crate) answer_time_max: Duration,
    /// What the secrets of backups' memory are made from, besides keys for each attachment: a
    /// secret that only servers know, or else the cluster's.
    pub(crate) memory_secret: Option<Secret>,
    /// RS8: how often a replica that has nothing else to do reads 2 MiB of its disk.
    pub(crate) scrub_interval: Duration,
    /// A mistake that a test plants in what backups write.
    pub(crate) write_fault: WriteFault,
    /// RS14: the same for a copy that was never verified.
    pub(crate) first_scrub_interval: Duration,
}

pub(crate) struct Context {
    pub(crate) coordinator: Bound<SharedCoordinator>,
    /// Another one only when a cluster of an older version is adopted, before anything is open.
    cluster: Mutex<ClusterId>,
    pub(crate) server: ServerId,
    /// Where its own listeners are.
    pub(crate) host: IpAddr,
    /// What other servers, and clients, prove to know: what was given, not what was made.
    pub(crate) secret: Option<Secret>,
    pub(crate) regions: std::path::PathBuf,
    pub(crate) open_storage: OpenStorage,
    pub(crate) options: ReplicaOptions,
    addresses: Mutex<BTreeMap<ServerId, SocketAddr>>,
    /// RS14: when a replica took a step of a first verification last.
    verified_at: Mutex<Option<Instant>>,
}

impl Context {
    pub(crate) fn new(
        coordinator: Bound<SharedCoordinator>,
        (cluster, server): (ClusterId, ServerId),
        (host, secret): (IpAddr, Option<Secret>),
        (regions, open_storage): (std::path::PathBuf, OpenStorage),
        options: ReplicaOptions,
    ) -> Self {
        Self {
            coordinator,
            cluster: Mutex::new(cluster),
            server,
            host,
            secret,
            regions,
            open_storage,
            options,
            addresses: Mutex::default(),
            verified_at: Mutex::default(),
        }
    }

    /// RS14: takes a turn for a step of a first verification: all replicas of the server together
    /// take one in each interval, so that hundreds of regions leave the disk to others, too.
    pub(crate) fn may_verify(&self) -> bool {
        let now = Instant::now();
        let verified_at = self.verified_at.lock();
        let mut verified_at = verified_at.unwrap_or_else(PoisonError::into_inner);
        let interval = self.options.first_scrub_interval;
        let may = verified_at.is_none_or(|at| now - at >= interval);
        if may {
            *verified_at = Some(now);
        }
        may
    }

    /// The cluster that the server belongs to.
    pub(crate) fn cluster(&self) -> ClusterId {
        *self.cluster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes on with the identifier that the cluster was given (ID1).
    pub(crate) fn adopt(&self, cluster: ClusterId) {
        *self.cluster.lock().unwrap_or_else(PoisonError::into_inner) = cluster;
    }

    fn addresses(&self) -> MutexGuard<'_, BTreeMap<ServerId, SocketAddr>> {
        self.addresses
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a server is: no round trip if that is known.
    pub(crate) fn address_of(&self, server: ServerId) -> Result<SocketAddr, String> {
        if let Some(address) = self.addresses().get(&server) {
            return Ok(*address);
        }
        let read = admin::read::<ServerRecord>(&self.coordinator, &server_key(server));
        let read = read.map_err(|error: ClusterError| error.to_string())?;
        let record = read.ok_or_else(|| format!("{server} is not registered"))?;
        let address = resolve(&record.record.address)?;
        self.addresses().insert(server, address);
        Ok(address)
    }

    /// It may be somewhere else by now.
    pub(crate) fn forget_address(&self, server: ServerId) {
        self.addresses().remove(&server);
    }

    /// A connection to another server.
    pub(crate) fn connect(&self, address: SocketAddr) -> Result<Connection, WireError> {
        let options = ConnectOptions {
            secret: self.secret.clone(),
            membership: self
                .cluster()
                .tag()
                .map_or_else(Membership::default, Membership::of),
            connect_timeout: PEER_CONNECT_TIMEOUT,
            answer_timeout: PEER_ANSWER_TIMEOUT,
        };
        Connection::connect(&address.to_string(), &options)
    }
}

fn resolve(address: &str) -> Result<SocketAddr, String> {
    use std::net::ToSocketAddrs as _;
    let mut resolved = address
        .to_socket_addrs()
        .map_err(|error| format!("{address} is no address: {error}"))?;
    resolved
        .next()
        .ok_or_else(|| format!("{address} is the address of nothing"))
}
