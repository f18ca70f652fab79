//! The secret of a node that only its own host can reach, and that was given none: it makes one,
//! and leaves it in a file that only programs of its user can read.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use crate::runtime::{directory, prepare_directory};
use crate::tcp::secret::{Secret, SecretError};

/// Removes the file when the node stops.
#[derive(Debug)]
pub(super) struct LocalSecret {
    path: PathBuf,
}

/// Where the secret of the node at this port is.
pub(super) fn local_secret_path(port: u16) -> PathBuf {
    directory().join(format!("tcp-{port}.secret"))
}

impl LocalSecret {
    /// Makes a secret and leaves it for clients. The port is taken already, so no other node's is
    /// overwritten.
    pub(super) fn leave(port: u16) -> io::Result<(Secret, Self)> {
        prepare_directory(&directory())?;
        let path = local_secret_path(port);
        let (secret, text) = Secret::random()?;
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        options.open(&path)?.write_all(text.as_bytes())?;
        Ok((secret, Self { path }))
    }
}

impl Drop for LocalSecret {
    fn drop(&mut self) {
        // A file that stays is of no use to anybody: the node is gone.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// What a node of this host has left, if there is one at this address.
///
/// # Errors
/// There is a file, and it cannot be read.
pub(super) fn find_local_secret(address: IpAddr, port: u16) -> Result<Option<Secret>, SecretError> {
    let path = local_secret_path(port);
    if !address.is_loopback() || !path.exists() {
        return Ok(None);
    }
    Secret::from_file(&path).map(Some)
}
