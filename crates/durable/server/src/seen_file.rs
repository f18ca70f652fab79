//! The newest state seen of the coordinator, on the server's disk. With it, a restarted server
//! recognizes a coordinator that was rolled back.
//!
//! ```text
//! DIRECTORY/SEEN    {"version":2,"cluster":"C","start":"N","first":F,"revision":R,"is_cut":true,
//!                   "sum":"X"}
//! ```
//!
//! `sum` is the CRC-32C of the same JSON without it, in hexadecimal digits.
//!
//! A thread of its own writes the file: a disk that stalls must not end the server's lease. It
//! writes a new start of the coordinator, or that the start was cut, at once, by replacing and
//! syncing the file. It writes newer revisions of the same start once a second in place, without a
//! sync; the file always has the same size, within one sector. At the end it writes and syncs the
//! newest state. So after a kill the server may lack the revisions of the last second, and after a
//! power failure those since the last sync.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use farleaf_base::crc32c_bytes;
use farleaf_cluster::coordinator::{Revision, SeenStart};
use farleaf_cluster::ids::{ClusterId, StartNonce};
use serde::{Deserialize, Serialize};

use crate::directory::{failed, json, other_version, read_small, version_of, write_whole};
use crate::error::ServerError;
use crate::sync::lock;

const SEEN: &str = "SEEN";
const VERSION: u32 = 2;
/// Version of files without a cluster.
const LEGACY_VERSION: u32 = 1;
/// Size of the written content, padded with spaces.
const SIZE_BYTES: usize = 256;
/// Interval between two writes of newer revisions, and before a retry.
const INTERVAL: Duration = Duration::from_secs(1);
const REMEDY: &str = "restore it from a copy, or remove it if the coordinator has its \
                      newest data for certain";

/// Content of `SEEN`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SeenFileContent {
    version: u32,
    /// The cluster; `None` if it has no 128-bit identifier yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cluster: Option<ClusterId>,
    start: StartNonce,
    first: Revision,
    revision: Revision,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_cut: bool,
    /// The checksum; `None` in version 1, or while it is computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sum: Option<String>,
}

impl SeenFileContent {
    fn new(cluster: ClusterId, seen: SeenStart) -> Self {
        Self {
            version: VERSION,
            cluster: Some(cluster).filter(|it| !it.is_legacy()),
            start: seen.nonce,
            first: seen.first,
            revision: seen.revision,
            is_cut: seen.is_cut,
            sum: None,
        }
    }

    /// Returns the checksum of everything except for the checksum itself.
    fn checksum(&self) -> String {
        let plain = Self {
            sum: None,
            ..self.clone()
        };
        format!("{:08x}", crc32c_bytes(&json(&plain)))
    }

    fn encode(&self) -> Vec<u8> {
        let summed = Self {
            sum: Some(self.checksum()),
            ..self.clone()
        };
        let mut bytes = json(&summed);
        bytes.resize(bytes.len().max(SIZE_BYTES), b' ');
        bytes
    }

    fn decode(path: &Path, bytes: &[u8]) -> Result<Self, ServerError> {
        let version = version_of(bytes).map_err(|how| damaged(path, how))?;
        if version != VERSION && version != LEGACY_VERSION {
            return Err(other_version(path, version, VERSION));
        }
        let written: Self =
            serde_json::from_slice(bytes).map_err(|error| damaged(path, error.to_string()))?;
        if version == VERSION && written.sum != Some(written.checksum()) {
            return Err(damaged(path, "checksum mismatch".to_owned()));
        }
        Ok(written)
    }
}

fn damaged(path: &Path, how: String) -> ServerError {
    ServerError::damaged(path, REMEDY)(how)
}

/// The file and its content.
#[derive(Debug)]
pub(crate) struct SeenFile {
    path: PathBuf,
    cluster: ClusterId,
    last: Option<SeenStart>,
    /// Whether the file has [`SIZE_BYTES`], and no write of it has failed.
    is_padded: bool,
    is_synced: bool,
}

impl SeenFile {
    /// Opens the file of a server's directory, which may not exist yet.
    pub(crate) fn open(directory: &Path, cluster: ClusterId) -> Result<Self, ServerError> {
        let path = directory.join(SEEN);
        let bytes = read_small(&path, REMEDY)?;
        let written = bytes
            .as_deref()
            .map(|it| SeenFileContent::decode(&path, it));
        let written = written.transpose()?;
        if let Some(found) = written.as_ref().and_then(|it| it.cluster)
            && found != cluster
        {
            let how = format!("it belongs to {found}, but this server belongs to {cluster}");
            return Err(damaged(&path, how));
        }
        Ok(Self {
            path,
            cluster,
            last: written.map(|written| SeenStart {
                nonce: written.start,
                first: written.first,
                revision: written.revision,
                is_cut: written.is_cut,
            }),
            is_padded: bytes.is_some_and(|it| it.len() == SIZE_BYTES),
            is_synced: true,
        })
    }

    /// Returns the newest state in the file.
    pub(crate) fn last(&self) -> Option<SeenStart> {
        self.last
    }

    /// Splits it into the part of the agent and that of the writing thread.
    pub(crate) fn split(self) -> (SeenNotes, SeenWriter) {
        let shared = SeenShared {
            cluster: self.cluster,
            wanted: self.last,
            recorded: self.last,
        };
        let shared = Arc::new(Mutex::new(shared));
        let (wake, woken) = sync_channel(1);
        let notes = SeenNotes {
            shared: Arc::clone(&shared),
            wake,
        };
        let writer = SeenWriter {
            file: self,
            shared,
            woken,
            tried_at: None,
            failure: None,
        };
        (notes, writer)
    }

    /// Returns whether a state must be written at once, not being only a newer revision.
    fn is_urgent(&self, seen: SeenStart) -> bool {
        let differs = |last: SeenStart| (last.nonce, last.is_cut) != (seen.nonce, seen.is_cut);
        self.last.is_none_or(differs)
    }

    fn write(&mut self, seen: SeenStart, is_end: bool) -> Result<(), ServerError> {
        let bytes = SeenFileContent::new(self.cluster, seen).encode();
        let is_whole = is_end || !self.is_padded || self.is_urgent(seen);
        // After a failure the file's content is unknown.
        self.is_padded = false;
        if is_whole {
            write_whole(&self.path, &bytes)?;
        } else {
            let file = OpenOptions::new().write(true).open(&self.path);
            let file = file.map_err(failed("open", &self.path))?;
            let written = file.write_all_at(&bytes, 0);
            written.map_err(failed("write", &self.path))?;
        }
        self.is_padded = bytes.len() == SIZE_BYTES;
        self.is_synced = is_whole;
        self.last = Some(seen);
        Ok(())
    }
}

#[derive(Debug)]
struct SeenShared {
    cluster: ClusterId,
    /// State that is to be on the disk.
    wanted: Option<SeenStart>,
    /// State that is on the disk.
    recorded: Option<SeenStart>,
}

/// The agent's part. When it is dropped, the writer writes the newest state and ends.
#[derive(Debug)]
pub(crate) struct SeenNotes {
    shared: Arc<Mutex<SeenShared>>,
    wake: SyncSender<()>,
}

impl SeenNotes {
    /// Notes the newest state, without waiting for the disk.
    pub(crate) fn note(&self, seen: Option<SeenStart>) {
        let mut shared = lock(&self.shared);
        if seen.is_none() || shared.wanted == seen {
            return;
        }
        shared.wanted = seen;
        drop(shared);
        // If the channel is full, the writer is about to wake up anyway.
        let _ = self.wake.try_send(());
    }

    /// Returns the state that a restarted server would know.
    pub(crate) fn recorded(&self) -> Option<SeenStart> {
        lock(&self.shared).recorded
    }

    /// Sets the new identifier of the cluster.
    pub(crate) fn adopt(&self, cluster: ClusterId) {
        lock(&self.shared).cluster = cluster;
    }
}

/// The part of the writing thread.
#[derive(Debug)]
pub(crate) struct SeenWriter {
    file: SeenFile,
    shared: Arc<Mutex<SeenShared>>,
    woken: Receiver<()>,
    tried_at: Option<Instant>,
    /// The last logged failure.
    failure: Option<String>,
}

impl SeenWriter {
    /// Writes noted states until the agent's part is dropped.
    pub(crate) fn run(mut self) {
        loop {
            let woken = self.woken.recv_timeout(INTERVAL);
            let is_end = matches!(woken, Err(RecvTimeoutError::Disconnected));
            self.write_if_due(is_end);
            if is_end {
                return;
            }
        }
    }

    fn write_if_due(&mut self, is_end: bool) {
        let shared = lock(&self.shared);
        self.file.cluster = shared.cluster;
        let wanted = shared.wanted;
        drop(shared);
        let Some(seen) = wanted else { return };
        let is_rested = self.tried_at.is_none_or(|at| at.elapsed() >= INTERVAL);
        let is_urgent = self.file.is_urgent(seen) && self.failure.is_none();
        let is_due = if self.file.last == wanted {
            is_end && !self.file.is_synced
        } else {
            is_end || is_rested || is_urgent
        };
        if !is_due {
            return;
        }
        self.tried_at = Some(Instant::now());
        match self.file.write(seen, is_end) {
            Ok(()) => {
                lock(&self.shared).recorded = Some(seen);
                if self.failure.take().is_some() {
                    tracing::info!("the coordinator's state is recorded again");
                }
            }
            Err(error) => self.warn_once(&error),
        }
    }

    /// Warns of a failure, once for each kind, until writing works again.
    fn warn_once(&mut self, error: &ServerError) {
        let message = error.to_string();
        if self.failure.as_ref() == Some(&message) {
            return;
        }
        tracing::warn!(
            "cannot record the coordinator's state: {message}; after a restart, this server may \
             not recognize an older copy of the coordinator's data; retrying every second"
        );
        self.failure = Some(message);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;
    use std::thread;

    use super::*;
    use farleaf_base::fuzzing::run;

    const CLUSTER: ClusterId = ClusterId(7 << 64);

    fn seen(nonce: u128, revision: u64) -> SeenStart {
        SeenStart {
            nonce: StartNonce(nonce),
            first: Revision(5),
            revision: Revision(revision),
            is_cut: false,
        }
    }

    fn last(directory: &Path) -> Option<SeenStart> {
        let file = SeenFile::open(directory, CLUSTER);
        file.expect("it can be read").last()
    }

    /// Waits until the writer has written a state.
    fn wait_kept(notes: &SeenNotes, seen: SeenStart) {
        let since = Instant::now();
        while notes.recorded() != Some(seen) {
            assert!(
                since.elapsed() < Duration::from_secs(20),
                "{:?}",
                notes.recorded()
            );
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Fixes the format: a change needs a new version. The file of another cluster is refused; that
    /// of an older version without a cluster is not. An invalid file is refused with the remedy.
    #[test]
    fn what_was_seen_is_golden() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let open = |cluster| SeenFile::open(scratch.path(), cluster);
        let mut file = open(CLUSTER).expect("there is none yet");
        assert_eq!(file.last(), None);
        let cut = SeenStart {
            is_cut: true,
            ..seen(7, 6)
        };
        file.write(cut, false).expect("written");
        let path = scratch.path().join(SEEN);
        let text = fs::read_to_string(&path).expect("it is there");
        let golden = concat!(
            r#"{"version":2,"cluster":"00000000000000070000000000000000","#,
            r#""start":"00000000000000000000000000000007","first":5,"revision":6,"is_cut":true,"sum":"a91cd9c5"}"#
        );
        assert_eq!(
            (text.trim_end_matches(' '), text.len()),
            (golden, SIZE_BYTES)
        );
        assert_eq!(last(scratch.path()), Some(cut));
        // A flipped bit in the number of the start, which was once mistaken for another start.
        fs::write(&path, text.replacen("007\",\"first", "017\",\"first", 1)).expect("written");
        let flipped = open(CLUSTER).expect_err("a bit is flipped").to_string();
        assert!(
            flipped.contains("SEEN is corrupted: checksum mismatch"),
            "{flipped}"
        );
        fs::write(&path, &text).expect("written");
        let foreign = open(ClusterId(8 << 64)).expect_err("it is another's");
        let message = foreign.to_string();
        assert!(
            message.contains("it belongs to cluster 0000000000000007"),
            "{message}"
        );
        assert!(message.contains("remove it"), "{message}");
        let longest = SeenFileContent::new(
            CLUSTER,
            SeenStart {
                first: Revision(u64::MAX),
                revision: Revision(u64::MAX),
                ..cut
            },
        );
        assert_eq!(longest.encode().len(), SIZE_BYTES);
        let legacy = concat!(
            r#"{"version":1,"start":"00000000000000000000000000000007","#,
            r#""first":5,"revision":6}"#
        );
        fs::write(&path, legacy).expect("written");
        assert_eq!(last(scratch.path()), Some(seen(7, 6)));
        for (text, expected) in [("{", "remove it"), (r#"{"version":3}"#, "newer version")] {
            fs::write(&path, text).expect("written");
            let error = open(CLUSTER).expect_err("it is none").to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    /// A new start, or a cut one, is written at once by replacing the file; a newer revision later,
    /// in place; and the newest one when the agent ends.
    #[test]
    fn only_what_is_new_is_written_at_once() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let inode = || {
            fs::metadata(scratch.path().join(SEEN))
                .expect("there")
                .ino()
        };
        let file = SeenFile::open(scratch.path(), CLUSTER).expect("there is none yet");
        let (notes, writer) = file.split();
        let thread = thread::spawn(|| writer.run());
        notes.note(Some(seen(7, 6)));
        wait_kept(&notes, seen(7, 6));
        let first = inode();
        notes.note(Some(seen(7, 8)));
        wait_kept(&notes, seen(7, 8));
        assert_eq!((last(scratch.path()), inode()), (Some(seen(7, 8)), first));
        let cut = SeenStart {
            is_cut: true,
            ..seen(7, 8)
        };
        for new in [cut, seen(9, 3)] {
            let since = Instant::now();
            notes.note(Some(new));
            wait_kept(&notes, new);
            // Loaded machines are slow; the test only excludes a wait of many seconds.
            assert!(since.elapsed() < INTERVAL * 3);
            assert_eq!(last(scratch.path()), Some(new));
        }
        // The inode number of a removed file may be reused, so it is compared with that of the last
        // file.
        let before = inode();
        notes.note(Some(seen(9, 4)));
        drop(notes);
        thread.join().expect("it ends");
        assert_eq!(last(scratch.path()), Some(seen(9, 4)));
        assert_ne!(inode(), before);
    }

    /// A state that cannot be written is not reported as kept. Writing is retried once a second,
    /// and the agent never waits for it.
    #[test]
    fn what_cannot_be_written_is_tried_again() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let in_the_way = scratch.path().join("SEEN.new");
        fs::create_dir(&in_the_way).expect("made");
        let file = SeenFile::open(scratch.path(), CLUSTER).expect("there is none yet");
        let (notes, mut writer) = file.split();
        notes.note(Some(seen(7, 6)));
        writer.write_if_due(false);
        let failure = writer.failure.clone().expect("it cannot be written");
        assert!(failure.contains("SEEN.new"), "{failure}");
        let tried_at = writer.tried_at;
        notes.note(Some(seen(8, 7)));
        writer.write_if_due(false);
        assert_eq!((writer.tried_at, notes.recorded()), (tried_at, None));
        fs::remove_dir(&in_the_way).expect("removed");
        let thread = thread::spawn(|| writer.run());
        wait_kept(&notes, seen(8, 7));
        drop(notes);
        thread.join().expect("it ends");
        assert_eq!(last(scratch.path()), Some(seen(8, 7)));
    }

    /// Any bytes in the file are read or are an error, never a panic.
    #[test]
    fn bytes_are_seen_or_errors() {
        let written = SeenFileContent::new(CLUSTER, seen(7, 6));
        run("files of what was seen", |random| {
            let mut bytes = written.encode();
            random.mutate(&mut bytes);
            let _ = SeenFileContent::decode(Path::new("SEEN"), &bytes);
        });
    }
}
