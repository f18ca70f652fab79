//! Servers of a cluster, and a client.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use farleaf_client::{ClientOptions, Cluster, PersistentTable};
use farleaf_cluster::admin;
use farleaf_cluster::coordinator::{Embedded, SharedCoordinator};
use farleaf_cluster::lease::LeaseTerms;
use farleaf_lsm::EngineOptions;
use farleaf_server::{RegionServer, ServerOptions};
use farleaf_wire::Secret;

pub(crate) fn secret() -> Secret {
    Secret::from_text("the secret of these tests").expect("long enough")
}

/// A lease that is over soon, for tests that wait for that.
pub(crate) fn terms() -> LeaseTerms {
    LeaseTerms {
        time_to_live: Duration::from_secs(1),
        ..LeaseTerms::default()
    }
}

/// A cluster whose servers are all in this process.
pub(crate) struct Crew {
    pub(crate) coordinator: SharedCoordinator,
    /// Before their directories go.
    pub(crate) servers: Vec<Option<RegionServer>>,
    scratch: tempfile::TempDir,
    pub(crate) change: fn(&mut ServerOptions),
}

impl Crew {
    pub(crate) fn new(server_count: usize) -> Self {
        Self::with(server_count, |_| {})
    }

    pub(crate) fn with(server_count: usize, change: fn(&mut ServerOptions)) -> Self {
        // `RUST_LOG=info` shows what servers say.
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        let _ = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_thread_names(true)
            .try_init();
        let coordinator = SharedCoordinator::new(Embedded::default(), "here");
        admin::found(&coordinator).expect("a new cluster");
        let mut crew = Self {
            coordinator,
            scratch: tempfile::tempdir().expect("a scratch directory"),
            servers: Vec::new(),
            change,
        };
        for index in 0..server_count {
            crew.servers.push(None);
            crew.start(index);
        }
        crew
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
        options.link_patience = Duration::from_secs(3);
        options.engine = EngineOptions {
            l0_size_bytes_max: 1 << 20,
            l0_entry_count_max: 4096,
            ..EngineOptions::new()
        };
        (self.change)(&mut options);
        options
    }

    pub(crate) fn start(&mut self, index: usize) {
        let server = RegionServer::start(self.coordinator.clone(), &self.options(index));
        self.servers[index] = Some(server.expect("it can be started"));
    }

    pub(crate) fn stop(&mut self, index: usize) {
        self.servers[index].take().expect("it runs").stop();
    }

    pub(crate) fn client(&self) -> Cluster {
        let options = ClientOptions {
            secret: Some(secret()),
            ..ClientOptions::default()
        };
        Cluster::new(self.coordinator.clone(), options)
    }

    /// Waits until all regions of a table have so many replicas, all in sync.
    pub(crate) fn wait_whole(&self, table: &PersistentTable, replica_count: usize) {
        use farleaf_cluster::coordinator::Coordinator as _;
        use farleaf_cluster::view::View;
        let since = Instant::now();
        loop {
            let snapshot = self.coordinator.range("").expect("embedded");
            let view = View::of(snapshot.revision, &snapshot.entries);
            let regions = view.regions_of(table.id());
            let is_whole = regions.iter().all(|region| {
                region.members().count() == replica_count
                    && region.replicas().count() == replica_count
            });
            if is_whole && !regions.is_empty() {
                return;
            }
            let waited = since.elapsed();
            assert!(waited < Duration::from_secs(30), "{regions:#?}");
            thread::sleep(Duration::from_millis(10));
        }
    }
}
