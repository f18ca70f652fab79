//! Errors of claiming or writing a folder.

use std::io;
use std::path::{Path, PathBuf};

use crate::draft::DRAFT_NAME;

/// Error of claiming or writing a folder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FolderError {
    /// The path is not a folder.
    #[error(
        "'{}' is {is}, not a folder; name a new or empty folder, or one of an earlier run",
        path.display()
    )]
    NoFolder {
        /// Path that was given.
        path: PathBuf,
        /// Kind of what is there instead.
        is: &'static str,
    },
    /// Another run uses the folder.
    #[error(
        "another run is writing to folder '{}'; wait until it ends, or name another folder",
        path.display()
    )]
    Busy {
        /// Path of the folder.
        path: PathBuf,
    },
    /// The folder has another owner.
    #[error(
        "folder '{}' has a file that `{writer}` did not write ('{}'); name a new or empty folder",
        path.display(),
        crate::shown::text(found)
    )]
    Foreign {
        /// Command that claims it.
        writer: &'static str,
        /// Path of the folder.
        path: PathBuf,
        /// Example of a file in it.
        found: String,
    },
    /// A file that no earlier run wrote would be overwritten.
    #[error(
        "'{}' already exists and was not written by `{writer}`; move it, or name another folder",
        path.display()
    )]
    InTheWay {
        /// Command that would write it.
        writer: &'static str,
        /// Path of the file.
        path: PathBuf,
    },
    /// The list of an earlier run names a file that no run writes.
    #[error(
        "list '{}' is corrupted: '{}' is not a file that a run writes; name another folder",
        path.display(),
        crate::shown::text(line)
    )]
    BadList {
        /// Path of the list.
        path: PathBuf,
        /// Line in question.
        line: String,
    },
    /// A file cannot be read, written or removed; the folder is unchanged.
    #[error(
        "cannot write '{}': {source}; check the folder's permissions, or name another folder",
        path.display()
    )]
    Io {
        /// Path of the file or folder.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The results cannot be written.
    #[error(
        "cannot write '{}': {source}; no file of this run was kept{}; free space or name another \
         folder, and run again",
        path.display(),
        if *has_former { ", and the files of the earlier run are unchanged" } else { "" }
    )]
    Unwritten {
        /// Path of the file or folder.
        path: PathBuf,
        /// Whether an earlier run's files still exist.
        has_former: bool,
        /// Error of the system.
        source: io::Error,
    },
    /// All files were written, but not all are in place.
    #[error(
        "cannot move '{}' into place: {source}; the folder has files of this run and of an earlier \
         one, and the missing files are in its subfolder '{DRAFT_NAME}'; move them from there, or \
         run again",
        path.display()
    )]
    HalfReplaced {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
}

/// Returns a converter from a system error at this path.
pub(super) fn at(path: &Path) -> impl Fn(io::Error) -> FolderError {
    let path = path.to_owned();
    move |source| FolderError::Io {
        path: path.clone(),
        source,
    }
}
