//! Servers as processes of their own: the test binary again, playing another part.

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
use farleaf_wire::Secret;
use rustix::process::{Pid, Signal, kill_process};

const DIRECTORY: &str = "FARLEAF_TEST_DIRECTORY";
const NUMBER: &str = "FARLEAF_TEST_NUMBER";
const COORDINATOR: &str = "FARLEAF_TEST_COORDINATOR";
const ADDRESS: &str = "FARLEAF_TEST_ADDRESS";

/// Something comes about in this time, or never.
const PATIENCE: Duration = Duration::from_mins(1);
const LOOK_PAUSE: Duration = Duration::from_millis(10);

/// What all processes of a trial know.
///
/// # Panics
/// Never: it is long enough.
pub fn secret() -> Secret {
    Secret::from_text("the secret of these tests").expect("long enough")
}

/// Leases of a second.
pub fn terms() -> LeaseTerms {
    LeaseTerms {
        time_to_live: Duration::from_secs(1),
        ..LeaseTerms::default()
    }
}

/// What a server's process is told.
#[derive(Clone, Debug)]
pub struct Part {
    /// Where its data are.
    pub directory: PathBuf,
    /// Which server it is.
    pub number: u64,
    /// What it is to know its coordinator by.
    pub coordinator: String,
    /// Where it listens.
    pub address: SocketAddr,
}

impl Part {
    /// What this process was told by the one that started it.
    ///
    /// # Panics
    /// No fleet has started it.
    pub fn told() -> Self {
        let variable = |name| std::env::var(name).expect("a test starts this");
        Self {
            directory: PathBuf::from(variable(DIRECTORY)),
            number: variable(NUMBER).parse().expect("a number"),
            coordinator: variable(COORDINATOR),
            address: variable(ADDRESS).parse().expect("an address"),
        }
    }

    /// Says that the server is up, and waits until the test ends, or its process does.
    ///
    /// # Panics
    /// The way to the test cannot be read.
    pub fn play(self) {
        eprintln!("up");
        let mut rest = Vec::new();
        std::io::stdin().read_to_end(&mut rest).expect("a pipe");
    }
}

/// Where and how servers of a fleet run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The test of this binary that plays a server ([`Part::told`]).
    pub part: &'static str,
    /// What servers know the coordinator by.
    pub coordinator: String,
    /// What stands before the command that starts a server, by server; it must give its process to
    /// that.
    pub prefixes: Vec<Vec<String>>,
    /// Where servers listen, by server; the others on free ports of the loopback.
    pub addresses: Vec<SocketAddr>,
}

impl Plan {
    /// On this machine, all alike.
    pub fn here(part: &'static str, coordinator: &str) -> Self {
        Self {
            part,
            coordinator: coordinator.to_owned(),
            prefixes: Vec::new(),
            addresses: Vec::new(),
        }
    }
}

/// A cluster whose servers are processes.
#[derive(Debug)]
pub struct Fleet {
    /// As the test reaches it.
    pub coordinator: SharedCoordinator,
    /// Those that run.
    pub servers: Vec<Option<Process>>,
    plan: Plan,
    scratch: tempfile::TempDir,
}

/// A server's process, killed when dropped.
#[derive(Debug)]
pub struct Process(Child);

impl Process {
    /// Has the system stop it, or go on with it.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.0);
        kill_process(pid, signal).expect("it is our child");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may be dead.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Fleet {
    /// Starts so many servers of a cluster that was founded.
    pub fn start(coordinator: SharedCoordinator, plan: Plan, server_count: usize) -> Self {
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

    /// Where a server's data are.
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
        let mut said = Vec::new();
        let is_up = lines.by_ref().map_while(Result::ok).any(|line| {
            said.push(line);
            said.last().is_some_and(|line| line == "up")
        });
        assert!(is_up, "server {} did not start: {said:#?}", index + 1);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                eprintln!("server {}: {line}", index + 1);
            }
        });
        self.servers[index] = Some(Process(child));
    }

    /// Kills a server's process: it has no time for anything.
    pub fn kill(&mut self, index: usize) {
        drop(self.servers[index].take().expect("it runs"));
    }

    /// A client of the test's own process.
    pub fn client(&self) -> Cluster {
        client(self.coordinator.clone())
    }

    /// What the coordinator has.
    pub fn view(&self) -> View {
        view(&self.coordinator)
    }

    /// The server that is primary of the first region of a table.
    pub fn primary(&self, table: &PersistentTable) -> Option<usize> {
        let view = self.view();
        let primary = view.regions_of(table.id()).first()?.primary?;
        let ServerId(number) = primary.server;
        Some(number as usize - 1)
    }

    /// Waits until all regions of a table have so many replicas, all in sync and alive.
    pub fn wait_whole(&self, table: &PersistentTable, replica_count: usize) {
        wait_whole(&self.coordinator, table, replica_count);
    }
}

/// A client by this way to the coordinator.
pub fn client(coordinator: SharedCoordinator) -> Cluster {
    let options = ClientOptions {
        secret: Some(secret()),
        ..ClientOptions::default()
    };
    Cluster::new(coordinator, options)
}

/// What a coordinator has, asked again and again while it does not answer.
///
/// # Panics
/// It does not answer for long.
pub fn view(coordinator: &SharedCoordinator) -> View {
    let since = Instant::now();
    loop {
        match coordinator.range("") {
            Ok(snapshot) => return View::of(snapshot.revision, &snapshot.entries),
            Err(error) => assert!(since.elapsed() < PATIENCE, "{error}"),
        }
        std::thread::sleep(LOOK_PAUSE);
    }
}

/// The epochs of a table's regions.
pub fn epochs(coordinator: &SharedCoordinator, table: &PersistentTable) -> Vec<Epoch> {
    let view = view(coordinator);
    let regions = view.regions_of(table.id());
    regions.iter().map(|region| region.epoch).collect()
}

/// Waits until something holds for all regions of a table.
///
/// # Panics
/// It does not for long.
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
        assert!(since.elapsed() < PATIENCE, "{regions:#?}");
        std::thread::sleep(LOOK_PAUSE);
    }
}

/// Waits until all regions of a table have so many replicas, all in sync and alive.
///
/// # Panics
/// They have not for long.
pub fn wait_whole(coordinator: &SharedCoordinator, table: &PersistentTable, replica_count: usize) {
    wait_regions(coordinator, table, |view, region| {
        region.members().count() == replica_count
            && region.replicas().count() == replica_count
            && region.replicas().all(|it| view.is_alive(it))
    });
}
