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

/// A directory of the operating system, and its files.
///
/// File names are plain names: one with a `/`, an empty one, `.` and `..` are refused with
/// [`io::ErrorKind::InvalidInput`] by everything that takes a name. What is not a file, or has a
/// name that is not UTF-8, is nobody's here and not listed.
///
/// What it makes only its owner can access: the directory has mode 0700, and files 0600. The modes
/// of what is there stay; [`private::tighten`] changes them.
///
/// `sync` is fdatasync, which covers the size as far as reading needs it; `sync_names` is fsync of
/// the directory; `discard` punches a hole.
#[derive(Debug)]
pub struct DirectoryStorage {
    path: PathBuf,
    /// Open as long as this is, to be synced.
    directory: File,
    /// The names of files that are read and written past the page cache.
    direct: Vec<String>,
    /// Why that was refused first.
    refused: OnceLock<String>,
}

impl DirectoryStorage {
    /// Opens a directory, and makes it if it is missing, but not what it lies in. Its own name is
    /// durable then.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if what it lies in is missing,
    /// [`io::ErrorKind::NotADirectory`] if something else has the name, or the operating system's.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        let is_new = match private::create_directory(path) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(error),
        };
        // With no symbolic link in it, and absolute: its parent is where its name stands, and a
        // later change of the working directory changes nothing.
        let path = path.canonicalize()?;
        if !path.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        let directory = File::open(&path)?;
        if let Some(parent) = path.parent() {
            // Also if it was there: who made it may have ended before it synced. Where the parent
            // cannot be read, somebody else made it, and that one has to see to it.
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

    /// The same, but files of these names (of an engine:
    /// [`DEVICE_FILES`](crate::engine::DEVICE_FILES)) are read and written past the system's page
    /// cache, if their file system can do that; else as others, and
    /// [`direct_io_refused`](Self::direct_io_refused) tells why.
    ///
    /// What is read costs memory once and not twice, and what a merge reads and writes does not
    /// drive out what others have in that cache; but nothing is read ahead or kept, except by the
    /// engine's own cache, and a write that is not of whole blocks of 4 KiB reads those first that
    /// it has a part of. Such a file is as long as all the blocks that were written in it.
    #[must_use]
    pub fn with_direct_io(mut self, names: &[&str]) -> Self {
        self.direct = names.iter().map(|&name| name.to_owned()).collect();
        self
    }

    /// Why a file that should be is not read and written past the page cache: the first of them
    /// that was opened. `None`: none was refused so far.
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
        tracing::warn!(file = name, %directory, why, "no direct I/O: the page cache is used");
        self.refused.get_or_init(|| format!("{name}: {why}"));
    }

    /// Where a file is, if the name is a plain one.
    fn path_of(&self, name: &str) -> io::Result<PathBuf> {
        check_name(name)?;
        Ok(self.path.join(name))
    }
}

/// Refuses what would lead to another directory, or to none.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`].
pub(super) fn check_name(name: &str) -> io::Result<()> {
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
        let message = format!("{name:?} is not the name of a file in a directory");
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
            // It is no more than a wish: the cache does as well.
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
        // Past the page cache is not past the device's, nor does it make the size durable.
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
    // fdatasync leaves out times, but not the size and what else reading the data needs.
    file.sync_data()
}

fn discard(file: &File, offset: u64, size_bytes: u64) -> io::Result<()> {
    // The operating system calls an empty range invalid.
    if size_bytes == 0 {
        return Ok(());
    }
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match rustix::fs::fallocate(file, hole, offset, size_bytes) {
        // A file system without holes, or a system without the call.
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The lock belongs to the open file: closing it, or the end of the process, gives it up.
#[derive(Debug)]
struct DirectoryLock {
    _file: File,
}

impl StorageLock for DirectoryLock {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: a missing directory is made, one that is there is opened as it is, and what cannot
    /// be opened says why.
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

    /// Promise: room that is discarded goes back to a file system that takes it; the size stays.
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
