//! The runtime directory of a user's nodes on this host: sockets, locks and secrets.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Environment variable that overrides the directory.
pub const DIRECTORY_VARIABLE: &str = "FARLEAF_RUNTIME_DIR";

/// Returns the directory by which a user's nodes and clients on this host find each other.
pub fn directory() -> PathBuf {
    if let Some(directory) = std::env::var_os(DIRECTORY_VARIABLE).filter(|value| !value.is_empty())
    {
        return PathBuf::from(directory);
    }
    if let Some(directory) = std::env::var_os("XDG_RUNTIME_DIR").filter(|value| !value.is_empty()) {
        return PathBuf::from(directory).join("farleaf");
    }
    let user = rustix::process::geteuid().as_raw();
    std::env::temp_dir().join(format!("farleaf-{user}"))
}

/// Creates the directory. A user who can write to it could replace our sockets, so it must be ours,
/// and no other user may have write permission.
pub fn prepare_directory(directory: &Path) -> io::Result<()> {
    match DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
    {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let metadata = std::fs::symlink_metadata(directory)?;
    let ours = metadata.is_dir() && metadata.uid() == rustix::process::geteuid().as_raw();
    if ours && metadata.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!(
            "'{}' must be a directory that this user owns and no other user can write to; \
             set {DIRECTORY_VARIABLE} to another directory",
            directory.display()
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_open_to_others_is_refused() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let open = scratch.path().join("open");
        std::fs::create_dir(&open).expect("create");
        let everyone = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(&open, everyone).expect("chmod");
        let error = prepare_directory(&open).expect_err("must be refused");
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        prepare_directory(&scratch.path().join("new/inner")).expect("a new one is made");
    }
}
