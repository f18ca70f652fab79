//! The same over `tcp` and over the data path of `shm`.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use farleaf_fabric::mapped::{MappedEndpoint, MappedRegion};
use farleaf_fabric::tcp::{
    Grant, Rights, Secret, TcpClient, TcpConnectOptions, TcpEndpoint, TcpListenOptions,
    TcpListener, TcpService,
};
use farleaf_fabric::{Control, Endpoint, SessionService, StopSignal};
use farleaf_lsm::follow::IndexKind;
use farleaf_lsm::storage::{DirectoryStorage, Storage};
use farleaf_lsm::{Durability, Engine};
use farleaf_replica::{Backup, BackupId, BackupOptions, BackupWays, Epoch, Primary, ReplicaError};
use farleaf_types::{Incarnation, OwnerWord, SessionId};

use crate::world::{all, engine_options, layout, options};

/// A backup's server, on a thread, until it is asked back.
struct Server {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Backup<MappedEndpoint>>,
}

impl Server {
    fn start(region: Arc<MappedRegion>, storage: Arc<dyn Storage>) -> Self {
        let of = (storage, BackupOptions::default());
        let near = MappedEndpoint::new(region);
        let mut backup = Backup::new(near, layout(), Epoch(1), of).expect("its words are there");
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let thread = thread::spawn(move || {
            while !over.load(Ordering::Acquire) {
                if !backup.serve().expect("it can follow") {
                    thread::yield_now();
                }
            }
            backup
        });
        Self { is_over, thread }
    }

    fn stop(self) -> Backup<MappedEndpoint> {
        self.is_over.store(true, Ordering::Release);
        self.thread.join().expect("no panic")
    }
}

/// Writes through a primary whose backup is reached by these ways, and promotes that one.
fn replicate<E: Endpoint + Send + 'static>(
    region: &Arc<MappedRegion>,
    way: impl Fn() -> E,
    cut_off: impl FnOnce(),
) {
    let scratch = [(); 2].map(|()| tempfile::tempdir().expect("a scratch directory"));
    let [own, other] = scratch.each_ref().map(|directory| {
        let storage = DirectoryStorage::open(directory.path()).expect("it is there");
        Arc::new(storage) as Arc<dyn Storage>
    });
    let engine = Engine::open(own, engine_options()).expect("made");
    let primary = Primary::new(engine, Epoch(1), options(IndexKind::Sent));
    primary
        .put(b"before", b"0", Durability::Memory)
        .expect("alone");
    let server = Server::start(Arc::clone(region), other);
    let ways = BackupWays {
        log: way(),
        index: way(),
        layout: layout(),
    };
    primary.add_backup(BackupId(1), ways).expect("filled");
    let writers = 2_u64;
    thread::scope(|scope| {
        for writer in 0..writers {
            let primary = &primary;
            scope.spawn(move || {
                for number in 0..150_u64 {
                    let key = [writer.to_le_bytes(), number.to_le_bytes()].concat();
                    let size_bytes = if number % 50 == 7 { 3 << 20 } else { 500 };
                    let durability = if number % 16 == 0 {
                        Durability::Sync
                    } else {
                        Durability::Memory
                    };
                    let put = primary.put(&key, &vec![writer as u8; size_bytes], durability);
                    put.expect("acknowledged");
                    primary.maintain().expect("no fault is set");
                }
            });
        }
    });
    primary.confirm().expect("it leads");
    let backup = server.stop();
    cut_off();
    let promoted = backup
        .promote(Epoch(2), engine_options())
        .expect("promoted");
    let late = primary.put(b"late", b"", Durability::Memory);
    let is_refused = matches!(
        late,
        Err(ReplicaError::Deposed { .. } | ReplicaError::BackupLost { .. })
    );
    assert!(is_refused, "{late:?}");
    let found = all(&promoted);
    assert_eq!(found.len() as u64, 1 + writers * 150);
    assert!(!found.contains_key(&b"late"[..]));
}

/// Promise: all of it works over `tcp`, where batches wait for the network, and sessions are fenced
/// when the node ends them (F6): nothing of an old primary arrives then.
#[test]
fn it_works_over_tcp() {
    let region = Arc::new(region());
    let node = Node::start(&region);
    let options = TcpConnectOptions {
        secret: Some(secret()),
        ..TcpConnectOptions::default()
    };
    let client = TcpClient::connect(&node.address, &options).expect("it listens");
    let way = || -> TcpEndpoint {
        let owner = client.register_session().expect("a session");
        client.endpoint(Some(owner)).expect("a connection")
    };
    replicate(&region, way, || drop(node));
}

/// Promise: all of it works where two processes map the same memory: here one that has mapped it
/// twice. Without anybody who fences, the epoch tells an old primary.
#[test]
fn it_works_over_shared_memory() {
    let size_bytes = (layout().word_count() + 128) * 8;
    let (memory, size_bytes, _) =
        MappedRegion::create_shared("replica-test", size_bytes).expect("memory");
    let map = || Arc::new(MappedRegion::map_shared(&memory, size_bytes).expect("mapped"));
    replicate(&map(), || MappedEndpoint::new(map()), || {});
}

fn region() -> MappedRegion {
    MappedRegion::anonymous((layout().word_count() + 128) * 8).expect("memory")
}

fn secret() -> Secret {
    Secret::from_text("the secret of these tests").expect("long enough")
}

/// A memory node over `tcp`, until it is dropped.
struct Node {
    address: String,
    stop: StopSignal,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Node {
    fn start(region: &Arc<MappedRegion>) -> Self {
        let mut options = TcpListenOptions::at("127.0.0.1:0".parse().expect("an address"));
        options.secret = Some(secret());
        let listener = TcpListener::bind(region, &options).expect("a free port");
        let address = listener.address().to_string();
        let stop = StopSignal::new().expect("a descriptor");
        let signal = stop.clone();
        let thread = thread::spawn(move || listener.run(&mut Sessions::default(), &signal));
        Self {
            address,
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop.stop();
        let served = self.thread.take().expect("dropped once").join();
        served.expect("no panic").expect("it could go on");
    }
}

#[derive(Default)]
struct Sessions {
    alive: BTreeSet<u64>,
    count: u16,
}

impl SessionService for Sessions {
    fn register(&mut self, _pid: u32) -> Result<OwnerWord, String> {
        self.count += 1;
        let session = SessionId::new(self.count).ok_or("no session is left")?;
        let owner = OwnerWord::new(session, Incarnation::new(1));
        self.alive.insert(owner.word());
        Ok(owner)
    }

    fn fence(&mut self, owner: OwnerWord) {
        self.alive.remove(&owner.word());
    }

    fn process_of(&mut self, owner: OwnerWord) -> Option<u32> {
        self.alive.contains(&owner.word()).then_some(0)
    }
}

impl TcpService for Sessions {
    fn grant(&self, _rights: Rights) -> Grant {
        Grant::everything()
    }

    fn own_words(&self, _owner: OwnerWord) -> Range<u64> {
        0..0
    }
}
