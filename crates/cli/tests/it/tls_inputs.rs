//! Options of TLS that contradict each other or would have no effect, and unusable certificates;
//! `bad_inputs` has the checks.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use crate::bad_inputs::{Case, case, check};
use crate::pool::{Place, Ran, end, send};

/// Address at which nothing listens.
const NOBODY: &str = "tcp:127.0.0.1:1";

#[rustfmt::skip]
pub(crate) const TLS: &[Case] = &[
    case(
        &["--pool", NOBODY, "--tls-cert", "none.pem", "--tls-key", "none.pem", "get", "1"],
        2,
        &["--tls-cert: connections are encrypted only with the authorities", "set --tls-ca"],
    ),
    case(
        &["--cluster", NOBODY, "--tls-key", "tls/key.pem", "get", "k"],
        2,
        &["--tls-key: connections are encrypted only with", "set --tls-ca"],
    ),
    case(
        &["--pool", NOBODY, "--tls-ca", "tls/ca.pem", "--tls-cert", "tls/cert.pem", "get", "1"],
        2,
        &["--tls-cert: a certificate needs its private key", "--tls-key or FARLEAF_TLS_KEY"],
    ),
    case(
        &["--pool", NOBODY, "--tls-ca", "tls/ca.pem", "--tls-key", "tls/key.pem", "get", "1"],
        2,
        &["--tls-key: a private key needs its certificate", "--tls-cert or FARLEAF_TLS_CERT"],
    ),
    case(
        &["--pool", NOBODY, "--tls-cert", "tls/cert.pem", "get", "--tls-key", "tls/key.pem", "1", "--tls-ca", "tls/ca.pem"],
        1,
        &["cannot be reached"],
    ),
    case(&["--pool", NOBODY, "--tls-ca", "/dev/zero", "get", "1"], 1, &["'/dev/zero'", "larger than 1 MiB"]),
    case(
        &["--pool", NOBODY, "--tls-ca", "tls/ca.pem", "--tls-cert", "tls/cert.pem", "--tls-key", "other/key.pem", "get", "1"],
        1,
        &["'tls/cert.pem'", "the private key in 'other/key.pem' does not belong to it"],
    ),
    case(
        &["--pool", NOBODY, "--tls-ca", "tls/ca.pem", "--tls-cert", "tls/cert.pem", "--tls-key", "encrypted.pem", "get", "1"],
        1,
        &["'encrypted.pem'", "is encrypted", "openssl pkey -in FILE -out OTHER-FILE"],
    ),
    case(&["--pool", NOBODY, "--tls-ca", "cut.pem", "get", "1"], 1, &["'cut.pem'", "the file is cut off"]),
    case(
        &["serve", "--listen", "0", "--tls-ca", "tls/ca.pem"],
        2,
        &["--tls-ca: a server encrypts connections only with a certificate", "--tls-cert and --tls-key"],
    ),
    case(
        &["serve", "--listen", "0", "--tls-cert", "tls/cert.pem", "--tls-key", "tls/key.pem", "--tls-ca", "tls/ca.pem"],
        2,
        &["--tls-ca: without --tls-verify-clients", "add --tls-verify-clients"],
    ),
    case(&["serve", "--tls-verify-clients"], 2, &["--tls-verify-clients cannot be used without --listen"]),
    case(&["serve", "--insecure"], 2, &["--insecure cannot be used without --listen"]),
    case(
        &["serve", "--listen", "0", "--insecure", "--tls-cert", "tls/cert.pem", "--tls-key", "tls/key.pem"],
        2,
        &["--tls-cert: with a certificate", "--insecure has no effect", "leave one of them out"],
    ),
    case(
        &["serve", "--listen", "192.0.2.1:0", "--verbs", "--secret-file", "good.secret", "--tls-cert", "tls/cert.pem", "--tls-key", "tls/key.pem"],
        2,
        &["--verbs: other hosts can reach 192.0.2.1:0", "RDMA", "unencrypted, also with TLS", "--insecure"],
    ),
    case(
        &["serve", "--pool", "pool.toml", "--node", "0", "--tls-ca", "tls/ca.pem"],
        2,
        &["--tls-ca: a node of a pool with encryption needs a certificate, too"],
    ),
    case(
        &["region", "serve", "--data", "d", "--init", "--listen", "0", "--tls-ca", "tls/ca.pem"],
        2,
        &["--tls-ca: a region server with encryption needs a certificate, too"],
    ),
    case(
        &["region", "serve", "--data", "d", "--init", "--listen", "0", "--tls-cert", "tls/cert.pem", "--tls-key", "tls/key.pem"],
        2,
        &["--tls-cert: a region server connects to others, too; set --tls-ca"],
    ),
    case(
        &["region", "serve", "--data", "d", "--coordinator", "etcd:10.0.0.5:2379", "--tls-ca", "tls/ca.pem"],
        2,
        &["--tls-ca cannot be used with etcd:10.0.0.5:2379", "not encrypted", "TLS proxy"],
    ),
    case(
        &["--cluster", "etcd:10.0.0.5:2379", "--tls-ca", "tls/ca.pem", "table", "list"],
        2,
        &["--tls-ca cannot be used with etcd:10.0.0.5:2379", "not encrypted", "TLS proxy"],
    ),
    case(&["tls", "init", "tls"], 1, &["'tls/ca-key.pem' already exists", "choose another directory"]),
    case(&["tls", "init", "d", "--name", "*.10.0.0.5"], 2, &["--name: '*.10.0.0.5' cannot be the name"]),
    case(&["tls", "add", "none", "--name", "b.example"], 1, &["'none/ca-key.pem'", "`farleaf tls init DIR`"]),
    case(&["tls", "add", "tls"], 2, &["--name <HOST>"]),
];

/// Returns a directory with certificates of two authorities.
fn place_with_certificates() -> Place {
    let place = Place::new();
    place.farleaf(&["tls", "init", "tls"]).quietly();
    place.farleaf(&["tls", "init", "other"]).quietly();
    place
}

const TLS_FILES: [(&str, &str); 3] = [
    ("FARLEAF_TLS_CA", "tls/ca.pem"),
    ("FARLEAF_TLS_CERT", "tls/cert.pem"),
    ("FARLEAF_TLS_KEY", "tls/key.pem"),
];

fn run_with(place: &Place, variables: &[(&str, &str)], arguments: &[&str]) -> Ran {
    let mut command = place.command(arguments);
    command.envs(variables.iter().copied());
    command.output().expect("the program starts").into()
}

#[track_caller]
fn assert_refused(ran: &Ran, status: i32, fragments: &[&str]) {
    assert_eq!(ran.status, Some(status), "{ran:?}");
    for fragment in fragments {
        assert!(ran.stderr.contains(fragment), "no {fragment:?} in {ran:?}");
    }
}

/// Promise: options of TLS that have no effect, or contradict each other, are refused before any
/// connection, and the error for an unusable file names it.
#[test]
fn needless_options_of_tls_are_refused() {
    let place = place_with_certificates();
    place.file("good.secret", "a secret that is long enough");
    place.file(
        "pool.toml",
        "[[node]]\naddress = '127.0.0.1:1'\nsize = '16MiB'\n",
    );
    let key = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIGb\n-----END ENCRYPTED PRIVATE KEY-----\n";
    place.file("encrypted.pem", key);
    place.file("cut.pem", "-----BEGIN CERTIFICATE-----\nMIGb\n");
    for case in TLS {
        check(&place, case);
    }
    assert!(!place.path().join("d").exists());
}

/// Promise: variables that are meant for other commands change nothing, and an error about a value
/// from a variable names the variable.
#[test]
fn variables_of_tls_are_for_commands_that_use_them() {
    let place = place_with_certificates();
    let [authority, certificate, key] = TLS_FILES;
    run_with(&place, &[certificate], &["secret", "new"]).quietly();
    let mut serve = place.command(&["serve", "--listen", "0", "--size", "8MiB"]);
    serve.env(authority.0, authority.1);
    let server = Place::start_command(serve);
    let list = ["--pool", &server.network_pool(), "table", "list"];
    run_with(&place, &[certificate, key], &list).quietly();
    let shm = ["table", "list"];
    run_with(&place, &[certificate], &shm).quietly();
    let unpaired = run_with(&place, &[authority, certificate], &list);
    assert_refused(&unpaired, 2, &["FARLEAF_TLS_CERT: a certificate needs"]);
    let region = ["region", "serve", "--data", "d", "--init", "--listen", "0"];
    let half = run_with(&place, &[authority], &region);
    assert_refused(&half, 2, &["FARLEAF_TLS_CA: a region server with"]);
    let insecure = ["serve", "--listen", "0", "--insecure", "--name", "other"];
    let both = run_with(&place, &[certificate, key], &insecure);
    assert_refused(&both, 2, &["FARLEAF_TLS_CERT: with a certificate"]);
}

/// Promise: a private key that others can read causes one warning that says how to fix it.
#[test]
fn a_key_that_others_can_read_is_warned_of() {
    let place = place_with_certificates();
    let path = place.path().join("tls/key.pem");
    std::fs::set_permissions(path, Permissions::from_mode(0o644)).expect("it is this user's");
    let ran = run_with(&place, &TLS_FILES, &["--pool", NOBODY, "table", "list"]);
    let warning = "read or change 'tls/key.pem'; run `chmod 600 tls/key.pem`";
    assert_eq!(ran.stderr.matches(warning).count(), 1, "{ran:?}");
}

/// Makes pipes with these names, and returns options that read certificates from them.
fn pipes(place: &Place) -> [&'static str; 6] {
    let made = Command::new("mkfifo")
        .args(["ca", "cert", "key"])
        .current_dir(place.path())
        .status();
    assert!(made.expect("it starts").success());
    ["--tls-ca", "ca", "--tls-cert", "cert", "--tls-key", "key"]
}

/// Promise: certificates may come from pipes, because each file is read once.
#[test]
fn certificates_are_read_from_pipes_once() {
    let place = place_with_certificates();
    let pipes = pipes(&place);
    for (pipe, file) in ["ca", "cert", "key"].into_iter().zip(TLS_FILES) {
        let (pipe, file) = (place.path().join(pipe), place.path().join(file.1));
        // It waits for the reader.
        thread::spawn(move || std::fs::write(pipe, std::fs::read(file).expect("there")));
    }
    let serve = ["region", "serve", "--data", "d", "--init", "--listen", "0"];
    let line = [&serve[..], &pipes, &["--tls-verify-clients"]].concat();
    let server = place.start(&line);
    assert!(
        server.ready.starts_with("serving d at "),
        "{}",
        server.ready
    );
}

/// Promise: a server that waits for a pipe with its certificate can be stopped.
#[test]
fn a_server_that_waits_for_a_pipe_can_be_stopped() {
    let place = place_with_certificates();
    let pipes = pipes(&place);
    let line = [
        "serve",
        "--listen",
        "0",
        "--size",
        "8MiB",
        "--tls-verify-clients",
    ];
    let mut command = place.command(&[&line[..], &pipes].concat());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("started");
    thread::sleep(Duration::from_millis(300));
    send(&child, Signal::TERM);
    // The signal ended it, so there is no exit status.
    assert_eq!(end(&mut child).0, None);
}

/// Promise: the paths that `tls init` and `tls add` print work in a shell, each name is printed
/// once, and clients of the authority accept a server with the added certificate.
#[test]
fn an_added_certificate_serves() {
    let place = Place::new();
    let twice = ["--name", "a.example", "--name", "a.example"];
    let init = [&["tls", "init", "my tls"][..], &twice].concat();
    let created = place.farleaf(&init).quietly();
    assert_eq!(created.matches("a.example").count(), 1, "{created}");
    assert!(created.contains("--tls-key 'my tls/key.pem'"), "{created}");
    let add = ["tls", "add", "my tls", "--name", "*.example", "--out", "b"];
    let created = place.farleaf(&add).quietly();
    assert!(created.contains("--tls-cert 'my tls/b.pem'"), "{created}");
    let own = [
        "--tls-cert",
        "my tls/b.pem",
        "--tls-key",
        "my tls/b-key.pem",
    ];
    let serve = ["--listen", "0", "--size", "8MiB"];
    let server = place.serve(&[&serve[..], &own].concat());
    let client = [
        "--pool",
        &server.network_pool(),
        "--tls-ca",
        "my tls/ca.pem",
    ];
    place
        .farleaf(&[&client[..], &["table", "list"]].concat())
        .quietly();
}
