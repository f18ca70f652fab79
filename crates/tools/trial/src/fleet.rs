//! Servers as separate processes: the test binary runs again as a server.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use farleaf_client::{ClientOptions, Cluster, PersistentTable};
use farleaf_cluster::coordinator::{Coordinator as _, SharedCoordinator};
use farleaf_cluster::ids::{Epoch, ServerId};
use farleaf_cluster::lease::LeaseTerms;
use farleaf_cluster::record::RegionRecord;
use farleaf_cluster::view::View;
use farleaf_net::secret::Secret;
use rustix::process::{Pid, Signal, kill_process};

const DIRECTORY: &str = "FARLEAF_TEST_DIRECTORY";
const NUMBER: &str = "FARLEAF_TEST_NUMBER";
const COORDINATOR: &str = "FARLEAF_TEST_COORDINATOR";
const ADDRESS: &str = "FARLEAF_TEST_ADDRESS";

/// Longest time to wait for an event.
const WAIT_LIMIT: Duration = Duration::from_mins(1);
const POLL_PAUSE: Duration = Duration::from_millis(10);

/// Returns the secret that all processes of a trial share.
///
/// # Panics
/// Never: the secret is long enough.
pub fn secret() -> Secret {
    Secret::from_text("TheSecretOfTheseTests-4815162342").expect("long enough")
}

/// Returns lease terms of one second.
pub fn terms() -> LeaseTerms {
    LeaseTerms {
        time_to_live: Duration::from_secs(1),
        ..LeaseTerms::default()
    }
}

/// Parameters of a server's process.
#[derive(Clone, Debug)]
pub struct ServerParameters {
    /// Directory of the server's data.
    pub directory: PathBuf,
    /// Number of the server.
    pub number: u64,
    /// Address of the coordinator, for the server.
    pub coordinator: String,
    /// Address at which the server listens.
    pub address: SocketAddr,
}

impl ServerParameters {
    /// Reads the parameters that the parent process has passed.
    ///
    /// # Panics
    /// If the process was not started by a fleet.
    pub fn from_parent() -> Self {
        let variable = |name| std::env::var(name).expect("a test starts this");
        Self {
            directory: PathBuf::from(variable(DIRECTORY)),
            number: variable(NUMBER).parse().expect("a number"),
            coordinator: variable(COORDINATOR),
            address: variable(ADDRESS).parse().expect("an address"),
        }
    }

    /// Reports that the server is up, and waits until the test ends, or its process does.
    ///
    /// # Panics
    /// If the pipe from the test cannot be read.
    pub fn play(self) {
        eprintln!("up");
        let mut rest = Vec::new();
        std::io::stdin().read_to_end(&mut rest).expect("a pipe");
    }
}

/// Parameters of a fleet's servers.
#[derive(Clone, Debug)]
pub struct ServerLaunchPlan {
    /// Name of the test of this binary that runs a server ([`ServerParameters::from_parent`]).
    pub part: &'static str,
    /// Address of the coordinator, for the servers.
    pub coordinator: String,
    /// Command prefixes for starting servers, by server. Each must replace its process by the
    /// command.
    pub prefixes: Vec<Vec<String>>,
    /// Addresses of the servers, by server; further servers use free ports of loopback.
    pub addresses: Vec<SocketAddr>,
}

impl ServerLaunchPlan {
    /// Returns parameters for equal servers on this machine.
    pub fn here(part: &'static str, coordinator: &str) -> Self {
        Self {
            part,
            coordinator: coordinator.to_owned(),
            prefixes: Vec::new(),
            addresses: Vec::new(),
        }
    }
}

/// Cluster whose servers are processes.
#[derive(Debug)]
pub struct ProcessCluster {
    /// Coordinator, as the test accesses it.
    pub coordinator: SharedCoordinator,
    /// Running servers.
    pub servers: Vec<Option<ServerProcess>>,
    plan: ServerLaunchPlan,
    scratch: tempfile::TempDir,
}

/// Handle of a server's process, killed when dropped.
#[derive(Debug)]
pub struct ServerProcess(Child);

impl ServerProcess {
    /// Sends a signal to stop or continue the process.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.0);
        kill_process(pid, signal).expect("it is our child");
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // Fails if the process is dead, which does not matter.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl ProcessCluster {
    /// Starts servers of an existing cluster.
    pub fn start(
        coordinator: SharedCoordinator,
        plan: ServerLaunchPlan,
        server_count: usize,
    ) -> Self {
        let mut fleet = Self {
            coordinator,
            servers: Vec::new(),
            plan,
            scratch: tempfile::tempdir().expect("a scratch directory"),
        };
        for index in 0..server_count {
            fleet.servers.push(None);
            fleet.start_server(index);
        }
        fleet
    }

    /// Returns the data directory of a server.
    pub fn directory(&self, index: usize) -> PathBuf {
        self.scratch.path().join(format!("server-{index}"))
    }

    /// Starts a server, and waits until it listens.
    pub fn start_server(&mut self, index: usize) {
        let binary = std::env::current_exe().expect("this test has a file");
        let prefix = self.plan.prefixes.get(index);
        let mut command = match prefix.map(Vec::as_slice) {
            Some([first, others @ ..]) => {
                let mut command = Command::new(first);
                command.args(others).arg(binary);
                command
            }
            _ => Command::new(binary),
        };
        let address = self.plan.addresses.get(index).copied();
        let address = address.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 0)));
        let mut child = command
            .args([self.plan.part, "--exact", "--include-ignored"])
            .arg("--nocapture")
            .env(DIRECTORY, self.directory(index))
            .env(NUMBER, (index + 1).to_string())
            .env(COORDINATOR, &self.plan.coordinator)
            .env(ADDRESS, address.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("this test can be started again");
        let stderr = child.stderr.take().expect("it is piped");
        let mut lines = BufReader::new(stderr).lines();
        let mut output = Vec::new();
        let is_up = lines.by_ref().map_while(Result::ok).any(|line| {
            output.push(line);
            output.last().is_some_and(|line| line == "up")
        });
        assert!(is_up, "server {} did not start: {output:#?}", index + 1);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                eprintln!("server {}: {line}", index + 1);
            }
        });
        self.servers[index] = Some(ServerProcess(child));
    }

    /// Kills a server's process without a shutdown.
    pub fn kill(&mut self, index: usize) {
        drop(self.servers[index].take().expect("it runs"));
    }

    /// Returns a client in the test's own process.
    pub fn client(&self) -> Cluster {
        client(self.coordinator.clone())
    }

    /// Returns the coordinator's records.
    pub fn view(&self) -> View {
        view(&self.coordinator)
    }

    /// Returns the server that is primary of a table's first region.
    pub fn primary(&self, table: &PersistentTable) -> Option<usize> {
        let view = self.view();
        let primary = view.regions_of(table.id()).first()?.primary?;
        let ServerId(number) = primary.server;
        Some(number as usize - 1)
    }

    /// Waits until all regions of a table have this number of replicas, all in sync and alive.
    pub fn wait_replicated(&self, table: &PersistentTable, replica_count: usize) {
        wait_replicated(&self.coordinator, table, replica_count);
    }
}

/// Returns a client of this coordinator.
pub fn client(coordinator: SharedCoordinator) -> Cluster {
    let options = ClientOptions {
        secret: Some(secret()),
        ..ClientOptions::default()
    };
    Cluster::new(coordinator, options)
}

/// Returns the coordinator's records; retries while it does not reply.
///
/// # Panics
/// If the coordinator does not reply for a minute.
pub fn view(coordinator: &SharedCoordinator) -> View {
    let since = Instant::now();
    loop {
        match coordinator.range("") {
            Ok(snapshot) => return View::of(snapshot.revision, &snapshot.entries),
            Err(error) => assert!(since.elapsed() < WAIT_LIMIT, "{error}"),
        }
        std::thread::sleep(POLL_PAUSE);
    }
}

/// Returns the epochs of a table's regions.
pub fn epochs(coordinator: &SharedCoordinator, table: &PersistentTable) -> Vec<Epoch> {
    let view = view(coordinator);
    let regions = view.regions_of(table.id());
    regions.iter().map(|region| region.epoch).collect()
}

/// Waits until a condition holds for all regions of a table.
///
/// # Panics
/// If it does not hold within a minute.
pub fn wait_regions(
    coordinator: &SharedCoordinator,
    table: &PersistentTable,
    holds: impl Fn(&View, &RegionRecord) -> bool,
) {
    let since = Instant::now();
    loop {
        let view = view(coordinator);
        let regions = view.regions_of(table.id());
        if !regions.is_empty() && regions.iter().all(|region| holds(&view, region)) {
            return;
        }
        assert!(since.elapsed() < WAIT_LIMIT, "{regions:#?}");
        std::thread::sleep(POLL_PAUSE);
    }
}

/// Waits until all regions of a table have this number of replicas, all in sync and alive.
///
/// # Panics
/// If they do not within a minute.
pub fn wait_replicated(
    coordinator: &SharedCoordinator,
    table: &PersistentTable,
    replica_count: usize,
) {
    wait_regions(coordinator, table, |view, region| {
        region.members().count() == replica_count
            && region.replicas().count() == replica_count
            && region.replicas().all(|it| view.is_alive(it))
    });
}
