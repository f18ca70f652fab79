//! Replacement of secrets and certificates while servers run and clients work.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::cluster::{address_of, serve};
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
const FIRST: &str = "the first secret of these tests";
const SECOND: &str = "the second secret of these tests";
const TIMEOUT: Duration = Duration::from_mins(1);

/// Servers of one kind, and how to reach them.
struct Rotated<'p> {
    place: &'p Place,
    /// `--pool` or `--cluster`, and the address.
    address: [String; 2],
    _servers: Vec<Server>,
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
            self.rotate_secret();
            self.rotate_certificate();
            is_done.store(true, Ordering::SeqCst);
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

    /// Servers get the new secret, clients get it while both are valid, and the old one expires.
    fn rotate_secret(&self) {
        self.place.file("old-secret", FIRST);
        self.place.file("new-secret", SECOND);
        self.place.file("secret", SECOND);
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
    place.file("secret", FIRST);
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
    let overlap = ["--secret-overlap", "8", "--listen", "0"];
    let first = [&["--init"], &overlap[..], TLS].concat();
    let mut servers = vec![serve(&place, 1, &first)];
    let cluster = format!("tcp:{}", address_of(&servers[0]));
    for number in 2..=3 {
        let other = ["--coordinator", &cluster];
        let arguments = [&other, &overlap[..], TLS].concat();
        servers.push(serve(&place, number, &arguments));
    }
    let rotated = Rotated {
        place: &place,
        address: ["--cluster".to_owned(), cluster],
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
    let secret = ["--secret-file", "secret"];
    // A node opens no connections, so it needs no authority.
    let server = place.serve(&[&own, &secret[..], &TLS[..4]].concat());
    let rotated = Rotated {
        place: &place,
        address: ["--pool".to_owned(), server.network_pool()],
        _servers: vec![server],
    };
    let create = ["table", "create", "t"];
    let ran = rotated.farleaf("client-secret", CLIENT_AUTHORITY, &create);
    ran.quietly();
    rotated.rotate();
}
