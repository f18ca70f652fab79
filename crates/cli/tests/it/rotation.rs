//! Replacement of secrets and certificates while servers run and clients work.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::cluster::{address_of, serve_with};
use crate::pool::{Place, Ran, Server};

const TLS: &[&str] = &[
    "--tls-cert",
    "tls/cert.pem",
    "--tls-key",
    "tls/key.pem",
    "--tls-ca",
    "tls/ca.pem",
];
const CLIENT_AUTHORITY: &[&str] = &["--tls-ca", "client-ca.pem"];
const SECRETS: &[&str] = &["secret-1", "secret-2", "secret-3"];
const FIRST: &str = "the first secret of these tests";
const SECOND: &str = "the second secret of these tests";
const TIMEOUT: Duration = Duration::from_mins(1);

/// Servers of one kind, and how to reach them.
struct Rotated<'p> {
    place: &'p Place,
    /// `--pool` or `--cluster`, and the address.
    address: [String; 2],
    /// Files with the servers' secret, one for each server.
    secrets: &'p [&'p str],
    _servers: Vec<Server>,
}

/// Sets a flag when it is dropped, also by a panic.
struct SetOnDrop<'f>(&'f AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Rotated<'_> {
    fn farleaf(&self, secret: &str, authority: &[&str], arguments: &[&str]) -> Ran {
        let [option, address] = &self.address;
        let common = [option, address, "--secret-file", secret];
        self.place
            .farleaf(&[&common[..], authority, arguments].concat())
    }

    fn put(&self, key: &str) -> Ran {
        let arguments = ["put", key, key, "-t", "t"];
        self.farleaf("client-secret", CLIENT_AUTHORITY, &arguments)
    }

    /// Waits until a client with this secret and authority is served, or refused with this text.
    fn wait(&self, secret: &str, authority: &[&str], refusal: Option<&str>) {
        let since = Instant::now();
        loop {
            let ran = self.farleaf(secret, authority, &["get", "1", "-t", "t"]);
            let is_reached = match refusal {
                None => ran.status == Some(0),
                Some(text) => ran.status == Some(1) && ran.stderr.contains(text),
            };
            if is_reached {
                return;
            }
            assert!(since.elapsed() < TIMEOUT, "{ran:?}");
        }
    }

    /// Replaces secret and certificate while a client puts keys.
    fn rotate(&self) {
        let (is_done, put_count) = (AtomicBool::new(false), AtomicU32::new(0));
        std::thread::scope(|scope| {
            let puts = scope.spawn(|| {
                while !is_done.load(Ordering::SeqCst) {
                    let key = (put_count.load(Ordering::SeqCst) + 1).to_string();
                    self.put(&key).quietly();
                    put_count.fetch_add(1, Ordering::SeqCst);
                }
            });
            {
                let _ends_puts = SetOnDrop(&is_done);
                self.rotate_secret();
                self.rotate_certificate();
            }
            puts.join().expect("no operation has failed");
        });
        let put_count = put_count.load(Ordering::SeqCst);
        assert!(put_count > 10, "{put_count}");
        for key in 1..=put_count {
            let key = key.to_string();
            let arguments = ["get", &key, "-t", "t"];
            let ran = self.farleaf("client-secret", CLIENT_AUTHORITY, &arguments);
            assert_eq!(ran.quietly(), format!("{key}\t{key}\n"));
        }
    }

    /// Servers get the new secret one after the other and work together meanwhile, clients get it
    /// while both are valid, and the old one expires.
    fn rotate_secret(&self) {
        self.place.file("old-secret", FIRST);
        self.place.file("new-secret", SECOND);
        for (number, secret) in self.secrets.iter().enumerate() {
            self.place.file(secret, SECOND);
            if number + 1 < self.secrets.len() {
                // Servers read their secret again within two seconds. The replicas of a new table
                // have to find each other.
                std::thread::sleep(Duration::from_secs(3));
                let (table, count) = (format!("t{number}"), self.secrets.len().to_string());
                let create = ["table", "create", &table, "--replicas", &count];
                self.farleaf("old-secret", CLIENT_AUTHORITY, &create)
                    .quietly();
                let put = ["put", "k", "v", "-t", &table];
                self.farleaf("old-secret", CLIENT_AUTHORITY, &put).quietly();
            }
        }
        self.wait("new-secret", CLIENT_AUTHORITY, None);
        self.place.file("client-secret", SECOND);
        self.wait("old-secret", CLIENT_AUTHORITY, Some("wrong secret"));
    }

    /// All trust both authorities, then servers get certificates of the new one, and then nobody
    /// trusts the old one any more.
    fn rotate_certificate(&self) {
        let read = |name: &str| {
            let path = self.place.path().join(name);
            std::fs::read_to_string(path).expect("written")
        };
        let (old, new) = (read("tls/ca.pem"), read("next/ca.pem"));
        self.place.file("old-ca.pem", &old);
        self.place.file("new-ca.pem", &new);
        self.place.file("tls/ca.pem", old.clone() + &new);
        self.place.file("client-ca.pem", old + &new);
        // Servers read their authorities again within two seconds.
        std::thread::sleep(Duration::from_secs(3));
        self.place.file("tls/cert.pem", read("next/cert.pem"));
        self.place.file("tls/key.pem", read("next/key.pem"));
        self.wait("client-secret", &["--tls-ca", "new-ca.pem"], None);
        self.place.file("tls/ca.pem", &new);
        let authority = ["--tls-ca", "old-ca.pem"];
        self.wait(
            "client-secret",
            &authority,
            Some("certificate is not valid"),
        );
    }
}

fn place() -> Place {
    let place = Place::new();
    for secret in SECRETS {
        place.file(secret, FIRST);
    }
    place.file("client-secret", FIRST);
    place.farleaf(&["tls", "init", "tls"]).quietly();
    place.farleaf(&["tls", "init", "next"]).quietly();
    let authority = std::fs::read(place.path().join("tls/ca.pem")).expect("created");
    place.file("client-ca.pem", authority);
    place
}

/// Promise: the secret and the certificates of three servers are replaced under load, and no
/// operation fails. Afterwards the old ones are rejected.
#[test]
fn a_cluster_gets_a_new_secret_and_certificates() {
    let place = place();
    let overlap = ["--secret-overlap", "15", "--listen", "0"];
    let first = [&["--init"], &overlap[..], TLS].concat();
    let mut servers = vec![serve_with(&place, 1, SECRETS[0], &first)];
    let cluster = format!("tcp:{}", address_of(&servers[0]));
    for number in 2..=3 {
        let other = ["--coordinator", &cluster];
        let arguments = [&other, &overlap[..], TLS].concat();
        let secret = SECRETS[number - 1];
        servers.push(serve_with(&place, number, secret, &arguments));
    }
    let rotated = Rotated {
        place: &place,
        address: ["--cluster".to_owned(), cluster],
        secrets: SECRETS,
        _servers: servers,
    };
    let create = ["table", "create", "t", "--replicas", "3"];
    let ran = rotated.farleaf("client-secret", CLIENT_AUTHORITY, &create);
    ran.quietly();
    rotated.rotate();
}

/// Promise: the secret and the certificate of a pool are replaced under load, and no operation
/// fails. Afterwards the old ones are rejected. The pool keeps its data.
#[test]
fn a_pool_gets_a_new_secret_and_certificate() {
    let place = place();
    let own = ["--size", "64MiB", "--listen", "0", "--secret-overlap", "8"];
    let secret = ["--secret-file", SECRETS[0]];
    // A node opens no connections, so it needs no authority.
    let mut serve = place.command(&[&["serve"], &own[..], &secret, &TLS[..4]].concat());
    // The test does not read the log, whose lines for each connection would fill the pipe.
    serve.env("FARLEAF_LOG", "error");
    let server = Place::start_command(serve);
    let rotated = Rotated {
        place: &place,
        address: ["--pool".to_owned(), server.network_pool()],
        secrets: &SECRETS[..1],
        _servers: vec![server],
    };
    let create = ["table", "create", "t"];
    let ran = rotated.farleaf("client-secret", CLIENT_AUTHORITY, &create);
    ran.quietly();
    rotated.rotate();
}
