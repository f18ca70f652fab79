//! Processes that tests start: this test binary again, in another role.
//!
//! A *scene* is a test in its own process, so that it has its own directory of sockets, which comes
//! from the environment. A *child* is a process that a scene may kill. It reports lines on stderr,
//! because the test harness uses stdout, and ends when its stdin is closed, also when the scene
//! dies.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

const DIRECTORY: &str = "FARLEAF_RUNTIME_DIR";
const SCENE: &str = "FARLEAF_TEST_SCENE";
const PART: &str = "FARLEAF_TEST_PART";
const ARGUMENTS: &str = "FARLEAF_TEST_ARGUMENTS";

/// Longest wait for a line from a child.
const WORD_TIME_MAX: Duration = Duration::from_mins(1);

fn this_test_binary() -> Command {
    Command::new(std::env::current_exe().expect("this test has a file"))
}

/// Runs `body` in a process whose pools use their own directory, with a directory for its files.
/// `test` is the full name of the calling test.
pub(crate) fn scene(test: &str, body: impl FnOnce(&Path)) {
    if std::env::var_os(SCENE).is_some_and(|scene| scene == test) {
        let directory = std::env::var_os(DIRECTORY).expect("set with the scene");
        let files = PathBuf::from(directory).with_file_name("files");
        std::fs::create_dir(&files).expect("a directory for files");
        return body(&files);
    }
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let output = this_test_binary()
        .args([test, "--exact", "--include-ignored", "--nocapture"])
        .env(SCENE, test)
        .env(DIRECTORY, scratch.path().join("run"))
        .output()
        .expect("this test can be started again");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{test}, {}:\n{text}",
        output.status
    );
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(
        stdout.contains("1 passed"),
        "{test} is not the name of the test:\n{stdout}"
    );
    eprint!("{text}");
}

/// Role of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChildRole {
    /// Memory node, run by `node::play`.
    Node,
    /// Main node of a pool of several nodes, run by `node::play_main_node`.
    MainNode,
    /// Data node, run by `node::play_data_node`.
    DataNode,
    /// Worker, run by `worker::play`.
    Worker,
    /// Loader, run by `loads::play_loader`.
    Loader,
    /// Reader, run by `loads::play_reader`.
    Reader,
    /// Splitter, run by `reuse::play_splitter`.
    Splitter,
    /// Lock holder, run by `deaths::play_holder`.
    Holder,
    /// Process that dies at once, run by `deaths::play_short_lived`.
    ShortLived,
    /// Process that is stopped, run by `stopped::play_sleeper`.
    Sleeper,
}

impl ChildRole {
    const ALL: [Self; 10] = [
        Self::Node,
        Self::MainNode,
        Self::DataNode,
        Self::Worker,
        Self::Loader,
        Self::Reader,
        Self::Splitter,
        Self::Holder,
        Self::ShortLived,
        Self::Sleeper,
    ];
}

/// Running child, killed when dropped.
pub(crate) struct ChildProcess {
    child: Child,
    said: Receiver<String>,
    name: String,
}

impl ChildProcess {
    pub(crate) fn start(part: ChildRole, arguments: &str) -> Self {
        let mut child = this_test_binary()
            .args([
                "children::play_a_part",
                "--exact",
                "--ignored",
                "--nocapture",
            ])
            .env(PART, format!("{part:?}"))
            .env(ARGUMENTS, arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("this test can be started again");
        let stderr = child.stderr.take().expect("piped");
        let (sender, said) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self {
            child,
            said,
            name: format!("{part:?} {arguments}"),
        }
    }

    /// Waits for the child's next line and returns it.
    pub(crate) fn hear(&self) -> String {
        match self.said.recv_timeout(WORD_TIME_MAX) {
            Ok(line) => line,
            Err(RecvTimeoutError::Disconnected) => panic!("{} ended without a word", self.name),
            Err(RecvTimeoutError::Timeout) => panic!("{} says nothing", self.name),
        }
    }

    /// Panics if the child has ended or has reported an unexpected line.
    pub(crate) fn assert_silent(&mut self) {
        let ended = self.child.try_wait().expect("a child of ours");
        if let Some(status) = ended {
            let said: Vec<String> = self.said.iter().collect();
            panic!("{} ended, {status}:\n{}", self.name, said.join("\n"));
        }
    }

    /// Closes the child's stdin, checks that it ends successfully, and returns the lines that it
    /// reported meanwhile.
    pub(crate) fn end(mut self) -> Vec<String> {
        drop(self.child.stdin.take());
        let mut said = Vec::new();
        loop {
            match self.said.recv_timeout(WORD_TIME_MAX) {
                Ok(line) => said.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("{} does not end: {said:?}", self.name),
            }
        }
        let status = self.child.wait().expect("a child of ours");
        assert!(
            status.success(),
            "{}, {status}:\n{}",
            self.name,
            said.join("\n")
        );
        said
    }

    /// Waits until the child ends by a signal that it raises itself.
    pub(crate) fn die(mut self) {
        let status = self.child.wait().expect("a child of ours");
        let said: Vec<String> = self.said.iter().collect();
        assert_eq!(status.code(), None, "{}:\n{}", self.name, said.join("\n"));
    }

    /// Stops or continues the process. When this returns, all threads of a stopped process have
    /// stopped.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("a child of ours");
        let is_over = || signal != Signal::STOP || has_stopped(self.child.id());
        while !is_over() {
            std::thread::yield_now();
        }
    }

    /// Kills the child by SIGKILL, and prints its output if it had panicked.
    pub(crate) fn kill(mut self) {
        self.assert_silent();
        self.child.kill().expect("a child of ours");
        self.child.wait().expect("a child of ours");
        let said: Vec<String> = self.said.iter().collect();
        assert!(
            said.iter().all(|line| !line.contains("panicked")),
            "{}:\n{}",
            self.name,
            said.join("\n")
        );
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a flag that becomes true when the child's stdin is closed.
pub(crate) fn stop_flag() -> &'static AtomicBool {
    static STOPPED: AtomicBool = AtomicBool::new(false);
    std::thread::spawn(|| {
        wait_for_the_end();
        STOPPED.store(true, Ordering::Relaxed);
    });
    &STOPPED
}

/// Returns when the child's stdin is closed.
pub(crate) fn wait_for_the_end() {
    let mut rest = Vec::new();
    // An error means the same.
    let _ = std::io::stdin().read_to_end(&mut rest);
}

#[test]
#[ignore = "not a test: the body of the child processes that other tests start"]
fn play_a_part() {
    let part = std::env::var(PART).expect("started by a test");
    let arguments = std::env::var(ARGUMENTS).expect("started by a test");
    let arguments: Vec<&str> = arguments.split_whitespace().collect();
    match ChildRole::ALL
        .into_iter()
        .find(|known| format!("{known:?}") == part)
    {
        Some(ChildRole::Node) => crate::node::play(&arguments),
        Some(ChildRole::MainNode) => crate::node::play_main_node(&arguments),
        Some(ChildRole::DataNode) => crate::node::play_data_node(&arguments),
        Some(ChildRole::Worker) => crate::worker::play(&arguments),
        Some(ChildRole::Loader) => crate::loads::play_loader(&arguments),
        Some(ChildRole::Reader) => crate::loads::play_reader(&arguments),
        Some(ChildRole::Splitter) => crate::reuse::play_splitter(&arguments),
        Some(ChildRole::Holder) => crate::deaths::play_holder(&arguments),
        Some(ChildRole::ShortLived) => crate::deaths::play_short_lived(&arguments),
        Some(ChildRole::Sleeper) => crate::stopped::play_sleeper(&arguments),
        None => panic!("there is no part '{part}'"),
    }
}

/// Returns whether each thread of a process is stopped (`T` behind its name) or gone.
fn has_stopped(pid: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("a child of ours");
    tasks.flatten().all(|task| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        let state = stat
            .rsplit_once(") ")
            .and_then(|(_, rest)| rest.chars().next());
        state.is_none_or(|state| matches!(state, 'T' | 't' | 'Z' | 'X'))
    })
}
