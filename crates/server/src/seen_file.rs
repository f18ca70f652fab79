//! What a server has seen of its coordinator last (ID5), on its disk: after a restart, too, it
//! knows a coordinator that was rolled back.
//!
//! ```text
//! DIRECTORY/SEEN    {"version":1,"start":"N","first":F,"revision":R}
//! ```
//!
//! A new start of the coordinator is written at once, newer revisions of the same start once a
//! second, and at the end. So of a second before a server was killed it may not know.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use farleaf_cluster::coordinator::{Revision, SeenStart};
use farleaf_cluster::ids::StartNonce;
use serde::{Deserialize, Serialize};

use crate::directory::{other_version, read_small, version_of, write_whole};
use crate::error::ServerError;

const SEEN: &str = "SEEN";
const VERSION: u32 = 1;
const REVISION_INTERVAL: Duration = Duration::from_secs(1);
const REMEDY: &str = "restore it from a copy; or, if the coordinator's data are known to be the \
                      newest that there are, remove it";

/// What `SEEN` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    version: u32,
    start: StartNonce,
    first: Revision,
    revision: Revision,
}

/// The file, and what it says.
#[derive(Debug)]
pub(crate) struct SeenFile {
    path: PathBuf,
    last: Option<SeenStart>,
    written_at: Instant,
}

impl SeenFile {
    /// The one of a server's directory; there may be none yet.
    pub(crate) fn open(directory: &Path) -> Result<Self, ServerError> {
        let path = directory.join(SEEN);
        let bytes = read_small(&path, REMEDY)?;
        let last = bytes.map(|bytes| decode(&path, &bytes)).transpose()?;
        Ok(Self {
            path,
            last,
            written_at: Instant::now(),
        })
    }

    /// What was seen last, as far as the file says.
    pub(crate) fn last(&self) -> Option<SeenStart> {
        self.last
    }

    /// Writes what is seen now, if that is due; what cannot be written is tried again.
    pub(crate) fn note(&mut self, seen: Option<SeenStart>, is_end: bool) {
        let Some(seen) = seen.filter(|seen| self.last != Some(*seen)) else {
            return;
        };
        let is_new = self.last.is_none_or(|last| last.nonce != seen.nonce);
        if !is_new && !is_end && self.written_at.elapsed() < REVISION_INTERVAL {
            return;
        }
        self.written_at = Instant::now();
        let written = Written {
            version: VERSION,
            start: seen.nonce,
            first: seen.first,
            revision: seen.revision,
        };
        let bytes = serde_json::to_vec(&written).expect("it is a plain value");
        match write_whole(&self.path, &bytes) {
            Ok(()) => self.last = Some(seen),
            Err(error) => tracing::debug!(%error, "what was seen of the coordinator is not kept"),
        }
    }
}

fn decode(path: &Path, bytes: &[u8]) -> Result<SeenStart, ServerError> {
    let damaged = |how: String| ServerError::Damaged {
        path: path.to_owned(),
        how,
        remedy: REMEDY,
    };
    let version = version_of(bytes).map_err(damaged)?;
    if version != VERSION {
        return Err(other_version(path, version, VERSION));
    }
    let written: Written =
        serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
    Ok(SeenStart {
        nonce: written.start,
        first: written.first,
        revision: written.revision,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use farleaf_fabric::fuzzing::run;

    fn seen(nonce: u128, revision: u64) -> SeenStart {
        SeenStart {
            nonce: StartNonce(nonce),
            first: Revision(5),
            revision: Revision(revision),
        }
    }

    /// Promise (ID5): a new start is on the disk at once, and newer revisions at the end; the file
    /// has these bytes, and what is not one is refused with what to do.
    #[test]
    fn what_was_seen_is_kept() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let open = || SeenFile::open(scratch.path());
        let mut file = open().expect("there is none yet");
        assert_eq!(file.last(), None);
        file.note(Some(seen(7, 6)), false);
        let path = scratch.path().join(SEEN);
        let text = fs::read_to_string(&path).expect("it is there");
        let golden = concat!(
            r#"{"version":1,"start":"00000000000000000000000000000007","#,
            r#""first":5,"revision":6}"#
        );
        assert_eq!(text, golden);
        file.note(Some(seen(7, 8)), false);
        assert_eq!(open().expect("it can be read").last(), Some(seen(7, 6)));
        file.note(Some(seen(7, 8)), true);
        assert_eq!(open().expect("it can be read").last(), Some(seen(7, 8)));
        file.note(Some(seen(9, 3)), false);
        assert_eq!(open().expect("it can be read").last(), Some(seen(9, 3)));
        for (text, told) in [("{", "remove it"), (r#"{"version":2}"#, "newer program")] {
            fs::write(&path, text).expect("written");
            let error = open().expect_err("it is none").to_string();
            assert!(error.contains(told), "{error}");
        }
    }

    /// Promise: bytes that are no such file are an error, and no panic.
    #[test]
    fn bytes_are_seen_or_errors() {
        let written = Written {
            version: VERSION,
            start: StartNonce(7),
            first: Revision(5),
            revision: Revision(6),
        };
        run("files of what was seen", |random| {
            let mut bytes = serde_json::to_vec(&written).expect("a plain value");
            random.mutate(&mut bytes);
            let _ = decode(Path::new("SEEN"), &bytes);
        });
    }
}
