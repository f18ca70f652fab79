//! Check that the journal is still the file that its path names.
//!
//! A process can keep writing a file that was removed, or whose directory was moved away or
//! replaced by a copy. A restart would not find these writes. So nothing may be acknowledged then.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{CoordinatorError, Displacement};

/// Interval of checks, in addition to those after each change.
const INTERVAL: Duration = Duration::from_millis(100);

/// Path and identity of the open journal.
#[derive(Debug)]
pub(super) struct JournalPath {
    directory: PathBuf,
    file: &'static str,
    opened: FileNumber,
    checked_at: Duration,
}

/// Numbers that tell a file from all other existing ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileNumber {
    device: u64,
    inode: u64,
}

fn number_of(path: &Path) -> io::Result<FileNumber> {
    let metadata = path.metadata()?;
    Ok(FileNumber {
        device: metadata.dev(),
        inode: metadata.ino(),
    })
}

impl JournalPath {
    /// Records the file that was just opened in a directory.
    ///
    /// # Errors
    /// [`CoordinatorError::Displaced`].
    pub(super) fn of(
        directory: PathBuf,
        file: &'static str,
        now: Duration,
    ) -> Result<Self, CoordinatorError> {
        match number_of(&directory.join(file)) {
            Ok(opened) => Ok(Self {
                directory,
                file,
                opened,
                checked_at: now,
            }),
            Err(error) => Err(displaced(&directory, file, &error.to_string())),
        }
    }

    /// Records the file that has just replaced the other one.
    pub(super) fn renew(&mut self) -> Result<(), CoordinatorError> {
        self.opened = self.look()?;
        Ok(())
    }

    fn look(&self) -> Result<FileNumber, CoordinatorError> {
        number_of(&self.directory.join(self.file))
            .map_err(|error| displaced(&self.directory, self.file, &error.to_string()))
    }

    /// Checks that the path still names the file.
    pub(super) fn check(&self) -> Result<(), CoordinatorError> {
        if self.look()? == self.opened {
            return Ok(());
        }
        let how = "another file now has its name";
        Err(displaced(&self.directory, self.file, how))
    }

    /// Does the check if the last one was some time ago.
    pub(super) fn check_if_due(&mut self, now: Duration) -> Result<(), CoordinatorError> {
        if now < self.checked_at.saturating_add(INTERVAL) {
            return Ok(());
        }
        self.checked_at = now;
        self.check()
    }
}

fn displaced(directory: &Path, file: &str, how: &str) -> CoordinatorError {
    CoordinatorError::Displaced(Displacement {
        file: file.to_owned(),
        directory: directory.display().to_string(),
        how: how.to_owned(),
    })
}
