//! Files of a manifest: creating, reading, appending, and rewriting.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::checked::CheckedState;
use super::line::{self, DecodedLine};
use super::search::has_whole_line;
use super::state::{Change, FORMAT_VERSION, ManifestState};
use crate::error::LsmError;
use crate::place::{LogNumber, LogPosition};
use crate::storage::{Storage, StorageFile, is_missing_file};

const CURRENT: &str = "CURRENT";
const NEW_CURRENT: &str = "CURRENT.new";
const PREFIX: &str = "MANIFEST-";
/// Limits for rewriting a file: this size in bytes, and eight times the size with which it began.
const REWRITTEN_SIZE_BYTES_MIN: u64 = 1 << 20;
const REWRITTEN_GROWTH: u64 = 8;
/// Upper bound for a manifest's size in bytes; the engine writes none as large.
const SIZE_BYTES_MAX: u64 = 1 << 32;
/// Upper bound for the size of `CURRENT` in bytes.
const CURRENT_SIZE_BYTES_MAX: u64 = 64;
/// Upper bound for a manifest's number; so many were never written.
const NUMBER_MAX: u64 = 1 << 53;

/// Manifest of an open directory.
#[derive(Debug)]
pub struct Manifest {
    storage: Arc<dyn Storage>,
    /// Size in bytes below which a file is not rewritten.
    rewritten_size_bytes_min: u64,
    /// Number of edits in force, for readers that cannot wait for an edit in progress.
    edit_count: AtomicU64,
    inner: Mutex<ManifestInner>,
}

#[derive(Debug)]
struct ManifestInner {
    file: Arc<dyn StorageFile>,
    number: u64,
    size_bytes: u64,
    first_size_bytes: u64,
    sum: u32,
    checked_state: CheckedState,
    /// Whether an incomplete line follows the last edit. It is truncated before the next edit is
    /// written, and not earlier: it might still turn out that the line was in force.
    is_cut: bool,
    /// First failure; once it is set, nothing is written.
    failed: Option<String>,
}

impl Manifest {
    /// Returns true if the directory has a manifest.
    ///
    /// # Errors
    /// The directory cannot be listed.
    pub fn is_there(storage: &dyn Storage) -> Result<bool, LsmError> {
        let names = storage.list();
        let names = names.map_err(|source| error(storage, "list", ".", source))?;
        Ok(names.iter().any(|name| name == CURRENT))
    }

    /// Creates the first manifest of a directory, atomically.
    ///
    /// # Errors
    /// The manifest cannot be written.
    pub fn create(storage: Arc<dyn Storage>, state: ManifestState) -> Result<Self, LsmError> {
        let checked_state = CheckedState::new(state);
        let checked_state = checked_state.map_err(|how| damaged(&*storage, &name_of(1), how))?;
        let inner = write_anew(&*storage, 1, checked_state)?;
        Ok(Self {
            storage,
            rewritten_size_bytes_min: REWRITTEN_SIZE_BYTES_MIN,
            edit_count: AtomicU64::new(inner.checked_state.state().edit_count),
            inner: Mutex::new(inner),
        })
    }

    /// Opens the manifest in force. Also returns whether an incomplete last edit was ignored.
    ///
    /// # Errors
    /// The manifest is corrupted, or of another version, or it cannot be read.
    pub fn open(storage: Arc<dyn Storage>) -> Result<(Self, bool), LsmError> {
        let InForce {
            number,
            name,
            read,
            is_cut,
        } = read_in_force(&*storage)?;
        let file = storage.open(&name);
        let file = file.map_err(|source| error(&*storage, "open", &name, source))?;
        // A process that ended between a write and its sync leaves an edit, or a name, that can be
        // read but is not durable. It must be durable before anything relies on it.
        let synced = file.sync().and_then(|()| storage.sync_names());
        synced.map_err(|source| error(&*storage, "sync", &name, source))?;
        let manifest = Self {
            edit_count: AtomicU64::new(read.checked_state.state().edit_count),
            inner: Mutex::new(ManifestInner {
                file,
                number,
                size_bytes: read.size_bytes,
                first_size_bytes: read.first_size_bytes,
                sum: read.sum,
                checked_state: read.checked_state,
                is_cut,
                failed: None,
            }),
            rewritten_size_bytes_min: REWRITTEN_SIZE_BYTES_MIN,
            storage,
        };
        manifest.remove_others(number);
        Ok((manifest, is_cut))
    }

    /// Reads the contents of a directory's manifest in force. Changes nothing, takes no lock, and
    /// may run while another process has the directory open.
    ///
    /// # Errors
    /// The manifest is corrupted, or of another version, or it cannot be read.
    pub fn read(storage: &dyn Storage) -> Result<ManifestState, LsmError> {
        let read = match read_in_force(storage) {
            // The engine may have replaced the file between the read of `CURRENT` and that of the
            // file. If not, the second read finds the corruption, too.
            Err(LsmError::CorruptManifest { .. }) => read_in_force(storage),
            read => read,
        };
        Ok(read?.read.checked_state.state().clone())
    }

    /// Sets a smaller size from which files are rewritten.
    #[cfg(test)]
    pub(super) fn rewritten_from(mut self, size_bytes: u64) -> Self {
        self.rewritten_size_bytes_min = size_bytes;
        self
    }

    fn inner(&self) -> MutexGuard<'_, ManifestInner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the error for a manifest that lacks edits.
    pub fn damaged(&self, how: impl Into<String>) -> LsmError {
        let name = name_of(self.inner().number);
        damaged(&*self.storage, &name, how)
    }

    /// Returns the number of edits. Does not wait for an edit in progress.
    pub fn edit_count(&self) -> u64 {
        self.edit_count.load(Ordering::Acquire)
    }

    /// Returns the log position at which recovery starts.
    pub fn read_from(&self) -> LogPosition {
        self.inner().checked_state.state().read_from
    }

    /// Calls a function with the contents, without a copy. Edits wait meanwhile.
    pub(crate) fn with_state<R>(&self, look: impl FnOnce(&ManifestState) -> R) -> R {
        look(self.inner().checked_state.state())
    }

    /// Returns a copy of the contents.
    pub fn state(&self) -> ManifestState {
        self.inner().checked_state.state().clone()
    }

    /// Returns the log segments before the start of recovery.
    pub fn not_read_again(&self) -> Vec<LogNumber> {
        let inner = self.inner();
        let state = inner.checked_state.state();
        let before = state.log.range(..state.read_from.number());
        before.map(|(number, _)| *number).collect()
    }

    /// Returns an error if edits can no longer be made.
    ///
    /// # Errors
    /// [`LsmError::Stopped`]: an edit has failed, and may be in force or not.
    pub fn check(&self) -> Result<(), LsmError> {
        match &self.inner().failed {
            None => Ok(()),
            Some(first) => Err(LsmError::Stopped {
                first: first.clone(),
            }),
        }
    }

    /// Makes an edit, which is in force when this returns. Costs one write and one sync.
    ///
    /// # Errors
    /// If the disk is full for the write, the edit is not in force, and another one can be made.
    /// After any other failure, it may be in force or not. Then no other edit is made, and
    /// [`check`](Self::check) returns an error.
    pub fn commit(&self, changes: &[Change]) -> Result<(), LsmError> {
        let mut inner = self.inner();
        if let Some(first) = &inner.failed {
            let first = first.clone();
            return Err(LsmError::Stopped { first });
        }
        let committed = self.commit_locked(&mut inner, changes);
        match &committed {
            Ok(()) => {
                let count = inner.checked_state.state().edit_count;
                self.edit_count.store(count, Ordering::Release);
            }
            Err(NotCommitted::NoSpace(_)) => {}
            Err(NotCommitted::Unknown(error)) => inner.failed = Some(error.to_string()),
        }
        committed.map_err(LsmError::from)
    }

    fn commit_locked(
        &self,
        inner: &mut ManifestInner,
        changes: &[Change],
    ) -> Result<(), NotCommitted> {
        let name = name_of(inner.number);
        // The engine makes only edits that can follow, unless the contents that it read are so
        // close to the limits of numbers that none can.
        let checked = inner.checked_state.check(changes);
        checked.map_err(|how| damaged(&*self.storage, &name, format!("the next edit: {how}")))?;
        let grown = inner.first_size_bytes * REWRITTEN_GROWTH;
        if inner.size_bytes >= grown.max(self.rewritten_size_bytes_min) {
            let before = inner.number;
            let mut checked_state = inner.checked_state.clone();
            checked_state.apply(changes);
            *inner = write_anew(&*self.storage, before + 1, checked_state)?;
            self.remove_others(inner.number);
            return Ok(());
        }
        if inner.is_cut {
            let cut = inner.file.set_size(inner.size_bytes);
            let cut = cut.and_then(|()| inner.file.sync());
            cut.map_err(|source| error(&*self.storage, "truncate", &name, source))?;
            inner.is_cut = false;
        }
        let (line, sum) = line::encode(changes, inner.sum);
        let failed = |source| error(&*self.storage, "write", &name, source);
        if let Err(source) = inner.file.write_at(&line, inner.size_bytes) {
            let written = NotCommitted::of_write(failed(source));
            // The line is incomplete, so it was never in force. It is truncated first.
            inner.is_cut |= matches!(written, NotCommitted::NoSpace(_));
            return Err(written);
        }
        inner.file.sync().map_err(failed)?;
        inner.size_bytes += line.len() as u64;
        inner.sum = sum;
        inner.checked_state.apply(changes);
        Ok(())
    }

    /// Removes manifest files that are no longer in force. Leaving them would do no harm.
    fn remove_others(&self, in_force: u64) {
        let names = self.storage.list().unwrap_or_default();
        for name in names {
            let number = name.strip_prefix(PREFIX).and_then(|it| it.parse().ok());
            if number.is_some_and(|number: u64| number != in_force)
                && let Err(error) = self.storage.remove(&name)
            {
                tracing::debug!(name, %error, "cannot remove an old manifest");
            }
        }
    }
}

/// Reason why an edit was not made.
enum NotCommitted {
    /// The disk is full, and the edit is not in force: it was not written completely.
    NoSpace(LsmError),
    /// The edit may be in force or not.
    Unknown(LsmError),
}

impl NotCommitted {
    /// Classifies a failed write of data that counts only if it is complete.
    fn of_write(error: LsmError) -> Self {
        if error.is_out_of_space() {
            Self::NoSpace(error)
        } else {
            Self::Unknown(error)
        }
    }
}

impl From<LsmError> for NotCommitted {
    fn from(error: LsmError) -> Self {
        Self::Unknown(error)
    }
}

impl From<NotCommitted> for LsmError {
    fn from(not: NotCommitted) -> Self {
        let (NotCommitted::NoSpace(error) | NotCommitted::Unknown(error)) = not;
        error
    }
}

fn name_of(number: u64) -> String {
    format!("{PREFIX}{number}")
}

/// Writes a file with one edit of all contents; it is in force when this returns.
fn write_anew(
    storage: &dyn Storage,
    number: u64,
    checked_state: CheckedState,
) -> Result<ManifestInner, NotCommitted> {
    let name = name_of(number);
    let all = Change::All(Box::new(checked_state.state().clone()));
    let (line, sum) = line::encode(&[all], 0);
    let write = |name: &str, bytes: &[u8]| {
        let file = storage.create(name)?;
        file.write_at(bytes, 0)?;
        file.sync()?;
        Ok::<_, io::Error>(file)
    };
    let failed = |name: &str| {
        let name = name.to_owned();
        move |source| error(storage, "write", &name, source)
    };
    // A power failure during a rename may have left one file with both names. Truncating one would
    // truncate the other.
    let names = storage
        .list()
        .map_err(|source| error(storage, "list", ".", source))?;
    for left in [NEW_CURRENT, &name] {
        if names.iter().any(|there| there == left) {
            storage
                .remove(left)
                .map_err(|source| error(storage, "remove", left, source))?;
        }
    }
    storage.sync_names().map_err(failed(CURRENT))?;
    // Until `CURRENT` names it, it is not in force.
    let file = write(&name, &line).map_err(failed(&name));
    let file = file.map_err(NotCommitted::of_write)?;
    // Its name must be durable before `CURRENT` names it.
    storage.sync_names().map_err(failed(&name))?;
    let named = write(NEW_CURRENT, format!("{name}\n").as_bytes());
    let named = named.map_err(failed(NEW_CURRENT));
    named.map_err(NotCommitted::of_write)?;
    let renamed = storage.rename(NEW_CURRENT, CURRENT);
    let renamed = renamed.and_then(|()| storage.sync_names());
    renamed.map_err(failed(CURRENT))?;
    Ok(ManifestInner {
        file,
        number,
        size_bytes: line.len() as u64,
        first_size_bytes: line.len() as u64,
        sum,
        checked_state,
        is_cut: false,
        failed: None,
    })
}

fn version_error(storage: &dyn Storage, version: u32) -> LsmError {
    let (directory, known) = (storage.name(), FORMAT_VERSION);
    if version < known {
        return LsmError::OlderVersion {
            directory,
            version,
            known,
        };
    }
    LsmError::NewerVersion {
        directory,
        version,
        known,
    }
}

/// Result of the edits of a file.
struct EditsRead {
    checked_state: CheckedState,
    sum: u32,
    size_bytes: u64,
    first_size_bytes: u64,
}

enum Unreadable {
    Version(u32),
    Damaged(String),
}

fn read_edits(bytes: &[u8]) -> Result<EditsRead, Unreadable> {
    let damaged = |line: usize, how: &str| Unreadable::Damaged(format!("line {line}: {how}"));
    let DecodedLine::Whole(json, mut sum, first_size_bytes) = line::first(bytes, 0) else {
        return Err(damaged(
            1,
            "the first edit is incomplete, and the manifest cannot be read without it",
        ));
    };
    if let Some(version) = other_version(json) {
        return Err(Unreadable::Version(version));
    }
    let changes: Vec<Change> =
        serde_json::from_slice(json).map_err(|error| damaged(1, &error.to_string()))?;
    let Ok([Change::All(state)]) = <[Change; 1]>::try_from(changes) else {
        return Err(damaged(1, "expected the complete state"));
    };
    let mut checked_state = CheckedState::new(*state).map_err(|how| damaged(1, &how))?;
    let (mut at, mut number) = (first_size_bytes, 1);
    while at < bytes.len() {
        number += 1;
        let rest = &bytes[at..];
        let DecodedLine::Whole(json, own, size_bytes) = line::first(rest, sum) else {
            if has_whole_line(rest) {
                return Err(damaged(
                    number,
                    "checksum mismatch in a line that is not the last",
                ));
            }
            break;
        };
        let changes: Vec<Change> =
            serde_json::from_slice(json).map_err(|error| damaged(number, &error.to_string()))?;
        let checked = checked_state.check(&changes);
        checked.map_err(|how| damaged(number, &how))?;
        checked_state.apply(&changes);
        (at, sum) = (at + size_bytes, own);
    }
    Ok(EditsRead {
        checked_state,
        sum,
        size_bytes: at as u64,
        first_size_bytes: first_size_bytes as u64,
    })
}

/// Returns the version in a first line, if it is not the supported one.
fn other_version(json: &[u8]) -> Option<u32> {
    let value: serde_json::Value = serde_json::from_slice(json).ok()?;
    let version = value.get(0)?.get("all")?.get("version")?.as_u64()?;
    (version != u64::from(FORMAT_VERSION)).then_some(u32::try_from(version).unwrap_or(u32::MAX))
}

/// Manifest in force, as its file describes it.
struct InForce {
    number: u64,
    name: String,
    read: EditsRead,
    /// Whether an incomplete line follows the last edit.
    is_cut: bool,
}

/// Reads the manifest in force. Changes nothing.
fn read_in_force(storage: &dyn Storage) -> Result<InForce, LsmError> {
    let current = read_all(storage, CURRENT, CURRENT_SIZE_BYTES_MAX)?;
    let name = str::from_utf8(&current)
        .ok()
        .and_then(|text| text.strip_suffix('\n'));
    let number = name
        .and_then(|name| name.strip_prefix(PREFIX)?.parse().ok())
        .filter(|number| current == format!("{PREFIX}{number}\n").as_bytes())
        .filter(|number| *number <= NUMBER_MAX);
    let Some(number) = number else {
        return Err(damaged(storage, CURRENT, "it does not name a manifest"));
    };
    let name = name_of(number);
    let bytes = read_all(storage, &name, SIZE_BYTES_MAX)?;
    let read = read_edits(&bytes).map_err(|why| match why {
        Unreadable::Version(version) => version_error(storage, version),
        Unreadable::Damaged(how) => damaged(storage, &name, how),
    })?;
    let is_cut = read.size_bytes < bytes.len() as u64;
    Ok(InForce {
        number,
        name,
        read,
        is_cut,
    })
}

fn read_all(storage: &dyn Storage, name: &str, size_bytes_max: u64) -> Result<Vec<u8>, LsmError> {
    let failed = |source: io::Error| {
        // The file does not have the right contents, and a retry would read the same.
        if is_missing_file(&source) {
            return damaged(storage, name, source.to_string());
        }
        error(storage, "read", name, source)
    };
    let file = storage.open(name).map_err(failed)?;
    let size_bytes = file.size().map_err(failed)?;
    if size_bytes > size_bytes_max {
        let how = format!("it has {size_bytes} bytes; the maximum is {size_bytes_max}");
        return Err(damaged(storage, name, how));
    }
    let mut bytes = vec![0; size_bytes as usize];
    file.read_at(&mut bytes, 0).map_err(failed)?;
    Ok(bytes)
}

fn error(storage: &dyn Storage, action: &'static str, file: &str, source: io::Error) -> LsmError {
    LsmError::Storage {
        action,
        file: file.to_owned(),
        directory: storage.name(),
        source,
    }
}

fn damaged(storage: &dyn Storage, file: &str, how: impl Into<String>) -> LsmError {
    LsmError::CorruptManifest {
        file: file.to_owned(),
        directory: storage.name(),
        how: how.into(),
    }
}
