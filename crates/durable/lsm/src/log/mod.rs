//! The value log (VL1 to VL10): every write, in the order in which they take effect, and where
//! values stay.
//!
//! | module | what it holds |
//! |---|---|
//! | [`record`] | the layout |
//! | `segments` | which log segment is where on the device |
//! | `append` | writing: the segment that is being filled, and records larger than one |
//! | `write_out` | writing the segment that is being filled to the device |
//! | `sync` | making it durable, for all who wait at once |
//! | `read` | reading a record |
//! | `cached` | blocks of other segments in the engine's cache |
//! | `recent` | the segments that were filled last, in memory |
//! | `part_sum` | the sum of a record that comes in parts |
//! | `raw` | reading bytes as they are, for who follows |
//! | `sums` | checksums of segments, which replicas compare |
//! | [`extent`] | how much of a segment counts |
//! | [`replay`] | reading the log again |
//! | `recover` | opening the log of a directory |

pub mod extent;
pub mod record;
pub mod replay;

mod append;
mod cached;
pub(crate) mod part_sum;
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

/// The name of the log's file.
pub const FILE: &str = "log";
/// What records take before any was written.
const RECORD_SIZE_BYTES_EXPECTED: u64 = 1024;

/// The log of an engine.
#[derive(Debug)]
pub struct ValueLog {
    segments: LogSegments,
    manifest: Arc<Manifest>,
    tail: Mutex<Tail>,
    /// How much of the segment that is being filled is written to the device, and checksums of that
    /// (FO11).
    written: Mutex<SegmentSums>,
    writing: Mutex<()>,
    recent: RecentSegments,
    cached: CachedBlocks,
    /// The log segment that is being filled: all before it are on the device, if not synced.
    tail_number: AtomicU64,
    synced: Mutex<SyncState>,
    has_synced: Condvar,
    /// VL6: the manifest says up to where the log is durable; `None`: nothing of what was written
    /// since it was opened.
    said_to: Mutex<Option<LogPosition>>,
    /// What records take, on the average of late.
    record_size_bytes: AtomicU64,
}

/// What of a log is read from memory.
#[derive(Clone, Debug)]
pub struct LogMemory {
    /// VL8: so much of its end.
    pub recent_size_bytes: usize,
    /// VL9: blocks of the rest.
    pub cache: Arc<BlockCache>,
}

impl LogMemory {
    /// Nothing.
    pub fn none() -> Self {
        Self {
            recent_size_bytes: 0,
            cache: Arc::new(BlockCache::new(0)),
        }
    }
}

impl ValueLog {
    /// The log of a manifest's directory, to which records are appended in segments that were never
    /// used: whatever is in others was read again, or counts for nothing.
    pub(crate) fn new(device: Device, manifest: Arc<Manifest>, memory: LogMemory) -> Self {
        let state = manifest.state();
        let next = state.next_log;
        Self {
            segments: LogSegments::new((device, state.engine), &state.log, next),
            manifest,
            tail: Mutex::new(Tail::new()),
            written: Mutex::new(SegmentSums::new()),
            writing: Mutex::default(),
            recent: RecentSegments::new(memory.recent_size_bytes),
            cached: CachedBlocks::new(memory.cache),
            tail_number: AtomicU64::new(next.0),
            synced: Mutex::new(SyncState::new(next.start())),
            has_synced: Condvar::new(),
            said_to: Mutex::new(None),
            record_size_bytes: AtomicU64::new(RECORD_SIZE_BYTES_EXPECTED),
        }
    }

    /// Reserves segments for what will be written, if few are left: with one edit of the manifest.
    /// False: there are enough. Who writes reserves some, too, if there are none, and waits.
    ///
    /// # Errors
    /// The manifest cannot be written.
    pub fn reserve_ahead(&self) -> Result<bool, LsmError> {
        self.segments.reserve_ahead(&self.manifest)
    }

    /// Its segments.
    pub const fn segments(&self) -> &LogSegments {
        &self.segments
    }
}
