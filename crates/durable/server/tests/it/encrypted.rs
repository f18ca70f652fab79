//! With TLS, nothing that servers and clients send can be read or altered.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use farleaf_client::{ClientOptions, Cluster, Durability, PersistentTable, PersistentTableOptions};
use farleaf_net::authority::{AuthorityFiles, create};
use farleaf_net::tls::{CertificateFiles, TlsClient, TlsServer};
use farleaf_server::ServerTls;
use farleaf_trial::fleet::secret;

use crate::recorder::{Recorder, lock};
use crate::test_cluster::TestCluster;

/// Number of writes of a test.
const WRITE_COUNT: u32 = 200;
/// Number of keys that are overwritten.
const KEY_COUNT: u32 = 40;

/// A cluster of three servers behind a recorder, with or without TLS.
struct RecordedCluster {
    recorder: Recorder,
    test_cluster: TestCluster,
    client: Cluster,
    _scratch: tempfile::TempDir,
}

fn tls(files: &AuthorityFiles) -> (TlsServer, TlsClient) {
    let own = CertificateFiles {
        certificate: &files.certificate,
        key: &files.key,
    };
    let server = TlsServer::from_files(own, Some(&files.authority));
    let client = TlsClient::from_files(&files.authority, Some(own));
    (
        server.expect("they go together"),
        client.expect("an authority"),
    )
}

impl RecordedCluster {
    /// Listens at 127.0.0.`host`, behind a recorder at the next address.
    fn start(host: u8, is_encrypted: bool) -> Self {
        let front = Ipv4Addr::new(127, 0, 0, host + 1);
        let recorder = Recorder::new(Ipv4Addr::new(127, 0, 0, host), front);
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let files = create(scratch.path(), &[front.to_string()]).expect("created");
        let (own, others) = tls(&files);
        let client_tls = is_encrypted.then(|| others.clone());
        let test_cluster = recorder.cluster(3, move |options| {
            options.tls = is_encrypted.then(|| ServerTls {
                own: own.clone(),
                others: others.clone(),
            });
        });
        let options = ClientOptions {
            secret: Some(secret()),
            tls: client_tls,
            patience: Duration::from_mins(1),
            ..ClientOptions::default()
        };
        let client = Cluster::new(test_cluster.coordinator.clone(), options);
        Self {
            recorder,
            test_cluster,
            client,
            _scratch: scratch,
        }
    }

    fn table(&self) -> PersistentTable {
        let options = PersistentTableOptions::default();
        self.client.create_table("t", &options).expect("created");
        let table = self.client.open_table("t").expect("created");
        self.test_cluster.wait_replicated(&table, 3);
        table
    }

    /// Returns the number of recorded connections that contain these bytes.
    fn count_with(&self, wanted: &[u8]) -> usize {
        let has = |bytes: &[u8]| bytes.windows(wanted.len()).any(|it| it == wanted);
        let connections = self.recorder.connections();
        let found = connections
            .iter()
            .filter(|it| has(&lock(&it.sent)) || has(&lock(&it.answered)));
        found.count()
    }
}

fn key(number: u32) -> Vec<u8> {
    format!("key that nobody may read {number:06}").into_bytes()
}

fn value(number: u32) -> Vec<u8> {
    format!("value that nobody may read {number:06}")
        .repeat(8)
        .into_bytes()
}

/// Promise: no key and no value is in what clients, servers and the memory of backups send over
/// TLS. Without TLS, the same search finds them at the client and on the way to both backups.
#[test]
fn nothing_readable_is_sent_over_tls() {
    for is_encrypted in [false, true] {
        let recorded = RecordedCluster::start(if is_encrypted { 12 } else { 14 }, is_encrypted);
        let table = recorded.table().with_durability(Durability::Sync);
        for number in 0..WRITE_COUNT {
            table.put(&key(number), &value(number)).expect("put");
        }
        for number in 0..WRITE_COUNT {
            let got = table.get(&key(number)).expect("read");
            assert_eq!(got.as_deref(), Some(&value(number)[..]));
        }
        let counts = [
            recorded.count_with(b"key that nobody"),
            recorded.count_with(b"value that nobody"),
            recorded.count_with(b"TheSecretOfTheseTests-4815162342"),
        ];
        if is_encrypted {
            assert_eq!(counts, [0; 3]);
        } else {
            assert!(
                counts[0] >= 3 && counts[1] >= 3 && counts[2] == 0,
                "{counts:?}"
            );
        }
    }
}

/// Promise: a proxy that alters bytes causes errors and repetitions, but no wrong answer, and no
/// acknowledged write is lost.
#[test]
fn altered_bytes_cause_no_wrong_answer() {
    let recorded = RecordedCluster::start(16, true);
    let table = recorded.table();
    // Per key, the writes whose value a get may return: the last acknowledged one, and later ones
    // with an unknown outcome. The first entry means that the key may be absent.
    let mut possible = BTreeMap::<u32, Vec<Option<u32>>>::new();
    let mut failed_count = 0;
    recorded.recorder.alter(true);
    for number in 0..WRITE_COUNT {
        let values = possible.entry(number % KEY_COUNT).or_insert(vec![None]);
        let key = key(number % KEY_COUNT);
        if table.put(&key, &value(number)).is_ok() {
            *values = vec![Some(number)];
        } else {
            failed_count += 1;
            values.push(Some(number));
        }
        if let Ok(got) = table.get(&key) {
            assert!(values.iter().any(|it| it.map(value) == got), "{number}");
        }
    }
    recorded.recorder.alter(false);
    assert!(failed_count > 0, "no altered byte reached anyone");
    for (number, values) in possible {
        let got = table
            .get(&key(number))
            .expect("nothing is altered any more");
        assert!(values.iter().any(|it| it.map(value) == got), "{number}");
    }
    recorded.test_cluster.wait_replicated(&table, 3);
}
