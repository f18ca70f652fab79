//! Opening of data directories, and their disks' free space.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use farleaf_lsm::storage::{DirectoryStorage, Storage};

/// Functions that open a data directory and measure free space; tests use disks that fail.
#[derive(Clone)]
pub struct OpenStorage {
    open: Arc<Opener>,
    measure_space: Arc<SpaceFunction>,
}

type Opener = dyn Fn(&Path) -> io::Result<Arc<dyn Storage>> + Send + Sync;
type SpaceFunction = dyn Fn(&Path) -> io::Result<DiskSpace> + Send + Sync;

/// Capacity and free space of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskSpace {
    /// Capacity of the disk, in bytes.
    pub capacity_bytes: u64,
    /// Free space of the disk, in bytes.
    pub free_bytes: u64,
}

impl DiskSpace {
    /// Returns the values of a directory's file system, for unprivileged users.
    fn of(path: &Path) -> io::Result<Self> {
        let stat = rustix::fs::statvfs(path)?;
        Ok(Self {
            capacity_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
            free_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
        })
    }
}

impl OpenStorage {
    /// Creates a value that opens directories with this function.
    pub fn new(
        open: impl Fn(&Path) -> io::Result<Arc<dyn Storage>> + Send + Sync + 'static,
    ) -> Self {
        Self {
            open: Arc::new(open),
            measure_space: Arc::new(DiskSpace::of),
        }
    }

    /// Replaces the function that measures free space.
    #[must_use]
    pub fn with_space(
        mut self,
        measure_space: impl Fn(&Path) -> io::Result<DiskSpace> + Send + Sync + 'static,
    ) -> Self {
        self.measure_space = Arc::new(measure_space);
        self
    }

    pub(crate) fn open(&self, path: &Path) -> io::Result<Arc<dyn Storage>> {
        (self.open)(path)
    }

    /// Returns the capacity and free space of a directory's disk.
    pub(crate) fn disk_space(&self, path: &Path) -> io::Result<DiskSpace> {
        (self.measure_space)(path)
    }
}

impl Default for OpenStorage {
    /// Uses directories of the operating system.
    fn default() -> Self {
        Self::new(|path| Ok(Arc::new(DirectoryStorage::open(path)?)))
    }
}

impl fmt::Debug for OpenStorage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("OpenStorage")
    }
}
