//! Own servers of a workload, all in this process.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use farleaf::Secret;
use farleaf::persistent::{ClientOptions, Cluster, SharedCoordinator};
use farleaf_cluster::admin;
use farleaf_cluster::coordinator::Embedded;
use farleaf_lsm::EngineOptions;
use farleaf_server::{RegionServer, ServerError, ServerOptions};
use tempfile::TempDir;

use super::device::{DeviceBytes, DeviceCounters};
use super::loaded_table::{POLL_INTERVAL, WAIT_LIMIT, view};
use crate::runner::BenchError;

/// Maximal number of connections between servers, in addition to those of clients.
const PEER_CONNECTION_COUNT_MAX: usize = 1024;

/// Servers of a private cluster: a coordinator in memory, a random secret, free ports of loopback.
/// When dropped, they stop, and their files are removed.
#[derive(Debug)]
pub(super) struct OwnServers {
    // In this order: servers, then their files.
    servers: Vec<RegionServer>,
    directory: TempDir,
    counters: Arc<DeviceCounters>,
    cluster: Cluster,
}

impl OwnServers {
    /// Starts this many servers, for this many clients.
    ///
    /// # Errors
    /// The directory cannot be created, or a server cannot be started.
    pub(super) fn start(
        directory: &Path,
        server_count: usize,
        thread_count: usize,
        l0_size_bytes: usize,
    ) -> Result<Self, BenchError> {
        let failed = |source| BenchError::Directory {
            path: directory.to_owned(),
            source,
        };
        let made = tempfile::Builder::new()
            .prefix("farleaf-servers-")
            .tempdir_in(directory);
        let made = made.map_err(failed)?;
        let (secret, _) = Secret::random().map_err(failed)?;
        let coordinator = SharedCoordinator::new(Embedded::default(), "the benchmark's");
        let founded = admin::create_cluster(&coordinator).map_err(ServerError::from);
        founded.map_err(refused(directory.to_owned()))?;
        let client = ClientOptions {
            secret: Some(secret.clone()),
            ..ClientOptions::default()
        };
        let mut own = Self {
            servers: Vec::with_capacity(server_count),
            directory: made,
            counters: Arc::default(),
            cluster: Cluster::new(coordinator.clone(), client),
        };
        for index in 0..server_count {
            let path = own.directory.path().join(format!("server-{}", index + 1));
            let mut options = ServerOptions::new(&path);
            options.number = Some(index as u64 + 1);
            options.secret = Some(secret.clone());
            options.connection_count_max = thread_count + PEER_CONNECTION_COUNT_MAX;
            options.storage = own.counters.opener();
            options.engine = EngineOptions::new().with_l0_size(l0_size_bytes);
            // Server 0 stops first, and is the only candidate: without a leader, no region moves to
            // the other servers.
            options.is_candidate = index == 0;
            let server = RegionServer::start(coordinator.clone(), &options);
            own.servers.push(server.map_err(refused(path))?);
        }
        own.wait_alive();
        Ok(own)
    }

    /// Waits until all servers have their leases, so that a table finds them. If this times out,
    /// the creation of the table reports the error.
    fn wait_alive(&self) {
        let since = Instant::now();
        let alive_count = || view(&self.cluster).map_or(0, |view| view.lives.len());
        while alive_count() < self.servers.len() && since.elapsed() < WAIT_LIMIT {
            thread::sleep(POLL_INTERVAL);
        }
    }

    pub(super) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    pub(super) fn device_bytes(&self) -> DeviceBytes {
        self.counters.bytes()
    }

    /// Stops the servers and removes their files.
    ///
    /// # Errors
    /// Something in their directory cannot be removed.
    pub(super) fn stop(mut self) -> Result<(), BenchError> {
        self.servers.drain(..).for_each(RegionServer::stop);
        let path = self.directory.path().to_owned();
        let closed = self.directory.close();
        closed.map_err(|source| BenchError::Directory { path, source })
    }
}

fn refused(path: PathBuf) -> impl FnOnce(ServerError) -> BenchError {
    |source| BenchError::Server {
        path,
        source: Box::new(source),
    }
}
