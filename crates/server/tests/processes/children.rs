//! Servers as processes of their own: this test binary again, playing another part.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use farleaf_client::{ClientOptions, Cluster, PersistentTable};
use farleaf_cluster::admin;
use farleaf_cluster::coordinator::served::{CoordinatorService, RemoteCoordinator};
use farleaf_cluster::coordinator::{Coordinator as _, Embedded, SharedCoordinator};
use farleaf_cluster::ids::ServerId;
use farleaf_cluster::lease::LeaseTerms;
use farleaf_cluster::record::WishKind;
use farleaf_cluster::record::region::Key;
use farleaf_cluster::view::View;
use farleaf_lsm::EngineOptions;
use farleaf_server::{RegionServer, ServerOptions};
use farleaf_wire::{ConnectOptions, ListenOptions, Listener, Secret, Server};

const DIRECTORY: &str = "FARLEAF_TEST_DIRECTORY";
const NUMBER: &str = "FARLEAF_TEST_NUMBER";
const COORDINATOR: &str = "FARLEAF_TEST_COORDINATOR";

fn secret() -> Secret {
    Secret::from_text("the secret of these tests").expect("long enough")
}

fn terms() -> LeaseTerms {
    LeaseTerms {
        time_to_live: Duration::from_secs(1),
        ..LeaseTerms::default()
    }
}

/// A cluster whose servers are processes.
pub(crate) struct Fleet {
    pub(crate) coordinator: SharedCoordinator,
    service: Server,
    pub(crate) servers: Vec<Option<Process>>,
    scratch: tempfile::TempDir,
}

/// A server's process, killed when dropped.
pub(crate) struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may be dead.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Fleet {
    pub(crate) fn start(server_count: usize) -> Self {
        let coordinator = SharedCoordinator::new(Embedded::default(), "the test's");
        admin::found(&coordinator).expect("a new cluster");
        let mut options = ListenOptions::at(SocketAddr::from(([127, 0, 0, 1], 0)));
        options.secret = Some(secret());
        let listener = Listener::bind(&options).expect("a free port");
        let service = CoordinatorService::new(coordinator.clone());
        let service = listener.serve(Arc::new(service)).expect("threads");
        let mut fleet = Self {
            coordinator,
            service,
            servers: Vec::new(),
            scratch: tempfile::tempdir().expect("a scratch directory"),
        };
        for index in 0..server_count {
            fleet.servers.push(None);
            fleet.start_server(index);
        }
        fleet
    }

    pub(crate) fn directory(&self, index: usize) -> PathBuf {
        self.scratch.path().join(format!("server-{index}"))
    }

    /// Starts a server, and waits until it listens.
    pub(crate) fn start_server(&mut self, index: usize) {
        let binary = std::env::current_exe().expect("this test has a file");
        let part = ["children::play_a_server", "--exact", "--include-ignored"];
        let mut child = Command::new(binary)
            .args(part)
            .arg("--nocapture")
            .env(DIRECTORY, self.directory(index))
            .env(NUMBER, (index + 1).to_string())
            .env(COORDINATOR, self.service.address().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("this test can be started again");
        let stderr = child.stderr.take().expect("it is piped");
        let mut lines = BufReader::new(stderr).lines();
        let is_up = lines.any(|line| line.is_ok_and(|line| line == "up"));
        assert!(is_up, "server {index} did not start");
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                eprintln!("server {}: {line}", index + 1);
            }
        });
        self.servers[index] = Some(Process(child));
    }

    /// Kills a server's process: it has no time for anything.
    pub(crate) fn kill(&mut self, index: usize) {
        drop(self.servers[index].take().expect("it runs"));
    }

    pub(crate) fn client(&self) -> Cluster {
        let options = ClientOptions {
            secret: Some(secret()),
            ..ClientOptions::default()
        };
        Cluster::new(self.coordinator.clone(), options)
    }

    fn view(&self) -> View {
        let snapshot = self.coordinator.range("").expect("it is in this process");
        View::of(snapshot.revision, &snapshot.entries)
    }

    /// The server that is primary of the first region of a table.
    pub(crate) fn primary(&self, table: &PersistentTable) -> Option<usize> {
        let view = self.view();
        let primary = view.regions_of(table.id()).first()?.primary?;
        let ServerId(number) = primary.server;
        Some(number as usize - 1)
    }

    pub(crate) fn region_count(&self, table: &PersistentTable) -> usize {
        self.view().regions_of(table.id()).len()
    }

    /// Wishes that the region which has a key be split there.
    pub(crate) fn wish_split(&self, table: &PersistentTable, at: Vec<u8>) {
        let view = self.view();
        let regions = view.regions_of(table.id());
        let found = regions.iter().find(|region| region.covers(&at));
        let region = found.expect("every key is in a region").region;
        let kind = WishKind::Split {
            table: table.id(),
            region,
            at: Key(at),
        };
        admin::wish(&self.coordinator, kind).expect("it is in this process");
    }

    /// Waits until all regions of a table have so many replicas, all in sync and alive.
    pub(crate) fn wait_whole(&self, table: &PersistentTable, replica_count: usize) {
        let since = Instant::now();
        loop {
            let view = self.view();
            let regions = view.regions_of(table.id());
            let is_whole = regions.iter().all(|region| {
                region.members().count() == replica_count
                    && region.replicas().count() == replica_count
                    && region.replicas().all(|it| view.is_alive(it))
            });
            if is_whole && !regions.is_empty() {
                return;
            }
            let waited = since.elapsed();
            assert!(waited < Duration::from_secs(60), "{regions:#?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The part of a server: what a process does that the tests start; a test that was not started by
/// one has none to play.
#[test]
#[ignore = "a part that other tests have processes play"]
fn play_a_server() {
    let variable = |name| std::env::var(name).expect("a test starts this");
    let mut options = ServerOptions::new(&PathBuf::from(variable(DIRECTORY)));
    options.number = Some(variable(NUMBER).parse().expect("a number"));
    options.secret = Some(secret());
    options.terms = terms();
    options.slot_count = 2;
    options.link_patience = Duration::from_secs(3);
    options.engine = EngineOptions {
        l0_size_bytes_max: 1 << 20,
        l0_entry_count_max: 2048,
        ..EngineOptions::new()
    };
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    let connect = ConnectOptions {
        secret: Some(secret()),
        ..ConnectOptions::default()
    };
    let remote = RemoteCoordinator::connect(&variable(COORDINATOR), &connect);
    let coordinator = SharedCoordinator::new(remote.expect("the test serves it"), "the test's");
    let server = RegionServer::start(coordinator, &options).expect("it can be started");
    eprintln!("up");
    // Until the test ends, or its process does.
    let mut rest = Vec::new();
    std::io::stdin().read_to_end(&mut rest).expect("a pipe");
    server.stop();
}
