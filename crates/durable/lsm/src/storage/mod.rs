//! Interface to a file system: a directory, and files that are read and written at offsets.
//!
//! | module | contents |
//! |---|---|
//! | `directory` | [`DirectoryStorage`]: a directory of the operating system |
//! | `direct` | its files that bypass the page cache |
//! | `faulty` | [`FaultyStorage`]: another storage, with injected faults |
//! | `private` | modes 0700 and 0600, for new and existing files |
//! | `crash` | [`CrashStorage`]: a directory in memory that simulates power failures |
//!
//! A storage guarantees the following after a power failure. `CrashStorage` guarantees nothing
//! else:
//!
//! - **Data.** Data written before a successful [`sync`](StorageFile::sync) is present. For data
//!   written since, each 512-byte sector has old or new contents or a version in between, in any
//!   combination. Behind the old end, a sector whose write did not survive has arbitrary contents.
//! - **Sizes.** A size that was set, or that a write behind the end made, counts as written data.
//! - **Names.** Creating, replacing and removing a name is durable after
//!   [`sync_names`](Storage::sync_names). Before that, each such change has happened or not. After
//!   a [`rename`](Storage::rename) that was not synced, the file may have both names. A
//!   [linked](Storage::link) name counts as created, in its own directory.
//! - **Failed syncs.** A failed `sync` guarantees nothing, neither for data written before it nor
//!   for the next one. The engine stops writing then.

mod crash;
mod direct;
mod directory;
mod faulty;
pub mod private;

#[cfg(test)]
mod conformance;

use std::fmt::Debug;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

pub use self::crash::{CrashStorage, PowerLoss};
pub use self::directory::DirectoryStorage;
pub use self::faulty::{Counters, Fault, FaultId, FaultyStorage, Operation};

/// Directory of files.
pub trait Storage: Debug + Send + Sync {
    /// Creates an empty file, or truncates an existing one.
    ///
    /// # Errors
    /// Errors of the operating system.
    fn create(&self, name: &str) -> io::Result<Arc<dyn StorageFile>>;

    /// Opens an existing file for reading and writing.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`], or errors of the operating system.
    fn open(&self, name: &str) -> io::Result<Arc<dyn StorageFile>>;

    /// Opens an existing file that is written and seldom read, bypassing the page cache where
    /// possible. It behaves like any other file, but may be longer than the written data, up to a
    /// block boundary of 4 KiB.
    ///
    /// # Errors
    /// Same as [`open`](Self::open).
    fn open_uncached(&self, name: &str) -> io::Result<Arc<dyn StorageFile>>;

    /// Renames a file, replacing an existing file of the new name.
    ///
    /// # Errors
    /// Errors of the operating system.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file. Open handles can still read and write it.
    ///
    /// # Errors
    /// Errors of the operating system.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Returns the names of all files, in no order.
    ///
    /// # Errors
    /// Errors of the operating system.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Makes all changes of names durable.
    ///
    /// # Errors
    /// Errors of the operating system.
    fn sync_names(&self) -> io::Result<()>;

    /// Locks a file, creating it if it is missing, against all other openers of the directory. The
    /// lock is held until the guard is dropped or the process ends. Returns `None` if another
    /// opener has it.
    ///
    /// # Errors
    /// Errors of the operating system.
    fn lock(&self, name: &str) -> io::Result<Option<Box<dyn StorageLock>>>;

    /// Returns the name of the directory for messages.
    fn name(&self) -> String;

    /// Returns what another directory needs to [`link`](Self::link) a file of this one; `None` if
    /// this storage does not support links.
    fn origin(&self, name: &str) -> Option<Origin>;

    /// Gives a file of another directory a name here, too; both names are one file then. The name
    /// must not exist here.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] if this storage does not support links,
    /// [`io::ErrorKind::CrossesDevices`], or other errors of the operating system.
    fn link(&self, origin: &Origin, name: &str) -> io::Result<()>;
}

/// File that can be linked into another directory.
#[derive(Clone, Debug)]
pub struct Origin(OriginKind);

#[derive(Clone, Debug)]
enum OriginKind {
    /// File of the operating system, by its path.
    Path(PathBuf),
    /// File of a simulated computer.
    Crash(CrashStorage, String),
}

/// Open file.
pub trait StorageFile: Debug + Send + Sync {
    /// Fills a buffer from an offset.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] behind the end, or errors of the operating system.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes all bytes at an offset, which may be behind the end. A gap before it reads as zeros.
    ///
    /// # Errors
    /// [`io::ErrorKind::StorageFull`], or errors of the operating system. A part may have been
    /// written.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Writes all bytes at an offset, for sequential writes. The bytes behind them, up to the end
    /// of their 4 KiB block, may become zeros, and the file may end there.
    ///
    /// Between two appends to one block, no other handle may write into that block: such a write
    /// may be undone.
    ///
    /// # Errors
    /// Same as [`write_at`](Self::write_at).
    fn append_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Makes written data and the size durable.
    ///
    /// # Errors
    /// Errors of the operating system.
    fn sync(&self) -> io::Result<()>;

    /// Returns the size in bytes.
    ///
    /// # Errors
    /// Errors of the operating system.
    fn size(&self) -> io::Result<u64>;

    /// Truncates the file, or extends it with zeros.
    ///
    /// # Errors
    /// Errors of the operating system.
    fn set_size(&self, size_bytes: u64) -> io::Result<()>;

    /// Returns the space of a range to the file system. The range then reads as zeros or as before.
    /// This is a hint: a file system without support does nothing.
    ///
    /// # Errors
    /// Errors of the operating system, if it supports this.
    fn discard(&self, offset: u64, size_bytes: u64) -> io::Result<()>;
}

/// Lock of a directory, held until it is dropped.
pub trait StorageLock: Debug + Send + Sync {}

/// Returns true if an error means that a file is missing or too short, so that a retry finds the
/// same. Errors of the device, such as [`Other`](io::ErrorKind::Other), say nothing about the file.
pub fn is_missing_file(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound
            | io::ErrorKind::IsADirectory
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::UnexpectedEof
    )
}

/// Returns true if an error means that the disk or its quota is full.
pub fn is_out_of_space(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}
