//! What a server has seen of its coordinator last (ID5), on its disk: after a restart, too, it
//! knows a coordinator that was rolled back.
//!
//! ```text
//! DIRECTORY/SEEN    {"version":2,"cluster":"C","start":"N","first":F,"revision":R,"is_cut":true,
//!                   "sum":"X"}
//! ```
//!
//! `sum` is the CRC-32C of the same JSON without it, in hexadecimal digits.
//!
//! A thread of its own writes it: a disk that stalls must not end the server's lease. It writes a
//! new start of the coordinator, or that the start was cut, at once, as a whole, and syncs it.
//! Newer revisions of the same start it writes once a second over what is there: the file has the
//! same size always, within one sector, and is not synced. At the end it writes and syncs the
//! newest. So after a kill the server may not know the revisions of a second, and after a loss of
//! power those since the last sync.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farleaf_cluster::coordinator::{Revision, SeenStart};
use farleaf_cluster::ids::{ClusterId, StartNonce};
use farleaf_types::crc32c_bytes;
use serde::{Deserialize, Serialize};

use crate::directory::{failed, other_version, read_small, version_of, write_whole};
use crate::error::ServerError;

const SEEN: &str = "SEEN";
const VERSION: u32 = 2;
/// The version of files that do not say of which cluster they are.
const LEGACY_VERSION: u32 = 1;
/// What is written has so many bytes, the last ones of them spaces.
const SIZE_BYTES: usize = 256;
/// Between two writes of newer revisions, and before another try.
const INTERVAL: Duration = Duration::from_secs(1);
const REMEDY: &str = "restore it from a copy; or, if the coordinator's data are known to be the \
                      newest that there are, remove it";

/// What `SEEN` says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    version: u32,
    /// None: the cluster has no 128-bit identifier yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cluster: Option<ClusterId>,
    start: StartNonce,
    first: Revision,
    revision: Revision,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_cut: bool,
    /// None: version 1, or not taken yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sum: Option<String>,
}

impl Written {
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

    /// Of all but the sum itself.
    fn checksum(&self) -> String {
        let plain = Self {
            sum: None,
            ..self.clone()
        };
        let json = serde_json::to_vec(&plain).expect("it is a plain value");
        format!("{:08x}", crc32c_bytes(&json))
    }

    fn encode(&self) -> Vec<u8> {
        let summed = Self {
            sum: Some(self.checksum()),
            ..self.clone()
        };
        let mut bytes = serde_json::to_vec(&summed).expect("it is a plain value");
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
            return Err(damaged(path, "its checksum does not match".to_owned()));
        }
        Ok(written)
    }
}

fn damaged(path: &Path, how: String) -> ServerError {
    ServerError::Damaged {
        path: path.to_owned(),
        how,
        remedy: REMEDY,
    }
}

/// The file, and what it says.
#[derive(Debug)]
pub(crate) struct SeenFile {
    path: PathBuf,
    cluster: ClusterId,
    last: Option<SeenStart>,
    /// It has [`SIZE_BYTES`], and no write of it has failed.
    is_padded: bool,
    is_synced: bool,
}

impl SeenFile {
    /// The one of a server's directory; there may be none yet.
    pub(crate) fn open(directory: &Path, cluster: ClusterId) -> Result<Self, ServerError> {
        let path = directory.join(SEEN);
        let bytes = read_small(&path, REMEDY)?;
        let written = bytes.as_deref().map(|it| Written::decode(&path, it));
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

    /// What was seen last, as far as the file says.
    pub(crate) fn last(&self) -> Option<SeenStart> {
        self.last
    }

    /// For the agent, and for the thread that writes.
    pub(crate) fn split(self) -> (SeenNotes, SeenWriter) {
        let shared = Shared {
            cluster: self.cluster,
            wanted: self.last,
            kept: self.last,
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

    /// Whether this is to be on the disk at once, and not only a newer revision.
    fn is_urgent(&self, seen: SeenStart) -> bool {
        let differs = |last: SeenStart| (last.nonce, last.is_cut) != (seen.nonce, seen.is_cut);
        self.last.is_none_or(differs)
    }

    fn write(&mut self, seen: SeenStart, is_end: bool) -> Result<(), ServerError> {
        let bytes = Written::new(self.cluster, seen).encode();
        let is_whole = is_end || !self.is_padded || self.is_urgent(seen);
        // After a failure it is not known what the file has.
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
struct Shared {
    cluster: ClusterId,
    /// What is to be on the disk.
    wanted: Option<SeenStart>,
    /// What is.
    kept: Option<SeenStart>,
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The agent's side. When it is dropped, the writer writes what was noted last, and ends.
#[derive(Debug)]
pub(crate) struct SeenNotes {
    shared: Arc<Mutex<Shared>>,
    wake: SyncSender<()>,
}

impl SeenNotes {
    /// Notes what was seen last, without waiting for the disk.
    pub(crate) fn note(&self, seen: Option<SeenStart>) {
        let mut shared = lock(&self.shared);
        if seen.is_none() || shared.wanted == seen {
            return;
        }
        shared.wanted = seen;
        drop(shared);
        // If it is full, the writer has not looked yet, and will.
        let _ = self.wake.try_send(());
    }

    /// What a restarted server would know.
    pub(crate) fn kept(&self) -> Option<SeenStart> {
        lock(&self.shared).kept
    }

    /// Says which cluster it is from now on (ID1).
    pub(crate) fn adopt(&self, cluster: ClusterId) {
        lock(&self.shared).cluster = cluster;
    }
}

/// The side of the thread that writes.
#[derive(Debug)]
pub(crate) struct SeenWriter {
    file: SeenFile,
    shared: Arc<Mutex<Shared>>,
    woken: Receiver<()>,
    tried_at: Option<Instant>,
    /// What the last try met, which was logged.
    failure: Option<String>,
}

impl SeenWriter {
    /// Writes what is noted, until nobody notes any more.
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
                lock(&self.shared).kept = Some(seen);
                if self.failure.take().is_some() {
                    tracing::info!("what was seen of the coordinator is recorded again");
                }
            }
            Err(error) => self.tell(&error),
        }
    }

    /// Warns of a failure, once for each kind, until it works again.
    fn tell(&mut self, error: &ServerError) {
        let told = error.to_string();
        if self.failure.as_ref() == Some(&told) {
            return;
        }
        tracing::warn!(
            "cannot record what was seen of the coordinator, so after a restart this server may \
             not recognize an older copy of its data: {told}; it is tried again each second"
        );
        self.failure = Some(told);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;
    use std::thread;

    use super::*;
    use farleaf_fabric::fuzzing::run;

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

    /// Waits until the writer has written something.
    fn wait_kept(notes: &SeenNotes, seen: SeenStart) {
        let since = Instant::now();
        while notes.kept() != Some(seen) {
            assert!(
                since.elapsed() < Duration::from_secs(20),
                "{:?}",
                notes.kept()
            );
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// The format: a later version that changes it must say so. Promise (ID2): the file of another
    /// cluster is refused; that of an older version, which names none, is not; and what is no such
    /// file is refused with what to do.
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
        // A flipped bit in the number of the start: it was once taken for another start.
        fs::write(&path, text.replacen("007\",\"first", "017\",\"first", 1)).expect("written");
        let flipped = open(CLUSTER).expect_err("a bit is flipped").to_string();
        assert!(
            flipped.contains("SEEN is damaged: its checksum"),
            "{flipped}"
        );
        fs::write(&path, &text).expect("written");
        let foreign = open(ClusterId(8 << 64)).expect_err("it is another's");
        let told = foreign.to_string();
        assert!(
            told.contains("it belongs to cluster 0000000000000007"),
            "{told}"
        );
        assert!(told.contains("remove it"), "{told}");
        let longest = Written::new(
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
        for (text, told) in [("{", "remove it"), (r#"{"version":3}"#, "newer program")] {
            fs::write(&path, text).expect("written");
            let error = open(CLUSTER).expect_err("it is none").to_string();
            assert!(error.contains(told), "{error}");
        }
    }

    /// Promise (ID5): a new start, and that one was cut, are written as a whole at once; a newer
    /// revision later, in place; and the newest one when the agent ends.
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
            // Loaded machines are slow: that it does not wait for a second is what counts.
            assert!(since.elapsed() < INTERVAL * 3);
            assert_eq!(last(scratch.path()), Some(new));
        }
        // The number of a file that is gone may be used again: so that of the last one.
        let before = inode();
        notes.note(Some(seen(9, 4)));
        drop(notes);
        thread.join().expect("it ends");
        assert_eq!(last(scratch.path()), Some(seen(9, 4)));
        assert_ne!(inode(), before);
    }

    /// Promise (ID5): what cannot be written is not said to be kept, is tried again once a second,
    /// and nobody who notes waits for it.
    #[test]
    fn what_cannot_be_written_is_tried_again() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let in_the_way = scratch.path().join("SEEN.new");
        fs::create_dir(&in_the_way).expect("made");
        let file = SeenFile::open(scratch.path(), CLUSTER).expect("there is none yet");
        let (notes, mut writer) = file.split();
        notes.note(Some(seen(7, 6)));
        writer.write_if_due(false);
        let told = writer.failure.clone().expect("it cannot be written");
        assert!(told.contains("SEEN.new"), "{told}");
        let tried_at = writer.tried_at;
        notes.note(Some(seen(8, 7)));
        writer.write_if_due(false);
        assert_eq!((writer.tried_at, notes.kept()), (tried_at, None));
        fs::remove_dir(&in_the_way).expect("removed");
        let thread = thread::spawn(|| writer.run());
        wait_kept(&notes, seen(8, 7));
        drop(notes);
        thread.join().expect("it ends");
        assert_eq!(last(scratch.path()), Some(seen(8, 7)));
    }

    /// Promise: bytes that are no such file are an error, and no panic.
    #[test]
    fn bytes_are_seen_or_errors() {
        let written = Written::new(CLUSTER, seen(7, 6));
        run("files of what was seen", |random| {
            let mut bytes = written.encode();
            random.mutate(&mut bytes);
            let _ = Written::decode(Path::new("SEEN"), &bytes);
        });
    }
}
