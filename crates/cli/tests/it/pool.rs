//! Runs the program, in a runtime directory of the test's own.

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

/// Longer than anything here takes, on a host that does much else.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// Lines of a file.
pub(crate) fn lines(items: impl IntoIterator<Item = impl Display>) -> String {
    items.into_iter().fold(String::new(), |mut text, item| {
        writeln!(text, "{item}").expect("in memory");
        text
    })
}

/// What a command did.
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
    /// Its stdout; it must have succeeded and have nothing to tell on stderr.
    pub(crate) fn quietly(self) -> String {
        assert_eq!(
            (self.status, self.stderr.as_str()),
            (Some(0), ""),
            "{self:?}"
        );
        self.stdout
    }
}

/// A directory for sockets, and for the files of a test.
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

    /// A command in this place, not started.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.command_of(env!("CARGO_BIN_EXE_farleaf"));
        command.args(arguments);
        command
    }

    /// Another program in this place, not started.
    pub(crate) fn command_of(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for variable in [
            "FARLEAF_POOL",
            "FARLEAF_CLUSTER",
            "FARLEAF_TABLE",
            "FARLEAF_LOG",
            "FARLEAF_SECRET",
            "FARLEAF_SECRET_FILE",
        ] {
            command.env_remove(variable);
        }
        command
            .current_dir(self.path())
            .env("FARLEAF_RUNTIME_DIR", self.runtime_directory())
            .stdin(Stdio::null());
        command
    }

    /// Runs it.
    pub(crate) fn farleaf(&self, arguments: &[&str]) -> Ran {
        self.command(arguments)
            .output()
            .expect("the program starts")
            .into()
    }

    /// Runs it with this stdin.
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

    /// A file in it, for this user alone.
    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.path().join(name);
        std::fs::write(&path, content).expect("a file can be written");
        std::fs::set_permissions(path, Permissions::from_mode(0o600)).expect("it is this user's");
    }

    /// Serves a pool from it.
    pub(crate) fn serve(&self, arguments: &[&str]) -> Server {
        self.start(&[&["serve"], arguments].concat())
    }

    /// Starts a command that serves.
    pub(crate) fn start(&self, arguments: &[&str]) -> Server {
        Self::start_command(self.command(arguments))
    }

    /// The same of a command that is not started yet.
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

/// A serving process, killed when dropped.
pub(crate) struct Server {
    child: Child,
    /// Its first line.
    pub(crate) ready: String,
    _stdout: BufReader<ChildStdout>,
}

impl Server {
    /// The address of its pool for clients by tcp, as its first line tells it.
    pub(crate) fn network_pool(&self) -> String {
        let (_, after) = self.ready.split_once(" and tcp:").expect(&self.ready);
        let address = after.split(',').next().expect("a beginning");
        format!("tcp:{address}")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        send(&self.child, signal);
    }

    /// Waits for its end: its exit status, `None` after a fatal signal, and its stderr.
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

/// Waits for the end of a process with a piped stderr, which must come.
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

/// Starts a command that makes files in the directory `scratch`, and ends it by a signal some time
/// after it has: it ends by that, and nothing is left of its files.
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
