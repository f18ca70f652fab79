//! The files of a manifest: making, reading, appending, and writing anew (MF1 to MF3).

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::checked::CheckedState;
use super::line::{self, Line};
use super::search::has_whole_line;
use super::state::{Change, FORMAT_VERSION, ManifestState};
use crate::error::LsmError;
use crate::place::{LogNumber, LogPosition};
use crate::storage::{Storage, StorageFile, is_no_file};

const CURRENT: &str = "CURRENT";
const NEW_CURRENT: &str = "CURRENT.new";
const PREFIX: &str = "MANIFEST-";
/// A file is written anew when it has so many bytes, and eight times as many as it began with.
const REWRITTEN_SIZE_BYTES_MIN: u64 = 1 << 20;
const REWRITTEN_GROWTH: u64 = 8;
/// More than any manifest has that this engine writes.
const SIZE_BYTES_MAX: u64 = 1 << 32;
/// More than the name of any manifest has.
const CURRENT_SIZE_BYTES_MAX: u64 = 64;
/// No manifest has a higher number: that many were never written.
const NUMBER_MAX: u64 = 1 << 53;

/// The manifest of a directory that is open.
#[derive(Debug)]
pub struct Manifest {
    storage: Arc<dyn Storage>,
    /// Files that are smaller are not written anew.
    rewritten_size_bytes_min: u64,
    /// That of the edits in force, for those who cannot wait for one that is being made.
    edit_count: AtomicU64,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    file: Arc<dyn StorageFile>,
    number: u64,
    size_bytes: u64,
    first_size_bytes: u64,
    sum: u32,
    held: CheckedState,
    /// Something that is not whole is behind the last edit: it is cut off before the next one is
    /// written, and not earlier, since it may turn out that it was in force (MF2).
    is_cut: bool,
    /// The first failure: nothing is written any more.
    failed: Option<String>,
}

impl Manifest {
    /// Whether a directory has a manifest.
    ///
    /// # Errors
    /// It cannot be listed.
    pub fn is_there(storage: &dyn Storage) -> Result<bool, LsmError> {
        let names = storage.list();
        let names = names.map_err(|source| error(storage, "list", ".", source))?;
        Ok(names.iter().any(|name| name == CURRENT))
    }

    /// Makes a directory's first manifest. It is there, whole, or not at all.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn create(storage: Arc<dyn Storage>, state: ManifestState) -> Result<Self, LsmError> {
        let held = CheckedState::new(state);
        let held = held.map_err(|how| damaged(&*storage, &name_of(1), how))?;
        let inner = write_anew(&*storage, 1, held)?;
        Ok(Self {
            storage,
            rewritten_size_bytes_min: REWRITTEN_SIZE_BYTES_MIN,
            edit_count: AtomicU64::new(inner.held.state().edit_count),
            inner: Mutex::new(inner),
        })
    }

    /// Reads the manifest in force; and says whether a last edit was left out that was not whole
    /// (MF2).
    ///
    /// # Errors
    /// It is damaged, or of a later version, or it cannot be read.
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
        // read and is not durable: it must be, before anything is done because of it.
        let synced = file.sync().and_then(|()| storage.sync_names());
        synced.map_err(|source| error(&*storage, "sync", &name, source))?;
        let manifest = Self {
            edit_count: AtomicU64::new(read.held.state().edit_count),
            inner: Mutex::new(Inner {
                file,
                number,
                size_bytes: read.size_bytes,
                first_size_bytes: read.first_size_bytes,
                sum: read.sum,
                held: read.held,
                is_cut,
                failed: None,
            }),
            rewritten_size_bytes_min: REWRITTEN_SIZE_BYTES_MIN,
            storage,
        };
        manifest.remove_others(number);
        Ok((manifest, is_cut))
    }

    /// Reads the state that a directory's manifest in force describes. Changes nothing, takes no
    /// lock, and may run while another process has the directory open.
    ///
    /// # Errors
    /// It is damaged, or of a later version, or it cannot be read.
    pub fn read(storage: &dyn Storage) -> Result<ManifestState, LsmError> {
        let read = match read_in_force(storage) {
            // The engine may have replaced the file between the read of `CURRENT` and that of the
            // file. If not, it is damaged the second time, too.
            Err(LsmError::DamagedManifest { .. }) => read_in_force(storage),
            read => read,
        };
        Ok(read?.read.held.state().clone())
    }

    /// A manifest whose files are written anew when they are smaller than those of others.
    #[cfg(test)]
    pub(super) fn rewritten_from(mut self, size_bytes: u64) -> Self {
        self.rewritten_size_bytes_min = size_bytes;
        self
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// That it lacks what it must have had.
    pub fn damaged(&self, how: impl Into<String>) -> LsmError {
        let name = name_of(self.inner().number);
        damaged(&*self.storage, &name, how)
    }

    /// How many edits there were (VL5). Does not wait for one that is being made.
    pub fn edit_count(&self) -> u64 {
        self.edit_count.load(Ordering::Acquire)
    }

    /// From where the log is read again.
    pub fn read_from(&self) -> LogPosition {
        self.inner().held.state().read_from
    }

    /// Looks at what it says, without a copy. Edits wait meanwhile.
    pub(crate) fn with_state<R>(&self, look: impl FnOnce(&ManifestState) -> R) -> R {
        look(self.inner().held.state())
    }

    /// What it says.
    pub fn state(&self) -> ManifestState {
        self.inner().held.state().clone()
    }

    /// The log segments that are not read again.
    pub fn not_read_again(&self) -> Vec<LogNumber> {
        let inner = self.inner();
        let state = inner.held.state();
        let before = state.log.range(..state.read_from.number());
        before.map(|(number, _)| *number).collect()
    }

    /// That edits can be made, as far as is known.
    ///
    /// # Errors
    /// [`LsmError::Stopped`]: one has failed, and nobody knows whether it is in force.
    pub fn check(&self) -> Result<(), LsmError> {
        match &self.inner().failed {
            None => Ok(()),
            Some(first) => Err(LsmError::Stopped {
                first: first.clone(),
            }),
        }
    }

    /// Makes an edit: it is in force when this returns. One write and one sync.
    ///
    /// # Errors
    /// There was no room to write it: it is not in force, and another one can be made. Or it cannot
    /// be written otherwise: then nobody knows whether it is in force, and no other edit is made,
    /// as [`check`](Self::check) says.
    pub fn commit(&self, changes: &[Change]) -> Result<(), LsmError> {
        let mut inner = self.inner();
        if let Some(first) = &inner.failed {
            let first = first.clone();
            return Err(LsmError::Stopped { first });
        }
        let committed = self.commit_locked(&mut inner, changes);
        match &committed {
            Ok(()) => {
                let count = inner.held.state().edit_count;
                self.edit_count.store(count, Ordering::Release);
            }
            Err(NotCommitted::NoRoom(_)) => {}
            Err(NotCommitted::Unknown(error)) => inner.failed = Some(error.to_string()),
        }
        committed.map_err(LsmError::from)
    }

    fn commit_locked(&self, inner: &mut Inner, changes: &[Change]) -> Result<(), NotCommitted> {
        let name = name_of(inner.number);
        // The engine makes no edit that cannot follow, unless what it has read is so near the end
        // of all numbers that none can.
        let checked = inner.held.check(changes);
        checked.map_err(|how| damaged(&*self.storage, &name, format!("the next edit: {how}")))?;
        let grown = inner.first_size_bytes * REWRITTEN_GROWTH;
        if inner.size_bytes >= grown.max(self.rewritten_size_bytes_min) {
            let before = inner.number;
            let mut held = inner.held.clone();
            held.apply(changes);
            *inner = write_anew(&*self.storage, before + 1, held)?;
            self.remove_others(inner.number);
            return Ok(());
        }
        if inner.is_cut {
            let cut = inner.file.set_size(inner.size_bytes);
            let cut = cut.and_then(|()| inner.file.sync());
            cut.map_err(|source| error(&*self.storage, "cut", &name, source))?;
            inner.is_cut = false;
        }
        let (line, sum) = line::encode(changes, inner.sum);
        let failed = |source| error(&*self.storage, "write", &name, source);
        if let Err(source) = inner.file.write_at(&line, inner.size_bytes) {
            let written = NotCommitted::of_write(failed(source));
            // What there is of the line is not whole: it never was in force, and goes first.
            inner.is_cut |= matches!(written, NotCommitted::NoRoom(_));
            return Err(written);
        }
        inner.file.sync().map_err(failed)?;
        inner.size_bytes += line.len() as u64;
        inner.sum = sum;
        inner.held.apply(changes);
        Ok(())
    }

    /// Files of manifests that are in force no more. That they are there does no harm.
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

/// Why an edit was not made.
enum NotCommitted {
    /// The disk is full, and the edit is not in force: less than all of it was written.
    NoRoom(LsmError),
    /// Nobody knows whether it is in force.
    Unknown(LsmError),
}

impl NotCommitted {
    /// Of a write that failed, of what counts for nothing unless it is whole.
    fn of_write(error: LsmError) -> Self {
        if error.is_no_room() {
            Self::NoRoom(error)
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
        let (NotCommitted::NoRoom(error) | NotCommitted::Unknown(error)) = not;
        error
    }
}

fn name_of(number: u64) -> String {
    format!("{PREFIX}{number}")
}

/// MF3: a file with one edit, of all; in force when this returns.
fn write_anew(
    storage: &dyn Storage,
    number: u64,
    held: CheckedState,
) -> Result<Inner, NotCommitted> {
    let name = name_of(number);
    let all = Change::All(Box::new(held.state().clone()));
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
    // A loss of power in the middle of a rename may have left a file with both names: to empty the
    // one would be to empty the other.
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
    // As long as `CURRENT` does not name it, it is not in force.
    let file = write(&name, &line).map_err(failed(&name));
    let file = file.map_err(NotCommitted::of_write)?;
    // Before `CURRENT` names it, it must have its name for good.
    storage.sync_names().map_err(failed(&name))?;
    let named = write(NEW_CURRENT, format!("{name}\n").as_bytes());
    let named = named.map_err(failed(NEW_CURRENT));
    named.map_err(NotCommitted::of_write)?;
    let renamed = storage.rename(NEW_CURRENT, CURRENT);
    let renamed = renamed.and_then(|()| storage.sync_names());
    renamed.map_err(failed(CURRENT))?;
    Ok(Inner {
        file,
        number,
        size_bytes: line.len() as u64,
        first_size_bytes: line.len() as u64,
        sum,
        held,
        is_cut: false,
        failed: None,
    })
}

fn version_error(storage: &dyn Storage, version: u32) -> LsmError {
    let (directory, known) = (storage.name(), FORMAT_VERSION);
    if version < known {
        return LsmError::VersionFromThePast {
            directory,
            version,
            known,
        };
    }
    LsmError::VersionFromTheFuture {
        directory,
        version,
        known,
    }
}

/// What the edits of a file come to.
struct Read {
    held: CheckedState,
    sum: u32,
    size_bytes: u64,
    first_size_bytes: u64,
}

enum Unreadable {
    Version(u32),
    Damaged(String),
}

fn read_edits(bytes: &[u8]) -> Result<Read, Unreadable> {
    let damaged = |line: usize, how: &str| Unreadable::Damaged(format!("line {line}: {how}"));
    let Line::Whole(json, mut sum, first_size_bytes) = line::first(bytes, 0) else {
        return Err(damaged(
            1,
            "it is not whole, and nothing is in force without it",
        ));
    };
    if let Some(version) = other_version(json) {
        return Err(Unreadable::Version(version));
    }
    let changes: Vec<Change> =
        serde_json::from_slice(json).map_err(|error| damaged(1, &error.to_string()))?;
    let Ok([Change::All(state)]) = <[Change; 1]>::try_from(changes) else {
        return Err(damaged(1, "it does not say all"));
    };
    let mut held = CheckedState::new(*state).map_err(|how| damaged(1, &how))?;
    let (mut at, mut number) = (first_size_bytes, 1);
    while at < bytes.len() {
        number += 1;
        let rest = &bytes[at..];
        let Line::Whole(json, own, size_bytes) = line::first(rest, sum) else {
            if has_whole_line(rest) {
                return Err(damaged(
                    number,
                    "its checksum does not match, and it is not the last",
                ));
            }
            break;
        };
        let changes: Vec<Change> =
            serde_json::from_slice(json).map_err(|error| damaged(number, &error.to_string()))?;
        let checked = held.check(&changes);
        checked.map_err(|how| damaged(number, &how))?;
        held.apply(&changes);
        (at, sum) = (at + size_bytes, own);
    }
    Ok(Read {
        held,
        sum,
        size_bytes: at as u64,
        first_size_bytes: first_size_bytes as u64,
    })
}

/// The version that a first line gives, if it is not the one that is known here.
fn other_version(json: &[u8]) -> Option<u32> {
    let value: serde_json::Value = serde_json::from_slice(json).ok()?;
    let version = value.get(0)?.get("all")?.get("version")?.as_u64()?;
    (version != u64::from(FORMAT_VERSION)).then_some(u32::try_from(version).unwrap_or(u32::MAX))
}

/// A directory's manifest in force, as its file says it.
struct InForce {
    number: u64,
    name: String,
    read: Read,
    /// Something that is not whole is behind the last edit.
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
        return Err(damaged(storage, CURRENT, "it names no manifest"));
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
        // Not what was written, for good: another try reads the same.
        if is_no_file(&source) {
            return damaged(storage, name, source.to_string());
        }
        error(storage, "read", name, source)
    };
    let file = storage.open(name).map_err(failed)?;
    let size_bytes = file.size().map_err(failed)?;
    if size_bytes > size_bytes_max {
        let how = format!("it has {size_bytes} bytes, and at most {size_bytes_max} are valid");
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
    LsmError::DamagedManifest {
        file: file.to_owned(),
        directory: storage.name(),
        how: how.into(),
    }
}
