//! Directories and files that only their owner can access, whatever the umask is.
//!
//! New directories get mode 0700 and new files 0600. [`tighten`] removes the access of the group
//! and others from files that an older version, or an operator, left open.

use std::fs::{self, DirBuilder, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// Bits that give access to the group and others.
const WIDE_BITS: u32 = 0o077;

/// Returns options of [`std::fs`] that create a file with mode 0600. The caller adds the access
/// mode.
pub fn file_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(FILE_MODE);
    options
}

/// Creates a directory with mode 0700.
///
/// # Errors
/// [`io::ErrorKind::AlreadyExists`], or errors of the operating system.
pub fn create_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(DIRECTORY_MODE).create(path)
}

/// Creates a directory with mode 0700, and missing directories above it.
///
/// # Errors
/// Errors of the operating system.
pub fn create_directory_all(path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.mode(DIRECTORY_MODE).recursive(true).create(path)
}

/// Result of [`tighten`]: files and directories that other users could access.
#[derive(Debug, Default)]
pub struct Tightened {
    /// Number of files and directories whose mode was changed.
    pub changed_count: u64,
    /// Path of the first changed one.
    pub changed_example: Option<PathBuf>,
    /// Number of files and directories that were left as they are: they belong to another user, or
    /// the system refused the change.
    pub left_count: u64,
    /// Path of the first one left, and the reason.
    pub left_example: Option<(PathBuf, String)>,
}

/// Removes the access of the group and others from a directory and everything below it. Symbolic
/// links are not followed, except `root` itself. Failures are part of the result.
pub fn tighten(root: &Path) -> Tightened {
    let mut found = Tightened::default();
    let mut directories = vec![root.to_owned()];
    found.look_at(root, fs::metadata(root));
    while let Some(directory) = directories.pop() {
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) => {
                found.leave(&directory, format!("it cannot be listed: {error}"));
                continue;
            }
        };
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    found.leave(&directory, format!("it cannot be listed: {error}"));
                    break;
                }
            };
            let path = entry.path();
            let metadata = entry.metadata();
            let is_directory = metadata.as_ref().is_ok_and(Metadata::is_dir);
            // A directory is tightened before its contents, so that other users cannot exchange
            // files meanwhile.
            found.look_at(&path, metadata);
            if is_directory {
                directories.push(path);
            }
        }
    }
    found
}

/// Removes the access of the group and others from a directory and the named files in it. Other
/// files may belong to other programs, and stay unchanged.
pub fn tighten_files(directory: &Path, names: &[&str]) -> Tightened {
    let mut found = Tightened::default();
    found.look_at(directory, fs::metadata(directory));
    for name in names {
        let path = directory.join(name);
        match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            metadata => found.look_at(&path, metadata),
        }
    }
    found
}

impl Tightened {
    /// Logs a warning for changed files, and one for those that were left, if there are any.
    pub fn warn(&self) {
        if let Some(path) = &self.changed_example {
            let count = self.changed_count;
            tracing::warn!(
                "other users could access files or directories ({count} of them, such as {}): \
                 removed the access of the group and of others (directories 0700, files 0600)",
                path.display()
            );
        }
        if let Some((path, why)) = &self.left_example {
            let count = self.left_count;
            tracing::warn!(
                "other users may access files or directories whose mode was not changed ({count} \
                 of them, such as {}: {why}): make the user of this process their owner, with mode \
                 0700 or 0600",
                path.display()
            );
        }
    }

    fn look_at(&mut self, path: &Path, metadata: io::Result<Metadata>) {
        let metadata = match metadata {
            Ok(metadata) => metadata,
            // The file was removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => return self.leave(path, error.to_string()),
        };
        let mode = metadata.mode() & 0o7777;
        let is_either = metadata.is_dir() || metadata.is_file();
        if !is_either || mode & WIDE_BITS == 0 {
            return;
        }
        if metadata.uid() != rustix::process::geteuid().as_raw() {
            let why = format!("mode {mode:04o}, of user {}", metadata.uid());
            return self.leave(path, why);
        }
        let narrow = Permissions::from_mode(mode & !WIDE_BITS);
        match fs::set_permissions(path, narrow) {
            Ok(()) => {
                self.changed_count += 1;
                self.changed_example.get_or_insert_with(|| path.to_owned());
            }
            Err(error) => self.leave(path, format!("mode {mode:04o}: {error}")),
        }
    }

    fn leave(&mut self, path: &Path, why: String) {
        self.left_count += 1;
        self.left_example
            .get_or_insert_with(|| (path.to_owned(), why));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::{DirectoryStorage, Storage};

    fn mode(path: &Path) -> u32 {
        let metadata = fs::symlink_metadata(path).expect("it is there");
        metadata.mode() & 0o7777
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("it is ours");
    }

    /// Promise: only the owner can access what a storage creates, under any name and by any method.
    /// (The tests of the command line do this with umask 000.)
    #[test]
    fn what_a_storage_makes_is_private() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let path = folder.path().join("engine");
        let storage = DirectoryStorage::open(&path).expect("made");
        let direct = DirectoryStorage::open(&path).expect("there");
        let direct = direct.with_direct_io(&["direct"]);
        storage.create("file").expect("made");
        direct.create("direct").expect("made");
        drop(storage.lock("LOCK").expect("made"));
        let origin = storage.origin("file").expect("it can be linked");
        storage.link(&origin, "linked").expect("linked");
        storage.rename("file", "renamed").expect("renamed");
        assert_eq!(mode(&path), 0o700);
        let names = storage.list().expect("its names");
        assert_eq!(names.len(), 4);
        for name in names {
            assert_eq!(mode(&path.join(&name)), 0o600, "{name}");
        }
        create_directory_all(&folder.path().join("a/b")).expect("made");
        let both = ["a", "a/b"].map(|it| mode(&folder.path().join(it)));
        assert_eq!(both, [0o700; 2]);
    }

    /// Promise: files that others could access are tightened at every depth and counted. Symbolic
    /// links do not lead out of the directory, and a second run finds nothing.
    #[test]
    fn wide_modes_are_tightened() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let (root, outside) = (folder.path().join("root"), folder.path().join("outside"));
        fs::create_dir_all(root.join("inner/deep")).expect("made");
        for (name, wide) in [("file", 0o644), ("inner/deep/file", 0o666), ("own", 0o600)] {
            fs::write(root.join(name), name).expect("written");
            set_mode(&root.join(name), wide);
        }
        fs::write(&outside, "of others").expect("written");
        set_mode(&outside, 0o644);
        std::os::unix::fs::symlink(&outside, root.join("link")).expect("made");
        for (name, wide) in [("", 0o755), ("inner", 0o711), ("inner/deep", 0o2777)] {
            set_mode(&root.join(name), wide);
        }
        let found = tighten(&root);
        assert_eq!((found.changed_count, found.left_count), (5, 0), "{found:?}");
        assert_eq!(found.changed_example, Some(root.clone()));
        for (name, narrow) in [
            ("", 0o700),
            ("inner", 0o700),
            ("inner/deep", 0o2700),
            ("file", 0o600),
            ("inner/deep/file", 0o600),
            ("own", 0o600),
        ] {
            assert_eq!(mode(&root.join(name)), narrow, "{name}");
        }
        assert_eq!(mode(&outside), 0o644);
        assert_eq!(tighten(&root).changed_count, 0);
    }

    /// Promise: in a directory with other files, only the named ones change.
    #[test]
    fn only_named_files_are_tightened() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        for name in ["own", "letter"] {
            fs::write(folder.path().join(name), name).expect("written");
            set_mode(&folder.path().join(name), 0o644);
        }
        set_mode(folder.path(), 0o755);
        let found = tighten_files(folder.path(), &["own", "missing"]);
        assert_eq!((found.changed_count, found.left_count), (2, 0), "{found:?}");
        assert_eq!(mode(folder.path()), 0o700);
        assert_eq!(mode(&folder.path().join("own")), 0o600);
        assert_eq!(mode(&folder.path().join("letter")), 0o644);
    }
}
