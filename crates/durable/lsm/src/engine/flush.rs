//! Flushing a frozen L0 to a tree of level 1, and writing and opening trees in general.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Core;
use crate::cache::BlockCache;
use crate::device::Device;
use crate::error::LsmError;
use crate::follow::{Edit, FreshBlockBudget, FreshBlocks, SharedTree};
use crate::head::KeySource;
use crate::log::LogPins;
use crate::manifest::TreeEntry;
use crate::memtable::MemtableCursor;
use crate::place::{BlockNumber, LogPosition, SegmentId, TreeId};
use crate::tree::{BlockSink, BlockSource, Entry, Tree, TreeBuilder};
use crate::version::{Garbage, LiveTree};

impl Core {
    /// Flushes the oldest frozen L0; returns false if there is none.
    ///
    /// # Errors
    /// Either nothing was changed, or the result is unknown and the engine has stopped.
    pub(super) fn flush(&self) -> Result<bool, LsmError> {
        let version = self.version();
        let Some(memtable) = version.frozen.last() else {
            return Ok(false);
        };
        let end = memtable.end().expect("what is frozen has an end");
        self.log.sync_to(end)?;
        self.reach(end)?;
        let mut entries = MemtableCursor::new(memtable, LogPosition::MAX);
        entries.seek_first();
        let mut tree = self.begin_tree(memtable.entry_count() as u64);
        while let Some(entry) = entries.entry() {
            tree.add(entry, entries.record_size_bytes(), &*self.log)?;
            entries.advance();
        }
        let tree = self.finish_tree(tree)?;
        let edit = Edit {
            log_end: end,
            read_from: Some(end),
            added: tree.map(|tree| (1, tree)),
            ..Edit::default()
        };
        self.work.note_flush(edit.size_bytes());
        self.edit(edit, |version| {
            version.frozen.pop();
        })?;
        self.pins.note_change();
        Ok(true)
    }

    /// Begins a tree with at most this number of entries.
    pub(super) fn begin_tree(&self, entry_count_max: u64) -> NewTree {
        let id = TreeId(self.next_tree.fetch_add(1, Ordering::Relaxed));
        let segments = Arc::new(NewSegments {
            device: Arc::clone(&self.trees),
            budget: self.fresh_block_budget(),
            written: Mutex::new(Vec::new()),
        });
        NewTree {
            id,
            builder: TreeBuilder::new(id, entry_count_max, DeviceSink(Arc::clone(&segments))),
            segments,
        }
    }

    /// Writes the rest of a tree, and syncs it; returns `None` if it has no entries. No edit names
    /// the tree yet. If none ever does, its segments are lost until the directory is reopened.
    pub(super) fn finish_tree(&self, tree: NewTree) -> Result<Option<SharedTree>, LsmError> {
        let Some(shape) = tree.builder.finish()? else {
            return Ok(None);
        };
        // Another tree may be in progress at the same time, and a later sync would not make this
        // one durable.
        self.trees.sync().inspect_err(|error| self.stop(error))?;
        let place = TreePlace {
            device: &self.trees,
            cache: &self.cache,
            garbage: &self.garbage,
            pins: &self.pins,
        };
        let segments = tree
            .segments
            .written()
            .iter()
            .map(|it| it.segment)
            .collect();
        let opened = place.open(TreeEntry {
            id: tree.id,
            segments,
            shape,
        })?;
        // The segments now belong to the tree, since an edit that fails may still have named it.
        let written = std::mem::take(&mut *tree.segments.written());
        let fresh = written.into_iter().map(|it| it.fresh).collect();
        Ok(Some(self.shared(opened, fresh)))
    }
}

/// Tree that is being written. Dropping it frees its segments.
pub(super) struct NewTree {
    id: TreeId,
    builder: TreeBuilder<DeviceSink>,
    segments: Arc<NewSegments>,
}

impl NewTree {
    /// Adds the next entry, with the size of its record in bytes.
    pub(super) fn add(
        &mut self,
        entry: Entry<'_>,
        record_size_bytes: u64,
        keys: &dyn KeySource,
    ) -> Result<(), LsmError> {
        self.builder.add(entry, record_size_bytes, keys)
    }

    /// Writes at most this number of filter blocks, after the last entry; returns true when the
    /// filter is complete.
    pub(super) fn write_filter(&mut self, block_count_max: u32) -> Result<bool, LsmError> {
        self.builder.write_filter(block_count_max)
    }
}

/// Segments of a tree that is being written, and that nothing names yet.
struct NewSegments {
    device: Arc<Device>,
    /// Memory that keeps blocks for the follower, too; `None` if no follower will read them.
    budget: Option<Arc<FreshBlockBudget>>,
    written: Mutex<Vec<NewSegment>>,
}

struct NewSegment {
    segment: SegmentId,
    fresh: Option<FreshBlocks>,
}

impl NewSegments {
    fn written(&self) -> MutexGuard<'_, Vec<NewSegment>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for NewSegments {
    fn drop(&mut self) {
        let written = std::mem::take(&mut *self.written());
        self.device.give_back(written.iter().map(|it| it.segment));
    }
}

/// Device and cache with which a tree is opened.
pub(super) struct TreePlace<'e> {
    pub(super) device: &'e Arc<Device>,
    pub(super) cache: &'e Arc<BlockCache>,
    pub(super) garbage: &'e Arc<Garbage>,
    pub(super) pins: &'e Arc<LogPins>,
}

impl TreePlace<'_> {
    /// Opens a tree from its manifest entry, and reads its references.
    pub(super) fn open(&self, entry: TreeEntry) -> Result<Arc<LiveTree>, LsmError> {
        let source = Arc::new(Source {
            device: Arc::clone(self.device),
            id: entry.id,
            segments: entry.segments.clone(),
        });
        let tree = Arc::new(Tree::new(
            entry.id,
            entry.shape,
            source,
            Arc::clone(self.cache),
        ));
        let references = tree.references()?;
        Ok(Arc::new(LiveTree::new(
            tree,
            entry,
            references,
            Arc::clone(self.garbage),
            self.pins,
        )))
    }
}

/// Destination of a new tree's blocks: newly allocated segments.
struct DeviceSink(Arc<NewSegments>);

impl BlockSink for DeviceSink {
    fn append(&mut self, blocks: &mut Vec<u8>) -> Result<(), LsmError> {
        let segment = self.0.device.allocate();
        let fresh = None;
        self.0.written().push(NewSegment { segment, fresh });
        self.0.device.write(segment, 0, blocks)?;
        if let Some(budget) = &self.0.budget
            && let Some(new) = self.0.written().last_mut()
        {
            new.fresh = budget.keep(blocks);
        }
        Ok(())
    }
}

/// Source of a tree's blocks: its segments on the device.
pub(crate) struct Source {
    pub(crate) device: Arc<Device>,
    pub(crate) id: TreeId,
    pub(crate) segments: Vec<SegmentId>,
}

impl BlockSource for Source {
    fn read(&self, first: BlockNumber, buffer: &mut [u8]) -> Result<(), LsmError> {
        let Some(segment) = self.segments.get(first.segment_index()) else {
            return Err(LsmError::CorruptTree {
                tree: self.id,
                block: first.0,
                how: "the tree does not have this block".to_owned(),
            });
        };
        self.device.read(*segment, first.offset(), buffer)
    }
}
