//! A directory in memory that simulates power failures.
//!
//! | module | contents |
//! |---|---|
//! | `machine` | all files and names, the power, the count of operations |
//! | `inode` | a file's durable contents, and each sector's versions since |
//! | `names` | durable names, current ones, and the changes between them |

mod inode;
mod machine;
#[cfg(test)]
mod models;
mod names;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::machine::Machine;
use self::names::InodeId;
use super::directory::check_name;
use super::{Origin, OriginKind, Storage, StorageFile, StorageLock};
use crate::place::BLOCK_SIZE_BYTES;
use farleaf_base::random::Random;

/// Changes that survive a power failure although they were not synced. Synced changes always
/// survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerLoss {
    /// No unsynced change survives.
    Nothing,
    /// All unsynced changes survive, with the newest version of each.
    Everything,
    /// Any unsynced changes survive. For each file, and for the names, some failures keep all
    /// changes and some none. Most choose for each change:
    ///
    /// - A 512-byte sector has the synced version, the newest one, or any version in between. If it
    ///   is behind the synced size and was written but did not survive, it has zeros or garbage.
    /// - The size is the synced one or any later one; growth by a write may also stop at the end of
    ///   a sector.
    /// - A name that was created or removed exists or not. The target of a rename is the old or the
    ///   new file; if it is the new one, the source's name may still exist.
    Any,
}

impl PowerLoss {
    /// Returns how many eighths of the changes survive, drawn for each file and each failure.
    fn eighths(self, random: &mut Random) -> u64 {
        match self {
            Self::Nothing => 0,
            Self::Everything => 8,
            Self::Any => [0, 1, 4, 4, 7, 8][random.below(6) as usize],
        }
    }
}

/// Directory in memory that simulates power failures. Clones are the same directory;
/// [`beside`](Self::beside) returns other directories of the same simulated computer.
///
/// The storage keeps the guarantees of [`Storage`](super), and no others after a power failure. The
/// seed and the order of operations determine everything, including which sectors [`discard`]
/// zeros.
///
/// After a power failure, all operations of this storage, its handles and its locks fail with
/// [`io::ErrorKind::BrokenPipe`], "the power is off". The storage that
/// [`lose_power`](Self::lose_power) returned has its own files, names and locks.
///
/// [`discard`]: StorageFile::discard
#[derive(Clone)]
pub struct CrashStorage {
    machine: Arc<Mutex<Machine>>,
    directory: u32,
}

impl CrashStorage {
    /// Creates an empty directory.
    pub fn new(seed: u64) -> Self {
        Self::from_machine(Machine::new(seed), 0)
    }

    /// Returns another directory of the same computer, initially empty. All its directories lose
    /// power together, and files can have names in several. The first directory has number 0.
    #[must_use]
    pub fn beside(&self, directory: u32) -> Self {
        let machine = Arc::clone(&self.machine);
        Self { machine, directory }
    }

    /// Turns the power off and on again. Returns one of the possible states afterwards, completely
    /// durable, without locks, and with its own count of operations.
    ///
    /// Further calls return other outcomes of the same failure.
    #[must_use = "what is left after the loss is in the storage that is returned"]
    pub fn lose_power(&self, loss: PowerLoss) -> Self {
        Self::from_machine(self.machine().lose_power(loss), self.directory)
    }

    /// Schedules a power failure at the operation with this index, as counted by
    /// [`operation_count`](Self::operation_count), from 1; or at the next one, if there were that
    /// many already. That operation and all later ones fail.
    ///
    /// The effects of that operation count as not synced. A write may leave nothing, everything, or
    /// any of its sectors.
    pub fn cut_power_at(&self, operation_index: u64) {
        self.machine().cut_power_at(operation_index);
    }

    /// Returns the number of operations that can matter after a power failure, including failed
    /// ones: `create`, `link`, `rename`, `remove`, `sync_names`, `write_at`, `sync`, `set_size`,
    /// `discard`, and `lock` if it created the file. Operations that fail because the power is off
    /// do not count.
    pub fn operation_count(&self) -> u64 {
        self.machine().operation_count()
    }

    fn from_machine(machine: Machine, directory: u32) -> Self {
        Self {
            machine: Arc::new(Mutex::new(machine)),
            directory,
        }
    }

    /// Locks the simulated computer. All operations run under this lock, so a successful operation
    /// is complete before the power fails.
    fn machine(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(&self, machine: &mut Machine, id: InodeId) -> Handle {
        machine.add_handle(id);
        Handle {
            storage: self.clone(),
            id,
        }
    }
}

impl fmt::Debug for CrashStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CrashStorage").finish_non_exhaustive()
    }
}

impl Storage for CrashStorage {
    fn create(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        check_name(name)?;
        let mut machine = self.machine();
        let id = machine.operate(|machine, _| machine.create(self.directory, name))?;
        Ok(Arc::new(CrashFile(self.handle(&mut machine, id))))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        check_name(name)?;
        let mut machine = self.machine();
        machine.check_power()?;
        let id = machine.find(self.directory, name)?;
        Ok(Arc::new(CrashFile(self.handle(&mut machine, id))))
    }

    fn open_uncached(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        self.open(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        check_name(from)?;
        check_name(to)?;
        self.machine()
            .operate(|machine, _| machine.rename(self.directory, from, to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        check_name(name)?;
        self.machine()
            .operate(|machine, _| machine.remove(self.directory, name))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let machine = self.machine();
        machine.check_power()?;
        Ok(machine.list(self.directory))
    }

    fn sync_names(&self) -> io::Result<()> {
        self.machine().operate(|machine, is_cut| {
            if !is_cut {
                machine.sync_names(self.directory);
            }
            Ok(())
        })
    }

    fn lock(&self, name: &str) -> io::Result<Option<Box<dyn StorageLock>>> {
        check_name(name)?;
        let mut machine = self.machine();
        machine.check_power()?;
        let id = match machine.find(self.directory, name) {
            Ok(id) => id,
            Err(_) => machine.operate(|machine, _| machine.create(self.directory, name))?,
        };
        if !machine.lock(id) {
            return Ok(None);
        }
        Ok(Some(Box::new(CrashLock(self.handle(&mut machine, id)))))
    }

    fn name(&self) -> String {
        "memory".to_owned()
    }

    fn origin(&self, name: &str) -> Option<Origin> {
        Some(Origin(OriginKind::Crash(self.clone(), name.to_owned())))
    }

    fn link(&self, origin: &Origin, name: &str) -> io::Result<()> {
        check_name(name)?;
        match &origin.0 {
            OriginKind::Crash(other, of) if Arc::ptr_eq(&self.machine, &other.machine) => {
                self.machine().operate(|machine, _| {
                    let id = machine.find(other.directory, of)?;
                    machine.link(id, self.directory, name)
                })
            }
            OriginKind::Crash(..) => Err(io::ErrorKind::CrossesDevices.into()),
            OriginKind::Path(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

/// Handle that keeps a file, with or without a name.
#[derive(Debug)]
struct Handle {
    storage: CrashStorage,
    id: InodeId,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.storage.machine().drop_handle(self.id);
    }
}

#[derive(Debug)]
struct CrashFile(Handle);

impl CrashFile {
    fn machine(&self) -> MutexGuard<'_, Machine> {
        self.0.storage.machine()
    }
}

impl StorageFile for CrashFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let mut machine = self.machine();
        machine.check_power()?;
        machine.inode(self.0.id).0.read(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.machine()
            .operate(|machine, is_cut| machine.write(self.0.id, bytes, offset, is_cut))
    }

    /// Bytes behind the append stay, as with the page cache, or become zeros, as without it; chosen
    /// at random.
    fn append_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let end = offset.checked_add(bytes.len() as u64);
        let end = end.and_then(|end| end.checked_next_multiple_of(BLOCK_SIZE_BYTES as u64));
        let end = end.ok_or(io::ErrorKind::InvalidInput)?;
        self.machine().operate(|machine, is_cut| {
            let mut blocks = bytes.to_vec();
            let (_, random) = machine.inode(self.0.id);
            if !bytes.is_empty() && in_eighths(random, 4) {
                blocks.resize((end - offset) as usize, 0);
            }
            machine.write(self.0.id, &blocks, offset, is_cut)
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.machine().operate(|machine, is_cut| {
            if !is_cut {
                machine.inode(self.0.id).0.make_durable();
            }
            Ok(())
        })
    }

    fn size(&self) -> io::Result<u64> {
        let mut machine = self.machine();
        machine.check_power()?;
        Ok(machine.inode(self.0.id).0.size_bytes())
    }

    fn set_size(&self, size_bytes: u64) -> io::Result<()> {
        self.machine().operate(|machine, _| {
            let (inode, random) = machine.inode(self.0.id);
            inode.set_size(size_bytes, random)
        })
    }

    fn discard(&self, offset: u64, size_bytes: u64) -> io::Result<()> {
        self.machine().operate(|machine, _| {
            let (inode, random) = machine.inode(self.0.id);
            inode.discard(offset, size_bytes, random);
            Ok(())
        })
    }
}

#[derive(Debug)]
struct CrashLock(Handle);

impl StorageLock for CrashLock {}

impl Drop for CrashLock {
    fn drop(&mut self) {
        self.0.storage.machine().unlock(self.0.id);
    }
}

/// Returns true with a probability in eighths.
fn in_eighths(random: &mut Random, eighths: u64) -> bool {
    random.below(8) < eighths
}

/// Returns one of the items, in half of all cases the last; `None` if there are none.
fn one_of<'a, T>(random: &mut Random, items: &'a [T]) -> Option<&'a T> {
    if items.is_empty() || in_eighths(random, 4) {
        return items.last();
    }
    Some(random.choose(items))
}
