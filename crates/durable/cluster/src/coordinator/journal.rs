//! What the embedded coordinator writes into a directory (CJ1 to CJ3).
//!
//! | file | what it is |
//! |---|---|
//! | `COORDINATOR-LOCK` | locked by the operating system while the directory is open |
//! | `COORDINATOR` | the journal: lines, the first one the whole map, the others changes |
//! | `COORDINATOR-NEW` | a journal that is being written, to take the other one's place |
//!
//! - **CJ1.** A line is its sum and that of the line before (0 for the first one), each in 8
//!   hexadecimal digits with a space behind, and JSON; the sum is the CRC-32C of that of the line
//!   before (4 bytes, little endian) and the JSON. The first line also says the format's version. A
//!   change is synced before it takes effect.
//! - **CJ2.** Only the last line can be one that was not synced. So, when the journal is read, what
//!   is not whole, with no line anywhere behind it that is whole by itself, was never in force, and
//!   is left out; any other line that is not right is damage. What is left out is gone then, as the
//!   journal is written anew, or, where there is no room for that, before the next line is. (The
//!   same rule as MF2 of the engine's manifest; lines are looked for at every byte, since what was
//!   not synced can be anything, ends of lines too.)
//! - **CJ3.** A journal is written anew when its changes outweigh its map: whole, synced, and then
//!   renamed, and the names synced.
//! - **CJ4.** After each change was synced, and ten times a second otherwise, the path of the
//!   journal has to name the file that is open. If it was removed or replaced, the change is not
//!   acknowledged, and nothing more is done.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crc_fast::{CrcAlgorithm, Digest};
use farleaf_lsm::storage::{Storage, StorageFile, StorageLock};
use serde::{Deserialize, Serialize};

use super::CoordinatorError;
use super::embedded::drawn_lease_count;
use super::place::Place;
use super::store::{Change, Image, Store};

const JOURNAL: &str = "COORDINATOR";
const NEW_JOURNAL: &str = "COORDINATOR-NEW";
const LOCK: &str = "COORDINATOR-LOCK";
/// Names of the coordinator's files.
pub(super) const FILES: [&str; 3] = [JOURNAL, NEW_JOURNAL, LOCK];

/// The version of the format.
const VERSION: u32 = 1;

/// Changes of fewer bytes than this never make a journal be written anew.
const REWRITE_SIZE_BYTES_MIN: u64 = 256 << 10;

/// Digits of two sums, with a space behind each.
const PREFIX_SIZE_BYTES: usize = 18;

/// The first line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    version: u32,
    map: Image,
}

/// A journal that is open.
pub struct Journal {
    storage: Arc<dyn Storage>,
    file: Arc<dyn StorageFile>,
    _lock: Box<dyn StorageLock>,
    size_bytes: u64,
    head_size_bytes: u64,
    last_sum: u32,
    /// Behind its end is the beginning of a line for which there was no room.
    has_rest: bool,
    /// None: the storage is no directory of the system.
    place: Option<Place>,
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

/// A line, and its sum.
fn line(content: &impl Serialize, before: u32) -> (Vec<u8>, u32) {
    let json = serde_json::to_string(content).expect("maps and changes are plain values");
    let sum = sum(before, json.as_bytes());
    (format!("{sum:08x} {before:08x} {json}\n").into_bytes(), sum)
}

/// The line that bytes begin with, which is whole by itself: its JSON, its sum, and that of the
/// line that it follows.
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

/// Such a line, if it follows the one with this sum; and its size with its end.
fn read_line(bytes: &[u8], before: u32) -> Option<(&[u8], u32, usize)> {
    let (json, own, follows) = whole_line(bytes)?;
    (follows == before).then_some((json, own, PREFIX_SIZE_BYTES + json.len() + 1))
}

/// Why a journal says no map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// It is not what was written: how.
    Damaged(String),
    /// A later version has written it: which.
    Newer(u32),
}

impl From<String> for Unreadable {
    fn from(how: String) -> Self {
        Self::Damaged(how)
    }
}

/// What the first line says, of a version that is known.
fn read_head(json: &[u8]) -> Result<Head, Unreadable> {
    /// A later version may have other fields.
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let damaged = |error: serde_json::Error| Unreadable::Damaged(format!("line 1: {error}"));
    match serde_json::from_slice::<Versioned>(json)
        .map_err(damaged)?
        .version
    {
        VERSION => serde_json::from_slice(json).map_err(damaged),
        version if version > VERSION => Err(Unreadable::Newer(version)),
        version => Err(format!("line 1: there is no format version {version}").into()),
    }
}

/// The map that a journal says, its leases as of `now`.
///
/// # Errors
/// How it is damaged, or that a later version has written it.
pub fn replay(bytes: &[u8], now: Duration) -> Result<Store, Unreadable> {
    read(bytes, now).map(|it| it.store)
}

/// What a journal says.
struct Replayed {
    store: Store,
    head_size_bytes: u64,
    /// What is behind was never in force (CJ2).
    size_bytes: u64,
    last_sum: u32,
}

fn read(bytes: &[u8], now: Duration) -> Result<Replayed, Unreadable> {
    let (json, mut last_sum, mut at) =
        read_line(bytes, 0).ok_or_else(|| "its first line is not what was written".to_owned())?;
    let head_size_bytes = at as u64;
    let head = read_head(json)?;
    let mut store = Store::from_image(head.map, now).map_err(|how| format!("line 1: {how}"))?;
    let mut line_number = 2;
    while at < bytes.len() {
        let Some((json, own, size_bytes)) = read_line(&bytes[at..], last_sum) else {
            let has_whole = (at..bytes.len()).any(|at| whole_line(&bytes[at..]).is_some());
            if !has_whole {
                break; // CJ2: it was never in force.
            }
            return Err(format!("line {line_number} is not what was written").into());
        };
        let change: Change =
            serde_json::from_slice(json).map_err(|error| format!("line {line_number}: {error}"))?;
        store
            .apply(&change, now)
            .map_err(|how| format!("line {line_number}: {how}"))?;
        (last_sum, at, line_number) = (own, at + size_bytes, line_number + 1);
    }
    Ok(Replayed {
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
    /// Opens the journal of a directory, or makes one; and says what its map is. It is written
    /// anew, so that nothing stays behind its end (CJ2); where there is no room for that, it goes
    /// on as it is, and what is behind its end goes before the next change is written.
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
        let skipped =
            drawn_lease_count().map_err(failed(&*storage, "draw a number for", JOURNAL))?;
        let store = found.as_mut().map_or(&mut new, |(.., it)| &mut it.store);
        let next_lease = store.next_lease();
        store.skip_leases(skipped);
        let written = write_new(&*storage, store);
        if written.is_err() {
            // What is read again from what is there gives the same numbers.
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
            (Err(error), Some((file, file_size_bytes, found))) if error.is_no_room() => {
                // What was begun takes room. If it stays, the next one is written over it.
                let _ = storage.remove(NEW_JOURNAL);
                // A last line that is whole is in force from now on.
                file.sync().map_err(failed(&*storage, "sync", JOURNAL))?;
                tracing::warn!(%error, "the coordinator's journal goes on as it is");
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

    /// Checks from now on that the journal is still in this directory (CJ4), which is the one that
    /// was opened.
    ///
    /// # Errors
    /// [`CoordinatorError::Displaced`].
    pub fn watch_place(&mut self, path: PathBuf, now: Duration) -> Result<(), CoordinatorError> {
        self.place = Some(Place::of(path, JOURNAL, now)?);
        Ok(())
    }

    /// Checks that the journal is still where it was opened, if that was not done for a while
    /// (CJ4).
    ///
    /// # Errors
    /// [`CoordinatorError::Displaced`].
    pub fn check_place(&mut self, now: Duration) -> Result<(), CoordinatorError> {
        let place = self.place.as_mut();
        place.map_or(Ok(()), |place| place.check_if_due(now))
    }

    /// Writes a change and syncs it (CJ1). After an error nothing is known of it, and the journal
    /// is of no more use.
    ///
    /// # Errors
    /// [`CoordinatorError::Storage`], [`Displaced`](CoordinatorError::Displaced).
    pub fn append(&mut self, change: &Change) -> Result<(), CoordinatorError> {
        let (bytes, sum) = line(change, self.last_sum);
        let storage = &*self.storage;
        if self.has_rest {
            let cut = self.file.set_size(self.size_bytes);
            cut.map_err(failed(storage, "cut", JOURNAL))?;
            self.has_rest = false;
        }
        let written = self.file.write_at(&bytes, self.size_bytes);
        // Of a line that found no room not all is there: it was never in force (CJ2).
        self.has_rest = written.is_err();
        written.map_err(failed(storage, "write", JOURNAL))?;
        self.file.sync().map_err(failed(storage, "sync", JOURNAL))?;
        self.size_bytes += bytes.len() as u64;
        self.last_sum = sum;
        self.place.as_ref().map_or(Ok(()), Place::check)
    }

    /// Writes the journal anew if its changes outweigh its map (CJ3).
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
        self.place.as_mut().map_or(Ok(()), Place::renew)
    }
}

/// Whether a directory has a journal. Nothing is made, and nothing opened.
pub(super) fn is_there(directory: &Path) -> std::io::Result<bool> {
    directory.join(JOURNAL).try_exists()
}

/// Refuses a directory, or what else is no file, in place of the journal.
pub(super) fn check_is_file(directory: &Path) -> Result<(), CoordinatorError> {
    let Ok(found) = directory.join(JOURNAL).metadata() else {
        return Ok(()); // There is none yet; or whoever opens it is told why it cannot.
    };
    if found.is_file() {
        return Ok(());
    }
    let what = if found.is_dir() {
        "a directory"
    } else {
        "no file"
    };
    Err(CoordinatorError::Damaged {
        file: JOURNAL.to_owned(),
        directory: directory.display().to_string(),
        how: format!("it is {what}, not the journal"),
    })
}

fn refused(why: Unreadable, storage: &dyn Storage) -> CoordinatorError {
    let (file, directory) = (JOURNAL.to_owned(), storage.name());
    match why {
        Unreadable::Damaged(how) => CoordinatorError::Damaged {
            file,
            directory,
            how,
        },
        Unreadable::Newer(version) => CoordinatorError::Newer {
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

/// Writes a map as a journal of one line, in place of the one that is there.
fn write_new(
    storage: &dyn Storage,
    store: &Store,
) -> Result<(Arc<dyn StorageFile>, u64, u32), CoordinatorError> {
    let head = Head {
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
        .map_err(failed(storage, "sync", "names"))?;
    Ok((file, bytes.len() as u64, sum))
}
