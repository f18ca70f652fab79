//! A disk that fails: all directories of data that a server has.

use std::iter::Sum;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farleaf_lsm::storage::{DirectoryStorage, Fault, FaultyStorage, Operation};
use farleaf_server::{DiskRoom, OpenStorage};

/// Those with which something is written.
pub(crate) const WRITES: &[Operation] = &[Operation::Create, Operation::Write, Operation::SetSize];
pub(crate) const SYNCS: &[Operation] = &[Operation::Sync, Operation::SyncNames];

/// What a disk was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) sync_count: u64,
    pub(crate) written_bytes: u64,
    pub(crate) read_bytes: u64,
}

impl Sum for Work {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, it| Self {
            sync_count: sum.sync_count + it.sync_count,
            written_bytes: sum.written_bytes + it.written_bytes,
            read_bytes: sum.read_bytes + it.read_bytes,
        })
    }
}

/// Clones are the same disk.
#[derive(Clone, Default)]
pub(crate) struct Disk {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    /// Set in each directory that is opened.
    fault: Option<Fault>,
    opened: Vec<(PathBuf, FaultyStorage)>,
}

impl Disk {
    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How a server opens directories on this disk.
    pub(crate) fn opener(&self) -> OpenStorage {
        let (disk, looked) = (self.clone(), self.clone());
        OpenStorage::new(move |path| {
            let storage = FaultyStorage::new(Arc::new(DirectoryStorage::open(path)?));
            let mut shared = disk.shared();
            if let Some(fault) = &shared.fault {
                storage.set(fault.clone());
            }
            shared.opened.push((path.to_owned(), storage.clone()));
            Ok(Arc::new(storage))
        })
        .with_room(move |_| {
            let is_full = matches!(looked.shared().fault, Some(Fault::Full { .. }));
            Ok(DiskRoom {
                capacity_bytes: 1 << 40,
                free_bytes: if is_full { 0 } else { 1 << 39 },
            })
        })
    }

    /// It is full from now on.
    pub(crate) fn fill_up(&self) {
        self.fail(&Fault::Full { after_bytes: 0 });
    }

    /// All that is on it has this fault from now on.
    pub(crate) fn fail(&self, fault: &Fault) {
        let mut shared = self.shared();
        for (_, storage) in &shared.opened {
            storage.set(fault.clone());
        }
        shared.fault = Some(fault.clone());
    }

    /// These operations fail from now on.
    pub(crate) fn fail_at(&self, operations: &'static [Operation]) {
        self.fail(&Fault::Fail {
            operations,
            file: None,
            nth: 1,
            times: u64::MAX,
        });
    }

    /// What all that is on it was asked for so far.
    pub(crate) fn work(&self) -> Work {
        let shared = self.shared();
        let counters = shared.opened.iter().map(|(_, storage)| storage.counters());
        let works = counters.map(|it| Work {
            sync_count: SYNCS.iter().map(|of| it.operation_count(*of)).sum(),
            written_bytes: it.written_bytes,
            read_bytes: it.read_bytes,
        });
        works.sum()
    }

    /// A bit of a file in a directory is another one, until the disk is repaired.
    pub(crate) fn flip(&self, directory: &Path, file: &str, offset: u64) {
        for (path, storage) in &self.shared().opened {
            if path == directory {
                storage.set(Fault::FlipBit {
                    file: file.to_owned(),
                    offset,
                    bit: 3,
                    stays: true,
                });
            }
        }
    }

    /// It works from now on, and what is on it is what was written.
    pub(crate) fn repair(&self) {
        let mut shared = self.shared();
        shared.fault = None;
        for (_, storage) in &shared.opened {
            storage.lift_all();
        }
    }
}

/// One for each of so many servers.
pub(crate) fn disks(count: usize) -> Vec<Disk> {
    (0..count).map(|_| Disk::default()).collect()
}
