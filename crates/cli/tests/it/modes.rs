//! Tests of file modes: other users of the host cannot read what servers create, whatever the
//! umask.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::cluster::address_of;
use crate::pool::{Place, Server, lines};

/// Starts a server with umask 000.
fn start_wide(place: &Place, arguments: &[&str]) -> Server {
    let inner = place.command(arguments);
    let mut command = Command::new("sh");
    command.args(["-c", r#"umask 000; exec "$0" "$@""#]);
    command.arg(inner.get_program()).args(inner.get_args());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.current_dir(place.path()).stdin(Stdio::null());
    Place::start_command(command)
}

/// Adds a path and everything below it.
fn everything(path: &Path, found: &mut Vec<PathBuf>) {
    found.push(path.to_owned());
    if path.is_dir() {
        for entry in fs::read_dir(path).expect("it can be listed") {
            everything(&entry.expect("listed").path(), found);
        }
    }
}

/// Returns the files and directories below these that other users can access, and the number of
/// all.
fn wide(place: &Place, names: &[&str]) -> (Vec<PathBuf>, usize) {
    let mut found = Vec::new();
    for name in names {
        everything(&place.path().join(name), &mut found);
    }
    let count = found.len();
    found.retain(|path| fs::symlink_metadata(path).is_ok_and(|it| it.mode() & 0o077 != 0));
    (found, count)
}

const DIRECTORIES: [&str; 3] = ["data-1", "data-2", "elsewhere"];

fn start(place: &Place, number: usize, more: &[&str]) -> Server {
    let (directory, number) = (format!("data-{number}"), number.to_string());
    let own = ["region", "serve", "--data", &directory, "--number", &number];
    let small = ["--l0-size", "1MiB", "--lease", "1", "--buffers", "2"];
    start_wide(place, &[&own[..], &small, more].concat())
}

/// Promise: only its user can access the files of a region server, in its directory and its
/// coordinator's, even with umask 000. That includes logs, trees, manifests, notes and locks, of
/// primaries and backups. A server that finds wider modes logs one warning, and tightens them.
#[test]
fn data_are_closed_to_other_users() {
    let place = Place::new();
    let open = fs::create_dir(place.path().join("data-2"));
    open.expect("an operator makes it, with the mode that is usual");
    let coordinator = ["--listen", "0", "--coordinator", "dir:elsewhere"];
    let mut first = start(&place, 1, &[&coordinator[..], INIT].concat());
    let cluster = format!("tcp:{}", address_of(&first));
    let second = ["--listen", "0", "--coordinator", &cluster];
    let mut servers = [&mut first, &mut start(&place, 2, &second)];
    let farleaf = |arguments: &[&str]| {
        let ran = place.farleaf(&[&["--cluster", &cluster], arguments].concat());
        assert_eq!(ran.status, Some(0), "{ran:?}");
    };
    farleaf(&["table", "create", "t", "--replicas", "2", "--engine", "lsm"]);
    let records = (0..40_000).map(|number| format!("k{number:06}\t{number:0>60}"));
    place.file("records.tsv", lines(records));
    farleaf(&["load", "records.tsv", "-t", "t"]);
    farleaf(&["put", "last", "x", "-t", "t", "--durability", "sync"]);
    let (found, count) = wide(&place, &DIRECTORIES);
    assert_eq!((found, count > 20), (Vec::new(), true), "of {count}");
    let mut said = Vec::new();
    for server in servers.iter_mut().rev() {
        server.signal(Signal::TERM);
        said.push(server.end().1);
    }
    let has_warned = |said: &str| said.matches("other users could access").count();
    // A warning for the directory that existed.
    assert_eq!([&said[0], &said[1]].map(|it| has_warned(it)), [1, 0]);
    assert!(said[0].contains("(1 of them"), "{}", said[0]);
    let (found, _) = wide(&place, &DIRECTORIES);
    assert_eq!(found, Vec::<PathBuf>::new());

    let mut all = Vec::new();
    for name in ["data-1", "elsewhere"] {
        everything(&place.path().join(name), &mut all);
    }
    for path in &all {
        let mode = if path.is_dir() { 0o755 } else { 0o644 };
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("it is ours");
    }
    let mut again = start(&place, 1, &coordinator);
    let (found, _) = wide(&place, &DIRECTORIES);
    assert_eq!(found, Vec::<PathBuf>::new());
    again.signal(Signal::TERM);
    let said = again.end().1;
    // One warning for the server's directory, one for the coordinator's.
    assert_eq!(has_warned(&said), 2, "{said}");
    assert!(
        said.contains("data-1") && said.contains("elsewhere"),
        "{said}"
    );
}

/// Option with which the first server of a cluster creates it.
const INIT: &[&str] = &["--init"];

/// Promise: only its user can access the directory of sockets, locks and secrets of a memory node,
/// and everything in it, even with umask 000.
#[test]
fn sockets_and_secrets_are_closed_to_other_users() {
    let place = Place::new();
    let _server = start_wide(&place, &["serve", "--size", "8MiB", "--listen", "0"]);
    let (found, count) = wide(&place, &["run"]);
    assert_eq!((found, count > 2), (Vec::new(), true), "of {count}");
}
