//! A proxy between servers and clients that records all bytes, and may alter some.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use farleaf_server::ServerOptions;

use crate::test_cluster::TestCluster;

/// Most bytes of one direction of a connection that are recorded: no secret comes after megabytes
/// of a log.
const RECORDED_SIZE_BYTES_MAX: usize = 1 << 20;
/// Number of received pieces of which one is altered.
const ALTERED_INTERVAL: u64 = 50;

/// A recorded connection: its port, and the bytes in both directions.
#[derive(Clone)]
pub(crate) struct Recorded {
    pub(crate) port: u16,
    pub(crate) sent: Arc<Mutex<Vec<u8>>>,
    pub(crate) answered: Arc<Mutex<Vec<u8>>>,
}

/// A proxy that records what is sent to one address of this host, by listening at another one with
/// the same ports.
#[derive(Clone)]
pub(crate) struct Recorder {
    /// Address at which servers listen.
    pub(crate) servers: Ipv4Addr,
    /// Address at which they are looked up.
    front: Ipv4Addr,
    connections: Arc<Mutex<Vec<Recorded>>>,
    /// Ports that are forwarded.
    ports: Arc<Mutex<BTreeSet<u16>>>,
    /// Whether bytes are altered now.
    alters: Arc<std::sync::atomic::AtomicBool>,
    piece_count: Arc<AtomicU64>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the ports at which processes of this host listen at an address.
fn listening_ports(address: Ipv4Addr) -> BTreeSet<u16> {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("the kernel's table");
    let host = format!("{:08X}", u32::from_le_bytes(address.octets()));
    let ports = table.lines().filter_map(|line| {
        let mut columns = line.split_whitespace();
        let (of, port) = columns.nth(1)?.split_once(':')?;
        let is_listening = columns.nth(1)? == "0A";
        let port = u16::from_str_radix(port, 16).ok()?;
        (of == host && is_listening).then_some(port)
    });
    ports.collect()
}

impl Recorder {
    pub(crate) fn new(servers: Ipv4Addr, front: Ipv4Addr) -> Self {
        Self {
            servers,
            front,
            connections: Arc::default(),
            ports: Arc::default(),
            alters: Arc::default(),
            piece_count: Arc::default(),
        }
    }

    /// Creates servers that clients and other servers reach only through the recorder.
    pub(crate) fn cluster(
        &self,
        server_count: usize,
        change: impl Fn(&mut ServerOptions) + 'static,
    ) -> TestCluster {
        let fronts: Vec<_> = (0..server_count)
            .map(|_| {
                let front = TcpListener::bind((self.front, 0)).expect("a free port");
                let port = front.local_addr().expect("bound").port();
                lock(&self.ports).insert(port);
                (Mutex::new(Some(front)), port)
            })
            .collect();
        let recorder = self.clone();
        TestCluster::with(server_count, move |index, options| {
            let (front, port) = &fronts[index];
            options.address = SocketAddr::from((recorder.servers, *port));
            options.advertised = Some(SocketAddr::from((recorder.front, *port)).to_string());
            if let Some(front) = lock(front).take() {
                recorder.forward(front, *port);
            }
            change(options);
        })
    }

    /// Alters bytes from now on, or no more.
    pub(crate) fn alter(&self, alters: bool) {
        self.alters.store(alters, Ordering::SeqCst);
    }

    /// Returns the connections so far.
    pub(crate) fn connections(&self) -> Vec<Recorded> {
        lock(&self.connections).clone()
    }

    /// Forwards connections of this listener to the servers' address, at this port.
    fn forward(&self, listener: TcpListener, port: u16) {
        let recorder = self.clone();
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                // The server may have ended.
                if let Ok(server) = TcpStream::connect((recorder.servers, port)) {
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
        let (one, other) = (self.clone(), self.clone());
        thread::spawn(move || one.pump(from, to, &recorded.sent, false));
        thread::spawn(move || other.pump(server, client, &recorded.answered, true));
    }

    /// Listens at the ports of backups' memories, before the primary gets the reply that names
    /// them.
    fn follow_ports(&self) {
        for port in listening_ports(self.servers) {
            if lock(&self.ports).insert(port) {
                let listener = TcpListener::bind((self.front, port)).expect("a free address");
                self.forward(listener, port);
            }
        }
    }

    /// Forwards bytes. `names_ports`: they may name ports of backups' memories.
    fn pump(
        &self,
        mut from: TcpStream,
        mut to: TcpStream,
        into: &Mutex<Vec<u8>>,
        names_ports: bool,
    ) {
        let mut buffer = vec![0; 1 << 16];
        loop {
            match from.read(&mut buffer) {
                Ok(size_bytes) if size_bytes > 0 => {
                    let bytes = &mut buffer[..size_bytes];
                    let mut all = lock(into);
                    if all.len() < RECORDED_SIZE_BYTES_MAX {
                        all.extend_from_slice(bytes);
                    }
                    // A connection on which much is answered is one of clients or of a log.
                    if names_ports && all.len() < 1 << 14 {
                        self.follow_ports();
                    }
                    drop(all);
                    let number = self.piece_count.fetch_add(1, Ordering::Relaxed);
                    let is_due = number.is_multiple_of(ALTERED_INTERVAL);
                    if is_due && self.alters.load(Ordering::SeqCst) {
                        bytes[number as usize % size_bytes] ^= 1 << (number % 8);
                    }
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
}
