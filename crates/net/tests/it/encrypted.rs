//! Connections with TLS: certificates, and peers of which only one uses it.

use std::path::Path;
use std::time::Duration;

use farleaf_net::authority::{AuthorityFiles, create};
use farleaf_net::request::{ConnectOptions, Connection, NetError, Server};
use farleaf_net::tls::{CertificateFiles, TlsClient, TlsServer};

use crate::parties::{Mirror, check, connect_options, dial, listen_options, mirror, serve};

/// An authority with a certificate, in a directory of its own.
pub(crate) struct Certificates {
    files: AuthorityFiles,
    _scratch: tempfile::TempDir,
}

impl Certificates {
    pub(crate) fn new() -> Self {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let files = create(scratch.path(), &["server.example".to_owned()]).expect("created");
        Self {
            files,
            _scratch: scratch,
        }
    }

    pub(crate) fn own(&self) -> CertificateFiles<'_> {
        CertificateFiles {
            certificate: &self.files.certificate,
            key: &self.files.key,
        }
    }

    /// Returns a server that requires certificates of clients if there are authorities for them.
    fn serve(&self, client_authorities: Option<&Path>) -> Server {
        let mut options = listen_options();
        let tls = TlsServer::from_files(self.own(), client_authorities);
        options.tls = Some(tls.expect("they go together"));
        serve(&options, Mirror)
    }

    pub(crate) fn client(&self, own: Option<CertificateFiles<'_>>) -> ConnectOptions {
        let tls = TlsClient::from_files(&self.files.authority, own);
        ConnectOptions {
            tls: Some(tls.expect("an authority")),
            ..connect_options()
        }
    }
}

fn refused(server: &Server, options: &ConnectOptions) -> String {
    let error = Connection::connect(&server.address().to_string(), options);
    let error = error.expect_err("not let in");
    assert!(error.is_unsent(), "{error}");
    error.to_string()
}

/// Promise: requests and replies of all sizes arrive over TLS, and the connection stays usable
/// while it is idle.
#[test]
fn encrypted_requests_are_answered() {
    let certificates = Certificates::new();
    let server = certificates.serve(None);
    let options = certificates.client(None);
    let address = server.address().to_string();
    let mut connection = Connection::connect(&address, &options).expect("let in");
    for size_bytes in [0, 1, 100, 65_536, 1 << 20, 20 << 20] {
        let request: Vec<u8> = (0..size_bytes).map(|it| (it % 251) as u8).collect();
        let reply = connection.call(&request).expect("answered");
        assert!(reply.iter().eq(request.iter().rev()), "{size_bytes}");
    }
    std::thread::sleep(Duration::from_millis(50));
    assert!(connection.is_usable());
    for _ in 0..3 {
        connection.send(b"abc").expect("sent");
    }
    for _ in 0..3 {
        assert_eq!(connection.receive().expect("answered"), b"cba");
    }
    drop(server);
    assert!(!connection.is_usable());
}

/// Promise: a client connects only to a server whose certificate leads to its authority and is
/// valid for the name that it expects.
#[test]
fn other_certificates_are_refused() {
    let (own, other) = (Certificates::new(), Certificates::new());
    let server = own.serve(None);
    let error = refused(&server, &other.client(None));
    assert!(error.contains("certificate is not valid"), "{error}");
    assert!(
        error.starts_with("cannot encrypt the connection to "),
        "{error}"
    );
    let mut options = own.client(None);
    let address = server.address().to_string();
    let tls = options.tls.take().expect("set above");
    let named = |name| ConnectOptions {
        tls: Some(tls.named(name)),
        ..connect_options()
    };
    let error = refused(&server, &named("other.example"));
    assert!(error.contains("certificate is not valid"), "{error}");
    let connected = Connection::connect(&address, &named("server.example"));
    check(&mut connected.expect("let in"));
}

/// Promise: a server that requires certificates of clients admits those with one of its authority,
/// and no others.
#[test]
fn clients_can_be_required_to_have_certificates() {
    let (own, other) = (Certificates::new(), Certificates::new());
    let server = own.serve(Some(&own.files.authority));
    let error = refused(&server, &own.client(None));
    assert!(
        error.contains("requires a certificate of its clients"),
        "{error}"
    );
    let error = refused(&server, &own.client(Some(other.own())));
    assert!(
        error.contains("rejected this program's certificate"),
        "{error}"
    );
    let options = own.client(Some(own.own()));
    let connected = Connection::connect(&server.address().to_string(), &options);
    check(&mut connected.expect("let in"));
}

/// Promise: if only one side uses TLS, the error of the client says which one.
#[test]
fn one_side_without_tls_is_told() {
    let certificates = Certificates::new();
    let server = certificates.serve(None);
    let error = refused(&server, &connect_options());
    assert!(error.contains("this server requires TLS"), "{error}");
    let error = refused(&mirror(), &certificates.client(None));
    assert!(error.contains("its reply is not encrypted"), "{error}");
    let mut stranger = dial(&server);
    std::io::Write::write_all(&mut stranger, b"GET / HTTP/1.1\r\n\r\n").expect("connected");
    let mut reply = String::new();
    let read = std::io::Read::read_to_string(&mut stranger, &mut reply);
    assert!(
        read.is_ok() && reply.starts_with("HTTP/1.1 400 "),
        "{reply}"
    );
}

/// Promise: a wrong secret is refused over TLS, too.
#[test]
fn a_wrong_secret_is_refused_over_tls() {
    let certificates = Certificates::new();
    let server = certificates.serve(None);
    let options = ConnectOptions {
        secret: Some(crate::parties::other_secret()),
        ..certificates.client(None)
    };
    let error = Connection::connect(&server.address().to_string(), &options);
    let error = error.expect_err("not let in");
    assert!(matches!(error, NetError::WrongSecret { .. }), "{error}");
}
