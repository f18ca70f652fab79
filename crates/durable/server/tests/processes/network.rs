//! A network of a test's own: servers in namespaces that a bridge connects, and cut connections.
//!
//! Everything is created in a namespace that begins and ends with the test.

use std::fs::File;
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::process::Command;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Variable that is set in a namespace of the test's own.
const INSIDE: &str = "FARLEAF_TEST_OWN_NETWORK";
/// Variable that is set where everything needed must exist.
const REQUIRED: &str = "FARLEAF_TEST_NETEM_REQUIRED";
/// Address of the test's own host, where the coordinator is.
pub(crate) const OUTSIDE: [u8; 4] = [10, 77, 0, 254];
const PORT: u16 = 7000;
/// Unused link address: packets to it are lost without an error.
const NOBODY: &str = "02:00:00:00:00:99";

/// Creates a bridge, and three hosts connected to it, with names in the namespace.
const SCRIPT: &str = "
set -e
mount -t tmpfs none /run
ip link set lo up
ip link add bridge0 type bridge
ip addr add 10.77.0.254/24 dev bridge0
ip link set bridge0 up
for host in 1 2 3; do
    ip netns add host$host
    ip link add link$host type veth peer name eth0 netns host$host
    ip link set link$host master bridge0
    ip link set link$host up
    ip -n host$host addr add 10.77.0.$host/24 dev eth0
    ip -n host$host link set eth0 up
    ip -n host$host link set lo up
done
exec \"$@\"
";

/// Runs a test in a network of its own, if this machine supports that; otherwise prints the reason.
pub(crate) fn on_a_network(test: &str, body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    let unshared = || {
        let mut command = Command::new("unshare");
        command.args(["-rnm", "/bin/sh", "-c", SCRIPT, "sh"]);
        command
    };
    let why = match unshared().arg("true").output() {
        Ok(probed) if probed.status.success() => None,
        Ok(probed) => Some(String::from_utf8_lossy(&probed.stderr).trim().to_owned()),
        Err(error) => Some(format!("unshare: {error}")),
    };
    if let Some(why) = why {
        assert!(std::env::var_os(REQUIRED).is_none(), "{test}: {why}");
        // Not by a macro, whose output the test harness captures.
        let _ = writeln!(
            std::io::stderr(),
            "{test}: skipped: no namespaces here: {why}"
        );
        return;
    }
    let this = std::env::current_exe().expect("this test has a file");
    let mut inside = unshared();
    inside.arg(this).args([test, "--exact", "--nocapture"]);
    let output = inside.env(INSIDE, "1").output().expect("as the probe did");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{test}:\n{text}");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(stdout.contains("1 passed"), "{test}:\n{stdout}");
    eprint!("{text}");
}

fn namespace(index: usize) -> String {
    format!("/run/netns/host{}", index + 1)
}

/// Returns the words before a command of the host with this index.
pub(crate) fn prefix(index: usize) -> Vec<String> {
    vec!["nsenter".to_owned(), format!("--net={}", namespace(index))]
}

/// Returns the address at which the server of that host listens.
pub(crate) fn address(index: usize) -> SocketAddr {
    SocketAddr::from(([10, 77, 0, index as u8 + 1], PORT))
}

/// Moves this thread's sockets to a host.
pub(crate) fn enter(index: usize) {
    let namespace = File::open(namespace(index)).expect("the script made it");
    let kind = Some(LinkNameSpaceType::Network);
    move_into_link_name_space(namespace.as_fd(), kind).expect("it is this test's");
}

/// A host of the network: one with this index, or the test's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Host {
    At(usize),
    Outside,
}

impl Host {
    fn address(self) -> String {
        match self {
            Self::At(index) => address(index).ip().to_string(),
            Self::Outside => "10.77.0.254".to_owned(),
        }
    }

    /// Changes the neighbor entries by which this host reaches another one.
    fn neighbour(self, words: &[&str]) {
        let mut command = Command::new("ip");
        if let Self::At(index) = self {
            command.args(["-n", &format!("host{}", index + 1)]);
        }
        let device = match self {
            Self::At(_) => "eth0",
            Self::Outside => "bridge0",
        };
        command.arg("neigh").args(words).args(["dev", device]);
        let done = command.output().expect("as the script did");
        let text = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{command:?}: {text}");
    }
}

/// Cuts the connections between a host and others in both directions, so that packets are lost,
/// runs `body`, and restores them.
pub(crate) fn cut_between(host: Host, others: &[Host], body: impl FnOnce()) {
    let ways = others.iter().flat_map(|it| [(host, *it), (*it, host)]);
    let ways: Vec<_> = ways.collect();
    for (from, to) in &ways {
        let to = to.address();
        from.neighbour(&["replace", &to, "lladdr", NOBODY, "nud", "permanent"]);
    }
    body();
    for (from, to) in &ways {
        from.neighbour(&["del", &to.address()]);
    }
}
