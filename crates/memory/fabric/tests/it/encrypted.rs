//! Tests of `tcp` with TLS.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};

use farleaf_fabric::ControlError;
use farleaf_fabric::conformance::cases;
use farleaf_fabric::tcp::{TcpClient, TcpConnectOptions};
use farleaf_net::tls::{CertificateFiles, TlsClient, TlsError, TlsServer};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use crate::network::{Connected, NetworkNode, secret};

/// An authority and a node certificate that it signed, as files.
struct Certificates {
    _folder: tempfile::TempDir,
    authority: PathBuf,
    certificate: PathBuf,
    key: PathBuf,
}

impl Certificates {
    /// Creates a certificate for a node of this name or address.
    fn make(host: &str) -> Self {
        let folder = tempfile::tempdir().expect("a scratch directory");
        let write = |name: &str, text: String| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).expect("written");
            path
        };
        let authority_key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = params.self_signed(&authority_key).expect("a certificate");
        let issuer = Issuer::new(params, authority_key);
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec![host.to_owned()]).expect("a name");
        let certificate = params.signed_by(&key, &issuer).expect("a certificate");
        Self {
            authority: write("authority.pem", authority.pem()),
            certificate: write("node.pem", certificate.pem()),
            key: write("node.key", key.serialize_pem()),
            _folder: folder,
        }
    }

    fn node(&self) -> NetworkNode {
        let tls = TlsServer::from_files(
            CertificateFiles {
                certificate: &self.certificate,
                key: &self.key,
            },
            None,
        )
        .expect("they go together");
        NetworkNode::start_with(|options| options.tls = Some(tls))
    }

    fn connect(&self, node: &NetworkNode) -> Result<TcpClient, ControlError> {
        let tls = TlsClient::from_files(&self.authority, None).expect("an authority");
        let options = TcpConnectOptions {
            secret: Some(secret()),
            tls: Some(tls),
            ..TcpConnectOptions::default()
        };
        TcpClient::connect(&node.address, &options)
    }
}

/// Promise: with TLS, every case of the suite passes. Left out are long cases about the node's
/// memory: torn words, lost atomics, and visibility (FABRIC-3, FABRIC-4, FABRIC-8).
#[test]
fn encrypted_connections_keep_the_contract() {
    let certificates = Certificates::make("127.0.0.1");
    for case in cases::<Connected>() {
        if ["FABRIC-3", "FABRIC-4", "FABRIC-8"].contains(&case.rules) {
            continue;
        }
        let node = certificates.node();
        let client = certificates.connect(&node).expect("it listens");
        case.run(&Connected { client, node });
    }
}

/// Promise: a client refuses a node whose certificate belongs to another host or authority.
#[test]
fn foreign_certificates_are_refused() {
    let (ours, others) = (
        Certificates::make("127.0.0.1"),
        Certificates::make("127.0.0.1"),
    );
    let elsewhere = Certificates::make("elsewhere.example");
    for (client, node) in [(&ours, others.node()), (&elsewhere, elsewhere.node())] {
        let error = client.connect(&node).expect_err("it must be refused");
        let text = error.to_string();
        assert!(text.contains("certificate"), "{text}");
    }
}

/// Promise: if only one side uses TLS, the connection fails without harm. An encrypting node
/// reveals nothing to a plain client; an encrypting client gets an error.
#[test]
fn both_sides_must_agree() {
    let certificates = Certificates::make("127.0.0.1");
    let encrypting = certificates.node();
    let options = TcpConnectOptions {
        secret: Some(secret()),
        ..TcpConnectOptions::default()
    };
    let error = TcpClient::connect(&encrypting.address, &options).expect_err("it wants TLS");
    assert!(error.to_string().contains("--tls-ca"), "{error}");
    let mut stranger = TcpStream::connect(&encrypting.address).expect("it listens");
    stranger.write_all(&[7; 256]).expect("sent");
    let mut heard = Vec::new();
    // A reason; the connection ends in any case.
    let _ = stranger.read_to_end(&mut heard);
    let heard = String::from_utf8_lossy(&heard);
    assert!(heard.contains("this server requires TLS"), "{heard}");
    certificates.connect(&encrypting).expect("it goes on");
    let plain = NetworkNode::start();
    let error = certificates.connect(&plain).expect_err("it has no TLS");
    assert!(matches!(error, ControlError::Tls { .. }), "{error:?}");
    assert!(error.to_string().contains("--tls-cert"), "{error}");
    plain.client();
}

/// Promise: errors about invalid files contain the path.
#[test]
fn bad_files_are_named() {
    let certificates = Certificates::make("127.0.0.1");
    let nowhere = Path::new("/nowhere/at-all.pem");
    let (certificate, key) = (&certificates.certificate, &certificates.key);
    let errors: [TlsError; 5] = [
        TlsServer::from_files(
            CertificateFiles {
                certificate: nowhere,
                key,
            },
            None,
        )
        .expect_err("no file"),
        TlsServer::from_files(
            CertificateFiles {
                certificate,
                key: nowhere,
            },
            None,
        )
        .expect_err("no file"),
        TlsServer::from_files(
            CertificateFiles {
                certificate: key,
                key,
            },
            None,
        )
        .expect_err("no certificate"),
        TlsClient::from_files(key, None).expect_err("no certificate"),
        TlsServer::from_files(
            CertificateFiles {
                certificate: &certificates.authority,
                key,
            },
            None,
        )
        .expect_err("another key"),
    ];
    for (error, said) in errors.iter().zip([
        "/nowhere/at-all.pem",
        "/nowhere/at-all.pem",
        "the file contains no certificate",
        "the file contains no certificate",
        "authority.pem': ",
    ]) {
        let text = error.to_string();
        assert!(text.contains(said), "{text}");
    }
}
