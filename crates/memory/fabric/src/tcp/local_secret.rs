//! The secret of a listener that only its own host can reach, and that was given none: it makes
//! one, and leaves it in a file that only programs of its user can read.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

use crate::runtime::{directory, prepare_directory};
use crate::tcp::secret::{Secret, SecretError};

/// The protocol of memory nodes.
pub(super) const PROTOCOL: &str = "tcp";

/// A secret that was left in a file, which is removed when this is dropped.
#[derive(Debug)]
pub struct LocalSecret {
    path: PathBuf,
    text: String,
}

/// Where the secret of who listens at this address is; `protocol` is a word that files of
/// one protocol begin with.
pub fn local_secret_path(protocol: &str, address: IpAddr, port: u16) -> PathBuf {
    let host = if address == IpAddr::V4(Ipv4Addr::LOCALHOST) {
        String::new()
    } else {
        format!("{address}-").replace(':', "_")
    };
    directory().join(format!("{protocol}-{host}{port}.secret"))
}

impl LocalSecret {
    /// Makes a secret and leaves it for clients. The address must be taken already, so that no
    /// other listener's is overwritten.
    ///
    /// # Errors
    /// The directory is not this user's alone, or cannot be written.
    pub fn leave(protocol: &str, address: IpAddr, port: u16) -> io::Result<(Secret, Self)> {
        prepare_directory(&directory())?;
        let path = local_secret_path(protocol, address, port);
        let (secret, text) = Secret::random()?;
        // Whole, or not there.
        let draft = path.with_extension(format!("{}.draft", std::process::id()));
        match std::fs::remove_file(&draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        options.open(&draft)?.write_all(text.as_bytes())?;
        std::fs::rename(&draft, &path)?;
        Ok((secret, Self { path, text }))
    }
}

impl Drop for LocalSecret {
    fn drop(&mut self) {
        // The next listener at this address may have left its own already.
        if std::fs::read_to_string(&self.path).is_ok_and(|text| text == self.text) {
            // A file that stays is of no use to anybody: nobody listens there.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// What a listener of this host has left, if there is one at this address.
///
/// # Errors
/// There is a file, and it cannot be read, or others than this user can write it: they could have
/// put it there, with a listener of their own behind the port.
pub fn find_local_secret(
    protocol: &str,
    address: IpAddr,
    port: u16,
) -> Result<Option<Secret>, SecretError> {
    let path = local_secret_path(protocol, address, port);
    if !address.is_loopback() {
        return Ok(None);
    }
    let refused = |source| SecretError::File {
        path: path.display().to_string(),
        source,
    };
    match std::fs::symlink_metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(refused(error)),
        Ok(metadata) => {
            let ours = rustix::process::geteuid();
            let is_ours = metadata.uid() == ours.as_raw() || ours.is_root();
            if !metadata.is_file() || !is_ours || metadata.mode() & 0o022 != 0 {
                let told = "it is not this user's alone";
                return Err(refused(io::Error::new(
                    io::ErrorKind::PermissionDenied,
                    told,
                )));
            }
        }
    }
    prepare_directory(&directory()).map_err(refused)?;
    Secret::from_file(&path).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: nodes at different addresses of this host leave their secrets in different files.
    #[test]
    fn addresses_have_files_of_their_own() {
        let name = |address: &str| {
            let address = address.parse().expect("an address");
            let path = local_secret_path(PROTOCOL, address, 7470);
            path.file_name()
                .expect("a name")
                .to_string_lossy()
                .into_owned()
        };
        assert_eq!(name("127.0.0.1"), "tcp-7470.secret");
        assert_eq!(name("127.0.0.2"), "tcp-127.0.0.2-7470.secret");
        assert_eq!(name("::1"), "tcp-__1-7470.secret");
    }
}
