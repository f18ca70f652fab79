//! State shared by all replicas of a server.

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

/// Time to wait for another server's reply.
const PEER_ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
const PEER_CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Options of replicas.
#[derive(Clone, Debug)]
pub(crate) struct ReplicaOptions {
    pub(crate) engine: EngineOptions,
    pub(crate) replication: ReplicationOptions,
    /// Number of log buffers, of 2 MiB each, of each backup.
    pub(crate) slot_count: u64,
    /// Time after which a backup that cannot be reached or filled has failed.
    pub(crate) link_patience: Duration,
    /// Time without a reply after which a backup's memory is lost.
    pub(crate) answer_time_max: Duration,
    /// Secret from which, with keys for each attachment, the secrets of backups' memory are
    /// derived: the servers' secret if there is one, otherwise the cluster's.
    pub(crate) memory_secret: Option<Secret>,
    /// Interval at which an idle replica reads 2 MiB of its disk.
    pub(crate) scrub_interval: Duration,
    /// A fault that a test injects into the writes of backups.
    pub(crate) write_fault: WriteFault,
    /// Interval of such reads for a copy that was never verified.
    pub(crate) first_scrub_interval: Duration,
}

pub(crate) struct Context {
    pub(crate) coordinator: Bound<SharedCoordinator>,
    /// Cluster of the server. It changes only when a cluster of an older version is adopted, before
    /// anything is open.
    cluster: Mutex<ClusterId>,
    pub(crate) server: ServerId,
    /// Address of the server's own listeners.
    pub(crate) host: IpAddr,
    /// Secret of servers and clients: the configured one, not a created one.
    pub(crate) secret: Option<Secret>,
    pub(crate) regions: std::path::PathBuf,
    pub(crate) open_storage: OpenStorage,
    pub(crate) options: ReplicaOptions,
    addresses: Mutex<BTreeMap<ServerId, SocketAddr>>,
    /// Time of the last step of a first verification.
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

    /// Takes a turn for a step of a first verification. All replicas of the server together take
    /// one in each interval, so that hundreds of regions leave disk time to other work.
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

    /// Returns the cluster that the server belongs to.
    pub(crate) fn cluster(&self) -> ClusterId {
        *self.cluster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adopts the new identifier of the cluster.
    pub(crate) fn adopt(&self, cluster: ClusterId) {
        *self.cluster.lock().unwrap_or_else(PoisonError::into_inner) = cluster;
    }

    fn addresses(&self) -> MutexGuard<'_, BTreeMap<ServerId, SocketAddr>> {
        self.addresses
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the address of a server. Costs no round trip if it is cached.
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

    /// Forgets a server's address, which may have changed.
    pub(crate) fn forget_address(&self, server: ServerId) {
        self.addresses().remove(&server);
    }

    /// Connects to another server.
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
        .map_err(|error| format!("invalid address '{address}': {error}"))?;
    resolved
        .next()
        .ok_or_else(|| format!("'{address}' does not resolve to an address"))
}
