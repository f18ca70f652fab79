//! State shared by all replicas of a server.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use farleaf_cluster::ClusterError;
use farleaf_cluster::admin;
use farleaf_cluster::coordinator::{Bound, SharedCoordinator};
use farleaf_cluster::ids::{ClusterId, RegionId, ReplicaNumber, ServerId};
use farleaf_cluster::record::{ServerRecord, server_key};
use farleaf_net::request::{ConnectOptions, Connection, Membership, NetError};
use farleaf_net::tls::{TlsClient, host_of};

use crate::directory::ServerDirectory;
use crate::options::ServerOptions;
use crate::place::ReplicaStore;
use crate::sync::lock;

/// Time to wait for another server's reply.
const PEER_ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
const PEER_CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Address of another server.
#[derive(Clone, Debug)]
pub(crate) struct PeerAddress {
    pub(crate) socket: SocketAddr,
    /// Host that the server is registered with, which its certificate is for.
    pub(crate) host: String,
}

pub(crate) struct Context {
    pub(crate) coordinator: Bound<SharedCoordinator>,
    /// Cluster of the server. It changes only when a cluster of an older version is adopted, before
    /// anything is open.
    cluster: Mutex<ClusterId>,
    pub(crate) server: ServerId,
    /// Address of the server's own listeners.
    pub(crate) host: IpAddr,
    pub(crate) regions: std::path::PathBuf,
    pub(crate) options: ServerOptions,
    addresses: Mutex<BTreeMap<ServerId, PeerAddress>>,
    /// Time of the last step of a first verification.
    verified_at: Mutex<Option<Instant>>,
}

impl Context {
    pub(crate) fn new(
        coordinator: Bound<SharedCoordinator>,
        directory: &ServerDirectory,
        host: IpAddr,
        options: ServerOptions,
    ) -> Self {
        Self {
            coordinator,
            cluster: Mutex::new(directory.cluster),
            server: directory.server,
            host,
            regions: directory.regions(),
            options,
            addresses: Mutex::default(),
            verified_at: Mutex::default(),
        }
    }

    /// Takes a turn for a step of a first verification. All replicas of the server together take
    /// one in each interval, so that hundreds of regions leave disk time to other work.
    pub(crate) fn may_verify(&self) -> bool {
        let now = Instant::now();
        let mut verified_at = lock(&self.verified_at);
        let interval = self.options.first_scrub_interval;
        let may = verified_at.is_none_or(|at| now - at >= interval);
        if may {
            *verified_at = Some(now);
        }
        may
    }

    /// Returns the cluster that the server belongs to.
    pub(crate) fn cluster(&self) -> ClusterId {
        *lock(&self.cluster)
    }

    /// Adopts the new identifier of the cluster.
    pub(crate) fn adopt(&self, cluster: ClusterId) {
        *lock(&self.cluster) = cluster;
    }

    /// Returns the address of a server. Costs no round trip if it is cached.
    pub(crate) fn address_of(&self, server: ServerId) -> Result<PeerAddress, String> {
        if let Some(address) = lock(&self.addresses).get(&server) {
            return Ok(address.clone());
        }
        let read = admin::read::<ServerRecord>(&self.coordinator, &server_key(server));
        let read = read.map_err(|error: ClusterError| error.to_string())?;
        let record = read.ok_or_else(|| format!("{server} is not registered"))?;
        let registered = &record.record.address;
        let address = PeerAddress {
            socket: resolve(registered)?,
            host: host_of(registered).to_owned(),
        };
        lock(&self.addresses).insert(server, address.clone());
        Ok(address)
    }

    /// Returns the directory of a replica of this server.
    pub(crate) fn replica_store(&self, region: RegionId, replica: ReplicaNumber) -> ReplicaStore {
        let storage = self.options.storage.clone();
        ReplicaStore::new(&self.regions, self.cluster(), region, replica, storage)
    }

    /// Forgets a server's address, which may have changed.
    pub(crate) fn forget_address(&self, server: ServerId) {
        lock(&self.addresses).remove(&server);
    }

    /// Connects to another server.
    pub(crate) fn connect(&self, address: &PeerAddress) -> Result<Connection, NetError> {
        let options = ConnectOptions {
            secret: self.options.secret.clone(),
            tls: self.tls_for(&address.host),
            membership: self
                .cluster()
                .tag()
                .map_or_else(Membership::default, Membership::of),
            connect_timeout: PEER_CONNECT_TIMEOUT,
            answer_timeout: PEER_ANSWER_TIMEOUT,
        };
        Connection::connect(&address.socket.to_string(), &options)
    }

    /// Returns the encryption of connections to a server that is registered with this host.
    pub(crate) fn tls_for(&self, host: &str) -> Option<TlsClient> {
        let tls = self.options.tls.as_ref();
        tls.map(|tls| tls.others.named(host))
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
