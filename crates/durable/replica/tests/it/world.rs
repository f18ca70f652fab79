//! Backups that are served when their primary waits, and an endpoint with faults.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farleaf_fabric::mapped::{MappedEndpoint, MappedRegion};
use farleaf_fabric::{Batch, BatchError, BatchErrorKind, Counters, Endpoint, VerbKind};
use farleaf_lsm::Engine;
use farleaf_lsm::follow::{IndexKind, WriteFault};
use farleaf_lsm::manifest::Manifest;
use farleaf_lsm::storage::{CrashStorage, Storage};
use farleaf_replica::{
    Backup, BackupId, BackupOptions, BackupTail, BackupWays, Epoch, Primary, ReplicaError,
};
use farleaf_types::NodeId;

use crate::over::region;
pub(crate) use crate::over::{Model, assert_equal, engine_options, layout, options, scanned};

/// `SplitMix64`.
#[derive(Clone)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

type Served = Arc<Mutex<Option<Backup<MappedEndpoint>>>>;

/// A process with a region, a directory, and a backup as long as it has one.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) storage: CrashStorage,
    /// RS1: which of its directories is in force, and which one is being filled.
    in_force: Arc<AtomicU32>,
    filling: Arc<AtomicU32>,
    pub(crate) region: Arc<MappedRegion>,
    pub(crate) backup: Served,
    pub(crate) faults: Arc<Faults>,
    /// What its next backups do wrong, once.
    pub(crate) write_fault: WriteFault,
}

/// What goes wrong on the way to a node.
#[derive(Debug)]
pub(crate) struct Faults {
    /// It cannot be reached.
    pub(crate) is_dead: AtomicBool,
    /// After so many batches more, one is executed in part, and it is dead.
    pub(crate) batches_left: AtomicI64,
    /// After so many steps more, it stops serving, and its memory is still there.
    pub(crate) steps_left: AtomicI64,
    random: Mutex<u64>,
}

impl Node {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            storage: CrashStorage::new(seed),
            in_force: Arc::default(),
            filling: Arc::default(),
            region: region(),
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

    /// The same directory, in a process that has begun anew.
    pub(crate) fn restarted(&self, storage: CrashStorage) -> Self {
        let seed = *self.faults.random.lock().expect("no panic");
        Self {
            storage,
            in_force: Arc::new(AtomicU32::new(self.in_force.load(Ordering::Acquire))),
            ..Self::new(seed)
        }
    }

    /// The directory that is in force.
    pub(crate) fn shared_storage(&self) -> Arc<dyn Storage> {
        Arc::new(self.directory(self.in_force.load(Ordering::Acquire)))
    }

    fn directory(&self, number: u32) -> CrashStorage {
        self.storage.beside(number)
    }

    /// RS1: what was filled is in force, if it was; and what was before goes.
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

    /// It becomes a backup for the primary of an epoch: in another directory, if there is a copy in
    /// the one that is in force.
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
        let near = MappedEndpoint::new(Arc::clone(&self.region));
        let backup = Backup::new(
            near,
            layout(),
            Epoch(epoch),
            (Arc::new(self.directory(filling)), options),
        );
        *self.backup() = Some(backup.expect("its words are there"));
    }

    pub(crate) fn backup(&self) -> MutexGuard<'_, Option<Backup<MappedEndpoint>>> {
        self.backup.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn endpoint(&self) -> TestEndpoint {
        self.endpoint_with(&Hook::default())
    }

    /// The way to it, and what is done before each batch.
    pub(crate) fn endpoint_with(&self, hook: &Hook) -> TestEndpoint {
        TestEndpoint {
            inner: MappedEndpoint::new(Arc::clone(&self.region)),
            node: self.clone(),
            hook: Arc::clone(hook),
        }
    }

    pub(crate) fn ways(&self) -> BackupWays<TestEndpoint> {
        BackupWays {
            log: self.endpoint(),
            index: self.endpoint(),
            layout: layout(),
        }
    }

    /// A step of its server; false: there was nothing to do, or it has stopped.
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

    /// Who writes the end of its backup's log from elsewhere.
    pub(crate) fn tail(&self) -> BackupTail<MappedEndpoint> {
        let near = MappedEndpoint::new(Arc::clone(&self.region));
        self.backup().as_ref().expect("it is one").tail(near)
    }

    /// Takes its backup, and makes it an engine.
    pub(crate) fn promote(&self, epoch: u64) -> Result<Engine, ReplicaError> {
        self.put_in_force();
        let backup = self.backup().take().expect("it is one");
        backup.promote(Epoch(epoch), engine_options())
    }
}

/// The way to a node, in whose memory it writes; while it waits, the node is served.
pub(crate) struct TestEndpoint {
    inner: MappedEndpoint,
    node: Node,
    hook: Hook,
}

/// What is done before each batch of an endpoint.
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
        let mut random = Random(*seed);
        *seed = random.next();
        self.execute_in_part(batch, &mut random)
    }

    fn poll_completions(&self) -> usize {
        usize::from(self.node.serve())
    }

    fn counters(&self) -> &Counters {
        self.inner.counters()
    }

    fn region_word_count(&self, node: NodeId) -> Option<u64> {
        self.inner.region_word_count(node)
    }
}

impl TestEndpoint {
    /// F5: a prefix of what a batch changes, and any words of the next WRITE.
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

/// A primary in a directory of its own, with backups at nodes.
pub(crate) fn primary(
    engine: Engine,
    epoch: u64,
    index: IndexKind,
    backups: &[&Node],
) -> Primary<TestEndpoint> {
    let primary = Primary::new(engine, Epoch(epoch), options(index));
    for (id, node) in (1..).zip(backups) {
        node.become_backup(epoch);
        let added = primary.add_backup(BackupId(id), node.ways());
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

/// Mostly small, some larger than half a segment, a few larger than one.
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

/// All that an engine has, by a scan and by gets, which agree.
pub(crate) fn all(engine: &Engine) -> Model {
    let model = scanned(&engine.snapshot());
    for number in 0..KEY_COUNT {
        let key = key_of(number);
        let value = engine.get(&key).expect("it can be read");
        assert_eq!(value.as_ref(), model.get(&key), "{number}");
    }
    model
}
