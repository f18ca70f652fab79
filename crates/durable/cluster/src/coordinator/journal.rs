//! The journal of the embedded coordinator in its directory.
//!
//! | file | content |
//! |---|---|
//! | `COORDINATOR-LOCK` | locked by the operating system while the directory is open |
//! | `COORDINATOR` | the journal: lines, the first with the whole map, the others with changes |
//! | `COORDINATOR-NEW` | a journal being written, to replace the other one |
//!
//! - **Lines.** A line has its own checksum and that of the previous line (0 for the first one),
//!   each as 8 hexadecimal digits and a space, and then JSON. The checksum is the CRC-32C of the
//!   previous checksum (4 bytes, little endian) and the JSON. The first line also has the format
//!   version. A change is synced before it takes effect.
//! - **Torn end.** Only the last line can be one that was not synced. If no line after an invalid
//!   one is valid by itself, the invalid rest was never in force and is dropped. Any other invalid
//!   line is corruption. The rest is removed when the journal is rewritten. If there is no space
//!   for that, it is removed before the next line is written. Valid lines are searched at every
//!   byte, since unsynced bytes can be anything, including line ends. The engine's manifest is
//!   recovered by the same rule.
//! - **Rewriting.** A journal is rewritten when its changes outweigh its map: written whole,
//!   synced, renamed, and the directory synced.
//! - **Location.** After each sync of a change, and otherwise ten times a second, the journal's
//!   path must still name the open file. If it was removed or replaced, the change is not
//!   acknowledged, and nothing more is done.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crc_fast::{CrcAlgorithm, Digest};
use farleaf_lsm::storage::{Storage, StorageFile, StorageLock};
use serde::{Deserialize, Serialize};

use super::CoordinatorError;
use super::embedded::drawn_lease_count;
use super::place::JournalPath;
use super::store::{Change, Store, StoreImage};

const JOURNAL: &str = "COORDINATOR";
const NEW_JOURNAL: &str = "COORDINATOR-NEW";
const LOCK: &str = "COORDINATOR-LOCK";
/// Names of the coordinator's files.
pub(super) const FILES: [&str; 3] = [JOURNAL, NEW_JOURNAL, LOCK];

/// Version of the format.
const VERSION: u32 = 1;

/// Size of changes below which a journal is never rewritten.
const REWRITE_SIZE_BYTES_MIN: u64 = 256 << 10;

/// Size of the two checksums, with a space after each.
const PREFIX_SIZE_BYTES: usize = 18;

/// Content of the first line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct JournalHead {
    version: u32,
    map: StoreImage,
}

/// An open journal.
pub struct Journal {
    storage: Arc<dyn Storage>,
    file: Arc<dyn StorageFile>,
    _lock: Box<dyn StorageLock>,
    size_bytes: u64,
    head_size_bytes: u64,
    last_sum: u32,
    /// Whether the file continues after its valid end with part of a line that found the disk full.
    has_rest: bool,
    /// Where the journal was opened; `None` if the storage is not a directory of the operating
    /// system.
    place: Option<JournalPath>,
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Journal in {}", self.storage.name())
    }
}

fn sum(before: u32, json: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(&before.to_le_bytes());
    digest.update(json);
    digest.finalize() as u32
}

/// Encodes a line. Returns it with its checksum.
fn line(content: &impl Serialize, before: u32) -> (Vec<u8>, u32) {
    let json = serde_json::to_string(content).expect("maps and changes are plain values");
    let sum = sum(before, json.as_bytes());
    (format!("{sum:08x} {before:08x} {json}\n").into_bytes(), sum)
}

/// Finds a line at the start of the bytes that is valid by itself. Returns its JSON, its checksum,
/// and the checksum of the previous line.
fn whole_line(bytes: &[u8]) -> Option<(&[u8], u32, u32)> {
    let prefix = bytes.get(..PREFIX_SIZE_BYTES)?;
    if prefix[8] != b' ' || prefix[17] != b' ' {
        return None;
    }
    let before = u32::from_str_radix(str::from_utf8(&prefix[9..17]).ok()?, 16).ok()?;
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let json = bytes.get(PREFIX_SIZE_BYTES..end)?;
    let own = sum(before, json);
    let right = format!("{own:08x} {before:08x} ");
    (prefix == right.as_bytes()).then_some((json, own, before))
}

/// Finds a valid line that follows the line with checksum `before`. Returns JSON, checksum, and
/// size with the line end.
fn read_line(bytes: &[u8], before: u32) -> Option<(&[u8], u32, usize)> {
    let (json, own, follows) = whole_line(bytes)?;
    (follows == before).then_some((json, own, PREFIX_SIZE_BYTES + json.len() + 1))
}

/// Reason why a journal has no readable map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JournalUnreadable {
    /// The journal is corrupted; describes how.
    Damaged(String),
    /// A later version has written the journal; its number.
    Newer(u32),
}

impl From<String> for JournalUnreadable {
    fn from(how: String) -> Self {
        Self::Damaged(how)
    }
}

/// Decodes the first line, if its version is known.
fn read_head(json: &[u8]) -> Result<JournalHead, JournalUnreadable> {
    /// Accepts unknown fields, which a later version may have.
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let damaged = |error: serde_json::Error| JournalUnreadable::Damaged(format!("line 1: {error}"));
    match serde_json::from_slice::<Versioned>(json)
        .map_err(damaged)?
        .version
    {
        VERSION => serde_json::from_slice(json).map_err(damaged),
        version if version > VERSION => Err(JournalUnreadable::Newer(version)),
        version => Err(format!("line 1: unsupported format version {version}").into()),
    }
}

/// Reads the map of a journal, with its leases as of `now`.
///
/// # Errors
/// If the journal is corrupted, or a later version has written it.
pub fn replay(bytes: &[u8], now: Duration) -> Result<Store, JournalUnreadable> {
    read(bytes, now).map(|it| it.store)
}

/// Content of a journal.
struct ReplayedJournal {
    store: Store,
    head_size_bytes: u64,
    /// Valid size; bytes after it were never in force.
    size_bytes: u64,
    last_sum: u32,
}

fn read(bytes: &[u8], now: Duration) -> Result<ReplayedJournal, JournalUnreadable> {
    let (json, mut last_sum, mut at) =
        read_line(bytes, 0).ok_or_else(|| "line 1: incomplete, or checksum mismatch".to_owned())?;
    let head_size_bytes = at as u64;
    let head = read_head(json)?;
    let mut store = Store::from_image(head.map, now).map_err(|how| format!("line 1: {how}"))?;
    let mut line_number = 2;
    while at < bytes.len() {
        let Some((json, own, size_bytes)) = read_line(&bytes[at..], last_sum) else {
            let has_whole = (at..bytes.len()).any(|at| whole_line(&bytes[at..]).is_some());
            if !has_whole {
                break; // The line was never in force.
            }
            return Err(format!("line {line_number}: incomplete, or checksum mismatch").into());
        };
        let change: Change =
            serde_json::from_slice(json).map_err(|error| format!("line {line_number}: {error}"))?;
        store
            .apply(&change, now)
            .map_err(|how| format!("line {line_number}: {how}"))?;
        (last_sum, at, line_number) = (own, at + size_bytes, line_number + 1);
    }
    Ok(ReplayedJournal {
        store,
        head_size_bytes,
        size_bytes: at as u64,
        last_sum,
    })
}

fn failed<'s>(
    storage: &'s dyn Storage,
    action: &'static str,
    file: &'static str,
) -> impl FnOnce(std::io::Error) -> CoordinatorError + 's {
    move |source| CoordinatorError::Storage {
        action,
        file: file.to_owned(),
        directory: storage.name(),
        source,
    }
}

impl Journal {
    /// Opens the journal of a directory, or creates one, and returns it with its map. The journal
    /// is rewritten, so that nothing remains after its end. If there is no space for that, the
    /// journal stays as it is, and the bytes after its end are removed before the next change is
    /// written.
    ///
    /// # Errors
    /// [`CoordinatorError::Locked`], [`Damaged`](CoordinatorError::Damaged),
    /// [`Newer`](CoordinatorError::Newer), [`Storage`](CoordinatorError::Storage).
    pub fn open(
        storage: Arc<dyn Storage>,
        now: Duration,
    ) -> Result<(Self, Store), CoordinatorError> {
        let lock = storage
            .lock(LOCK)
            .map_err(failed(&*storage, "lock", LOCK))?
            .ok_or_else(|| CoordinatorError::Locked {
                directory: storage.name(),
            })?;
        let names = storage.list().map_err(failed(&*storage, "list", "files"))?;
        let found = if names.iter().any(|name| name == JOURNAL) {
            let (file, bytes) = read_whole(&*storage)?;
            let found = read(&bytes, now).map_err(|why| refused(why, &*storage))?;
            Some((file, bytes.len() as u64, found))
        } else {
            None
        };
        let mut found = found;
        let mut new = Store::default();
        let skipped = drawn_lease_count().map_err(failed(
            &*storage,
            "generate a lease number for",
            JOURNAL,
        ))?;
        let store = found.as_mut().map_or(&mut new, |(.., it)| &mut it.store);
        let next_lease = store.next_lease();
        store.skip_leases(skipped);
        let written = write_new(&*storage, store);
        if written.is_err() {
            // Replaying the old journal again must assign the same lease ids.
            store.set_next_lease(next_lease);
        }
        match (written, found) {
            (Ok((file, size_bytes, last_sum)), found) => {
                let journal = Self {
                    storage,
                    file,
                    _lock: lock,
                    size_bytes,
                    head_size_bytes: size_bytes,
                    last_sum,
                    has_rest: false,
                    place: None,
                };
                Ok((journal, found.map_or(new, |(.., it)| it.store)))
            }
            (Err(error), Some((file, file_size_bytes, found))) if error.is_out_of_space() => {
                // The unfinished new journal takes space. If it stays, the next rewrite overwrites
                // it.
                let _ = storage.remove(NEW_JOURNAL);
                // A valid last line is in force from now on.
                file.sync().map_err(failed(&*storage, "sync", JOURNAL))?;
                tracing::warn!(%error, "cannot rewrite the coordinator's journal; appending to it");
                let journal = Self {
                    storage,
                    file,
                    _lock: lock,
                    size_bytes: found.size_bytes,
                    head_size_bytes: found.head_size_bytes,
                    last_sum: found.last_sum,
                    has_rest: file_size_bytes > found.size_bytes,
                    place: None,
                };
                Ok((journal, found.store))
            }
            (Err(error), _) => Err(error),
        }
    }

    /// Begins to check that the journal stays in `path`, the directory in which it was opened.
    ///
    /// # Errors
    /// [`CoordinatorError::Displaced`].
    pub fn watch_path(&mut self, path: PathBuf, now: Duration) -> Result<(), CoordinatorError> {
        self.place = Some(JournalPath::of(path, JOURNAL, now)?);
        Ok(())
    }

    /// Checks that the journal is still where it was opened, if the last check was some time ago.
    ///
    /// # Errors
    /// [`CoordinatorError::Displaced`].
    pub fn check_path(&mut self, now: Duration) -> Result<(), CoordinatorError> {
        let place = self.place.as_mut();
        place.map_or(Ok(()), |place| place.check_if_due(now))
    }

    /// Writes and syncs a change. After an error its outcome is unknown, and the journal must not
    /// be used any more.
    ///
    /// # Errors
    /// [`CoordinatorError::Storage`], [`Displaced`](CoordinatorError::Displaced).
    pub fn append(&mut self, change: &Change) -> Result<(), CoordinatorError> {
        let (bytes, sum) = line(change, self.last_sum);
        let storage = &*self.storage;
        if self.has_rest {
            let cut = self.file.set_size(self.size_bytes);
            cut.map_err(failed(storage, "truncate", JOURNAL))?;
            self.has_rest = false;
        }
        let written = self.file.write_at(&bytes, self.size_bytes);
        // A line that found the disk full is incomplete, so it was never in force.
        self.has_rest = written.is_err();
        written.map_err(failed(storage, "write", JOURNAL))?;
        self.file.sync().map_err(failed(storage, "sync", JOURNAL))?;
        self.size_bytes += bytes.len() as u64;
        self.last_sum = sum;
        self.place.as_ref().map_or(Ok(()), JournalPath::check)
    }

    /// Rewrites the journal if its changes outweigh its map.
    ///
    /// # Errors
    /// [`CoordinatorError::Storage`].
    pub fn tidy(&mut self, store: &Store) -> Result<(), CoordinatorError> {
        let change_size_bytes = self.size_bytes - self.head_size_bytes;
        if change_size_bytes < REWRITE_SIZE_BYTES_MIN.max(2 * self.head_size_bytes) {
            return Ok(());
        }
        let (file, size_bytes, last_sum) = write_new(&*self.storage, store)?;
        self.file = file;
        self.size_bytes = size_bytes;
        self.head_size_bytes = size_bytes;
        self.last_sum = last_sum;
        self.has_rest = false;
        self.place.as_mut().map_or(Ok(()), JournalPath::renew)
    }
}

/// Returns whether a directory has a journal. Creates and opens nothing.
pub(super) fn is_there(directory: &Path) -> std::io::Result<bool> {
    directory.join(JOURNAL).try_exists()
}

/// Refuses a directory, or anything else that is not a file, in place of the journal.
pub(super) fn check_is_file(directory: &Path) -> Result<(), CoordinatorError> {
    let Ok(found) = directory.join(JOURNAL).metadata() else {
        return Ok(()); // Missing, or opening it reports the error.
    };
    if found.is_file() {
        return Ok(());
    }
    let what = if found.is_dir() {
        "a directory"
    } else {
        "a special file"
    };
    Err(CoordinatorError::Damaged {
        file: JOURNAL.to_owned(),
        directory: directory.display().to_string(),
        how: format!("expected a regular file, found {what}"),
    })
}

fn refused(why: JournalUnreadable, storage: &dyn Storage) -> CoordinatorError {
    let (file, directory) = (JOURNAL.to_owned(), storage.name());
    match why {
        JournalUnreadable::Damaged(how) => CoordinatorError::Damaged {
            file,
            directory,
            how,
        },
        JournalUnreadable::Newer(version) => CoordinatorError::Newer {
            file,
            directory,
            version,
            known: VERSION,
        },
    }
}

fn read_whole(storage: &dyn Storage) -> Result<(Arc<dyn StorageFile>, Vec<u8>), CoordinatorError> {
    let file = storage
        .open(JOURNAL)
        .map_err(failed(storage, "open", JOURNAL))?;
    let size_bytes = file.size().map_err(failed(storage, "read", JOURNAL))?;
    let mut bytes = vec![0; size_bytes as usize];
    file.read_at(&mut bytes, 0)
        .map_err(failed(storage, "read", JOURNAL))?;
    Ok((file, bytes))
}

/// Writes a map as a journal of one line, and replaces the current one with it.
fn write_new(
    storage: &dyn Storage,
    store: &Store,
) -> Result<(Arc<dyn StorageFile>, u64, u32), CoordinatorError> {
    let head = JournalHead {
        version: VERSION,
        map: store.image(),
    };
    let (bytes, sum) = line(&head, 0);
    let file = storage
        .create(NEW_JOURNAL)
        .map_err(failed(storage, "create", NEW_JOURNAL))?;
    file.write_at(&bytes, 0)
        .map_err(failed(storage, "write", NEW_JOURNAL))?;
    file.sync().map_err(failed(storage, "sync", NEW_JOURNAL))?;
    storage
        .rename(NEW_JOURNAL, JOURNAL)
        .map_err(failed(storage, "rename", NEW_JOURNAL))?;
    storage
        .sync_names()
        .map_err(failed(storage, "sync", "file names"))?;
    Ok((file, bytes.len() as u64, sum))
}
