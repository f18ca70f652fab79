//! Options of a region server.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use farleaf_client::protocol::REQUEST_SIZE_BYTES_MAX;
use farleaf_cluster::lease::LeaseTerms;
use farleaf_cluster::plan::PlanOptions;
use farleaf_lsm::EngineOptions;
use farleaf_lsm::follow::WriteFault;
use farleaf_net::secret::Secret;
use farleaf_net::tls::{TlsClient, TlsServer};
use farleaf_replica::ReplicationOptions;

use crate::open_storage::OpenStorage;

/// Bounds of the time without a reply after which a backup's memory is lost; within them it is the
/// length of a lease.
const ANSWER_TIME: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(4));

/// Both sides of a server's encrypted connections. Region servers connect to each other, so each
/// needs a certificate and the authorities of the others.
#[derive(Clone, Debug)]
pub struct ServerTls {
    /// Certificate of this server, which must be valid for the host at which others reach it.
    pub own: TlsServer,
    /// Authorities that the certificates of other servers must lead to.
    pub others: TlsClient,
}

/// Configuration of a region server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Directory of the server's data.
    pub directory: PathBuf,
    /// Number for a new directory, or the number that the directory already has. Without it, a new
    /// directory gets a random one.
    pub number: Option<u64>,
    /// Address to listen at; port 0 chooses a free port.
    pub address: SocketAddr,
    /// Address at which others reach the server, if it differs.
    pub advertised: Option<String>,
    /// Secret of clients and servers, the same on all servers.
    pub secret: Option<Secret>,
    /// Secret that only servers have, the same on all servers. Primaries prove that they know it
    /// before they write into a backup's memory. Without it, `secret` is used, which clients know,
    /// too.
    pub server_secret: Option<Secret>,
    /// Encryption of all connections from and to this server.
    pub tls: Option<ServerTls>,
    /// Largest number of clients' connections.
    pub connection_count_max: usize,
    /// Largest sum of the sizes of requests and replies above 64 KiB, in bytes; at least two of the
    /// largest requests. One client (IP address) gets at most half of it
    /// ([`ListenOptions::request_memory_bytes_max`](farleaf_net::request::ListenOptions)).
    pub request_memory_bytes_max: usize,
    /// Parameters of leases, the same on all servers. A lease is at most a day.
    pub terms: LeaseTerms,
    /// Parameters for the placement of regions.
    pub plan: PlanOptions,
    /// Whether the server is a candidate for master.
    pub is_candidate: bool,
    /// Whether the server serves its coordinator to other processes.
    pub serves_coordinator: bool,
    /// Options of engines.
    pub engine: EngineOptions,
    /// Options of replication.
    pub replication: ReplicationOptions,
    /// Number of log buffers, of 2 MiB each, of each backup on this server; at least 2.
    pub slot_count: u64,
    /// Time after which a backup that cannot be reached or filled has failed.
    pub link_patience: Duration,
    /// Interval at which each idle replica reads 2 MiB of its disk, to find corruption before the
    /// data are needed.
    pub scrub_interval: Duration,
    /// Interval of such reads by a primary whose copy an older version has written and which was
    /// not verified since. It reads until the copy is verified, idle or not.
    pub first_scrub_interval: Duration,
    /// Opening of data directories: tests use disks that fail.
    #[doc(hidden)]
    pub storage: OpenStorage,
    /// A fault that a test injects into the writes of backups on this server.
    #[doc(hidden)]
    pub write_fault: WriteFault,
}

impl ServerOptions {
    /// Smallest useful [`request_memory_bytes_max`](Self::request_memory_bytes_max): two of the
    /// largest requests.
    pub const REQUEST_MEMORY_BYTES_MIN: usize = 2 * REQUEST_SIZE_BYTES_MAX;

    /// Creates options of a server with this directory, at a free port of loopback.
    pub fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            number: None,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            advertised: None,
            secret: None,
            server_secret: None,
            tls: None,
            connection_count_max: 1024,
            request_memory_bytes_max: 512 << 20,
            terms: LeaseTerms::default(),
            plan: PlanOptions::default(),
            is_candidate: true,
            serves_coordinator: false,
            engine: EngineOptions::new(),
            replication: ReplicationOptions::new(),
            slot_count: 4,
            link_patience: Duration::from_secs(10),
            scrub_interval: Duration::from_secs(5),
            first_scrub_interval: Duration::from_millis(50),
            storage: OpenStorage::default(),
            write_fault: WriteFault::default(),
        }
    }

    /// Returns the time without a reply after which a backup's memory is lost.
    pub(crate) fn answer_time_max(&self) -> Duration {
        let lease_time = self.terms.time_to_live;
        lease_time.clamp(ANSWER_TIME.0, ANSWER_TIME.1)
    }

    /// Returns the secret from which, with keys for each attachment, the secrets of backups' memory
    /// are derived.
    pub(crate) fn memory_secret(&self) -> Option<&Secret> {
        self.server_secret.as_ref().or(self.secret.as_ref())
    }
}
