//! Drafts of files, written beside a folder's contents before they replace them.
//!
//! A full disk is thus detected before anything is replaced. Drafts are in a folder of their own,
//! inside the target folder. Whatever an aborted run leaves behind therefore has one name, and the
//! next run removes it.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::folder::FolderError;
use crate::folder_error::at;
use crate::list::{LIST_NAME, LIST_OF_BOTH, is_written};

/// Name of the folder of drafts.
pub(super) const DRAFT_NAME: &str = "files-of-this-run.new";
/// Name that older versions gave the draft of the list.
pub(super) const OLDER_DRAFT_NAME: &str = "files-of-this-run.txt.new";

/// File that failed, with the error of the system.
pub(super) type FailedFile = (PathBuf, io::Error);

/// Files that are written but not in place yet. Dropping this removes them unless they are to stay.
#[derive(Debug)]
pub(super) struct Draft {
    writer: &'static str,
    folder: PathBuf,
    is_retained: bool,
}

impl Draft {
    /// Creates an empty draft.
    pub(super) fn new(writer: &'static str, folder: &Path) -> Result<Self, FailedFile> {
        let path = folder.join(DRAFT_NAME);
        fs::create_dir(&path).map_err(|error| (path, error))?;
        Ok(Self {
            writer,
            folder: folder.to_owned(),
            is_retained: false,
        })
    }

    /// Writes a draft file and syncs it to the disk.
    pub(super) fn write(&mut self, name: &str, text: &str) -> Result<(), FailedFile> {
        let path = self.folder.join(DRAFT_NAME).join(name);
        let written = File::create_new(&path).and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            // Some file systems report a full disk only now.
            file.sync_all()
        });
        written.map_err(|error| (path, error))
    }

    /// Moves a draft file into place, and replaces the existing file.
    pub(super) fn settle(&mut self, draft: &str, name: &str) -> io::Result<()> {
        let path = self.folder.join(DRAFT_NAME).join(draft);
        fs::rename(path, self.folder.join(name))
    }

    /// Keeps the draft files from now on: those that are not in place must not be lost.
    pub(super) fn keep(&mut self) {
        self.is_retained = true;
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.is_retained {
            // The next run removes what remains.
            let _ = remove_drafts(self.writer, &self.folder);
        }
    }
}

/// Removes what an aborted run left behind, and nothing that no run writes.
pub(super) fn remove_drafts(writer: &'static str, folder: &Path) -> Result<(), FolderError> {
    let path = folder.join(DRAFT_NAME);
    let former = folder.join(OLDER_DRAFT_NAME);
    ignore_absent(fs::remove_file(&former)).map_err(at(&former))?;
    let entries = match fs::read_dir(&path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            return Err(FolderError::InTheWay { writer, path });
        }
        Err(source) => return Err(at(&path)(source)),
    };
    for entry in entries {
        let entry = entry.map_err(at(&path))?.path();
        let name = entry.file_name().map(|name| name.to_string_lossy());
        let name = name.unwrap_or_default();
        if !is_written(&name) && name != LIST_NAME && name != LIST_OF_BOTH {
            return Err(FolderError::InTheWay {
                writer,
                path: entry,
            });
        }
        ignore_absent(fs::remove_file(&entry)).map_err(at(&entry))?;
    }
    ignore_absent(fs::remove_dir(&path)).map_err(at(&path))
}

fn ignore_absent(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITER: &str = "farleaf figures";

    /// Promise: drafts are removed with their owner, unless they are to stay; a file that no run
    /// writes is never removed with them.
    #[test]
    fn drafts_are_removed_and_nothing_else() {
        let place = tempfile::tempdir().expect("a folder");
        let path = place.path().join(DRAFT_NAME);
        let mut draft = Draft::new(WRITER, place.path()).expect("made");
        draft.write("a.csv", "1").expect("written");
        draft.write("b.csv", "2").expect("written");
        draft.settle("a.csv", "a.csv").expect("put");
        drop(draft);
        assert!(place.path().join("a.csv").exists() && !path.exists());

        let mut draft = Draft::new(WRITER, place.path()).expect("made");
        draft.write("b.csv", "2").expect("written");
        draft.keep();
        drop(draft);
        assert!(path.join("b.csv").exists());

        fs::write(path.join("thesis.tex"), "mine").expect("written");
        let error = remove_drafts(WRITER, place.path()).expect_err("refused");
        assert!(matches!(error, FolderError::InTheWay { .. }), "{error}");
        assert!(path.join("thesis.tex").exists());
    }

    /// Promise: the error of a draft that cannot be written names it.
    #[test]
    fn what_cannot_be_written_is_named() {
        let place = tempfile::tempdir().expect("a folder");
        let mut draft = Draft::new(WRITER, place.path()).expect("made");
        let (path, _) = draft.write("none/a.csv", "1").expect_err("no such folder");
        assert!(path.ends_with("none/a.csv"));
    }
}
