//! The value log: every write in order of effect, and all values.
//!
//! `docs/explanation/lsm.md` describes its format, durability and recovery under *The value log*.
//!
//! | module | contents |
//! |---|---|
//! | [`record`] | layout of segments and records |
//! | `segments` | map from log segments to the device, and reserved segments |
//! | `append` | appending to the open segment, and records larger than one segment |
//! | `write_out` | writing the open segment to the device without a sync |
//! | `sync` | group commit |
//! | `read` | reading a record |
//! | `cached` | log blocks in the engine's cache |
//! | `recent` | the last written segments, in memory |
//! | `part_sum` | checksum of a record that arrives in parts |
//! | `raw` | reading the log's bytes for a follower |
//! | `sums` | checksums of segments, which replicas compare |
//! | [`extent`] | number of bytes in a segment that count |
//! | [`replay`] | reading the log for recovery |
//! | `recover` | opening the log of a directory |
//! | `pins` | which segments must stay |

pub mod extent;
pub mod record;
pub mod replay;

mod append;
mod cached;
pub(crate) mod part_sum;
mod pins;
mod raw;
mod read;
mod recent;
mod recover;
mod segments;
mod sums;
mod sync;
#[cfg(test)]
mod tests;
mod write_out;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex};

pub use append::Appended;
pub use pins::{LogPin, LogPins};
pub use read::Record;
pub(crate) use read::damaged;
pub use segments::LogSegments;

use self::append::Tail;
use self::cached::CachedBlocks;
use self::recent::RecentSegments;
use self::sync::SyncState;
use crate::cache::BlockCache;
use crate::device::Device;
use crate::error::LsmError;
use crate::manifest::Manifest;
use crate::place::LogPosition;
use crate::written::SegmentSums;

/// Name of the log's file.
pub const FILE: &str = "log";
/// Initial estimate of the average record size in bytes, before any record was written.
const RECORD_SIZE_BYTES_EXPECTED: u64 = 1024;

/// Value log of an engine.
#[derive(Debug)]
pub struct ValueLog {
    segments: LogSegments,
    manifest: Arc<Manifest>,
    tail: Mutex<Tail>,
    /// Written part of the open segment, and checksums of it.
    written: Mutex<SegmentSums>,
    writing: Mutex<()>,
    recent: RecentSegments,
    cached: CachedBlocks,
    /// Number of the open segment: all segments before it are written to the device, if not synced.
    tail_number: AtomicU64,
    synced: Mutex<SyncState>,
    has_synced: Condvar,
    /// Durable end of the log that the manifest records; `None` if it records nothing since the log
    /// was opened.
    recorded_end: Mutex<Option<LogPosition>>,
    /// Moving average of record sizes in bytes.
    record_size_bytes: AtomicU64,
}

/// Memory from which a log serves reads.
#[derive(Clone, Debug)]
pub struct LogMemory {
    /// Size in bytes of the log's end that stays in memory.
    pub recent_size_bytes: usize,
    /// Cache of the remaining log blocks.
    pub cache: Arc<BlockCache>,
}

impl LogMemory {
    /// Returns a setting that keeps nothing in memory.
    pub fn none() -> Self {
        Self {
            recent_size_bytes: 0,
            cache: Arc::new(BlockCache::new(0)),
        }
    }
}

impl ValueLog {
    /// Creates the log of a manifest's directory. Records are appended in segments that were never
    /// used. Recovery has read all others, or their contents do not count.
    pub(crate) fn new(device: Device, manifest: Arc<Manifest>, memory: LogMemory) -> Self {
        let state = manifest.state();
        let next = state.next_log;
        Self {
            segments: LogSegments::new(device, state.engine, &state.log, next),
            manifest,
            tail: Mutex::new(Tail::new()),
            written: Mutex::new(SegmentSums::new()),
            writing: Mutex::default(),
            recent: RecentSegments::new(memory.recent_size_bytes),
            cached: CachedBlocks::new(memory.cache),
            tail_number: AtomicU64::new(next.0),
            synced: Mutex::new(SyncState::new(next.start())),
            has_synced: Condvar::new(),
            recorded_end: Mutex::new(None),
            record_size_bytes: AtomicU64::new(RECORD_SIZE_BYTES_EXPECTED),
        }
    }

    /// Reserves segments for later writes if few are left, with one edit of the manifest. Returns
    /// false if there are enough. If none are left, writers reserve some themselves, and wait for
    /// that.
    ///
    /// # Errors
    /// The manifest cannot be written.
    pub fn reserve_ahead(&self) -> Result<bool, LsmError> {
        self.segments.reserve_ahead(&self.manifest)
    }

    /// Returns the log's segments.
    pub const fn segments(&self) -> &LogSegments {
        &self.segments
    }
}
