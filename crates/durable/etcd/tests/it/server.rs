//! Private etcd of a test, on free ports of loopback and in a temporary directory.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use farleaf_cluster::coordinator::Coordinator;
use farleaf_etcd::{Etcd, EtcdOptions};

/// Etcd process that is running or stopped.
pub(crate) struct Server {
    directory: tempfile::TempDir,
    client_port: u16,
    peer_port: u16,
    child: Option<Child>,
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    listener.local_addr().expect("it has an address").port()
}

impl Server {
    /// Starts an etcd and waits until it replies; prints a line and returns `None` if etcd is not
    /// installed.
    pub(crate) fn start_or_skip() -> Option<Self> {
        if Command::new("etcd").arg("--version").output().is_err() {
            println!("skipped: etcd not found");
            return None;
        }
        let mut server = Self {
            directory: tempfile::tempdir().expect("a directory can be made"),
            client_port: free_port(),
            peer_port: free_port(),
            child: None,
        };
        server.start();
        Some(server)
    }

    /// Starts the process on its existing directory.
    pub(crate) fn start(&mut self) {
        let client = format!("http://{}", self.address());
        let peer = format!("http://127.0.0.1:{}", self.peer_port);
        let log = std::fs::File::create(self.directory.path().join("log"));
        let child = Command::new("etcd")
            .args(["--name", "test", "--logger", "zap"])
            .arg("--data-dir")
            .arg(self.directory.path().join("data"))
            .args([
                "--listen-client-urls",
                &client,
                "--advertise-client-urls",
                &client,
            ])
            .args([
                "--listen-peer-urls",
                &peer,
                "--initial-advertise-peer-urls",
                &peer,
            ])
            .args(["--initial-cluster", &format!("test={peer}")])
            // etcd grants leases for at least one and a half election timeouts.
            .args(["--heartbeat-interval", "50", "--election-timeout", "500"])
            .stdout(Stdio::null())
            .stderr(log.expect("a log can be made"))
            .spawn();
        self.child = Some(child.expect("etcd can be started"));
        let start = Instant::now();
        loop {
            let options = EtcdOptions::default();
            let etcd = Etcd::connect(&[&self.address()], &options);
            if etcd.is_ok_and(|it| it.range("").is_ok()) {
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(30), "{}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Kills the process, like a crash.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("it can be killed");
            child.wait().expect("it ends");
        }
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.client_port)
    }

    pub(crate) fn connect(&self, namespace: &str) -> Etcd {
        let options = EtcdOptions {
            namespace: namespace.to_owned(),
            answer_timeout: Duration::from_secs(5),
        };
        Etcd::connect(&[&self.address()], &options).expect("it answers")
    }

    fn log(&self) -> String {
        let log = std::fs::read_to_string(self.directory.path().join("log"));
        log.unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
