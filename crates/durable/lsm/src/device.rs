//! A file of segments: those of the log, or those of trees.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::LsmError;
use crate::free::FreeSegments;
use crate::manifest::Manifest;
use crate::place::{SEGMENT_SIZE_BYTES, SegmentId};
use crate::storage::{Storage, StorageFile};

/// Opens the file of a device, or makes it if no manifest names anything in it.
///
/// # Errors
/// [`LsmError::DamagedManifest`]: one does, and there is no file. Or it cannot be opened or made.
pub fn open_file(
    storage: &dyn Storage,
    name: &str,
    named_by: Option<&Arc<Manifest>>,
) -> Result<Arc<dyn StorageFile>, LsmError> {
    let failed = |action| {
        move |source| LsmError::Storage {
            action,
            file: name.to_owned(),
            directory: storage.name(),
            source,
        }
    };
    let names = storage.list().map_err(failed("look for"))?;
    if names.iter().any(|it| it == name) {
        return storage.open(name).map_err(failed("open"));
    }
    if let Some(manifest) = named_by {
        let how = format!("it names segments of the file {name}, which is not there");
        return Err(manifest.damaged(how));
    }
    let file = storage.create(name).map_err(failed("create"))?;
    // Before anything in it counts, it must have its name for good.
    storage.sync_names().map_err(failed("create"))?;
    Ok(file)
}

/// Opens the file of a device that is there, of which little is read.
///
/// # Errors
/// It cannot be opened.
pub fn open_uncached(storage: &dyn Storage, name: &str) -> Result<Arc<dyn StorageFile>, LsmError> {
    storage
        .open_uncached(name)
        .map_err(|source| LsmError::Storage {
            action: "open",
            file: name.to_owned(),
            directory: storage.name(),
            source,
        })
}

/// So many free segments of a file keep their room on the disk (8 MiB): what a flush or a merge
/// frees the next one mostly writes over, and room that was given back is to be found anew, which a
/// sync then writes into the file system's own log.
const ROOMY_COUNT_MAX: usize = 4;

/// A file of segments, and which of them are free. Which are not, the manifest says.
#[derive(Debug)]
pub struct Device {
    file: Arc<dyn StorageFile>,
    name: &'static str,
    directory: String,
    free: Mutex<FreeSegments>,
    /// Free segments that have their room on the disk still; none of `free` has it.
    roomy: Mutex<BTreeSet<SegmentId>>,
    kept: Mutex<Kept>,
    read_size_bytes: AtomicU64,
    written_size_bytes: AtomicU64,
}

/// FO9: segments that another copy has in the same file. As long as that one may be used, they stay
/// as they are.
#[derive(Debug, Default)]
struct Kept {
    all: BTreeSet<SegmentId>,
    /// Of them, those that this copy does not use.
    unused: BTreeSet<SegmentId>,
}

/// How many bytes went from and to a device since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceBytes {
    /// Read.
    pub read: u64,
    /// Written.
    pub written: u64,
}

impl Device {
    /// A device in which these segments are in use.
    pub fn new(
        file: Arc<dyn StorageFile>,
        (name, directory): (&'static str, String),
        used: &BTreeSet<SegmentId>,
    ) -> Self {
        Self {
            file,
            name,
            directory,
            free: Mutex::new(FreeSegments::but(used)),
            roomy: Mutex::default(),
            kept: Mutex::default(),
            read_size_bytes: AtomicU64::new(0),
            written_size_bytes: AtomicU64::new(0),
        }
    }

    /// FO9: a device in whose file another copy has these segments, and this one none yet.
    pub fn beside(
        file: Arc<dyn StorageFile>,
        place: (&'static str, String),
        kept: &BTreeSet<SegmentId>,
    ) -> Self {
        let device = Self::new(file, place, kept);
        *device.kept() = Kept {
            all: kept.clone(),
            unused: kept.clone(),
        };
        device
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// FO9: takes a segment of the other copy, to be this one's, too. False: it is none of that
    /// one's, or is this one's already.
    pub fn take_kept(&self, segment: SegmentId) -> bool {
        self.kept().unused.remove(&segment)
    }

    /// FO9: the other copy counts for nothing any more. What it alone had is free.
    pub fn release_kept(&self) {
        let kept = std::mem::take(&mut *self.kept());
        self.give_back(kept.unused);
    }

    fn free(&self) -> MutexGuard<'_, FreeSegments> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn roomy(&self) -> MutexGuard<'_, BTreeSet<SegmentId>> {
        self.roomy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a segment that nobody uses: the first one that has room on the disk, or else the first
    /// one. It may hold anything.
    pub fn allocate(&self) -> SegmentId {
        let roomy = self.roomy().pop_first();
        roomy.unwrap_or_else(|| self.free().take())
    }

    /// Gives segments back. What they hold is gone; the room on the disk of all but
    /// four free ones, too, if the file system can do that. Those of another copy
    /// stay (FO9).
    pub fn give_back(&self, segments: impl IntoIterator<Item = SegmentId>) {
        for segment in segments {
            let mut kept = self.kept();
            if kept.all.contains(&segment) {
                let is_new = kept.unused.insert(segment);
                assert!(is_new, "{segment} of {} was given back", self.name);
                continue;
            }
            drop(kept);
            let is_new = !self.free().has(segment) && self.roomy().insert(segment);
            assert!(is_new, "{segment} of {} was free already", self.name);
        }
        loop {
            let mut roomy = self.roomy();
            if roomy.len() <= ROOMY_COUNT_MAX {
                return;
            }
            let last = roomy.pop_last().expect("there are some");
            drop(roomy);
            // A hint: what cannot be given back to the disk is written anew all the same.
            if let Err(error) = self.file.discard(last.offset(), SEGMENT_SIZE_BYTES) {
                tracing::debug!(segment = %last, file = self.name, %error, "cannot discard");
            }
            let is_new = self.free().give_back(last);
            assert!(is_new, "{last} of {} was free already", self.name);
        }
    }

    /// Segments in use.
    pub fn used_count(&self) -> u32 {
        // What is taken meanwhile is in one of the two, or in none.
        let free = self.free();
        free.used_count() - self.roomy().len() as u32
    }

    /// How many bytes went from it and to it.
    pub fn bytes(&self) -> DeviceBytes {
        DeviceBytes {
            read: self.read_size_bytes.load(Ordering::Relaxed),
            written: self.written_size_bytes.load(Ordering::Relaxed),
        }
    }

    /// How many segments the file is long, the last one perhaps in part: those behind were never
    /// written.
    ///
    /// # Errors
    /// The file cannot be measured.
    pub fn written_count(&self) -> Result<u32, LsmError> {
        let size_bytes = self.file.size();
        let size_bytes = size_bytes.map_err(|error| self.error("measure", error))?;
        let count = size_bytes.div_ceil(SEGMENT_SIZE_BYTES);
        Ok(u32::try_from(count).unwrap_or(u32::MAX))
    }

    /// Fills a buffer from an offset within a segment on. What lies behind the file's end was never
    /// written, and reads as zeros.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(&self, segment: SegmentId, offset: u64, buffer: &mut [u8]) -> Result<(), LsmError> {
        assert!(offset + buffer.len() as u64 <= SEGMENT_SIZE_BYTES);
        let start = segment.offset() + offset;
        let size_bytes = buffer.len() as u64;
        self.read_size_bytes
            .fetch_add(size_bytes, Ordering::Relaxed);
        match self.file.read_at(buffer, start) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            read => return read.map_err(|error| self.error("read", error)),
        }
        let size_bytes = self.file.size();
        let size_bytes = size_bytes.map_err(|error| self.error("measure", error))?;
        let there = size_bytes.saturating_sub(start).min(buffer.len() as u64) as usize;
        buffer[there..].fill(0);
        let read = self.file.read_at(&mut buffer[..there], start);
        read.map_err(|error| self.error("read", error))
    }

    /// Writes from an offset within a segment on.
    ///
    /// # Errors
    /// The file cannot be written, or the disk is full.
    pub fn write(&self, segment: SegmentId, offset: u64, bytes: &[u8]) -> Result<(), LsmError> {
        assert!(offset + bytes.len() as u64 <= SEGMENT_SIZE_BYTES);
        let written = self.file.write_at(bytes, segment.offset() + offset);
        self.note_written(bytes.len(), written)
    }

    /// The same, for a segment that is written from its beginning on, one thing behind the other:
    /// what is behind may be anything afterwards.
    ///
    /// # Errors
    /// Those of [`write`](Self::write).
    pub fn append(&self, segment: SegmentId, offset: u64, bytes: &[u8]) -> Result<(), LsmError> {
        assert!(offset + bytes.len() as u64 <= SEGMENT_SIZE_BYTES);
        let written = self.file.append_at(bytes, segment.offset() + offset);
        self.note_written(bytes.len(), written)
    }

    fn note_written(&self, size_bytes: usize, written: io::Result<()>) -> Result<(), LsmError> {
        self.written_size_bytes
            .fetch_add(size_bytes as u64, Ordering::Relaxed);
        written.map_err(|error| self.error("write", error))
    }

    /// Makes all that was written durable.
    ///
    /// # Errors
    /// The file cannot be synced: what was written since the last time may be there or not.
    pub fn sync(&self) -> Result<(), LsmError> {
        self.file.sync().map_err(|error| self.error("sync", error))
    }

    /// A byte of its file, in words.
    pub(crate) fn byte_text(&self, segment: SegmentId, offset: u64) -> String {
        let byte = segment.offset() + offset;
        format!("byte {byte} of {}/{}", self.directory, self.name)
    }

    fn error(&self, action: &'static str, source: io::Error) -> LsmError {
        LsmError::Storage {
            action,
            file: self.name.to_owned(),
            directory: self.directory.clone(),
            source,
        }
    }
}
