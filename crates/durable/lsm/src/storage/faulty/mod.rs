//! Another storage, with faults.
//!
//! | module | what it holds |
//! |---|---|
//! | `rules` | the faults that are set, and what they do to an operation |
//! | `room` | how much of a disk the files take, for one that is full |
//! | `counters` | operations and bytes, by file |

mod counters;
mod room;
mod rules;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

pub use self::counters::{Counters, Operation};
use self::room::FileId;
use self::rules::Rules;
use super::{Origin, Storage, StorageFile, StorageLock};

/// What goes wrong, from when it is [set](FaultyStorage::set) until it is
/// [lifted](FaultyStorage::lift).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Operations fail with [`io::ErrorKind::Other`]. Nothing was done then, except that of a write
    /// the first half was.
    Fail {
        /// Which kinds of operations.
        operations: &'static [Operation],
        /// Of which file; `None`: of all, and of the directory.
        file: Option<String>,
        /// Which of them is the first that fails, counted from 1 on when the fault is set.
        nth: u64,
        /// How many fail, from that one on: `u64::MAX` for all.
        times: u64,
    },
    /// The disk is full after so many bytes more: writes and sizes for which there is no room fail
    /// with [`io::ErrorKind::StorageFull`]. Of a write, there is what there was room for. Cutting,
    /// removing, replacing, and discarding whole blocks of 4 KiB give room back.
    Full {
        /// Room that is left.
        after_bytes: u64,
    },
    /// A bit is not what was written.
    FlipBit {
        /// In which file.
        file: String,
        /// In which of its bytes.
        offset: u64,
        /// In which bit of it, from 0 on.
        bit: u8,
        /// On the disk: all reads find it until that byte is written. Or else on the way: the next
        /// read of that byte finds it, and no other.
        stays: bool,
    },
    /// Operations take longer.
    Slow {
        /// Which kinds of operations.
        operations: &'static [Operation],
        /// By how much.
        each: Duration,
    },
}

/// A fault that was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FaultId(u64);

/// Another storage, with faults, and a count of all that is done with it.
///
/// Clones are the same storage with the same faults: one for the engine, and one to set faults
/// while the engine runs. As long as no fault is set, it does what the other one does.
///
/// For [`Fault::Full`] and for the counters, everything has to go through this storage: what was
/// discarded in another one counts as room that is taken.
#[derive(Clone, Debug)]
pub struct FaultyStorage {
    inner: Arc<dyn Storage>,
    rules: Arc<Mutex<Rules>>,
}

impl FaultyStorage {
    /// Another storage, without a fault so far.
    pub fn new(inner: Arc<dyn Storage>) -> Self {
        Self {
            inner,
            rules: Arc::new(Mutex::new(Rules::default())),
        }
    }

    /// Sets a fault, beside those that are set.
    pub fn set(&self, fault: Fault) -> FaultId {
        self.rules().set(fault)
    }

    /// Lifts a fault. False: it is not set, or was a flip and has ended.
    pub fn lift(&self, id: FaultId) -> bool {
        self.rules().lift(id)
    }

    /// Lifts all faults.
    pub fn lift_all(&self) {
        self.rules().lift_all();
    }

    /// How often a fault did something: operations failed, found no room, found the bit flipped,
    /// were slowed down. Remembered when it is lifted; 0 for one of another storage.
    pub fn hit_count(&self, id: FaultId) -> u64 {
        self.rules().hit_count(id)
    }

    /// What was done in all, since the beginning or [`clear_counters`](Self::clear_counters).
    pub fn counters(&self) -> Counters {
        self.rules().counters.total()
    }

    /// What was done with a file, or under a name that files had one after the other.
    pub fn counters_of(&self, file: &str) -> Counters {
        self.rules().counters.of(file)
    }

    /// The same for every name with which anything was done.
    pub fn counters_by_file(&self) -> BTreeMap<String, Counters> {
        self.rules().counters.by_file()
    }

    /// Counts from 0 on again.
    pub fn clear_counters(&self) {
        self.rules().counters.clear();
    }

    /// Never held while the other storage works, or while somebody sleeps.
    fn rules(&self) -> MutexGuard<'_, Rules> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an operation, and is slow or fails if a fault says so.
    fn enter(&self, operation: Operation, file: Option<&str>) -> io::Result<()> {
        let verdict = self.rules().judge(operation, file);
        if !verdict.delay.is_zero() {
            thread::sleep(verdict.delay);
        }
        if verdict.fails {
            let of = file.map(|file| format!(" of {file}")).unwrap_or_default();
            return Err(io::Error::other(format!("a fault: {operation:?}{of}")));
        }
        Ok(())
    }

    /// Learns how large a file is that this storage has not opened yet, before it loses its name.
    fn learn(&self, name: &str) {
        let is_known = self.rules().rooms.knows(name);
        if !is_known
            && let Ok(file) = self.inner.open(name)
            && let Ok(size_bytes) = file.size()
        {
            self.rules().rooms.opened(name, size_bytes);
        }
    }
}

impl FaultyStorage {
    fn opened(&self, name: &str, inner: Arc<dyn StorageFile>) -> io::Result<Arc<dyn StorageFile>> {
        let size_bytes = inner.size()?;
        let id = self.rules().rooms.opened(name, size_bytes);
        Ok(Arc::new(FaultyFile {
            storage: self.clone(),
            inner,
            id,
        }))
    }
}

impl Storage for FaultyStorage {
    fn create(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        self.enter(Operation::Create, Some(name))?;
        self.learn(name);
        let inner = self.inner.create(name)?;
        let id = self.rules().created(name);
        Ok(Arc::new(FaultyFile {
            storage: self.clone(),
            inner,
            id,
        }))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        self.enter(Operation::Open, Some(name))?;
        self.opened(name, self.inner.open(name)?)
    }

    fn open_uncached(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        self.enter(Operation::Open, Some(name))?;
        self.opened(name, self.inner.open_uncached(name)?)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.enter(Operation::Rename, Some(from))?;
        self.learn(from);
        self.learn(to);
        self.inner.rename(from, to)?;
        self.rules().renamed(from, to);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.enter(Operation::Remove, Some(name))?;
        self.learn(name);
        self.inner.remove(name)?;
        self.rules().removed(name);
        Ok(())
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.enter(Operation::List, None)?;
        self.inner.list()
    }

    fn sync_names(&self) -> io::Result<()> {
        self.enter(Operation::SyncNames, None)?;
        self.inner.sync_names()
    }

    fn lock(&self, name: &str) -> io::Result<Option<Box<dyn StorageLock>>> {
        self.enter(Operation::Lock, Some(name))?;
        self.inner.lock(name)
    }

    fn name(&self) -> String {
        self.inner.name()
    }

    fn origin(&self, name: &str) -> Option<Origin> {
        self.inner.origin(name)
    }

    fn link(&self, origin: &Origin, name: &str) -> io::Result<()> {
        self.enter(Operation::Create, Some(name))?;
        self.inner.link(origin, name)
    }
}

#[derive(Debug)]
struct FaultyFile {
    storage: FaultyStorage,
    inner: Arc<dyn StorageFile>,
    id: FileId,
}

/// How bytes are written.
type Write = fn(&dyn StorageFile, &[u8], u64) -> io::Result<()>;

impl FaultyFile {
    /// What the file is called now; for one that was removed, what it was called.
    fn name(&self) -> String {
        self.storage.rules().rooms.name_of(self.id)
    }

    fn enter(&self, operation: Operation) -> io::Result<String> {
        let name = self.name();
        self.storage.enter(operation, Some(&name))?;
        Ok(name)
    }

    fn write(&self, write: Write, bytes: &[u8], offset: u64) -> io::Result<()> {
        let name = self.name();
        if let Err(error) = self.storage.enter(Operation::Write, Some(&name)) {
            // The fault comes first, whatever becomes of the half.
            let _ = self.write_what_fits((&name, write), &bytes[..bytes.len() / 2], offset);
            return Err(error);
        }
        self.write_what_fits((&name, write), bytes, offset)
    }

    /// Writes as much as there is room for.
    fn write_what_fits(
        &self,
        (name, write): (&str, Write),
        bytes: &[u8],
        offset: u64,
    ) -> io::Result<()> {
        let fits_bytes = self.storage.rules().take_room(self.id, bytes.len(), offset);
        let fits = &bytes[..fits_bytes];
        if !fits.is_empty() || bytes.is_empty() {
            write(&*self.inner, fits, offset)?;
            self.storage.rules().written(name, fits.len(), offset);
        }
        if fits_bytes < bytes.len() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }
}

impl StorageFile for FaultyFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let name = self.enter(Operation::Read)?;
        self.inner.read_at(buffer, offset)?;
        self.storage.rules().read(&name, buffer, offset);
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write(
            |file, bytes, offset| file.write_at(bytes, offset),
            bytes,
            offset,
        )
    }

    fn append_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write(
            |file, bytes, offset| file.append_at(bytes, offset),
            bytes,
            offset,
        )
    }

    fn sync(&self) -> io::Result<()> {
        self.enter(Operation::Sync)?;
        self.inner.sync()
    }

    fn size(&self) -> io::Result<u64> {
        self.enter(Operation::Size)?;
        self.inner.size()
    }

    fn set_size(&self, size_bytes: u64) -> io::Result<()> {
        self.enter(Operation::SetSize)?;
        if !self.storage.rules().resize(self.id, size_bytes) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.inner.set_size(size_bytes)
    }

    fn discard(&self, offset: u64, size_bytes: u64) -> io::Result<()> {
        self.enter(Operation::Discard)?;
        self.inner.discard(offset, size_bytes)?;
        self.storage.rules().discarded(self.id, offset, size_bytes);
        Ok(())
    }
}
