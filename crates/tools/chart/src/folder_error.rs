//! Errors of claiming or writing a folder.

use std::io;
use std::path::{Path, PathBuf};

use crate::draft::DRAFT_NAME;

/// Error of claiming or writing a folder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FolderError {
    /// The path is not a folder.
    #[error("{} is {is}; name a folder, new, empty or of a former run", path.display())]
    NoFolder {
        /// Path that was given.
        path: PathBuf,
        /// Kind of what is there instead.
        is: &'static str,
    },
    /// Another run uses the folder.
    #[error(
        "another run is writing into folder {}; wait until it has ended, or name another folder",
        path.display()
    )]
    Busy {
        /// Path of the folder.
        path: PathBuf,
    },
    /// The folder has another owner.
    #[error(
        "folder {} is not empty, and `{writer}` did not write it (it has {}); name an empty \
         or a new one",
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
        "{} is in the way, and `{writer}` did not write it; move it, or name another folder",
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
        "{} names '{}', which no run writes; name another folder",
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
        "cannot write {}: {source}; see that the folder can be written, or name another one",
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
        "cannot write {}: {source}; nothing of this run is there{}; make room, or name another \
         folder, and run again",
        path.display(),
        if *has_former { ", and what a former run wrote is as it was" } else { "" }
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
        "cannot put {} in its place: {source}; the folder has files of this run and of a former \
         one, and those that are missing are in {DRAFT_NAME} in it: move them from there, or run \
         again",
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
