//! TLS on the control connections and on those beside queue pairs.

use farleaf_base::{NodeId, WordAddr};
use farleaf_executor::block_on;
use farleaf_fabric::tcp::TcpConnectOptions;
use farleaf_fabric::verbs::VerbsClient;
use farleaf_fabric::{Batch, BatchErrorKind, Control, Endpoint};
use farleaf_net::tls::{CertificateFiles, TlsClient, TlsServer};

use crate::node::Node;

/// Promise: with TLS, the ends of a queue pair are exchanged, and its end is announced, as without.
/// Unencrypted clients are refused.
pub(crate) fn queue_pairs_are_exchanged_and_ended_over_tls() {
    let folder = tempfile::tempdir().expect("a scratch directory");
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]);
    let made = made.expect("a certificate");
    let write = |name: &str, text: String| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        path
    };
    let certificate = write("node.pem", made.cert.pem());
    let key = write("node.key", made.signing_key.serialize_pem());
    let tls = TlsServer::from_files(
        CertificateFiles {
            certificate: &certificate,
            key: &key,
        },
        None,
    )
    .expect("they go together");
    let node = Node::start_with(Some(tls));
    let in_clear = VerbsClient::connect(&node.address, &Node::connect_options(None));
    in_clear.expect_err("it wants TLS");
    let options = TcpConnectOptions {
        tls: Some(TlsClient::from_files(&certificate, None).expect("its own authority")),
        ..Node::connect_options(None)
    };
    let client = VerbsClient::connect(&node.address, &options).expect("it listens");
    let owner = client.register_session().expect("a session");
    let endpoint = client.endpoint(owner).expect("a queue pair");
    let add = || {
        let mut batch = Batch::new();
        let slot = batch.fetch_add(WordAddr::new(NodeId(0), 500), 1);
        let executed = block_on(endpoint.execute(&mut batch), endpoint.completions());
        executed.map(|()| batch.previous(slot))
    };
    for count in 0..100 {
        assert_eq!(add().expect("a round trip"), count);
    }
    client.close_session(owner).expect("closed");
    std::thread::sleep(std::time::Duration::from_millis(100));
    let error = add().expect_err("it is closed");
    assert_eq!(*error.kind(), BatchErrorKind::Fenced);
    assert_eq!(node.word(500), 100);
}
