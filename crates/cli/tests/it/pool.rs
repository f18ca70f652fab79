//! Test helpers that run the program in a runtime directory of the test's own.

use std::fmt::{Display, Write as _};
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Timeout of all waits, longer than any step takes on a busy host.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// Returns items as lines of a file.
pub(crate) fn lines(items: impl IntoIterator<Item = impl Display>) -> String {
    items.into_iter().fold(String::new(), |mut text, item| {
        writeln!(text, "{item}").expect("in memory");
        text
    })
}

/// Result of a command.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) status: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            status: output.status.code(),
            stdout: String::from_utf8(output.stdout).expect("stdout is text"),
            stderr: String::from_utf8(output.stderr).expect("stderr is text"),
        }
    }
}

impl Ran {
    /// Returns stdout; the command must have succeeded with an empty stderr.
    pub(crate) fn quietly(self) -> String {
        assert_eq!(
            (self.status, self.stderr.as_str()),
            (Some(0), ""),
            "{self:?}"
        );
        self.stdout
    }
}

/// Directory for sockets, and for the files of a test.
pub(crate) struct Place(TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("a scratch directory"))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn runtime_directory(&self) -> PathBuf {
        self.path().join("run")
    }

    /// Returns a `farleaf` command in this directory, not started.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.command_of(env!("CARGO_BIN_EXE_farleaf"));
        command.args(arguments);
        command
    }

    /// Returns a command of another program in this directory, not started.
    pub(crate) fn command_of(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for variable in [
            "FARLEAF_POOL",
            "FARLEAF_CLUSTER",
            "FARLEAF_TABLE",
            "FARLEAF_LOG",
            "FARLEAF_SECRET",
            "FARLEAF_SECRET_FILE",
            "FARLEAF_TLS_CA",
            "FARLEAF_TLS_CERT",
            "FARLEAF_TLS_KEY",
        ] {
            command.env_remove(variable);
        }
        command
            .current_dir(self.path())
            .env("FARLEAF_RUNTIME_DIR", self.runtime_directory())
            .stdin(Stdio::null());
        command
    }

    /// Runs a `farleaf` command.
    pub(crate) fn farleaf(&self, arguments: &[&str]) -> Ran {
        self.command(arguments)
            .output()
            .expect("the program starts")
            .into()
    }

    /// Runs a `farleaf` command with this stdin.
    pub(crate) fn farleaf_with_stdin(&self, arguments: &[&str], stdin: &[u8]) -> Ran {
        let mut command = self.command(arguments);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let mut pipe = child.stdin.take().expect("piped");
        pipe.write_all(stdin).expect("it reads");
        drop(pipe);
        child.wait_with_output().expect("it ends").into()
    }

    /// Writes a file in the directory that only this user can access.
    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.path().join(name);
        std::fs::write(&path, content).expect("a file can be written");
        std::fs::set_permissions(path, Permissions::from_mode(0o600)).expect("it is this user's");
    }

    /// Starts a server of a pool.
    pub(crate) fn serve(&self, arguments: &[&str]) -> Server {
        self.start(&[&["serve"], arguments].concat())
    }

    /// Starts a command that runs a server.
    pub(crate) fn start(&self, arguments: &[&str]) -> Server {
        Self::start_command(self.command(arguments))
    }

    /// Starts a prepared command that runs a server.
    pub(crate) fn start_command(mut command: Command) -> Server {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        let mut ready = String::new();
        stdout
            .read_line(&mut ready)
            .expect("it tells when it is ready");
        let mut server = Server {
            child,
            ready,
            _stdout: stdout,
        };
        let refused = server.ready.is_empty().then(|| server.end());
        assert_eq!(refused, None, "it does not serve");
        server
    }
}

/// Server process, killed when dropped.
pub(crate) struct Server {
    child: Child,
    /// First line that the server printed.
    pub(crate) ready: String,
    _stdout: BufReader<ChildStdout>,
}

impl Server {
    /// Returns the pool's address for TCP clients, from the server's first line.
    pub(crate) fn network_pool(&self) -> String {
        let (_, after) = self.ready.split_once(" and tcp:").expect(&self.ready);
        let address = after.split(',').next().expect("a beginning");
        format!("tcp:{address}")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        send(&self.child, signal);
    }

    /// Waits for the end of the server. Returns its exit status, `None` after a fatal signal, and
    /// its stderr.
    pub(crate) fn end(&mut self) -> (Option<i32>, String) {
        end(&mut self.child)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).expect("it runs");
}

/// Waits for the end of a process with a piped stderr; panics after a timeout.
pub(crate) fn end(child: &mut Child) -> (Option<i32>, String) {
    let deadline = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = child.try_wait().expect("it is ours") {
            break status;
        }
        assert!(Instant::now() < deadline, "the process does not end");
        std::thread::sleep(Duration::from_millis(5));
    };
    let mut stderr = String::new();
    let pipe = child.stderr.as_mut().expect("piped");
    pipe.read_to_string(&mut stderr).expect("stderr is text");
    (status.code(), stderr)
}

/// Starts a command that creates files in the directory `scratch`, and ends it by a signal some
/// time later. Asserts that the signal ends it, and that no files are left.
pub(crate) fn a_signal_leaves_nothing(place: &Place, arguments: &[&str], rest: Duration) {
    let scratch = place.path().join("scratch");
    fs::create_dir(&scratch).expect("made");
    let count = || fs::read_dir(&scratch).expect("there").count();
    let mut child = place
        .command(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let since = Instant::now();
    while count() == 0 {
        assert!(since.elapsed() < PATIENCE, "nothing is made");
        thread::sleep(Duration::from_millis(5));
    }
    thread::sleep(rest);
    send(&child, Signal::INT);
    let (status, _) = end(&mut child);
    assert_eq!((status, count()), (None, 0));
}
