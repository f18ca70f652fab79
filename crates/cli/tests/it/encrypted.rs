//! Tests of clusters with TLS.

use crate::cluster::{address_of, serve};
use crate::pool::{Place, Ran, Server};

const CERTIFICATE: &[&str] = &["--tls-cert", "tls/cert.pem", "--tls-key", "tls/key.pem"];
const AUTHORITY: &[&str] = &["--tls-ca", "tls/ca.pem"];

/// Region servers with TLS, of which the first has the coordinator.
struct EncryptedCluster {
    place: Place,
    _servers: Vec<Server>,
    cluster: String,
}

impl EncryptedCluster {
    fn new(server_count: usize, options: &[&str]) -> Self {
        let place = Place::new();
        place.file("secret", "the secret of these tests");
        let created = place.farleaf(&["tls", "init", "tls"]).quietly();
        assert!(
            created.starts_with("created tls/cert.pem, for localhost"),
            "{created}"
        );
        let tls = [CERTIFICATE, AUTHORITY, options].concat();
        let first = [&["--init", "--listen", "0"], &tls[..]].concat();
        let mut servers = vec![serve(&place, 1, &first)];
        let cluster = format!("tcp:{}", address_of(&servers[0]));
        for number in 2..=server_count {
            let other = ["--coordinator", &cluster, "--listen", "0"];
            servers.push(serve(&place, number, &[&other, &tls[..]].concat()));
        }
        Self {
            place,
            _servers: servers,
            cluster,
        }
    }

    fn farleaf(&self, tls: &[&str], arguments: &[&str]) -> Ran {
        let cluster = ["--cluster", &self.cluster, "--secret-file", "secret"];
        self.place.farleaf(&[&cluster, tls, arguments].concat())
    }

    fn refused(&self, tls: &[&str], fragments: &[&str]) {
        let ran = self.farleaf(tls, &["get", "k", "-t", "t"]);
        assert_eq!((ran.status, ran.stdout.as_str()), (Some(1), ""), "{ran:?}");
        for fragment in fragments {
            assert!(ran.stderr.contains(fragment), "no {fragment:?} in {ran:?}");
        }
    }
}

/// Promise: with certificates, three servers replicate to each other, clients read and write, and
/// administrators change the cluster. Clients without TLS, or with another authority, get an error
/// that says so.
#[test]
fn a_cluster_can_be_encrypted() {
    let crew = EncryptedCluster::new(3, &[]);
    let run = |arguments: &[&str]| crew.farleaf(AUTHORITY, arguments).quietly();
    run(&["table", "create", "t", "--replicas", "3"]);
    run(&["put", "k", "v", "-t", "t"]);
    assert_eq!(run(&["get", "k", "-t", "t"]), "k\tv\n");
    let since = std::time::Instant::now();
    while crew.farleaf(AUTHORITY, &["cluster", "status"]).status != Some(0) {
        assert!(since.elapsed() < std::time::Duration::from_secs(40));
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    crew.refused(&[], &["this server requires TLS", "--tls-ca"]);
    crew.place.farleaf(&["tls", "init", "other"]).quietly();
    crew.refused(&["--tls-ca", "other/ca.pem"], &["certificate is not valid"]);
    crew.refused(&["--tls-ca", "none.pem"], &["none.pem", "No such file"]);
}

/// Promise: servers can require certificates of clients and of each other.
#[test]
fn clients_need_certificates_where_required() {
    let crew = EncryptedCluster::new(2, &["--tls-verify-clients"]);
    let with_certificate = [AUTHORITY, CERTIFICATE].concat();
    let run = |arguments: &[&str]| crew.farleaf(&with_certificate, arguments).quietly();
    run(&["table", "create", "t", "--replicas", "2"]);
    run(&["put", "k", "v", "-t", "t"]);
    crew.refused(AUTHORITY, &["requires a certificate of its clients"]);
}

/// Promise: a client with TLS gets an error from a server without it.
#[test]
fn a_server_without_tls_is_refused() {
    let place = Place::new();
    place.file("secret", "the secret of these tests");
    place.farleaf(&["tls", "init", "tls"]).quietly();
    let server = serve(&place, 1, &["--init", "--listen", "0"]);
    let cluster = format!("tcp:{}", address_of(&server));
    let common = ["--cluster", &cluster, "--secret-file", "secret"];
    let ran = place.farleaf(&[&common, AUTHORITY, &["table", "list"]].concat());
    assert_eq!(ran.status, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("its reply is not encrypted"), "{ran:?}");
}

/// Promise: a server with a certificate that no other server would accept does not start, and says
/// why: the certificate is for another name, or of an authority that it does not trust itself.
#[test]
fn a_certificate_that_no_peer_accepts_is_refused() {
    let place = Place::new();
    place.file("secret", "the secret of these tests");
    place.farleaf(&["tls", "init", "tls"]).quietly();
    place.farleaf(&["tls", "init", "other"]).quietly();
    let serve = [
        "region",
        "serve",
        "--data",
        "d",
        "--init",
        "--secret-file",
        "secret",
    ];
    let serve = [&serve[..], &["--listen", "0"], CERTIFICATE].concat();
    let elsewhere = ["--advertise", "elsewhere.example:7480"];
    let other = ["--tls-ca", "other/ca.pem"];
    for (options, said) in [
        ([AUTHORITY, &elsewhere].concat(), "'elsewhere.example'"),
        (other.to_vec(), "other/ca.pem"),
    ] {
        let ran = place.farleaf(&[&serve[..], &options].concat());
        assert_eq!(ran.status, Some(1), "{ran:?}");
        assert!(ran.stderr.contains("no peer would accept"), "{ran:?}");
        assert!(ran.stderr.contains(said), "{ran:?}");
        assert!(!place.path().join("d").exists(), "nothing is made");
    }
}
