//! The engine: an ordered map in a directory (LC1 to LC8).
//!
//! A write is a record of the log and an entry of L0, both under the log's lock (VL4), so there is
//! one order of all writes, that of their places in the log. A full L0 is frozen; everything after
//! that is done by [`Engine::maintain`], a step at a time, by whoever calls it:
//!
//! ```text
//! put ──> log ──────────────────────────────┐ values stay here
//!     └─> L0 ──freeze──> frozen ──flush──> level 1 ──merge──> level 2 ──merge──> ...
//! ```
//!
//! A reader takes the current [`Version`], which never changes, and asks L0, what is frozen, and
//! the trees, newest first. What the version has stays as long as somebody has it; then it becomes
//! free.
//!
//! | module | what it does |
//! |---|---|
//! | `open` | makes a directory, or reads one again |
//! | `write` | put and delete; freezes L0 |
//! | `read` | get, snapshots |
//! | `scan` | many keys in their order, in both directions |
//! | `flush` | a frozen L0 becomes a tree; writing any tree |
//! | `merge` | trees of two levels become one, a step at a time |
//! | `rest` | merges that met damage rest before they are tried again |
//! | `collect` | a merge moves what lives in log segments that are mostly dead |
//! | `reclaim` | trees and log segments that nobody needs become free |
//! | `follow` | what who follows needs of it (FO1 to FO3) |
//! | `scrub` | looks for bits that have flipped |
//! | `maintain` | which of these is next; a thread that does it |

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
pub use follow::{Base, WorkCounts};
pub use maintain::{Worked, Worker};
pub(crate) use open::{LOCK, TREES, lock};
pub use read::Snapshot;
pub use scan::{Direction, KeyRange, Pair, Scan};
pub use write::Durability;

use self::follow::WorkCounters;
use crate::cache::BlockCache;
use crate::device::Device;
use crate::error::LsmError;
use crate::follow::{Follow, FreshRoom};
use crate::log::ValueLog;
use crate::log::record::EngineId;
use crate::manifest::{Change, Manifest};
use crate::memtable::Memtable;
use crate::storage::{Storage, StorageLock};
use crate::version::{Garbage, LogPins, Version};

/// The files of a directory that are large: those of segments, which are read and written in large
/// parts.
pub const DEVICE_FILES: [&str; 2] = [crate::log::FILE, open::TREES];

/// How an engine works. Another run may have others: nothing of this is in the directory, but for
/// the id.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Of a directory that is made; one that is there has its own, and this counts for nothing.
    /// `None`: one is drawn at random, so that nothing that another engine wrote into the same
    /// sectors, or files that were mixed up, pass for its own. Who gives one sees to that: a
    /// replica, or a simulation that is to be the same each time.
    pub id: Option<EngineId>,
    /// L0 is frozen when it has so many bytes,
    pub l0_size_bytes_max: usize,
    /// or so many entries,
    pub l0_entry_count_max: usize,
    /// or when its records take so many bytes of the log (LC8). Until it is flushed none of these
    /// is free, and a directory that is opened again reads them.
    pub l0_log_size_bytes_max: u64,
    /// Level 1 is merged when it has more trees.
    pub level_1_tree_count_max: usize,
    /// Level i is merged when it has more than L0's entries times this to the i.
    pub growth_factor: u64,
    /// LC5: merges move what lives in log segments of which less than so much lives. 0: nothing is
    /// moved, and a segment is free when nothing lives in it.
    pub live_percent_min: u64,
    /// LC6: a step of a merge takes in so many entries at the most.
    pub merge_step_entry_count: usize,
    /// For blocks of trees, and of the log (VL9).
    pub cache_size_bytes: usize,
    /// VL8: so much of the log's end stays in memory, in whole segments, besides the one that is
    /// being filled.
    pub log_memory_size_bytes: usize,
    /// LC6: what a write waits if background work is one step behind; four times as long if it is
    /// two, and so on.
    pub delay: Duration,
    /// LC7: how long a merge that met damage rests before it is tried again; twice as long after
    /// each try that meets some again,
    pub merge_rest: Duration,
    /// and so long at the most.
    pub merge_rest_max: Duration,
}

impl EngineOptions {
    /// L0 of 64 MiB, 512 Ki entries or 256 MiB of the log, up to 4 trees in level 1, levels that
    /// grow by 8, log segments half full, merges of 64 Ki entries a step, 64 MiB of cache, 32 MiB
    /// of the log in memory, 20 µs of delay, rests of a second to five minutes; and an id that is
    /// drawn.
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
            merge_rest: Duration::from_secs(1),
            merge_rest_max: Duration::from_mins(5),
        }
    }

    /// That an engine can work so. Opening one looks at it, too.
    ///
    /// # Errors
    /// [`LsmError::BadOption`]: which one, and what is allowed.
    pub fn check(&self) -> Result<(), LsmError> {
        let bad = |option, given, allowed| LsmError::BadOption {
            option,
            given,
            allowed,
        };
        let least_one = "1 or more";
        if self.growth_factor < 2 {
            // Levels would be without end.
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

    /// The same, with an L0 of so many bytes: half as much of the log's end stays in memory, and
    /// it is frozen when its records take four times as much of the log.
    #[must_use]
    pub const fn with_l0_size(mut self, size_bytes: usize) -> Self {
        self.l0_size_bytes_max = size_bytes;
        self.log_memory_size_bytes = size_bytes / 2;
        self.l0_log_size_bytes_max = (size_bytes as u64).saturating_mul(4);
        self
    }

    /// The same, but a directory that is made has this id.
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

/// An ordered map from byte strings to byte strings, in a directory. Clones are the same one.
///
/// Any number of threads may use it. The directory stays locked until the last clone, snapshot and
/// worker is dropped. Dropping loses nothing that was acknowledged as [`Durability::Sync`], and may
/// lose later writes.
///
/// After a write of the log or the manifest that failed, or a sync, whoever writes gets
/// [`LsmError::Stopped`], and reads go on.
#[derive(Clone)]
pub struct Engine {
    core: Arc<Core>,
}

/// How an engine is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Memtables that are not flushed yet.
    pub frozen_count: usize,
    /// Trees of each level, from level 1 on.
    pub tree_counts: Vec<usize>,
    /// Entries of each level, versions that newer levels hide among them.
    pub entry_counts: Vec<u64>,
    /// Log segments in use, reserved ones among them.
    pub log_segment_count: u32,
    /// Segments of trees.
    pub tree_segment_count: u32,
}

struct Core {
    storage: Arc<dyn Storage>,
    options: EngineOptions,
    manifest: Arc<Manifest>,
    log: Arc<ValueLog>,
    trees: Arc<Device>,
    cache: Arc<BlockCache>,
    /// Replaced under the log's lock when L0 is, so that a write goes into the L0 of its place.
    version: RwLock<Arc<Version>>,
    pins: Arc<LogPins>,
    garbage: Arc<Garbage>,
    next_tree: AtomicU64,
    /// Each kind of background work is done by one at a time.
    flushing: Mutex<()>,
    /// And the merge that was begun, if one was: whoever comes next goes on with it.
    merging: Mutex<merge::Merges>,
    freeing: Mutex<()>,
    wakes: maintain::Wakes,
    /// The first edit, or sync of trees, that failed: nothing is written any more.
    failed: OnceLock<String>,
    /// FO3: one edit after the other is made, seen by readers, and told to who follows.
    editing: Mutex<()>,
    /// Who follows, if anybody does.
    follow: OnceLock<Arc<dyn Follow>>,
    fresh_room: Arc<FreshRoom>,
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
    /// How it is doing.
    pub fn counts(&self) -> Counts {
        let version = self.core.version();
        let levels = 1..=version.levels.len();
        Counts {
            frozen_count: version.frozen.len(),
            tree_counts: version.levels.iter().map(Vec::len).collect(),
            entry_counts: levels.map(|it| version.level_entry_count(it)).collect(),
            log_segment_count: self.core.log.segments().device.used_count(),
            tree_segment_count: self.core.trees.used_count(),
        }
    }
}

impl Core {
    /// The current version.
    fn version(&self) -> Arc<Version> {
        let version = self.version.read();
        Arc::clone(&version.unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the current version by one that is changed.
    fn change_version(&self, change: impl FnOnce(&mut Version)) {
        let mut current = self.version.write().unwrap_or_else(PoisonError::into_inner);
        let mut version = Version::clone(&current);
        change(&mut version);
        *current = Arc::new(version);
    }

    /// Makes an edit of the manifest; who calls it has `editing`. After one that failed nobody
    /// knows what is in force, unless there was no room for it.
    fn commit(&self, changes: &[Change]) -> Result<(), LsmError> {
        let committed = self.manifest.commit(changes);
        committed.inspect_err(|error| self.stop_with_manifest(error))
    }

    /// Nothing is written any more, if no edit can be made any more.
    fn stop_with_manifest(&self, error: &LsmError) {
        if self.manifest.check().is_err() {
            self.stop(error);
        }
    }

    /// Nothing is written any more.
    fn stop(&self, first: &LsmError) {
        self.failed.get_or_init(|| first.to_string());
    }

    /// That nothing has stopped it.
    fn check(&self) -> Result<(), LsmError> {
        match self.failed.get() {
            None => Ok(()),
            Some(first) => Err(LsmError::Stopped {
                first: first.clone(),
            }),
        }
    }
}
