//! A directory for files that are gone when the command ends, by a signal too.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::{fs, io};

use anyhow::Context;
use farleaf_lsm::storage::private;

/// The directories of this process, for whoever takes signals.
static ALL: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
/// Threads that still write while a directory is removed can make one removal fail.
const ATTEMPT_COUNT: u32 = 10;

/// A new directory, removed with all that is in it when this is dropped.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
    is_removed: bool,
}

impl Scratch {
    /// Makes one in a directory that is there.
    ///
    /// # Errors
    /// The system makes none there.
    pub(crate) fn in_directory(directory: &Path) -> anyhow::Result<Self> {
        let process = std::process::id();
        // A signal that comes meanwhile waits until it is known.
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        let mut number = 0_u32;
        let path = loop {
            let path = directory.join(format!("farleaf-scratch-{process}-{number}"));
            match private::create_directory(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
                made => {
                    let told = || format!("no directory can be made in {}", directory.display());
                    made.with_context(told)?;
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

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes it, and says if that is not possible.
    ///
    /// # Errors
    /// Something in it cannot be removed.
    pub(crate) fn remove(mut self) -> anyhow::Result<()> {
        self.is_removed = true;
        remove(&self.path).with_context(|| format!("cannot remove {}", self.path.display()))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.is_removed {
            // There is an error to tell already.
            let _ = remove(&self.path);
        }
    }
}

/// Removes all that there are: a signal ends the process.
pub(crate) fn remove_all() {
    for path in ALL.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        // Whether they can be removed or not, the process ends.
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

    /// Promise: two of one process are two, and both are gone afterwards, with what was in them.
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
            error.to_string().contains("no directory can be made in"),
            "{error}"
        );
    }
}
