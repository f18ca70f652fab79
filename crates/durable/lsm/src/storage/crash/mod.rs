//! A directory in memory, with a power switch.
//!
//! | module | what it holds |
//! |---|---|
//! | `machine` | all files and names, the switch, the count of operations |
//! | `inode` | a file's durable content, and each sector's versions since |
//! | `names` | durable names, current ones, and the changes between |
//! | `random` | seeded numbers, which say what survives |

mod inode;
mod machine;
#[cfg(test)]
mod models;
mod names;
mod random;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::machine::Machine;
use self::names::InodeId;
use self::random::Random;
use super::directory::check_name;
use super::{Origin, OriginKind, Storage, StorageFile, StorageLock};
use crate::place::BLOCK_SIZE_BYTES;

/// What of the things that were not synced is there after a loss of power. What was synced always
/// is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerLoss {
    /// Nothing.
    Nothing,
    /// Everything, the newest of each.
    Everything,
    /// Any of it. For each file, and for the names, some losses leave all and some nothing, most
    /// choose for each change by itself:
    ///
    /// - A sector of 512 bytes is as it was synced, the newest, or any one of the versions between.
    ///   One that lies behind the size that was synced is zeros or garbage if it was written and
    ///   that did not survive.
    /// - The size is the one that was synced or any later one; growing by a write also stops at the
    ///   ends of sectors.
    /// - A name that was made or removed is there or not. The target of a rename is the old or the
    ///   new file; if it is the new one, the source's name is gone or not.
    Any,
}

impl PowerLoss {
    /// How many changes of 8 survive: another number for each file and each loss.
    fn eighths(self, random: &mut Random) -> u64 {
        match self {
            Self::Nothing => 0,
            Self::Everything => 8,
            Self::Any => [0, 1, 4, 4, 7, 8][random.below(6) as usize],
        }
    }
}

/// A directory in memory, with a power switch. Clones are the same directory;
/// [`beside`](Self::beside) it there are others, of the same computer.
///
/// It keeps the promises of [`Storage`](super) and, when power is lost, not more than these. All of
/// it follows from the seed and the order of operations, also what [`discard`] does: it zeros any
/// of the sectors.
///
/// After a loss of power, whatever is done with this storage, its handles and its locks fails with
/// [`io::ErrorKind::BrokenPipe`], "the power is off"; files, names and locks of the storage that
/// [`lose_power`](Self::lose_power) returned are others.
///
/// [`discard`]: StorageFile::discard
#[derive(Clone)]
pub struct CrashStorage {
    machine: Arc<Mutex<Machine>>,
    directory: u32,
}

impl CrashStorage {
    /// An empty directory.
    pub fn new(seed: u64) -> Self {
        Self::from_machine(Machine::new(seed), 0)
    }

    /// Another directory of the same computer, which is there, empty at first: they lose their
    /// power together, and files can have names in both. The first one has the number 0.
    #[must_use]
    pub fn beside(&self, directory: u32) -> Self {
        let machine = Arc::clone(&self.machine);
        Self { machine, directory }
    }

    /// Turns the power off and on again: the storage that is returned is one of the states that may
    /// be found then, all of it durable, with nobody's lock and its own count of operations.
    ///
    /// Called again, it gives another outcome of the same loss.
    #[must_use = "what is left after the loss is in the storage that is returned"]
    pub fn lose_power(&self, loss: PowerLoss) -> Self {
        Self::from_machine(self.machine().lose_power(loss), self.directory)
    }

    /// Turns the power off at the operation of this index, of those that
    /// [`operation_count`](Self::operation_count) counts, the first being 1; the next one, if there
    /// were so many already. That operation and everything after it fails.
    ///
    /// What it does then counts as not synced, and of a write there may be nothing, all, or any of
    /// its sectors.
    pub fn cut_power_at(&self, operation_index: u64) {
        self.machine().cut_power_at(operation_index);
    }

    /// How many operations there were that can matter to a loss of power, failed ones included:
    /// `create`, `link`, `rename`, `remove`, `sync_names`, `write_at`, `sync`, `set_size`,
    /// `discard`, and `lock` if it made the file. Those that fail since the power was off before
    /// are none.
    pub fn operation_count(&self) -> u64 {
        self.machine().operation_count()
    }

    fn from_machine(machine: Machine, directory: u32) -> Self {
        Self {
            machine: Arc::new(Mutex::new(machine)),
            directory,
        }
    }

    /// Everything happens under this lock: what an operation that succeeded did is there when the
    /// power goes.
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
        let at = (self.directory, name);
        let id = machine.operate(|machine, _| machine.create(at))?;
        Ok(Arc::new(CrashFile(self.handle(&mut machine, id))))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        check_name(name)?;
        let mut machine = self.machine();
        machine.check_power()?;
        let id = machine.find((self.directory, name))?;
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
        let at = (self.directory, name);
        self.machine().operate(|machine, _| machine.remove(at))
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
        let at = (self.directory, name);
        let id = match machine.find(at) {
            Ok(id) => id,
            Err(_) => machine.operate(|machine, _| machine.create(at))?,
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
                let (from, to) = ((other.directory, of.as_str()), (self.directory, name));
                self.machine().operate(|machine, _| machine.link(from, to))
            }
            OriginKind::Crash(..) => Err(io::ErrorKind::CrossesDevices.into()),
            OriginKind::Path(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

/// Keeps a file, whether it has a name or not.
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

    /// What is behind stays, as in a file of the page cache, or becomes zeros, as past it: both can
    /// be.
    fn append_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let end = offset.checked_add(bytes.len() as u64);
        let end = end.and_then(|end| end.checked_next_multiple_of(BLOCK_SIZE_BYTES as u64));
        let end = end.ok_or(io::ErrorKind::InvalidInput)?;
        self.machine().operate(|machine, is_cut| {
            let mut blocks = bytes.to_vec();
            let (_, random) = machine.inode(self.0.id);
            if !bytes.is_empty() && random.in_eighths(4) {
                blocks.resize((end - offset) as usize, 0);
            }
            machine.write(self.0.id, &blocks, offset, is_cut)
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.machine().operate(|machine, is_cut| {
            if !is_cut {
                machine.inode(self.0.id).0.settle();
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
