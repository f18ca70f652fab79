//! A disk that fails, with all data directories of a server.

use std::iter::Sum;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farleaf_lsm::storage::{DirectoryStorage, Fault, FaultyStorage, Operation};
use farleaf_server::{DiskSpace, OpenStorage};

/// Operations that write.
pub(crate) const WRITES: &[Operation] = &[Operation::Create, Operation::Write, Operation::SetSize];
pub(crate) const SYNCS: &[Operation] = &[Operation::Sync, Operation::SyncNames];

/// Counts of a disk's operations.
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

/// A disk. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Disk {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    /// Fault set in each directory that is opened.
    fault: Option<Fault>,
    opened: Vec<(PathBuf, FaultyStorage)>,
}

impl Disk {
    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the function with which a server opens directories on this disk.
    pub(crate) fn opener(&self) -> OpenStorage {
        let (disk, measured_disk) = (self.clone(), self.clone());
        OpenStorage::new(move |path| {
            let storage = FaultyStorage::new(Arc::new(DirectoryStorage::open(path)?));
            let mut shared = disk.shared();
            if let Some(fault) = &shared.fault {
                storage.set(fault.clone());
            }
            shared.opened.push((path.to_owned(), storage.clone()));
            Ok(Arc::new(storage))
        })
        .with_space(move |_| {
            let is_full = matches!(measured_disk.shared().fault, Some(Fault::Full { .. }));
            Ok(DiskSpace {
                capacity_bytes: 1 << 40,
                free_bytes: if is_full { 0 } else { 1 << 39 },
            })
        })
    }

    /// Makes the disk full.
    pub(crate) fn fill_up(&self) {
        self.fail(&Fault::Full { after_bytes: 0 });
    }

    /// Sets a fault for everything on the disk.
    pub(crate) fn fail(&self, fault: &Fault) {
        let mut shared = self.shared();
        for (_, storage) in &shared.opened {
            storage.set(fault.clone());
        }
        shared.fault = Some(fault.clone());
    }

    /// Makes these operations fail.
    pub(crate) fn fail_at(&self, operations: &'static [Operation]) {
        self.fail(&Fault::Fail {
            operations,
            file: None,
            nth: 1,
            times: u64::MAX,
        });
    }

    /// Returns the counts of all operations so far.
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

    /// Flips a bit of a file in a directory until the disk is repaired.
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

    /// Repairs the disk; it has what was written.
    pub(crate) fn repair(&self) {
        let mut shared = self.shared();
        shared.fault = None;
        for (_, storage) in &shared.opened {
            storage.lift_all();
        }
    }
}

/// Creates one disk for each of `count` servers.
pub(crate) fn disks(count: usize) -> Vec<Disk> {
    (0..count).map(|_| Disk::default()).collect()
}
