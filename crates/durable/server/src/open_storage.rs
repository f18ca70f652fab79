//! How directories of data are opened, and how much room their disk has.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use farleaf_lsm::storage::{DirectoryStorage, Storage};

/// How a directory of data is opened, and how much room there is: tests have others, that fail.
#[derive(Clone)]
pub struct OpenStorage {
    open: Arc<Opener>,
    look: Arc<Looker>,
}

type Opener = dyn Fn(&Path) -> io::Result<Arc<dyn Storage>> + Send + Sync;
type Looker = dyn Fn(&Path) -> io::Result<DiskRoom> + Send + Sync;

/// How much room a disk has, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskRoom {
    /// How much it can hold.
    pub capacity_bytes: u64,
    /// How much of that is free.
    pub free_bytes: u64,
}

impl DiskRoom {
    /// That of the file system that has a directory, for who is not its administrator.
    fn of(path: &Path) -> io::Result<Self> {
        let stat = rustix::fs::statvfs(path)?;
        Ok(Self {
            capacity_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
            free_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
        })
    }
}

impl OpenStorage {
    /// In this way.
    pub fn new(
        open: impl Fn(&Path) -> io::Result<Arc<dyn Storage>> + Send + Sync + 'static,
    ) -> Self {
        Self {
            open: Arc::new(open),
            look: Arc::new(DiskRoom::of),
        }
    }

    /// The same, but this says how much room there is.
    #[must_use]
    pub fn with_room(
        mut self,
        look: impl Fn(&Path) -> io::Result<DiskRoom> + Send + Sync + 'static,
    ) -> Self {
        self.look = Arc::new(look);
        self
    }

    pub(crate) fn open(&self, path: &Path) -> io::Result<Arc<dyn Storage>> {
        (self.open)(path)
    }

    /// How much room there is.
    pub(crate) fn room(&self, path: &Path) -> io::Result<DiskRoom> {
        (self.look)(path)
    }
}

impl Default for OpenStorage {
    /// As the operating system has it.
    fn default() -> Self {
        Self::new(|path| Ok(Arc::new(DirectoryStorage::open(path)?)))
    }
}

impl fmt::Debug for OpenStorage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a way to open directories")
    }
}
