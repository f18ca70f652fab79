//! Child processes of tests: this test binary, started with another role.
//!
//! Two things need a separate process. A *scene* is a test whose sockets must be in their own
//! directory: the directory comes from the environment, which can be set safely only for a new
//! process. A *child* is a peer that a test wants to kill. It reports on stderr, because stdout
//! belongs to the test harness. It ends when its stdin does, and so also when the test that started
//! it dies.

use std::io::{BufRead, BufReader, Lines, Read, Write, stdin};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};

use farleaf_base::{NodeId, OwnerWord, WordAddr};
use farleaf_fabric::mapped::{MappedEndpoint, MappedMemory};
use farleaf_fabric::shm::ShmClient;
use farleaf_fabric::{Batch, Control};

use crate::network::NetworkNode;
use crate::node::{Node, Sessions, pool};

const DIRECTORY: &str = "FARLEAF_RUNTIME_DIR";
const SCENE: &str = "FARLEAF_TEST_SCENE";
const PART: &str = "FARLEAF_TEST_PART";
const POOL: &str = "FARLEAF_TEST_POOL";

/// Number of words to which a [`Part::Adder`] adds, and of its additions.
pub(crate) const ADD_COUNT: u64 = 20_000;

fn this_test_binary() -> Command {
    Command::new(std::env::current_exe().expect("this test has a file"))
}

/// Runs `body` in a process whose pools are in a new directory, which does not exist yet. `test` is
/// the full name of the calling test.
pub(crate) fn scene(test: &str, body: impl FnOnce(&Path)) {
    if std::env::var_os(SCENE).is_some_and(|scene| scene == test) {
        let directory = std::env::var_os(DIRECTORY).expect("set with the scene");
        return body(&PathBuf::from(directory));
    }
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let output = this_test_binary()
        .args([test, "--exact", "--nocapture"])
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
}

/// Role of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Serves the pool.
    Server,
    /// Registers a session and reports it; closes it on "close", and drops its connection on "hang
    /// up".
    Session,
    /// Registers, adds 1 to word 8 [`ADD_COUNT`] times, and writes its session to word 16.
    Adder,
    /// Serves `tcp` on loopback with the tests' secret, and reports the address.
    NetworkServer,
}

impl Part {
    const ALL: [Self; 4] = [
        Self::Server,
        Self::Session,
        Self::Adder,
        Self::NetworkServer,
    ];
}

/// A running child, killed when dropped.
pub(crate) struct Peer {
    child: Child,
    said: Lines<BufReader<ChildStderr>>,
}

impl Peer {
    pub(crate) fn start(part: Part, pool: &str) -> Self {
        let mut child = this_test_binary()
            .args([
                "children::play_a_part",
                "--exact",
                "--ignored",
                "--nocapture",
            ])
            .env(PART, format!("{part:?}"))
            .env(POOL, pool)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("this test can be started again");
        let stderr = child.stderr.take().expect("piped");
        Self {
            child,
            said: BufReader::new(stderr).lines(),
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the next line that the child reports.
    pub(crate) fn hear(&mut self) -> String {
        let line = self.said.next().expect("the child ended without a word");
        line.expect("the child says text")
    }

    /// Returns the session that the child reports.
    pub(crate) fn hear_session(&mut self) -> OwnerWord {
        let said = self.hear();
        let word = said
            .strip_prefix("session ")
            .and_then(|word| word.parse().ok());
        OwnerWord::from_word(word.unwrap_or_else(|| panic!("the child said '{said}'")))
    }

    /// Sends an order to the child and waits for its confirmation.
    pub(crate) fn tell(&mut self, order: &str) {
        let stdin = self.child.stdin.as_mut().expect("piped");
        writeln!(stdin, "{order}").expect("the child listens");
        assert_eq!(self.hear(), format!("did {order}"));
    }

    /// Lets the child end by itself.
    pub(crate) fn end(&mut self) -> ExitStatus {
        drop(self.child.stdin.take());
        self.child.wait().expect("a child of ours")
    }

    /// Sends SIGKILL. The process stays a zombie until this value is dropped.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("a child of ours");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "not a test: the body of the child processes that other tests start"]
fn play_a_part() {
    let part = std::env::var(PART).expect("started by a test");
    let name = std::env::var(POOL).expect("started by a test");
    match Part::ALL
        .into_iter()
        .find(|known| format!("{known:?}") == part)
    {
        Some(Part::Server) => play_server(&name),
        Some(Part::Session) => play_session(&name),
        Some(Part::Adder) => play_adder(&name),
        Some(Part::NetworkServer) => play_network_server(),
        None => panic!("there is no part '{part}'"),
    }
}

fn play_server(name: &str) {
    let node = Node::start(&pool(name), Sessions::default());
    match &node {
        Ok(_) => eprintln!("serving"),
        Err(error) => eprintln!("{error}"),
    }
    let mut rest = Vec::new();
    stdin().read_to_end(&mut rest).expect("the test's pipe");
}

fn play_network_server() {
    let node = NetworkNode::start();
    eprintln!("{}", node.address);
    let mut rest = Vec::new();
    stdin().read_to_end(&mut rest).expect("the test's pipe");
}

fn play_session(name: &str) {
    let (client, _memory, _) = ShmClient::connect(&pool(name)).expect("the test serves it");
    let owner = client.register_session().expect("a session");
    eprintln!("session {}", owner.word());
    let mut client = Some(client);
    for order in stdin().lines() {
        let order = order.expect("the test says text");
        match (order.as_str(), &client) {
            ("close", Some(connected)) => connected.close_session(owner).expect("it is ours"),
            ("hang up", Some(_)) => client = None,
            _ => panic!("cannot '{order}'"),
        }
        eprintln!("did {order}");
    }
}

fn play_adder(name: &str) {
    let (client, memory, size_bytes) = ShmClient::connect(&pool(name)).expect("it is served");
    let memory = MappedMemory::map_shared(memory, size_bytes).expect("a mapping");
    let endpoint = MappedEndpoint::new(memory.into());
    let owner = client.register_session().expect("a session");
    let mut batch = Batch::new();
    for _ in 0..ADD_COUNT {
        batch.clear();
        batch.fetch_add(WordAddr::new(NodeId(0), 8), 1);
        endpoint
            .execute_now(&mut batch)
            .expect("inside of the memory");
    }
    batch.clear();
    batch.write_word(WordAddr::new(NodeId(0), 16), owner.word());
    endpoint
        .execute_now(&mut batch)
        .expect("inside of the memory");
    client.close_session(owner).expect("it is ours");
    eprintln!("session {}", owner.word());
}
