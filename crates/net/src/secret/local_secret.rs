//! Secret of a loopback listener without a configured secret: the listener creates one, in a file
//! that only programs of its user can read.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

use crate::runtime::{directory, prepare_directory};
use crate::secret::{Secret, SecretError};

/// A secret in a file, which is removed when this value is dropped.
#[derive(Debug)]
pub struct LocalSecret {
    path: PathBuf,
    text: String,
}

/// Returns the path of the secret of the listener at this address. The names of a protocol's files
/// begin with `protocol`.
pub fn local_secret_path(protocol: &str, address: IpAddr, port: u16) -> PathBuf {
    let host = if address == IpAddr::V4(Ipv4Addr::LOCALHOST) {
        String::new()
    } else {
        format!("{address}-").replace(':', "_")
    };
    directory().join(format!("{protocol}-{host}{port}.secret"))
}

impl LocalSecret {
    /// Creates a secret and writes it to the file for clients. The listener must have bound the
    /// address already, so that it overwrites no other listener's file.
    ///
    /// # Errors
    /// Other users can write to the directory, or this user cannot.
    pub fn create_file(protocol: &str, address: IpAddr, port: u16) -> io::Result<(Secret, Self)> {
        prepare_directory(&directory())?;
        let path = local_secret_path(protocol, address, port);
        let (secret, text) = Secret::random()?;
        // Write a draft and rename it: the file is complete or does not exist.
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
        // The next listener at this address may have written its own file already.
        if std::fs::read_to_string(&self.path).is_ok_and(|text| text == self.text) {
            // A file that remains is harmless: no process listens at its address.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Returns the secret of a listener: the given one, or else one that it creates for programs of its
/// user, with the file that keeps it.
///
/// # Errors
/// The file at this path cannot be written.
pub fn given_or_created(
    given: Option<&Secret>,
    protocol: &str,
    address: SocketAddr,
) -> Result<(Secret, Option<LocalSecret>), (PathBuf, io::Error)> {
    if let Some(secret) = given {
        return Ok((secret.clone(), None));
    }
    let (host, port) = (address.ip(), address.port());
    match LocalSecret::create_file(protocol, host, port) {
        Ok((secret, file)) => Ok((secret, Some(file))),
        Err(error) => Err((local_secret_path(protocol, host, port), error)),
    }
}

/// Returns the secret of a listener of this host, if there is one at this address.
///
/// # Errors
/// The file exists, and cannot be read, or other users can write it. They could have put it there,
/// with their own listener behind the port.
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
                let requirement =
                    "it must be a file that this user owns and no other user can write to";
                return Err(refused(io::Error::new(
                    io::ErrorKind::PermissionDenied,
                    requirement,
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

    /// Promise: nodes at different addresses of this host have different secret files.
    #[test]
    fn addresses_have_files_of_their_own() {
        let name = |address: &str| {
            let address = address.parse().expect("an address");
            let path = local_secret_path("tcp", address, 7470);
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
