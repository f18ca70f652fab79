//! Backups that are served while their primary waits, and an endpoint with faults.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farleaf_base::NodeId;
pub(crate) use farleaf_base::random::Random;
use farleaf_fabric::mapped::{MappedEndpoint, MappedMemory};
use farleaf_fabric::{Batch, BatchError, BatchErrorKind, Counters, Endpoint, VerbKind};
use farleaf_lsm::Engine;
use farleaf_lsm::follow::{IndexKind, WriteFault};
use farleaf_lsm::manifest::Manifest;
use farleaf_lsm::storage::{CrashStorage, Storage};
use farleaf_replica::{
    Backup, BackupConnections, BackupId, BackupOptions, BackupTail, Epoch, Primary, ReplicaError,
};

use crate::over::memory;
pub(crate) use crate::over::{Model, assert_equal, engine_options, layout, options, scanned};

type Served = Arc<Mutex<Option<Backup<MappedEndpoint>>>>;

/// A process with a region, a directory, and a backup as long as it has one.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) storage: CrashStorage,
    /// Numbers of the directory in force, and of the one being filled.
    in_force: Arc<AtomicU32>,
    filling: Arc<AtomicU32>,
    pub(crate) memory: Arc<MappedMemory>,
    pub(crate) backup: Served,
    pub(crate) faults: Arc<Faults>,
    /// Fault that its next backups inject once.
    pub(crate) write_fault: WriteFault,
}

/// Faults of the connection to a node.
#[derive(Debug)]
pub(crate) struct Faults {
    /// Whether the node cannot be reached.
    pub(crate) is_dead: AtomicBool,
    /// Number of batches until one is executed in part and the node becomes unreachable.
    pub(crate) batches_left: AtomicI64,
    /// Number of steps until the node stops serving while its memory stays accessible.
    pub(crate) steps_left: AtomicI64,
    random: Mutex<u64>,
}

impl Node {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            storage: CrashStorage::new(seed),
            in_force: Arc::default(),
            filling: Arc::default(),
            memory: memory(),
            backup: Served::default(),
            write_fault: WriteFault::default(),
            faults: Arc::new(Faults {
                is_dead: AtomicBool::new(false),
                batches_left: AtomicI64::new(i64::MAX),
                steps_left: AtomicI64::new(i64::MAX),
                random: Mutex::new(seed),
            }),
        }
    }

    /// Returns a node with the same directory in a restarted process.
    pub(crate) fn restarted(&self, storage: CrashStorage) -> Self {
        let seed = *self.faults.random.lock().expect("no panic");
        Self {
            storage,
            in_force: Arc::new(AtomicU32::new(self.in_force.load(Ordering::Acquire))),
            ..Self::new(seed)
        }
    }

    /// Returns the directory in force.
    pub(crate) fn shared_storage(&self) -> Arc<dyn Storage> {
        Arc::new(self.directory(self.in_force.load(Ordering::Acquire)))
    }

    fn directory(&self, number: u32) -> CrashStorage {
        self.storage.beside(number)
    }

    /// Puts the filled directory in force, if it was filled, and removes the previous one.
    pub(crate) fn put_in_force(&self) {
        let mut backup = self.backup();
        let Some(backup) = backup.as_mut() else {
            return;
        };
        let filling = self.filling.load(Ordering::Acquire);
        let is_filled = backup.status().is_ok_and(|status| status.is_filled);
        let before = self.in_force.load(Ordering::Acquire);
        if !is_filled || filling == before {
            return;
        }
        self.in_force.store(filling, Ordering::Release);
        if backup.note_in_force().is_ok() {
            let before = self.directory(before);
            for name in before.list().unwrap_or_default() {
                let _ = before.remove(&name);
            }
        }
    }

    /// Becomes a backup for the primary of an epoch: in another directory, if the one in force has
    /// a copy.
    pub(crate) fn become_backup(&self, epoch: u64) {
        let has_copy = Manifest::is_there(&*self.shared_storage()).unwrap_or(false);
        let filling = self.in_force.load(Ordering::Acquire) + u32::from(has_copy);
        self.filling.store(filling, Ordering::Release);
        let options = BackupOptions {
            engine: engine_options(),
            replaces: true,
            previous: has_copy.then(|| self.shared_storage()),
            write_fault: self.write_fault.clone(),
        };
        let near = MappedEndpoint::new(Arc::clone(&self.memory));
        let backup = Backup::new(
            near,
            layout(),
            Epoch(epoch),
            Arc::new(self.directory(filling)),
            options,
        );
        *self.backup() = Some(backup.expect("its words are there"));
    }

    pub(crate) fn backup(&self) -> MutexGuard<'_, Option<Backup<MappedEndpoint>>> {
        self.backup.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn endpoint(&self) -> TestEndpoint {
        self.endpoint_with(&Hook::default())
    }

    /// Returns an endpoint to the node, with a hook that runs before each batch.
    pub(crate) fn endpoint_with(&self, hook: &Hook) -> TestEndpoint {
        TestEndpoint {
            inner: MappedEndpoint::new(Arc::clone(&self.memory)),
            node: self.clone(),
            hook: Arc::clone(hook),
        }
    }

    pub(crate) fn connections(&self) -> BackupConnections<TestEndpoint> {
        BackupConnections {
            log: self.endpoint(),
            index: self.endpoint(),
            layout: layout(),
        }
    }

    /// Does a step of the node's server; returns false if there was nothing to do, or it has
    /// stopped.
    pub(crate) fn serve(&self) -> bool {
        if self.faults.steps_left.fetch_sub(1, Ordering::Relaxed) <= 0 {
            self.faults.is_dead.store(true, Ordering::Release);
            return false;
        }
        let mut backup = self.backup();
        backup
            .as_mut()
            .is_some_and(|backup| backup.serve().unwrap_or(false))
    }

    /// Returns a writer of its backup's log for another thread.
    pub(crate) fn tail(&self) -> BackupTail<MappedEndpoint> {
        let near = MappedEndpoint::new(Arc::clone(&self.memory));
        self.backup().as_ref().expect("it is one").tail(near)
    }

    /// Promotes its backup to an engine.
    pub(crate) fn promote(&self, epoch: u64) -> Result<Engine, ReplicaError> {
        self.put_in_force();
        let backup = self.backup().take().expect("it is one");
        backup.promote(Epoch(epoch), engine_options())
    }
}

/// An endpoint to a node's memory; while it waits, the node is served.
pub(crate) struct TestEndpoint {
    inner: MappedEndpoint,
    node: Node,
    hook: Hook,
}

/// Hook that runs before each batch of an endpoint.
pub(crate) type Hook = Arc<Mutex<Option<Box<dyn FnMut() + Send>>>>;

impl Endpoint for TestEndpoint {
    async fn execute(&self, batch: &mut Batch) -> Result<(), BatchError> {
        if let Some(act) = &mut *self.hook.lock().expect("no panic") {
            act();
        }
        let faults = &self.node.faults;
        if faults.is_dead.load(Ordering::Acquire) {
            let kind = BatchErrorKind::Unreachable {
                node: NodeId(0),
                reason: "the test has cut it off".to_owned(),
            };
            return Err(BatchError::new(kind, 0));
        }
        if faults.batches_left.fetch_sub(1, Ordering::AcqRel) > 0 {
            return self.inner.execute_now(batch);
        }
        faults.is_dead.store(true, Ordering::Release);
        let mut seed = faults.random.lock().expect("no panic");
        let mut random = Random::new(*seed);
        *seed = random.bits();
        self.execute_in_part(batch, &mut random)
    }

    fn poll_completions(&self) -> usize {
        usize::from(self.node.serve())
    }

    fn counters(&self) -> &Counters {
        self.inner.counters()
    }

    fn memory_word_count(&self, node: NodeId) -> Option<u64> {
        self.inner.memory_word_count(node)
    }
}

impl TestEndpoint {
    /// Executes a prefix of a batch's changes, and any words of the next WRITE (FABRIC-5).
    fn execute_in_part(&self, batch: &mut Batch, random: &mut Random) -> Result<(), BatchError> {
        let (verbs, words, _) = batch.parts_mut();
        let whole_count = random.below(verbs.len() as u64 + 1) as usize;
        let mut part = Batch::new();
        for (index, verb) in verbs.iter().enumerate().take(whole_count + 1) {
            let data = &words[verb.start as usize..];
            match verb.kind {
                VerbKind::Write if index < whole_count => {
                    part.write(verb.addr, &data[..verb.word_count as usize]);
                }
                VerbKind::Write => {
                    let odds = 1 + random.below(8);
                    for at in 0..u64::from(verb.word_count) {
                        if random.below(8) < odds {
                            part.write_word(verb.addr.offset(at), data[at as usize]);
                        }
                    }
                }
                VerbKind::CompareSwap if index < whole_count => {
                    part.compare_swap(verb.addr, data[0], data[1]);
                }
                _ => {}
            }
        }
        self.inner.execute_now(&mut part)?;
        let kind = BatchErrorKind::Unknown {
            reason: "the test has cut it off".to_owned(),
        };
        Err(BatchError::new(kind, whole_count))
    }
}

/// Creates a primary in a directory of its own, with backups at nodes.
pub(crate) fn primary(
    engine: Engine,
    epoch: u64,
    index: IndexKind,
    backups: &[&Node],
) -> Primary<TestEndpoint> {
    let primary = Primary::new(engine, Epoch(epoch), options(index));
    for (id, node) in (1..).zip(backups) {
        node.become_backup(epoch);
        let added = primary.add_backup(BackupId(id), node.connections());
        added.expect("no fault is set");
        node.put_in_force();
    }
    primary
}

pub(crate) fn opened(node: &Node) -> Engine {
    Engine::open(node.shared_storage(), engine_options()).expect("it is whole, or new")
}

pub(crate) const KEY_COUNT: u64 = 48;

pub(crate) fn key_of(number: u64) -> Vec<u8> {
    let number = number % KEY_COUNT;
    match number % 3 {
        0 => format!("{number}").into_bytes(),
        1 => format!("{}{number}", "long".repeat(30)).into_bytes(),
        _ => number.to_be_bytes().to_vec(),
    }
}

/// Returns a value: usually small, some larger than half a segment, a few larger than one.
pub(crate) fn value_of(number: u64) -> Vec<u8> {
    let size_bytes = match number >> 8 & 127 {
        0 => 5 << 20,
        1..=5 => 900_000,
        6..=20 => 9_000,
        small => small as usize,
    };
    let mut value = number.to_le_bytes().repeat(size_bytes / 8 + 1);
    value.truncate(size_bytes);
    value
}

/// Reads everything that an engine has, by a scan and by gets, which must agree.
pub(crate) fn all(engine: &Engine) -> Model {
    let model = scanned(&engine.snapshot());
    for number in 0..KEY_COUNT {
        let key = key_of(number);
        let value = engine.get(&key).expect("it can be read");
        assert_eq!(value.as_ref(), model.get(&key), "{number}");
    }
    model
}
