//! Servers of a cluster, and a client.

use std::cell::Cell;
use std::path::PathBuf;
use std::thread;

use farleaf_client::{Cluster, PersistentTable, PersistentTableOptions};
use farleaf_cluster::admin;
use farleaf_cluster::coordinator::{Embedded, SharedCoordinator};
use farleaf_cluster::ids::ServerId;
use farleaf_lsm::EngineOptions;
use farleaf_server::{RegionServer, ServerError, ServerOptions};
use farleaf_trial::fleet::{self, secret, terms};
use farleaf_trial::load::split_keys;

use crate::rest;

/// Changes the options of the server with this index.
type Change = dyn Fn(usize, &mut ServerOptions);

/// A cluster whose servers are all in this process.
pub(crate) struct TestCluster {
    pub(crate) coordinator: SharedCoordinator,
    /// The servers, dropped before their directories.
    pub(crate) servers: Vec<Option<RegionServer>>,
    scratch: tempfile::TempDir,
    change: Box<Change>,
    is_unlike: Cell<bool>,
}

impl Drop for TestCluster {
    /// Checks at the end of a test with servers at rest that all in-sync replicas have the same
    /// files.
    fn drop(&mut self) {
        if thread::panicking() || self.is_unlike.get() {
            return;
        }
        let runs = |ServerId(number): ServerId| {
            let index = number as usize - 1;
            let is_running = self.servers.get(index).is_some_and(Option::is_some);
            is_running.then(|| self.directory(index))
        };
        let index = self.options(0).replication.index;
        rest::wait_equal(&self.coordinator, index, runs);
    }
}

impl TestCluster {
    pub(crate) fn new(server_count: usize) -> Self {
        Self::with(server_count, |_, _| {})
    }

    pub(crate) fn with(
        server_count: usize,
        change: impl Fn(usize, &mut ServerOptions) + 'static,
    ) -> Self {
        let coordinator = SharedCoordinator::new(Embedded::default(), "here");
        Self::over(coordinator, server_count, change)
    }

    /// Creates a cluster with an empty coordinator.
    pub(crate) fn over(
        coordinator: SharedCoordinator,
        server_count: usize,
        change: impl Fn(usize, &mut ServerOptions) + 'static,
    ) -> Self {
        // `RUST_LOG=info` shows the servers' log messages.
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        let _ = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_thread_names(true)
            .with_writer(std::io::stderr)
            .try_init();
        admin::create_cluster(&coordinator).expect("a new cluster");
        let mut test_cluster = Self {
            coordinator,
            scratch: tempfile::tempdir().expect("a scratch directory"),
            servers: Vec::new(),
            change: Box::new(change),
            is_unlike: Cell::new(false),
        };
        for index in 0..server_count {
            test_cluster.servers.push(None);
            test_cluster.start(index);
        }
        test_cluster
    }

    /// Skips the comparison of files at the end of the test, for the reason `why`.
    pub(crate) fn ends_with_replicas_unlike(&self, why: &str) {
        eprintln!("replicas are not compared: {why}");
        self.is_unlike.set(true);
    }

    pub(crate) fn directory(&self, index: usize) -> PathBuf {
        self.scratch.path().join(format!("server-{index}"))
    }

    pub(crate) fn options(&self, index: usize) -> ServerOptions {
        let mut options = ServerOptions::new(&self.directory(index));
        options.number = Some(index as u64 + 1);
        options.secret = Some(secret());
        options.terms = terms();
        options.slot_count = 2;
        options.link_patience = std::time::Duration::from_secs(3);
        options.engine = EngineOptions {
            l0_size_bytes_max: 1 << 20,
            l0_entry_count_max: 4096,
            ..EngineOptions::new()
        };
        (self.change)(index, &mut options);
        options
    }

    pub(crate) fn try_start(&mut self, index: usize) -> Result<(), ServerError> {
        let server = RegionServer::start(self.coordinator.clone(), &self.options(index))?;
        self.servers[index] = Some(server);
        Ok(())
    }

    pub(crate) fn start(&mut self, index: usize) {
        self.try_start(index).expect("it can be started");
    }

    pub(crate) fn stop(&mut self, index: usize) {
        self.servers[index].take().expect("it runs").stop();
    }

    pub(crate) fn client(&self) -> Cluster {
        fleet::client(self.coordinator.clone())
    }

    /// Creates a table of one region, or of three.
    pub(crate) fn table(&self, replica_count: usize, is_split: bool) -> PersistentTable {
        let options = PersistentTableOptions {
            replica_count,
            split_keys: if is_split { split_keys() } else { Vec::new() },
        };
        let table = self.client().create_table("t", &options);
        let table = table.expect("a new table");
        self.wait_replicated(&table, replica_count);
        table
    }

    /// Returns the server of the primary of a table's first region.
    pub(crate) fn primary(&self, table: &PersistentTable) -> usize {
        let view = fleet::view(&self.coordinator);
        let primary = view.regions_of(table.id())[0].primary;
        let ServerId(number) = primary.expect("it has one").server;
        number as usize - 1
    }

    /// Waits until all regions of a table have this number of replicas, all in sync.
    pub(crate) fn wait_replicated(&self, table: &PersistentTable, replica_count: usize) {
        fleet::wait_replicated(&self.coordinator, table, replica_count);
    }
}
