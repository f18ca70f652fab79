//! A recording of all messages between servers does not allow access.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use farleaf_client::Durability;
use farleaf_fabric::tcp::{TcpClient, TcpConnectOptions};
use farleaf_net::secret::Secret;

use crate::recorder::{Recorder, lock};
use crate::test_cluster::TestCluster;

/// Address at which servers listen.
const SERVERS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// Time within which a server must refuse or close a connection.
const PATIENCE: Duration = Duration::from_secs(20);

/// Returns all texts that could be a secret: quoted ones, and those that look like hexadecimal or
/// base64.
fn candidates(recording: &[u8]) -> BTreeSet<String> {
    let text = String::from_utf8_lossy(recording);
    let is_digit = |it: char| it.is_ascii_alphanumeric() || "+/=-_".contains(it);
    let runs = text.split(|it| !is_digit(it));
    let all = text.split('"').chain(runs);
    let fitting = all.filter(|it| (16..=256).contains(&it.len()));
    fitting.map(str::to_owned).collect()
}

/// Returns the first candidate with which a connection to the address succeeds.
fn opened_by(address: SocketAddr, candidates: &BTreeSet<String>) -> Option<String> {
    let tries = candidates.iter().map(|candidate| {
        let candidate = candidate.clone();
        thread::spawn(move || {
            let options = TcpConnectOptions {
                secret: Some(Secret::from_text(&candidate).ok()?),
                ..TcpConnectOptions::default()
            };
            let opened = TcpClient::connect(&address.to_string(), &options);
            opened.is_ok().then_some(candidate)
        })
    });
    let tries: Vec<_> = tries.collect();
    let mut opened = tries.into_iter().map(|it| it.join().expect("no panic"));
    opened.find_map(|it| it)
}

/// Returns whether a server closes a connection on which the recorded bytes are sent.
fn hangs_up_on(address: SocketAddr, sent: &[u8]) -> bool {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time");
    // The server may have closed the connection before receiving everything.
    let _ = stream.write_all(sent);
    let since = Instant::now();
    let mut buffer = [0; 4096];
    while since.elapsed() < PATIENCE {
        match stream.read(&mut buffer) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
    false
}

/// Nothing that was sent when a backup was attached opens its memory: no text in it is the secret,
/// and a repeated greeting is refused. The secret itself was once sent.
#[test]
fn a_recorded_attachment_opens_nothing() {
    let recorder = Recorder::new(SERVERS, Ipv4Addr::new(127, 0, 0, 3));
    let test_cluster = recorder.cluster(2, |_| {});
    let fronts = BTreeSet::from([0, 1].map(|it| test_cluster.options(it).address.port()));
    let table = test_cluster
        .table(2, false)
        .with_durability(Durability::Sync);
    table.put(b"key", b"value").expect("put");
    let connections = recorder.connections();
    let (mut all, mut greetings) = (Vec::new(), Vec::new());
    let ports: BTreeSet<_> = connections.iter().map(|it| it.port).collect();
    let ports: BTreeSet<_> = ports.difference(&fronts).copied().collect();
    for connection in connections {
        let sent = lock(&connection.sent).clone();
        if ports.contains(&connection.port) {
            greetings.push((connection.port, sent.clone()));
        }
        all.extend(sent);
        all.push(b'\n');
        all.extend_from_slice(&lock(&connection.answered));
    }
    let text = String::from_utf8_lossy(&all).into_owned();
    assert!(text.contains("\"attach\"") && text.contains("\"attached\""));
    assert!(!greetings.is_empty(), "the memory was reached directly");
    let found = candidates(&all);
    // At least both public keys.
    assert!(
        found.iter().filter(|it| it.len() == 64).count() >= 2,
        "{found:?}"
    );
    for port in ports {
        let address = SocketAddr::from((SERVERS, port));
        if TcpStream::connect(address).is_err() {
            continue; // An attachment that was replaced by another one.
        }
        assert_eq!(opened_by(address, &found), None);
        let own = greetings.iter().filter(|(of, _)| *of == port);
        for (_, sent) in own {
            assert!(hangs_up_on(address, sent));
        }
    }
    table.put(b"key", b"later").expect("all goes on");
    test_cluster.wait_replicated(&table, 2);
}

/// The search above finds a secret that is sent in clear text, as in a reply of version 2.
#[test]
fn a_secret_in_clear_text_is_found() {
    use farleaf_fabric::StopSignal;
    use farleaf_fabric::mapped::MappedMemory;
    use farleaf_fabric::tcp::{TcpListenOptions, TcpListener};

    let (secret, text) = Secret::random().expect("randomness");
    let region = Arc::new(MappedMemory::anonymous(1 << 16).expect("memory"));
    let mut options = TcpListenOptions::at(SocketAddr::from((SERVERS, 0)));
    options.secret = Some(secret);
    let listener = TcpListener::bind(&region, &options).expect("a free port");
    let address = listener.address();
    let stop = StopSignal::new().expect("a descriptor");
    let heard = stop.clone();
    let serving = thread::spawn(move || listener.run(&mut NobodyRegisters, &heard));
    let said = format!(
        r#"..{{"attached":{{"port":{},"secret":"{text}","#,
        address.port()
    );
    let mut found = candidates(said.as_bytes());
    assert_eq!(opened_by(address, &found), Some(text.clone()));
    found.remove(&text);
    assert_eq!(opened_by(address, &found), None);
    stop.stop();
    serving.join().expect("no panic").expect("it ends in order");
}

struct NobodyRegisters;

impl farleaf_fabric::SessionService for NobodyRegisters {
    fn register(&mut self, _pid: u32) -> Result<farleaf_base::OwnerWord, String> {
        Err("nobody has a session here".to_owned())
    }

    fn fence(&mut self, _owner: farleaf_base::OwnerWord) {}

    fn process_of(&mut self, _owner: farleaf_base::OwnerWord) -> Option<u32> {
        None
    }
}

impl farleaf_fabric::tcp::TcpService for NobodyRegisters {
    fn grant(&self, _rights: farleaf_net::secret::Rights) -> farleaf_fabric::tcp::Grant {
        farleaf_fabric::tcp::Grant::everything()
    }

    fn own_words(&self, _owner: farleaf_base::OwnerWord) -> std::ops::Range<u64> {
        0..0
    }
}

/// A server that knows the cluster's secret, but not the servers' own, gets access to no backup's
/// memory; with the right one, it does.
#[test]
fn the_secret_of_servers_is_needed() {
    let server_secret = |text: &str| Secret::from_text(text).expect("long enough");
    let is_wrong = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let wrong_secret_flag = Arc::clone(&is_wrong);
    let mut test_cluster = TestCluster::with(2, move |index, options| {
        let is_wrong = index == 1 && wrong_secret_flag.load(std::sync::atomic::Ordering::SeqCst);
        let text = if is_wrong {
            "the secret of nobody"
        } else {
            "the secret of servers"
        };
        options.server_secret = Some(server_secret(text));
        options.link_patience = Duration::from_secs(1);
    });
    let options = farleaf_client::PersistentTableOptions {
        replica_count: 2,
        split_keys: Vec::new(),
    };
    let table = test_cluster
        .client()
        .create_table("t", &options)
        .expect("a new table");
    thread::sleep(Duration::from_secs(3));
    let view = farleaf_trial::fleet::view(&test_cluster.coordinator);
    let region = view.regions_of(table.id())[0];
    assert!(region.members().count() < 2, "{region:?}");
    is_wrong.store(false, std::sync::atomic::Ordering::SeqCst);
    test_cluster.stop(1);
    test_cluster.start(1);
    test_cluster.wait_replicated(&table, 2);
}
