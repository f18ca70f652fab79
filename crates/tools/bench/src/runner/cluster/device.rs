//! Device bytes of servers: a storage directory that counts them.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use farleaf_lsm::storage::{DirectoryStorage, Origin, Storage, StorageFile, StorageLock};
use farleaf_server::OpenStorage;

use crate::report::DeviceReport;

/// Bytes read from and written to all files of many directories.
#[derive(Debug, Default)]
pub(super) struct DeviceCounters {
    read: AtomicU64,
    written: AtomicU64,
}

/// Device bytes at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct DeviceBytes {
    read: u64,
    written: u64,
}

impl DeviceCounters {
    /// Returns a function with which servers open directories whose bytes are counted here.
    pub(super) fn opener(self: &Arc<Self>) -> OpenStorage {
        let counters = Arc::clone(self);
        OpenStorage::new(move |path: &Path| {
            Ok(Arc::new(CountedStorage {
                inner: DirectoryStorage::open(path)?,
                counters: Arc::clone(&counters),
            }))
        })
    }

    pub(super) fn bytes(&self) -> DeviceBytes {
        DeviceBytes {
            read: self.read.load(Ordering::Relaxed),
            written: self.written.load(Ordering::Relaxed),
        }
    }
}

impl DeviceBytes {
    /// Returns the difference from an earlier count.
    pub(in super::super) const fn since(self, before: Self) -> Self {
        Self {
            read: self.read - before.read,
            written: self.written - before.written,
        }
    }

    /// Returns the mean per operation or record.
    pub(in super::super) fn for_each(self, count: u64) -> DeviceReport {
        let mean = |bytes: u64| bytes as f64 / count.max(1) as f64;
        DeviceReport {
            bytes_read_mean: mean(self.read),
            bytes_written_mean: mean(self.written),
        }
    }
}

#[derive(Debug)]
struct CountedStorage {
    inner: DirectoryStorage,
    counters: Arc<DeviceCounters>,
}

impl CountedStorage {
    fn counted(&self, inner: Arc<dyn StorageFile>) -> Arc<dyn StorageFile> {
        let counters = Arc::clone(&self.counters);
        Arc::new(CountedFile { inner, counters })
    }
}

impl Storage for CountedStorage {
    fn create(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        Ok(self.counted(self.inner.create(name)?))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        Ok(self.counted(self.inner.open(name)?))
    }

    fn open_uncached(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        Ok(self.counted(self.inner.open_uncached(name)?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.inner.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.inner.remove(name)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.inner.list()
    }

    fn sync_names(&self) -> io::Result<()> {
        self.inner.sync_names()
    }

    fn lock(&self, name: &str) -> io::Result<Option<Box<dyn StorageLock>>> {
        self.inner.lock(name)
    }

    fn name(&self) -> String {
        self.inner.name()
    }

    fn origin(&self, name: &str) -> Option<Origin> {
        self.inner.origin(name)
    }

    fn link(&self, origin: &Origin, name: &str) -> io::Result<()> {
        self.inner.link(origin, name)
    }
}

#[derive(Debug)]
struct CountedFile {
    inner: Arc<dyn StorageFile>,
    counters: Arc<DeviceCounters>,
}

impl CountedFile {
    fn note_written(&self, bytes: &[u8]) {
        let written = &self.counters.written;
        written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    }
}

impl StorageFile for CountedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.inner.read_at(buffer, offset)?;
        let size_bytes = buffer.len() as u64;
        self.counters.read.fetch_add(size_bytes, Ordering::Relaxed);
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.inner.write_at(bytes, offset)?;
        self.note_written(bytes);
        Ok(())
    }

    fn append_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.inner.append_at(bytes, offset)?;
        self.note_written(bytes);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }

    fn size(&self) -> io::Result<u64> {
        self.inner.size()
    }

    fn set_size(&self, size_bytes: u64) -> io::Result<()> {
        self.inner.set_size(size_bytes)
    }

    fn discard(&self, offset: u64, size_bytes: u64) -> io::Result<()> {
        self.inner.discard(offset, size_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: bytes read and written are counted, of every file of every directory, except failed
    /// ones; the files are the same as without the counters.
    #[test]
    fn bytes_of_all_files_are_counted() {
        let folder = tempfile::tempdir().expect("a folder");
        let counters = Arc::new(DeviceCounters::default());
        let storage = |name: &str| CountedStorage {
            inner: DirectoryStorage::open(folder.path().join(name)).expect("opened"),
            counters: Arc::clone(&counters),
        };
        for name in ["one", "other"] {
            let storage = storage(name);
            let file = storage.create("file").expect("created");
            file.write_at(b"12345", 0).expect("written");
            file.sync().expect("synced");
            let file = storage.open("file").expect("there");
            let mut buffer = [0; 3];
            file.read_at(&mut buffer, 1).expect("read");
            assert_eq!((&buffer, file.size().expect("its size")), (b"234", 5));
            file.read_at(&mut buffer, 4).expect_err("behind the end");
            assert_eq!(storage.list().expect("names"), ["file"]);
        }
        let origin = storage("one").origin("file").expect("it can be linked");
        let linked = storage("other").link(&origin, "link");
        linked.expect("as servers link files of the copy before");
        let bytes = counters.bytes();
        assert_eq!((bytes.read, bytes.written), (6, 10));
        assert_eq!(bytes.since(bytes), DeviceBytes::default());
        let mean = bytes.for_each(4);
        assert_eq!((mean.bytes_read_mean, mean.bytes_written_mean), (1.5, 2.5));
    }
}
