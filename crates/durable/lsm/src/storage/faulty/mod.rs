//! Another storage, with injected faults.
//!
//! | module | contents |
//! |---|---|
//! | `rules` | the faults that are set, and their effect on operations |
//! | `free_space` | disk space that the files use, for a full disk |
//! | `counters` | operations and bytes, by file |

mod counters;
mod free_space;
mod rules;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

pub use self::counters::{Counters, Operation};
use self::free_space::FileId;
use self::rules::Rules;
use super::{Origin, Storage, StorageFile, StorageLock};

/// Fault that is injected from when it is [set](FaultyStorage::set) until it is
/// [lifted](FaultyStorage::lift).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Operations fail with [`io::ErrorKind::Other`] and have no effect, except that a write writes
    /// its first half.
    Fail {
        /// Kinds of operations that fail.
        operations: &'static [Operation],
        /// Name of the file; `None` for all files and the directory.
        file: Option<String>,
        /// First operation that fails, counted from 1 when the fault is set.
        nth: u64,
        /// Number of operations that fail from that one on; `u64::MAX` for all.
        times: u64,
    },
    /// The disk is full after this many more bytes. Writes and sizes that do not fit fail with
    /// [`io::ErrorKind::StorageFull`]; such a write writes what fits. Truncating, removing,
    /// replacing, and discarding whole 4 KiB blocks free space.
    Full {
        /// Free space in bytes.
        after_bytes: u64,
    },
    /// A bit flips.
    FlipBit {
        /// Name of the file.
        file: String,
        /// Offset of the byte.
        offset: u64,
        /// Bit in the byte, from 0.
        bit: u8,
        /// Whether the bit flips on the disk, so that all reads see it until the byte is written.
        /// Otherwise, only the next read of the byte sees it.
        stays: bool,
    },
    /// Operations are slow.
    Slow {
        /// Kinds of operations that are slow.
        operations: &'static [Operation],
        /// Additional duration of each operation.
        each: Duration,
    },
}

/// Id of a fault that was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FaultId(u64);

/// Storage that injects faults into another storage, and counts all operations.
///
/// Clones are the same storage with the same faults: one for the engine, and one to set faults
/// while the engine runs. Without faults, it behaves like the other storage.
///
/// [`Fault::Full`] and the counters require that all operations go through this storage: space
/// discarded directly in the other one counts as used.
#[derive(Clone, Debug)]
pub struct FaultyStorage {
    inner: Arc<dyn Storage>,
    rules: Arc<Mutex<Rules>>,
}

impl FaultyStorage {
    /// Wraps a storage, without any fault.
    pub fn new(inner: Arc<dyn Storage>) -> Self {
        Self {
            inner,
            rules: Arc::new(Mutex::new(Rules::default())),
        }
    }

    /// Sets a fault, in addition to those that are set.
    pub fn set(&self, fault: Fault) -> FaultId {
        self.rules().set(fault)
    }

    /// Lifts a fault. Returns false if it is not set, or was a flip that has ended.
    pub fn lift(&self, id: FaultId) -> bool {
        self.rules().lift(id)
    }

    /// Lifts all faults.
    pub fn lift_all(&self) {
        self.rules().lift_all();
    }

    /// Returns how often a fault had an effect: failed or slow operations, a full disk, or a
    /// flipped bit. The count survives lifting; it is 0 for a fault of another storage.
    pub fn hit_count(&self, id: FaultId) -> u64 {
        self.rules().hit_count(id)
    }

    /// Returns the counters of all operations since the beginning or
    /// [`clear_counters`](Self::clear_counters).
    pub fn counters(&self) -> Counters {
        self.rules().counters.total()
    }

    /// Returns the counters of a file, or of all files that have had the name.
    pub fn counters_of(&self, file: &str) -> Counters {
        self.rules().counters.of(file)
    }

    /// Returns the counters of each name.
    pub fn counters_by_file(&self) -> BTreeMap<String, Counters> {
        self.rules().counters.by_file()
    }

    /// Resets all counters to 0.
    pub fn clear_counters(&self) {
        self.rules().counters.clear();
    }

    /// Locks the rules. The lock is never held during an operation of the other storage or a delay.
    fn rules(&self) -> MutexGuard<'_, Rules> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an operation, and delays or fails it if a fault requires that.
    fn enter(&self, operation: Operation, file: Option<&str>) -> io::Result<()> {
        let verdict = self.rules().effect_on(operation, file);
        if !verdict.delay.is_zero() {
            thread::sleep(verdict.delay);
        }
        if verdict.fails {
            let of = file.map(|file| format!(" of {file}")).unwrap_or_default();
            return Err(io::Error::other(format!("a fault: {operation:?}{of}")));
        }
        Ok(())
    }

    /// Finds out the size of a file that this storage has not opened yet, before the file loses its
    /// name.
    fn measure_file(&self, name: &str) {
        let is_known = self.rules().file_spaces.knows(name);
        if !is_known
            && let Ok(file) = self.inner.open(name)
            && let Ok(size_bytes) = file.size()
        {
            self.rules().file_spaces.opened(name, size_bytes);
        }
    }
}

impl FaultyStorage {
    fn opened(&self, name: &str, inner: Arc<dyn StorageFile>) -> io::Result<Arc<dyn StorageFile>> {
        let size_bytes = inner.size()?;
        let id = self.rules().file_spaces.opened(name, size_bytes);
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
        self.measure_file(name);
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
        self.measure_file(from);
        self.measure_file(to);
        self.inner.rename(from, to)?;
        self.rules().renamed(from, to);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.enter(Operation::Remove, Some(name))?;
        self.measure_file(name);
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

/// Method that writes bytes.
type Write = fn(&dyn StorageFile, &[u8], u64) -> io::Result<()>;

impl FaultyFile {
    /// Returns the current name of the file; for a removed file, its last name.
    fn name(&self) -> String {
        self.storage.rules().file_spaces.name_of(self.id)
    }

    fn enter(&self, operation: Operation) -> io::Result<String> {
        let name = self.name();
        self.storage.enter(operation, Some(&name))?;
        Ok(name)
    }

    fn write(&self, write: Write, bytes: &[u8], offset: u64) -> io::Result<()> {
        let name = self.name();
        if let Err(error) = self.storage.enter(Operation::Write, Some(&name)) {
            // The fault's error is returned, even if writing the half fails.
            let _ = self.write_what_fits(&name, write, &bytes[..bytes.len() / 2], offset);
            return Err(error);
        }
        self.write_what_fits(&name, write, bytes, offset)
    }

    /// Writes as many bytes as fit.
    fn write_what_fits(
        &self,
        name: &str,
        write: Write,
        bytes: &[u8],
        offset: u64,
    ) -> io::Result<()> {
        let fits_bytes = self.storage.rules().use_space(self.id, bytes.len(), offset);
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
