//! A frozen L0 becomes a tree of level 1 (LC4); and how any tree is written and opened (LC3).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Core;
use crate::cache::BlockCache;
use crate::device::Device;
use crate::error::LsmError;
use crate::manifest::{Change, TreeEntry};
use crate::memtable::MemtableCursor;
use crate::place::{BlockNumber, LogPosition, SegmentId, TreeId};
use crate::tree::{BlockSink, BlockSource, EntrySource, Tree, TreeBuilder};
use crate::version::{Garbage, LiveTree, LogPins};

impl Core {
    /// Flushes the oldest frozen L0; false: there is none.
    ///
    /// # Errors
    /// Nothing was changed, or nobody knows and the engine has stopped.
    pub(super) fn flush(&self) -> Result<bool, LsmError> {
        let version = self.version();
        let Some(memtable) = version.frozen.last() else {
            return Ok(false);
        };
        let end = memtable.end().expect("what is frozen has an end");
        self.log.sync_to(end)?;
        let mut entries = MemtableCursor::new(memtable, LogPosition::MAX);
        entries.seek_first();
        let tree = self.write_tree(&mut entries, memtable.entry_count() as u64)?;
        let mut changes = vec![Change::ReadFrom(end)];
        changes.extend(tree.iter().map(|tree| Change::AddTree {
            level: 1,
            tree: tree.entry().clone(),
        }));
        self.commit(&changes)?;
        self.change_version(|version| {
            version.frozen.pop();
            if let Some(tree) = tree {
                version.add_tree(1, tree);
            }
        });
        self.pins.note_change();
        Ok(true)
    }

    /// Writes entries as a tree, and syncs it; `None`: there were none. No edit names it yet: if
    /// none will, its segments are lost until the directory is opened again.
    pub(super) fn write_tree(
        &self,
        entries: &mut dyn EntrySource,
        entry_count_max: u64,
    ) -> Result<Option<Arc<LiveTree>>, LsmError> {
        let id = TreeId(self.next_tree.fetch_add(1, Ordering::Relaxed));
        let mut sink = Sink {
            device: &self.trees,
            segments: Vec::new(),
        };
        let written = self.fill_tree((id, entry_count_max), entries, &mut sink);
        if written.is_err() {
            self.trees.give_back(std::mem::take(&mut sink.segments));
        }
        written
    }

    fn fill_tree(
        &self,
        (id, entry_count_max): (TreeId, u64),
        entries: &mut dyn EntrySource,
        sink: &mut Sink<'_>,
    ) -> Result<Option<Arc<LiveTree>>, LsmError> {
        let mut builder = TreeBuilder::new(id, entry_count_max, &mut *sink);
        while let Some(entry) = entries.entry() {
            builder.add(entry, entries.record_size_bytes(), &self.log)?;
            entries.advance()?;
        }
        let Some(shape) = builder.finish()? else {
            return Ok(None);
        };
        // Another tree may be on its way at the same time, and no later sync makes it durable.
        self.trees.sync().inspect_err(|error| self.stop(error))?;
        let place = TreePlace {
            device: &self.trees,
            cache: &self.cache,
            garbage: &self.garbage,
            pins: &self.pins,
        };
        let segments = sink.segments.clone();
        let entry = TreeEntry {
            id,
            segments,
            shape,
        };
        place.open(entry).map(Some)
    }
}

/// Where a tree is opened.
pub(super) struct TreePlace<'e> {
    pub(super) device: &'e Arc<Device>,
    pub(super) cache: &'e Arc<BlockCache>,
    pub(super) garbage: &'e Arc<Garbage>,
    pub(super) pins: &'e Arc<LogPins>,
}

impl TreePlace<'_> {
    /// Opens a tree of which the manifest says this, or will. Reads its references.
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
        let owners = (Arc::clone(self.garbage), self.pins);
        Ok(Arc::new(LiveTree::new((tree, entry), references, owners)))
    }
}

/// Where a tree's blocks go: into segments that nobody uses.
struct Sink<'d> {
    device: &'d Device,
    segments: Vec<SegmentId>,
}

impl BlockSink for Sink<'_> {
    fn append(&mut self, blocks: &[u8]) -> Result<(), LsmError> {
        let segment = self.device.allocate();
        self.segments.push(segment);
        self.device.write(segment, 0, blocks)
    }
}

/// Where a tree's blocks are.
struct Source {
    device: Arc<Device>,
    id: TreeId,
    segments: Vec<SegmentId>,
}

impl BlockSource for Source {
    fn read(&self, first: BlockNumber, buffer: &mut [u8]) -> Result<(), LsmError> {
        let Some(segment) = self.segments.get(first.segment_index()) else {
            return Err(LsmError::DamagedTree {
                tree: self.id,
                block: first.0,
                how: "the tree does not have it".to_owned(),
            });
        };
        self.device.read(*segment, first.offset(), buffer)
    }
}
