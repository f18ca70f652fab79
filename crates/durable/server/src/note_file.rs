//! A small file that is replaced atomically, even if the disk is full.
//!
//! Beside `NAME` there is a spare, `NAME.new`, which reserves space while there is some. New
//! content is written over the spare, which is synced; then the two names are exchanged. So
//! replacing a file takes no space on file systems that write in place (such as ext4, XFS and
//! tmpfs), and a reader finds one of the two contents, complete. The content of a spare means
//! nothing.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;

use farleaf_lsm::storage::private;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use crate::directory::{failed, sync_directory, write_whole};
use crate::error::ServerError;

/// Size of a spare: the allocation unit of file systems.
const SPARE_SIZE_BYTES: usize = 4096;

/// Replaces a file atomically and durably. Costs two syncs, and two more the first time.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<(), ServerError> {
    let spare = path.with_extension("new");
    let has_spare = fs::metadata(&spare).is_ok_and(|it| it.is_file() && it.len() > 0);
    let is_exchanged = if has_spare {
        exchange(path, &spare, bytes, sync_directory)?
    } else {
        write_whole(path, bytes)?;
        false
    };
    if !is_exchanged && let Err(error) = make(&spare) {
        // The next replacement needs space, and fails if there is none.
        tracing::debug!(%error, "cannot create the spare file of {}", path.display());
    }
    Ok(())
}

/// Exchanges the names of file and spare. Returns false if the file was renamed instead, so that
/// there is no spare any more. After an error of `sync` the spare is removed, too: on disk, its
/// inode may still have the file's name, and it must not be overwritten.
fn exchange(
    path: &Path,
    spare: &Path,
    bytes: &[u8],
    sync: impl FnOnce(&Path) -> Result<(), ServerError>,
) -> Result<bool, ServerError> {
    let file = OpenOptions::new().write(true).open(spare);
    let mut file = file.map_err(failed("open", spare))?;
    file.write_all(bytes).map_err(failed("write", spare))?;
    let cut = file.set_len(bytes.len() as u64);
    cut.map_err(failed("truncate", spare))?;
    file.sync_all().map_err(failed("sync", spare))?;
    let exchanged = renameat_with(CWD, spare, CWD, path, RenameFlags::EXCHANGE);
    let is_exchanged = match exchanged {
        Ok(()) => true,
        // The file does not exist yet, or the file system does not support exchanges.
        Err(Errno::NOENT | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::PERM) => {
            fs::rename(spare, path).map_err(failed("rename", spare))?;
            false
        }
        Err(error) => return Err(failed("rename", spare)(error.into())),
    };
    let synced = sync(path.parent().unwrap_or(path));
    // After a rename there is no spare anyway.
    synced.inspect_err(|_| drop(fs::remove_file(spare)))?;
    Ok(is_exchanged)
}

fn make(spare: &Path) -> io::Result<()> {
    let write = || {
        let mut options = private::file_options();
        let mut file = options
            .create(true)
            .truncate(true)
            .write(true)
            .open(spare)?;
        file.write_all(&[b' '; SPARE_SIZE_BYTES])?;
        file.sync_all()
    };
    // An incomplete spare is removed.
    write().inspect_err(|_| drop(fs::remove_file(spare)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    /// The file has the written content, whatever its size was before. From the second time on, it
    /// is in one of two existing files, which take no more space than before. A lost spare is
    /// created again.
    #[test]
    fn files_change_names() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let (path, spare) = (scratch.path().join("NOTE"), scratch.path().join("NOTE.new"));
        let files = || {
            let of = |path: &Path| {
                let found = fs::metadata(path).expect("it is there");
                (found.ino(), found.blocks())
            };
            BTreeSet::from([of(&path), of(&spare)])
        };
        replace(&path, b"first").expect("written");
        assert_eq!(fs::read(&path).expect("there"), b"first");
        let before = files();
        for size_bytes in [1, 500, 4096, 70, 100] {
            let bytes = vec![b'x'; size_bytes];
            replace(&path, &bytes).expect("written");
            assert_eq!(fs::read(&path).expect("there"), bytes);
            assert_eq!(files(), before);
        }
        fs::remove_file(&spare).expect("removed");
        replace(&path, b"later").expect("written");
        fs::write(&spare, b"").expect("cut");
        replace(&path, b"last").expect("written");
        assert_eq!(fs::read(&path).expect("there"), b"last");
        assert_eq!(files().len(), 2);
        fs::remove_file(&path).expect("removed");
        replace(&path, b"new").expect("written");
        assert_eq!(fs::read(&path).expect("there"), b"new");
        assert_eq!(files().len(), 2);
    }
    /// If the exchange of names may not be durable, no later write overwrites the file that the
    /// disk may still name: its content is complete, and another spare is created.
    #[test]
    fn an_exchange_that_is_not_durable_leaves_no_spare() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let (path, spare) = (scratch.path().join("NOTE"), scratch.path().join("NOTE.new"));
        replace(&path, b"first").expect("written");
        // The file that the disk names until the directory is synced.
        let on_disk = scratch.path().join("on_disk");
        fs::hard_link(&path, &on_disk).expect("linked");
        let fails = |path: &Path| Err(failed("sync", path)(Errno::IO.into()));
        exchange(&path, &spare, b"second", fails).expect_err("it is not synced");
        assert!(!spare.exists());
        replace(&path, b"third").expect("written");
        assert_eq!(fs::read(&on_disk).expect("there"), b"first");
        assert_eq!(fs::read(&path).expect("there"), b"third");
        assert!(spare.exists());
    }
}
