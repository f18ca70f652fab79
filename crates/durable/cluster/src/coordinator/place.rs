//! Whether the journal is still the file that its path names.
//!
//! A process goes on writing a file that was removed, or whose directory was moved away or replaced
//! by a copy. A restart would not find what was written since. So nothing may be acknowledged then.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{CoordinatorError, Displacement};

/// So often the path is looked at, beside after each change.
const INTERVAL: Duration = Duration::from_millis(100);

/// Where a journal was opened, and which file was there.
#[derive(Debug)]
pub(super) struct Place {
    directory: PathBuf,
    file: &'static str,
    opened: FileNumber,
    checked_at: Duration,
}

/// What tells a file from all others that are there.
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

impl Place {
    /// Remembers the file that was just opened in a directory.
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

    /// Remembers the file that was just put in place of the other one.
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
        let how = "another file has its name";
        Err(displaced(&self.directory, self.file, how))
    }

    /// The same, if it was not checked for a while.
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
