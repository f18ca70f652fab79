//! Names of pools, and their paths on the host.

use core::fmt;
use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

use thiserror::Error;

use farleaf_net::runtime::{directory, prepare_directory};

const NAME_SIZE_BYTES_MAX: usize = 48;

/// Name of a pool on this host: 1 to 48 of `A-Z a-z 0-9 . _ -`, not starting with a dot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolName(String);

/// Error: the text is not a valid pool name.
#[derive(Debug, Error)]
#[error(
    "'{0}' is not a valid pool name; use 1 to {NAME_SIZE_BYTES_MAX} of the characters A-Z a-z 0-9 \
     . _ - and do not start with a dot"
)]
pub struct NameError(String);

impl PoolName {
    /// Checks and returns the name.
    ///
    /// # Errors
    /// The name is invalid; the error describes valid names.
    pub fn new(name: &str) -> Result<Self, NameError> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let good = (1..=NAME_SIZE_BYTES_MAX).contains(&name.len())
            && !name.starts_with('.')
            && name.bytes().all(allowed);
        if good {
            Ok(Self(name.to_owned()))
        } else {
            Err(NameError(name.to_owned()))
        }
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the path of the socket on which the node of this name listens.
    pub(super) fn socket_path(&self) -> PathBuf {
        directory().join(format!("{}.sock", self.0))
    }

    /// Creates the directory, and takes the lock that only one node of this name can hold. Returns
    /// `None` if another node holds it. The kernel releases the lock when the process ends in any
    /// way.
    pub(super) fn claim(&self) -> io::Result<Option<NameLock>> {
        let directory = directory();
        prepare_directory(&directory)?;
        let path = directory.join(format!("{}.lock", self.0));
        loop {
            let mut options = File::options();
            options.create(true).truncate(false).write(true).mode(0o600);
            let file = options.open(&path)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(error),
            }
            // A node that stops removes its file; a lock on a removed file excludes nobody.
            let is_current = std::fs::metadata(&path)
                .is_ok_and(|current| file.metadata().is_ok_and(|own| own.ino() == current.ino()));
            if is_current {
                return Ok(Some(NameLock { path, _file: file }));
            }
        }
    }
}

/// Exclusive right to serve a name; released when dropped.
#[derive(Debug)]
pub(super) struct NameLock {
    path: PathBuf,
    _file: File,
}

impl Drop for NameLock {
    fn drop(&mut self) {
        // Still locked here, so no other node uses it. A file that remains is harmless.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl fmt::Display for PoolName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shm:{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_would_leave_the_directory_are_refused() {
        for bad in [
            "",
            ".",
            "..",
            "a/b",
            "../x",
            "a b",
            "é",
            "a\0b",
            &"x".repeat(49),
        ] {
            let error = PoolName::new(bad).expect_err("must be refused");
            assert!(
                error.to_string().contains("is not a valid pool name"),
                "{error}"
            );
        }
        for good in ["a", "Pool-1_x.y", &"x".repeat(48)] {
            assert_eq!(PoolName::new(good).expect("good").as_str(), good);
        }
    }
}
