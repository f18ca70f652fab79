//! Why a folder is not taken, or not written.

use std::io;
use std::path::{Path, PathBuf};

use crate::draft::DRAFT_NAME;

/// Why a folder is not taken, or not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FolderError {
    /// It is no folder.
    #[error("{} is {is}; name a folder, new, empty or of a former run", path.display())]
    NoFolder {
        /// What was named.
        path: PathBuf,
        /// What it is instead.
        is: &'static str,
    },
    /// Another run has it.
    #[error(
        "another run is writing into folder {}; wait until it has ended, or name another folder",
        path.display()
    )]
    Busy {
        /// Which folder.
        path: PathBuf,
    },
    /// It is somebody else's.
    #[error(
        "folder {} is not empty, and `{writer}` did not write it (it has {}); name an empty \
         or a new one",
        path.display(),
        crate::shown::text(found)
    )]
    Foreign {
        /// The command that wants it.
        writer: &'static str,
        /// Which folder.
        path: PathBuf,
        /// One thing that lies there.
        found: String,
    },
    /// A file would be overwritten that no former run wrote.
    #[error(
        "{} is in the way, and `{writer}` did not write it; move it, or name another folder",
        path.display()
    )]
    InTheWay {
        /// The command that wants its place.
        writer: &'static str,
        /// Which file.
        path: PathBuf,
    },
    /// The list of a former run names what no run writes.
    #[error(
        "{} names '{}', which no run writes; name another folder",
        path.display(),
        crate::shown::text(line)
    )]
    BadList {
        /// Which file.
        path: PathBuf,
        /// Its line.
        line: String,
    },
    /// A file cannot be read, written or removed; what was there is there.
    #[error(
        "cannot write {}: {source}; see that the folder can be written, or name another one",
        path.display()
    )]
    Io {
        /// Which file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// What was measured cannot be written.
    #[error(
        "cannot write {}: {source}; nothing of this run is there{}; make room, or name another \
         folder, and run again",
        path.display(),
        if *has_former { ", and what a former run wrote is as it was" } else { "" }
    )]
    Unwritten {
        /// Which file or folder.
        path: PathBuf,
        /// Whether a former run's files are there.
        has_former: bool,
        /// What the system said.
        source: io::Error,
    },
    /// Everything was written, and not all of it is where it belongs.
    #[error(
        "cannot put {} in its place: {source}; the folder has files of this run and of a former \
         one, and those that are missing are in {DRAFT_NAME} in it: move them from there, or run \
         again",
        path.display()
    )]
    HalfReplaced {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// The system's refusal of something that was done to this path.
pub(super) fn at(path: &Path) -> impl Fn(io::Error) -> FolderError {
    let path = path.to_owned();
    move |source| FolderError::Io {
        path: path.clone(),
        source,
    }
}
