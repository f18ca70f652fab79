//! The engine: an ordered map in a directory.
//!
//! A write appends a record to the log and inserts an entry into L0, both under the log's lock. So
//! all writes have one order: that of their log positions. A full L0 is frozen. Everything after
//! that is background work: each call of [`Engine::maintain`] does one step.
//!
//! ```text
//! put ──> log ──────────────────────────────┐ values stay here
//!     └─> L0 ──freeze──> frozen ──flush──> level 1 ──merge──> level 2 ──merge──> ...
//! ```
//!
//! A reader takes the current [`Version`], which never changes. It searches L0, the frozen L0s, and
//! the trees, newest first. The data of a version stays while the version has a holder; then it
//! becomes free.
//!
//! | module | contents |
//! |---|---|
//! | `open` | creating a directory, and opening an existing one |
//! | `write` | put and delete; freezing L0 |
//! | `read` | get, snapshots |
//! | `scan` | scans in key order, in both directions |
//! | `flush` | making a frozen L0 a tree; writing any tree |
//! | `merge` | merging trees of two levels, one step at a time |
//! | `rest` | pauses of merges that hit corruption |
//! | `collect` | garbage collection: merges move live records out of mostly dead log segments |
//! | `reclaim` | freeing trees and log segments that are no longer needed |
//! | `follow` | interface for a follower: bases, edits, reads before a position |
//! | `scrub` | reading the devices to find flipped bits |
//! | `maintain` | choosing the next step of background work; a thread that does it |

mod collect;
mod flush;
mod follow;
mod maintain;
mod merge;
mod open;
mod read;
mod reclaim;
mod rest;
mod scan;
mod scrub;
#[cfg(test)]
pub(crate) mod tests;
mod write;

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

pub(crate) use flush::Source;
pub(crate) use follow::tree_size_bytes;
pub use follow::{EngineBase, WorkCounts};
pub use maintain::{WorkDone, Worker};
pub(crate) use open::{LOCK, TREES, lock};
pub use read::Snapshot;
pub use scan::{Direction, KeyRange, KeyValue, Scan};
pub use write::Durability;

use self::follow::WorkCounters;
use crate::cache::BlockCache;
use crate::device::Device;
use crate::error::LsmError;
use crate::follow::{Follow, FreshBlockBudget};
use crate::log::record::EngineId;
use crate::log::{LogPins, ValueLog};
use crate::manifest::{Change, Manifest};
use crate::memtable::Memtable;
use crate::storage::{Storage, StorageLock};
use crate::version::{Garbage, Version};

/// Names of the large files of a directory: those of segments, which are read and written in large
/// parts.
pub const DEVICE_FILES: [&str; 2] = [crate::log::FILE, open::TREES];

/// Options of an engine. They may differ each time a directory is opened: only the id is stored.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Id for a new directory; an existing directory keeps its own, and this is ignored.
    ///
    /// `None` draws a random id. So data that another engine left in the same sectors, or in files
    /// that were mixed up, never passes for this engine's. A caller that sets an id ensures that: a
    /// replica, or a simulation that must be reproducible.
    pub id: Option<EngineId>,
    /// Size in bytes at which L0 is frozen.
    pub l0_size_bytes_max: usize,
    /// Number of entries at which L0 is frozen.
    pub l0_entry_count_max: usize,
    /// Size in bytes of L0's log records at which L0 is frozen. Until L0 is flushed, no log segment
    /// with these records is freed, and opening the directory reads all of them.
    pub l0_log_size_bytes_max: u64,
    /// Maximum number of trees in level 1; a merge is due if it has more.
    pub level_1_tree_count_max: usize,
    /// Growth of levels: level i is due for a merge if its entries exceed L0's entry limit times
    /// this factor to the power i.
    pub growth_factor: u64,
    /// Percentage of live bytes below which merges move the live records out of a log segment. With
    /// 0, nothing is moved, and a segment is freed when nothing in it lives.
    pub live_percent_min: u64,
    /// Maximum number of entries per step of a merge.
    pub merge_step_entry_count: usize,
    /// Size of the block cache in bytes, for blocks of trees and of the log.
    pub cache_size_bytes: usize,
    /// Size in bytes of the log's end that stays in memory, in whole segments, in addition to the
    /// open segment.
    pub log_memory_size_bytes: usize,
    /// Delay of each write if the backlog of background work is 1. The delay grows with the square
    /// of the backlog, up to 100 ms.
    pub delay: Duration,
    /// Pause of a merge that hit corruption, before it is retried. The pause doubles after each
    /// retry that hits corruption again.
    pub merge_pause: Duration,
    /// Maximum pause of a merge that hit corruption.
    pub merge_pause_max: Duration,
}

impl EngineOptions {
    /// Returns the default options.
    ///
    /// L0 is frozen at 64 MiB, 512 Ki entries, or 256 MiB of log. Level 1 has up to 4 trees, and
    /// levels grow by a factor of 8. Log segments are collected if less than half lives. A merge
    /// step has 64 Ki entries. The block cache has 64 MiB, and 32 MiB of the log stay in memory.
    /// Writes are delayed by 20 µs. Merges pause for 1 s to 5 min after corruption. The id is
    /// random.
    pub const fn new() -> Self {
        Self {
            id: None,
            l0_size_bytes_max: 64 << 20,
            l0_entry_count_max: 512 << 10,
            l0_log_size_bytes_max: 256 << 20,
            level_1_tree_count_max: 4,
            growth_factor: 8,
            live_percent_min: 50,
            merge_step_entry_count: 64 << 10,
            cache_size_bytes: 64 << 20,
            log_memory_size_bytes: 32 << 20,
            delay: Duration::from_micros(20),
            merge_pause: Duration::from_secs(1),
            merge_pause_max: Duration::from_mins(5),
        }
    }

    /// Checks that an engine supports these options. Opening an engine checks them, too.
    ///
    /// # Errors
    /// [`LsmError::BadOption`] names the option and its allowed values.
    pub fn check(&self) -> Result<(), LsmError> {
        let bad = |option, given, allowed| LsmError::BadOption {
            option,
            given,
            allowed,
        };
        let least_one = "1 or more";
        if self.growth_factor < 2 {
            // With a factor of 1, there would be no limit to the number of levels.
            return Err(bad("growth_factor", self.growth_factor, "2 or more"));
        }
        if self.live_percent_min > 100 {
            return Err(bad("live_percent_min", self.live_percent_min, "0 to 100"));
        }
        for (option, given) in [
            ("l0_size_bytes_max", self.l0_size_bytes_max),
            ("l0_entry_count_max", self.l0_entry_count_max),
            ("level_1_tree_count_max", self.level_1_tree_count_max),
            ("merge_step_entry_count", self.merge_step_entry_count),
        ] {
            if given == 0 {
                return Err(bad(option, 0, least_one));
            }
        }
        if self.l0_log_size_bytes_max == 0 {
            return Err(bad("l0_log_size_bytes_max", 0, least_one));
        }
        if self.l0_size_bytes_max > Memtable::SIZE_BYTES_MAX {
            let given = self.l0_size_bytes_max;
            return Err(bad("l0_size_bytes_max", given as u64, "up to 16 GiB"));
        }
        Ok(())
    }

    /// Sets the size of L0 in bytes. Half as much of the log's end stays in memory. L0 is also
    /// frozen when its records take four times as much of the log.
    #[must_use]
    pub const fn with_l0_size(mut self, size_bytes: usize) -> Self {
        self.l0_size_bytes_max = size_bytes;
        self.log_memory_size_bytes = size_bytes / 2;
        self.l0_log_size_bytes_max = (size_bytes as u64).saturating_mul(4);
        self
    }

    /// Sets the id of a new directory.
    #[must_use]
    pub const fn with_id(mut self, id: EngineId) -> Self {
        self.id = Some(id);
        self
    }
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// Ordered map from byte strings to byte strings, in a directory. All clones share the same engine.
///
/// Any number of threads may use it. The directory stays locked until the last clone, snapshot and
/// worker is dropped. Dropping loses nothing that was acknowledged as [`Durability::Sync`], but may
/// lose later writes.
///
/// After a failed write or sync of the log or the manifest, writes return [`LsmError::Stopped`].
/// Reads continue.
#[derive(Clone)]
pub struct Engine {
    core: Arc<Core>,
}

/// Size of an engine's parts at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineCounts {
    /// Number of frozen L0s that are not flushed yet.
    pub frozen_count: usize,
    /// Number of trees in each level, from level 1.
    pub tree_counts: Vec<usize>,
    /// Number of entries in each level, including those that newer levels hide.
    pub entry_counts: Vec<u64>,
    /// Number of log segments in use, including reserved ones.
    pub log_segment_count: u32,
    /// Number of tree segments in use.
    pub tree_segment_count: u32,
}

struct Core {
    storage: Arc<dyn Storage>,
    options: EngineOptions,
    manifest: Arc<Manifest>,
    log: Arc<ValueLog>,
    trees: Arc<Device>,
    cache: Arc<BlockCache>,
    /// Replaced under the log's lock when L0 is, so that each write enters the L0 for its log
    /// position.
    version: RwLock<Arc<Version>>,
    pins: Arc<LogPins>,
    garbage: Arc<Garbage>,
    next_tree: AtomicU64,
    /// Held by the one thread that flushes. `merging` and `freeing` do the same for other kinds of
    /// work.
    flushing: Mutex<()>,
    /// Unfinished merge, if any; the next thread that locks this continues it.
    merging: Mutex<merge::Merges>,
    freeing: Mutex<()>,
    wakes: maintain::WorkerWakeups,
    /// First failure of an edit, or of a sync of trees. Once it is set, the engine refuses writes.
    failed: OnceLock<String>,
    /// Serializes edits: each one is made, becomes visible to readers, and is announced to the
    /// follower, before the next one starts.
    editing: Mutex<()>,
    /// Follower of the engine, if any.
    follow: OnceLock<Arc<dyn Follow>>,
    fresh_block_budget: Arc<FreshBlockBudget>,
    work: WorkCounters,
    /// Dropped last.
    _lock: Box<dyn StorageLock>,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "engine in {}, {:?}",
            self.core.storage.name(),
            self.counts()
        )
    }
}

impl Engine {
    /// Returns the sizes of the engine's parts.
    pub fn counts(&self) -> EngineCounts {
        let version = self.core.version();
        let levels = 1..=version.levels.len();
        EngineCounts {
            frozen_count: version.frozen.len(),
            tree_counts: version.levels.iter().map(Vec::len).collect(),
            entry_counts: levels.map(|it| version.level_entry_count(it)).collect(),
            log_segment_count: self.core.log.segments().device.used_count(),
            tree_segment_count: self.core.trees.used_count(),
        }
    }
}

impl Core {
    /// Returns the current version.
    fn version(&self) -> Arc<Version> {
        let version = self.version.read();
        Arc::clone(&version.unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the current version by a changed copy.
    fn change_version(&self, change: impl FnOnce(&mut Version)) {
        let mut current = self.version.write().unwrap_or_else(PoisonError::into_inner);
        let mut version = Version::clone(&current);
        change(&mut version);
        *current = Arc::new(version);
    }

    /// Commits an edit of the manifest; the caller holds `editing`. If it fails for lack of space,
    /// it is not in force. After any other failure it may be in force or not, so the engine stops.
    fn commit(&self, changes: &[Change]) -> Result<(), LsmError> {
        let committed = self.manifest.commit(changes);
        committed.inspect_err(|error| self.stop_with_manifest(error))
    }

    /// Stops the engine if the manifest accepts no more edits.
    fn stop_with_manifest(&self, error: &LsmError) {
        if self.manifest.check().is_err() {
            self.stop(error);
        }
    }

    /// Stops the engine: from now on, it refuses writes.
    fn stop(&self, first: &LsmError) {
        self.failed.get_or_init(|| first.to_string());
    }

    /// Returns an error if the engine has stopped.
    fn check(&self) -> Result<(), LsmError> {
        match self.failed.get() {
            None => Ok(()),
            Some(first) => Err(LsmError::Stopped {
                first: first.clone(),
            }),
        }
    }
}
