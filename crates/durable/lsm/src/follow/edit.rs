//! Interface of a follower, and the edits announced to it.

use std::fmt;
use std::sync::Arc;

use crate::device::Device;
use crate::engine::tree_size_bytes;
use crate::error::LsmError;
use crate::follow::FreshBlocks;
use crate::place::{
    BLOCK_SIZE_BYTES, BlockNumber, LogNumber, LogPosition, SEGMENT_SIZE_BLOCKS, TreeId,
};
use crate::tree::{BlockSource, TreeShape, check_blocks};
use crate::version::LiveTree;

/// Follower of an engine. Only threads that do background work call it; reads and writes never do.
pub trait Follow: fmt::Debug + Send + Sync {
    /// Waits until the follower has the log up to a position. An edit that names data with
    /// references up to there is made only afterwards.
    ///
    /// # Errors
    /// [`LsmError::NotFollowed`]: the edit is not made, and the step can be retried.
    fn reach(&self, end: LogPosition) -> Result<(), LsmError>;

    /// Returns the first segment of the log that the follower still needs; the engine keeps it and
    /// later ones.
    fn needed_from(&self) -> LogNumber;

    /// Returns true if the follower will read the trees of the next edits. Their blocks are then
    /// kept in memory, within a limit.
    fn takes_trees(&self) -> bool;

    /// Announces an edit that is in force. Calls are in the order of edits, and must return at
    /// once.
    fn edited(&self, edit: Edit);
}

/// Edit of an engine's manifest, without changes that concern only its own devices.
#[derive(Clone, Debug, Default)]
pub struct Edit {
    /// Log position before which all records are that the added tree refers to.
    pub log_end: LogPosition,
    /// New start of recovery, if it changes.
    pub read_from: Option<LogPosition>,
    /// Ids of removed trees.
    pub removed: Vec<TreeId>,
    /// Level and tree, which is the newest of that level; `None` if no tree is added.
    pub added: Option<(usize, SharedTree)>,
    /// Log segments to which nothing refers any more.
    pub freed: Vec<LogNumber>,
}

impl Edit {
    pub(crate) fn changes_trees(&self) -> bool {
        !self.removed.is_empty() || self.added.is_some()
    }

    /// Returns the size of the added tree in bytes, 0 without one.
    pub fn size_bytes(&self) -> u64 {
        let added = self.added.as_ref();
        added.map_or(0, |(_, tree)| tree_size_bytes(tree.shape().block_count))
    }
}

/// Tree of an engine, whose blocks stay while this handle exists.
#[derive(Clone)]
pub struct SharedTree {
    live: Arc<LiveTree>,
    device: Arc<Device>,
    /// Blocks of its first segments that are kept in memory.
    fresh: Arc<[Option<FreshBlocks>]>,
}

impl fmt::Debug for SharedTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.live.fmt(f)
    }
}

impl SharedTree {
    pub(crate) fn new(
        live: Arc<LiveTree>,
        device: Arc<Device>,
        fresh: Vec<Option<FreshBlocks>>,
    ) -> Self {
        Self {
            live,
            device,
            fresh: fresh.into(),
        }
    }

    pub(crate) const fn live(&self) -> &Arc<LiveTree> {
        &self.live
    }

    #[cfg(test)]
    pub(crate) const fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Returns the id of the tree.
    pub fn id(&self) -> TreeId {
        self.live.entry().id
    }

    /// Returns the description that is needed to read the tree.
    pub fn shape(&self) -> TreeShape {
        self.live.entry().shape
    }

    /// Returns the number of the tree's segments.
    pub fn segment_count(&self) -> usize {
        self.live.entry().segments.len()
    }

    /// Returns the blocks of one of its segments. Costs one read of the device into the buffer,
    /// past the cache, or none if the blocks are kept in memory.
    ///
    /// # Errors
    /// [`LsmError::CorruptTree`]; or the blocks cannot be read, or there is no such segment.
    pub fn read_segment<'b>(
        &'b self,
        index: usize,
        buffer: &'b mut Vec<u8>,
    ) -> Result<&'b [u8], LsmError> {
        if let Some(Some(fresh)) = self.fresh.get(index) {
            return Ok(fresh.blocks());
        }
        let entry = self.live.entry();
        let first = index as u64 * u64::from(SEGMENT_SIZE_BLOCKS);
        let left = u64::from(entry.shape.block_count).saturating_sub(first);
        let count = left.min(u64::from(SEGMENT_SIZE_BLOCKS)) as usize;
        buffer.resize(count * BLOCK_SIZE_BYTES, 0);
        let source = crate::engine::Source {
            device: Arc::clone(&self.device),
            id: entry.id,
            segments: entry.segments.clone(),
        };
        source.read(BlockNumber(first as u32), buffer)?;
        // Corruption here must not look like a mistake of the receiver.
        check_blocks(entry.id, BlockNumber(first as u32), buffer)?;
        Ok(buffer)
    }
}
