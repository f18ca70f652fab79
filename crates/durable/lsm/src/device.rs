//! Device: a file of segments, either of the log or of trees.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::LsmError;
use crate::free::FreeSegments;
use crate::manifest::Manifest;
use crate::place::{SEGMENT_SIZE_BYTES, SegmentId};
use crate::storage::{Storage, StorageFile};

/// Opens the file of a device, or creates it if the manifest names nothing in it.
///
/// # Errors
/// [`LsmError::CorruptManifest`] if the manifest names segments in it, and the file does not exist.
/// Otherwise, the file cannot be opened or created.
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
        let how = format!("it names segments of the file {name}, which does not exist");
        return Err(manifest.damaged(how));
    }
    let file = storage.create(name).map_err(failed("create"))?;
    // The file's name must be durable before anything in the file counts.
    storage.sync_names().map_err(failed("create"))?;
    Ok(file)
}

/// Opens an existing file of a device whose contents are seldom read, bypassing the page cache
/// where possible.
///
/// # Errors
/// The file cannot be opened.
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

/// Maximum number of free segments of a file that keep their disk space (8 MiB).
///
/// The next flush or merge mostly reuses what the last one freed. Returned space would have to be
/// allocated again, which a sync then writes to the file system's journal.
const BACKED_FREE_COUNT_MAX: usize = 4;

/// File of segments, and its free segments. The manifest names the used ones.
#[derive(Debug)]
pub struct Device {
    file: Arc<dyn StorageFile>,
    name: &'static str,
    directory: String,
    free: Mutex<FreeSegments>,
    /// Free segments that still have their disk space. None of them is in `free`.
    backed_free: Mutex<BTreeSet<SegmentId>>,
    foreign: Mutex<ForeignSegments>,
    read_size_bytes: AtomicU64,
    written_size_bytes: AtomicU64,
}

/// Segments of another copy in the same file. They stay unchanged while that copy may still be
/// used. See docs/explanation/lsm.md, *Sharing files with the previous copy*.
#[derive(Debug, Default)]
struct ForeignSegments {
    all: BTreeSet<SegmentId>,
    /// Segments of the other copy that this copy does not use.
    unused: BTreeSet<SegmentId>,
}

/// Bytes read from and written to a device since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceBytes {
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
}

impl Device {
    /// Creates a device with these used segments.
    pub fn new(
        file: Arc<dyn StorageFile>,
        name: &'static str,
        directory: String,
        used: &BTreeSet<SegmentId>,
    ) -> Self {
        Self {
            file,
            name,
            directory,
            free: Mutex::new(FreeSegments::all_except(used)),
            backed_free: Mutex::default(),
            foreign: Mutex::default(),
            read_size_bytes: AtomicU64::new(0),
            written_size_bytes: AtomicU64::new(0),
        }
    }

    /// Creates a device whose file also has these segments of another copy; this copy uses none of
    /// them yet.
    pub fn beside(
        file: Arc<dyn StorageFile>,
        name: &'static str,
        directory: String,
        foreign: &BTreeSet<SegmentId>,
    ) -> Self {
        let device = Self::new(file, name, directory, foreign);
        *device.foreign() = ForeignSegments {
            all: foreign.clone(),
            unused: foreign.clone(),
        };
        device
    }

    fn foreign(&self) -> MutexGuard<'_, ForeignSegments> {
        self.foreign.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts to use a segment of the other copy in this copy, too. Returns false if the other copy
    /// does not have it, or this copy uses it already.
    pub fn adopt_segment(&self, segment: SegmentId) -> bool {
        self.foreign().unused.remove(&segment)
    }

    /// Releases the other copy, which must not be used any more. Segments that only it used become
    /// free.
    pub fn release_foreign(&self) {
        let foreign = std::mem::take(&mut *self.foreign());
        self.give_back(foreign.unused);
    }

    fn free(&self) -> MutexGuard<'_, FreeSegments> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn backed_free(&self) -> MutexGuard<'_, BTreeSet<SegmentId>> {
        self.backed_free
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a free segment: the first one that has disk space, or else the first one. Its contents
    /// are undefined.
    pub fn allocate(&self) -> SegmentId {
        let backed_free = self.backed_free().pop_first();
        backed_free.unwrap_or_else(|| self.free().take())
    }

    /// Frees segments; their contents are lost. The disk space of free segments, except four, is
    /// returned if the file system supports that. Segments of another copy stay.
    pub fn give_back(&self, segments: impl IntoIterator<Item = SegmentId>) {
        for segment in segments {
            let mut foreign = self.foreign();
            if foreign.all.contains(&segment) {
                let is_new = foreign.unused.insert(segment);
                assert!(is_new, "{segment} of {} was given back", self.name);
                continue;
            }
            drop(foreign);
            let is_new = !self.free().has(segment) && self.backed_free().insert(segment);
            assert!(is_new, "{segment} of {} was free already", self.name);
        }
        loop {
            let mut backed_free = self.backed_free();
            if backed_free.len() <= BACKED_FREE_COUNT_MAX {
                return;
            }
            let last = backed_free.pop_last().expect("there are some");
            drop(backed_free);
            // Only a hint: a segment whose space cannot be returned is overwritten later all the
            // same.
            if let Err(error) = self.file.discard(last.offset(), SEGMENT_SIZE_BYTES) {
                tracing::debug!(segment = %last, file = self.name, %error, "cannot discard");
            }
            let is_new = self.free().give_back(last);
            assert!(is_new, "{last} of {} was free already", self.name);
        }
    }

    /// Returns the number of segments in use.
    pub fn used_count(&self) -> u32 {
        // A segment that is allocated concurrently is in one of the two sets or in none.
        let free = self.free();
        free.used_count() - self.backed_free().len() as u32
    }

    /// Returns the bytes read from and written to the device.
    pub fn bytes(&self) -> DeviceBytes {
        DeviceBytes {
            read: self.read_size_bytes.load(Ordering::Relaxed),
            written: self.written_size_bytes.load(Ordering::Relaxed),
        }
    }

    /// Returns the length of the file in segments, including an incomplete last one. Segments
    /// behind it were never written.
    ///
    /// # Errors
    /// The length of the file cannot be read.
    pub fn written_count(&self) -> Result<u32, LsmError> {
        let size_bytes = self.file.size();
        let size_bytes = size_bytes.map_err(|error| self.error("measure", error))?;
        let count = size_bytes.div_ceil(SEGMENT_SIZE_BYTES);
        Ok(u32::try_from(count).unwrap_or(u32::MAX))
    }

    /// Fills a buffer from an offset within a segment. Data behind the end of the file was never
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

    /// Writes bytes at an offset within a segment.
    ///
    /// # Errors
    /// The file cannot be written, or the disk is full.
    pub fn write(&self, segment: SegmentId, offset: u64, bytes: &[u8]) -> Result<(), LsmError> {
        assert!(offset + bytes.len() as u64 <= SEGMENT_SIZE_BYTES);
        let written = self.file.write_at(bytes, segment.offset() + offset);
        self.note_written(bytes.len(), written)
    }

    /// Writes bytes to a segment that is written sequentially from its beginning. The contents
    /// behind these bytes are undefined afterwards.
    ///
    /// # Errors
    /// Same as [`write`](Self::write).
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

    /// Makes all written data durable.
    ///
    /// # Errors
    /// The file cannot be synced. Data written since the last sync may be durable or not.
    pub fn sync(&self) -> Result<(), LsmError> {
        self.file.sync().map_err(|error| self.error("sync", error))
    }

    /// Returns the place of a byte in the device's file, in words.
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
