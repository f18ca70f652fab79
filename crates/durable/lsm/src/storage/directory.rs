//! A directory of the operating system.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::direct::{self, DirectFile};
use super::{Origin, OriginKind, Storage, StorageFile, StorageLock, private};

/// Directory of the operating system, and its files.
///
/// File names are plain: an empty name, `.`, `..`, and a name with a `/` are refused with
/// [`io::ErrorKind::InvalidInput`]. Anything that is not a file, or whose name is not UTF-8, is
/// ignored and not listed.
///
/// Only the owner can access what it creates: directories have mode 0700, and files 0600. Existing
/// modes stay; [`private::tighten`] changes them.
///
/// `sync` is fdatasync, which includes the size as far as reading needs it; `sync_names` is fsync
/// of the directory; `discard` punches a hole.
#[derive(Debug)]
pub struct DirectoryStorage {
    path: PathBuf,
    /// Directory handle, open for syncing.
    directory: File,
    /// Names of files that bypass the page cache.
    direct: Vec<String>,
    /// First reason why bypassing the page cache was refused.
    refused: OnceLock<String>,
}

impl DirectoryStorage {
    /// Opens a directory, or creates it if it is missing, but not its parent. The directory's own
    /// name is durable then.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if the parent is missing, [`io::ErrorKind::NotADirectory`] if
    /// the path is not a directory, or errors of the operating system.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        let is_new = match private::create_directory(path) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(error),
        };
        // Absolute and without symbolic links: so the parent has the directory's entry, and later
        // changes of the working directory have no effect.
        let path = path.canonicalize()?;
        if !path.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        let directory = File::open(&path)?;
        if let Some(parent) = path.parent() {
            // Also if the directory existed: the process that created it may have ended before it
            // synced. If the parent cannot be read, another user created the directory and is
            // responsible for that.
            match File::open(parent) {
                Err(error) if !is_new && error.kind() == io::ErrorKind::PermissionDenied => {}
                parent => parent?.sync_all()?,
            }
        }
        Ok(Self {
            path,
            directory,
            direct: Vec::new(),
            refused: OnceLock::new(),
        })
    }

    /// Sets the names of files that bypass the page cache; those of an engine are
    /// [`DEVICE_FILES`](crate::engine::DEVICE_FILES). If their file system refuses, they are opened
    /// normally, and [`direct_io_refused`](Self::direct_io_refused) has the reason.
    ///
    /// Data is then in memory once and not twice, and merges do not evict other data from the page
    /// cache. But only the engine's own cache reads ahead or keeps data. A write of less than whole
    /// 4 KiB blocks reads the partial blocks first. Such a file ends on a block boundary.
    #[must_use]
    pub fn with_direct_io(mut self, names: &[&str]) -> Self {
        self.direct = names.iter().map(|&name| name.to_owned()).collect();
        self
    }

    /// Returns the reason why a file does not bypass the page cache as requested, for the first
    /// such file; `None` if none was refused so far.
    pub fn direct_io_refused(&self) -> Option<&str> {
        self.refused.get().map(String::as_str)
    }

    fn open_file(&self, options: &OpenOptions, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        let path = self.path_of(name)?;
        if self.direct.iter().any(|it| it == name) {
            match direct::open(options, &path)? {
                Ok(file) => return Ok(Arc::new(file)),
                Err(why) => self.note_refusal(name, &why),
            }
        }
        let file = options.open(path)?;
        Ok(Arc::new(DirectoryFile { file }))
    }

    pub(super) fn note_refusal(&self, name: &str, why: &str) {
        let directory = self.path.display();
        tracing::warn!(file = name, %directory, why, "no direct I/O; using the page cache");
        self.refused.get_or_init(|| format!("{name}: {why}"));
    }

    /// Returns the path of a file, if its name is plain.
    fn path_of(&self, name: &str) -> io::Result<PathBuf> {
        check_name(name)?;
        Ok(self.path.join(name))
    }
}

/// Refuses names that refer to another directory, or to none.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`].
pub(super) fn check_name(name: &str) -> io::Result<()> {
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
        let message = format!("{name:?} is not a valid file name");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    Ok(())
}

impl Storage for DirectoryStorage {
    fn create(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        let mut options = private::file_options();
        options.read(true).write(true).create(true).truncate(true);
        self.open_file(&options, name)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        self.open_file(OpenOptions::new().read(true).write(true), name)
    }

    fn open_uncached(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        match direct::open(&options, &self.path_of(name)?)? {
            Ok(file) => Ok(Arc::new(file)),
            // Only a preference: the page cache works, too.
            Err(_) => self.open(name),
        }
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path_of(from)?, self.path_of(to)?)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path_of(name)?)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            if entry.file_type()?.is_file()
                && let Ok(name) = entry.file_name().into_string()
            {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn sync_names(&self) -> io::Result<()> {
        self.directory.sync_all()
    }

    fn lock(&self, name: &str) -> io::Result<Option<Box<dyn StorageLock>>> {
        let file = private::file_options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(self.path_of(name)?)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Box::new(DirectoryLock { _file: file }))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn origin(&self, name: &str) -> Option<Origin> {
        let path = self.path_of(name).ok()?;
        Some(Origin(OriginKind::Path(path)))
    }

    fn link(&self, origin: &Origin, name: &str) -> io::Result<()> {
        match &origin.0 {
            OriginKind::Path(path) => fs::hard_link(path, self.path_of(name)?),
            OriginKind::Crash(..) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

#[derive(Debug)]
struct DirectoryFile {
    file: File,
}

impl StorageFile for DirectoryFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn append_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        sync(&self.file)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn set_size(&self, size_bytes: u64) -> io::Result<()> {
        self.file.set_len(size_bytes)
    }

    fn discard(&self, offset: u64, size_bytes: u64) -> io::Result<()> {
        discard(&self.file, offset, size_bytes)
    }
}

impl StorageFile for DirectFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        DirectFile::read_at(self, buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        DirectFile::write_at(self, bytes, offset)
    }

    fn append_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        DirectFile::append_at(self, bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        // Bypassing the page cache does not bypass the device's cache, and does not make the size
        // durable.
        sync(self.file())
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.file().metadata()?.len())
    }

    fn set_size(&self, size_bytes: u64) -> io::Result<()> {
        self.forget_last();
        self.file().set_len(size_bytes)
    }

    fn discard(&self, offset: u64, size_bytes: u64) -> io::Result<()> {
        self.forget_last();
        discard(self.file(), offset, size_bytes)
    }
}

fn sync(file: &File) -> io::Result<()> {
    // fdatasync omits times, but not the size and other metadata that reads need.
    file.sync_data()
}

fn discard(file: &File, offset: u64, size_bytes: u64) -> io::Result<()> {
    // The operating system refuses an empty range.
    if size_bytes == 0 {
        return Ok(());
    }
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match rustix::fs::fallocate(file, hole, offset, size_bytes) {
        // The file system or kernel does not support holes.
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Lock of a directory. It belongs to the open file: closing it, or the end of the process,
/// releases it.
#[derive(Debug)]
struct DirectoryLock {
    _file: File,
}

impl StorageLock for DirectoryLock {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: a missing directory is created, an existing one is opened unchanged, and errors
    /// give the reason.
    #[test]
    fn a_directory_is_made_once() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let path = folder.path().join("engine");
        let first = DirectoryStorage::open(&path).expect("made");
        first.create("kept").expect("a file");
        let second = DirectoryStorage::open(&path).expect("there");
        assert_eq!(second.list().expect("its names"), ["kept"]);
        assert!(second.name().ends_with("engine"), "{}", second.name());

        let kind = |path: PathBuf| DirectoryStorage::open(path).map_err(|error| error.kind());
        let missing = kind(folder.path().join("missing").join("engine"));
        assert_eq!(missing.err(), Some(io::ErrorKind::NotFound));
        let file = kind(path.join("kept"));
        assert_eq!(file.err(), Some(io::ErrorKind::NotADirectory));
    }

    /// Promise: directories and names that are not UTF-8 are not listed, and do no harm.
    #[test]
    fn strangers_are_not_listed() {
        use std::ffi::OsStr;
        use std::os::unix::ffi::OsStrExt;

        let folder = tempfile::tempdir().expect("a folder for the test");
        let storage = DirectoryStorage::open(folder.path()).expect("there");
        fs::create_dir(folder.path().join("directory")).expect("made");
        fs::write(folder.path().join(OsStr::from_bytes(b"\xff")), b"").expect("made");
        storage.create("file").expect("made");
        assert_eq!(storage.list().expect("its names"), ["file"]);
    }

    /// Promise: discarded space is returned to a file system that supports it, and the size stays.
    #[test]
    fn discarding_makes_a_hole() {
        use std::os::unix::fs::MetadataExt;

        let folder = tempfile::tempdir().expect("a folder for the test");
        let storage = DirectoryStorage::open(folder.path()).expect("there");
        let file = storage.create("file").expect("made");
        let content = vec![7; 1 << 20];
        file.write_at(&content, 0).expect("written");
        file.sync().expect("synced");
        let blocks = || {
            let metadata = fs::metadata(folder.path().join("file")).expect("there");
            metadata.blocks()
        };
        let before = blocks();
        file.discard(0, 1 << 19).expect("discarded");
        file.sync().expect("synced");
        let mut read = vec![1; 1 << 20];
        file.read_at(&mut read, 0).expect("all of it");
        if read == content {
            eprintln!("skipped: this file system has no holes");
            return;
        }
        assert!(blocks() < before, "{} is not less than {before}", blocks());
        assert!(read[..1 << 19].iter().all(|byte| *byte == 0));
        assert!(read[1 << 19..].iter().all(|byte| *byte == 7));
    }
}
