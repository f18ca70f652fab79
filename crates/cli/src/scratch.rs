//! Scratch directories, which are removed when the command ends, also by a signal.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::{fs, io};

use anyhow::Context;
use farleaf_lsm::storage::private;

/// Directories of this process, which the signal handler removes.
static ALL: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
/// Maximum number of attempts to find a name that is not taken.
const ATTEMPT_COUNT: u32 = 10;

/// New directory, removed with its contents when this value is dropped.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
    is_removed: bool,
}

impl Scratch {
    /// Creates a scratch directory in an existing directory.
    ///
    /// # Errors
    /// The system cannot create one there.
    pub(crate) fn in_directory(directory: &Path) -> anyhow::Result<Self> {
        let process = std::process::id();
        // A concurrent signal waits until the new directory is registered.
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        let mut number = 0_u32;
        let path = loop {
            let path = directory.join(format!("farleaf-scratch-{process}-{number}"));
            match private::create_directory(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
                created => {
                    let context =
                        || format!("cannot create a directory in '{}'", directory.display());
                    created.with_context(context)?;
                    break path;
                }
            }
        };
        all.push(path.clone());
        Ok(Self {
            path,
            is_removed: false,
        })
    }

    /// Returns the path of the directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the directory now.
    ///
    /// # Errors
    /// Something in it cannot be removed.
    pub(crate) fn remove(mut self) -> anyhow::Result<()> {
        self.is_removed = true;
        remove(&self.path).with_context(|| format!("cannot remove '{}'", self.path.display()))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.is_removed {
            // The command already fails with another error.
            let _ = remove(&self.path);
        }
    }
}

/// Removes all scratch directories of the process, because a signal ends it.
pub(crate) fn remove_all() {
    for path in ALL.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        // Best effort: the process ends in any case.
        let _ = remove(&path);
    }
}

fn remove(path: &Path) -> io::Result<()> {
    let mut removed = Ok(());
    for _ in 0..ATTEMPT_COUNT {
        removed = fs::remove_dir_all(path);
        match &removed {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(_) => {}
            Ok(()) => return Ok(()),
        }
    }
    removed
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: two scratch directories of a process are distinct, and both are removed with their
    /// contents.
    #[test]
    fn nothing_is_left() {
        let place = tempfile::tempdir().expect("a directory");
        let left = || fs::read_dir(place.path()).expect("there").count();
        let one = Scratch::in_directory(place.path()).expect("made");
        let other = Scratch::in_directory(place.path()).expect("made");
        fs::write(one.path().join("file"), "text").expect("written");
        assert_eq!(left(), 2);
        one.remove().expect("removed");
        drop(other);
        assert_eq!(left(), 0);
        let error = Scratch::in_directory(&place.path().join("none")).expect_err("not there");
        assert!(
            error.to_string().contains("cannot create a directory in"),
            "{error}"
        );
    }
}
