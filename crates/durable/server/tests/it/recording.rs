//! A recording of all messages between servers does not allow access.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use farleaf_client::Durability;
use farleaf_fabric::tcp::{TcpClient, TcpConnectOptions};
use farleaf_net::secret::Secret;

use crate::test_cluster::TestCluster;

/// Address at which servers listen, and the one at which they are looked up.
const SERVERS: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
const RECORDERS: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 3));
/// Time within which a server must refuse or close a connection.
const PATIENCE: Duration = Duration::from_secs(20);

/// A recorded connection: its port, and the bytes in both directions.
#[derive(Clone)]
struct Recorded {
    port: u16,
    sent: Arc<Mutex<Vec<u8>>>,
    answered: Arc<Mutex<Vec<u8>>>,
}

/// A proxy between servers that records.
#[derive(Clone, Default)]
struct Recorder {
    connections: Arc<Mutex<Vec<Recorded>>>,
    /// Ports of backups' memories, from the servers' replies.
    ports: Arc<Mutex<BTreeSet<u16>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the ports that a server's replies name so far.
fn ports_in(bytes: &[u8]) -> Vec<u16> {
    let text = String::from_utf8_lossy(bytes);
    let after = text.split("\"port\":").skip(1);
    let whole = after.filter_map(|it| it.split_once(','));
    whole.filter_map(|(port, _)| port.parse().ok()).collect()
}

impl Recorder {
    /// Forwards connections of this listener to the servers' address, at this port.
    fn forward(&self, listener: TcpListener, port: u16) {
        let recorder = self.clone();
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                // The server may have ended.
                if let Ok(server) = TcpStream::connect((SERVERS, port)) {
                    recorder.join(port, client, server);
                }
            }
        });
    }

    fn join(&self, port: u16, client: TcpStream, server: TcpStream) {
        let recorded = Recorded {
            port,
            sent: Arc::default(),
            answered: Arc::default(),
        };
        lock(&self.connections).push(recorded.clone());
        let clone = |it: &TcpStream| it.try_clone().expect("a descriptor is free");
        let (from, to) = (clone(&client), clone(&server));
        let (recorder, answered) = (self.clone(), Arc::clone(&recorded.answered));
        thread::spawn(move || pump(from, to, &recorded.sent, |_| ()));
        thread::spawn(move || {
            let note_ports = |bytes: &[u8]| recorder.note_ports(bytes);
            pump(server, client, &answered, note_ports);
        });
    }

    /// Listens at the ports of backups' memories, before the primary gets the reply.
    fn note_ports(&self, bytes: &[u8]) {
        for port in ports_in(bytes) {
            if lock(&self.ports).insert(port) {
                let listener = TcpListener::bind((RECORDERS, port)).expect("a free address");
                self.forward(listener, port);
            }
        }
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream, into: &Mutex<Vec<u8>>, look: impl Fn(&[u8])) {
    let mut buffer = vec![0; 1 << 16];
    loop {
        match from.read(&mut buffer) {
            Ok(size_bytes) if size_bytes > 0 => {
                let bytes = &buffer[..size_bytes];
                let mut all = lock(into);
                // The beginning is enough: no secret comes after megabytes of a log.
                if all.len() < 1 << 20 {
                    all.extend_from_slice(bytes);
                    look(&all);
                }
                drop(all);
                if to.write_all(bytes).is_err() {
                    break;
                }
            }
            _ => break,
        }
    }
    // The other direction ends as well.
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

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

/// Creates two servers that reach each other only through a recorder.
fn recorded_cluster() -> (TestCluster, Recorder) {
    let recorder = Recorder::default();
    let fronts = [0, 1].map(|_| {
        let front = TcpListener::bind((RECORDERS, 0)).expect("a free port");
        let port = front.local_addr().expect("bound").port();
        (Mutex::new(Some(front)), port)
    });
    let at_front = recorder.clone();
    let test_cluster = TestCluster::with(2, move |index, options| {
        let (front, port) = &fronts[index];
        options.address = SocketAddr::new(SERVERS, *port);
        options.advertised = Some(SocketAddr::new(RECORDERS, *port).to_string());
        if let Some(front) = lock(front).take() {
            at_front.forward(front, *port);
        }
    });
    (test_cluster, recorder)
}

/// Nothing that was sent when a backup was attached opens its memory: no text in it is the secret,
/// and a repeated greeting is refused. The secret itself was once sent.
#[test]
fn a_recorded_attachment_opens_nothing() {
    let (test_cluster, recorder) = recorded_cluster();
    let table = test_cluster
        .table(2, false)
        .with_durability(Durability::Sync);
    table.put(b"key", b"value").expect("put");
    let connections = lock(&recorder.connections).clone();
    let (mut all, mut greetings) = (Vec::new(), Vec::new());
    let ports = lock(&recorder.ports).clone();
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
        let address = SocketAddr::new(SERVERS, port);
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
    let mut options = TcpListenOptions::at(SocketAddr::new(SERVERS, 0));
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
    assert_eq!(ports_in(said.as_bytes()), [address.port()]);
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
