//! What the engine needs of a file system: a directory, and files that are read and written at
//! offsets.
//!
//! | module | what it is |
//! |---|---|
//! | `directory` | [`DirectoryStorage`]: a directory of the operating system |
//! | `direct` | its files past the page cache |
//! | `faulty` | [`FaultyStorage`]: another storage, with faults |
//! | `private` | modes 0700 and 0600, for what is made and what is there |
//! | `crash` | [`CrashStorage`]: a directory in memory, with a power switch |
//!
//! The promises, of which `crash` keeps no more than these:
//!
//! - What was written before a [`sync`](StorageFile::sync) that succeeded is there after a loss of
//!   power. Of what was written since, each sector of 512 bytes is the old one, the new one or one
//!   between, whatever the order was. Behind the old end, one that did not survive is anything.
//! - A size that was set, or that a write behind the end made, counts as written.
//! - A name that was made, replaced or removed is there, or not there, for good after
//!   [`sync_names`](Storage::sync_names); before, each change of a name is done or not. Of a
//!   [`rename`](Storage::rename) that was not synced, the file may have both names. A name that was
//!   [linked](Storage::link) counts as made, in its own directory.
//! - A failed `sync` promises nothing, neither for what was written before it nor for the next one.
//!   The engine stops writing then.

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

/// A directory of files.
pub trait Storage: Debug + Send + Sync {
    /// Makes an empty file, or makes one that is there empty.
    ///
    /// # Errors
    /// The operating system's.
    fn create(&self, name: &str) -> io::Result<Arc<dyn StorageFile>>;

    /// Opens a file that is there, to read and write.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`], or the operating system's.
    fn open(&self, name: &str) -> io::Result<Arc<dyn StorageFile>>;

    /// The same, of a file that is written and hardly ever read: past the system's page cache, if
    /// that can be. Whatever else can be said of a file is true of this one, too, but that it may
    /// be longer than what was written, up to a whole block of 4 KiB.
    ///
    /// # Errors
    /// As those of [`open`](Self::open).
    fn open_uncached(&self, name: &str) -> io::Result<Arc<dyn StorageFile>>;

    /// Gives a file another name, in place of a file that has it.
    ///
    /// # Errors
    /// The operating system's.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file. Who has it open can still read and write it.
    ///
    /// # Errors
    /// The operating system's.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// The names of all files, in no order.
    ///
    /// # Errors
    /// The operating system's.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Makes what was done with names durable.
    ///
    /// # Errors
    /// The operating system's.
    fn sync_names(&self) -> io::Result<()>;

    /// Locks a file, which is made if it is not there, against every other opener of the directory,
    /// until the guard is dropped or the process ends. `None`: somebody has it.
    ///
    /// # Errors
    /// The operating system's.
    fn lock(&self, name: &str) -> io::Result<Option<Box<dyn StorageLock>>>;

    /// What the directory is called in messages.
    fn name(&self) -> String;

    /// What another directory needs to [`link`](Self::link) a file of this one; `None`: this
    /// storage has no such thing.
    fn origin(&self, name: &str) -> Option<Origin>;

    /// Gives a file of another directory a name here, too: it is one file then, under both. The
    /// name is none that is there.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`]: this storage cannot. [`io::ErrorKind::CrossesDevices`] and
    /// what else the operating system says: not with this one.
    fn link(&self, origin: &Origin, name: &str) -> io::Result<()>;
}

/// A file that can have a name in another directory, too.
#[derive(Clone, Debug)]
pub struct Origin(OriginKind);

#[derive(Clone, Debug)]
enum OriginKind {
    /// Of the operating system: where it is.
    Path(PathBuf),
    /// Of a computer in memory.
    Crash(CrashStorage, String),
}

/// A file that is open.
pub trait StorageFile: Debug + Send + Sync {
    /// Fills a buffer from this offset on.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] behind the end, or the operating system's.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes all of it from this offset on, behind the end, too: what lies between reads as zeros.
    ///
    /// # Errors
    /// [`io::ErrorKind::StorageFull`], or the operating system's: some of it may be there.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// The same, for who writes one thing behind the other. What is behind it, up to the end of its
    /// block of 4 KiB, may be as it was or zeros afterwards, and the file as long as that. Between
    /// two appends to one block nobody writes into that block through another handle: what was
    /// written there may be undone.
    ///
    /// # Errors
    /// Those of [`write_at`](Self::write_at).
    fn append_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Makes what was written, and the size, durable.
    ///
    /// # Errors
    /// The operating system's.
    fn sync(&self) -> io::Result<()>;

    /// Size in bytes.
    ///
    /// # Errors
    /// The operating system's.
    fn size(&self) -> io::Result<u64>;

    /// Cuts the file, or makes it longer by zeros.
    ///
    /// # Errors
    /// The operating system's.
    fn set_size(&self, size_bytes: u64) -> io::Result<()>;

    /// Gives the room of a range back, which reads as zeros or as it was from then on. A hint: a
    /// file system that cannot does nothing.
    ///
    /// # Errors
    /// The operating system's, if it should have been able to.
    fn discard(&self, offset: u64, size_bytes: u64) -> io::Result<()>;
}

/// Keeps a directory locked until it is dropped.
pub trait StorageLock: Debug + Send + Sync {}

/// Whether an error says that a name has no file, or one that ends too early: another try finds the
/// same. An error of the device ([`Other`](io::ErrorKind::Other), say) tells nothing of the file.
pub fn is_no_file(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound
            | io::ErrorKind::IsADirectory
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::UnexpectedEof
    )
}

/// Whether an error says that the disk, or a quota of it, is full.
pub fn is_no_room(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}
