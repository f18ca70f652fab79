//! Who follows an engine, and what is told to it (FO1 to FO3, FO10).

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

/// Who follows an engine. Called by the threads that do its background work, never by who writes
/// or reads.
pub trait Follow: fmt::Debug + Send + Sync {
    /// FO2: returns when all who follow have the log up to a place. An edit that names what leads
    /// there comes only then.
    ///
    /// # Errors
    /// [`LsmError::NotFollowed`]: the edit is not made, and the step can be tried again.
    fn reach(&self, end: LogPosition) -> Result<(), LsmError>;

    /// FO2: the log is still read from this segment on; it stays.
    fn needed_from(&self) -> LogNumber;

    /// FO10: whether somebody reads the trees of the edits that are told next. Their blocks are
    /// kept for that, as far as there is room.
    fn takes_trees(&self) -> bool;

    /// FO3: an edit is in force. Called in the order of edits, and returns at once.
    fn edited(&self, edit: Edit);
}

/// An edit of an engine's manifest, but for those that are about its own devices only.
#[derive(Clone, Debug, Default)]
pub struct Edit {
    /// What it adds leads into the log up to there.
    pub log_end: LogPosition,
    /// LC4: the log is read again from there.
    pub read_from: Option<LogPosition>,
    /// These trees are gone.
    pub removed: Vec<TreeId>,
    /// This one is the newest of a level.
    pub added: Option<(usize, SharedTree)>,
    /// LC5: nothing leads into these log segments any more.
    pub freed: Vec<LogNumber>,
}

impl Edit {
    pub(crate) fn changes_trees(&self) -> bool {
        !self.removed.is_empty() || self.added.is_some()
    }

    /// Bytes of the tree that it adds.
    pub fn size_bytes(&self) -> u64 {
        let added = self.added.as_ref();
        added.map_or(0, |(_, tree)| tree_size_bytes(tree.shape().block_count))
    }
}

/// A tree of an engine, whose blocks stay as long as somebody has this.
#[derive(Clone)]
pub struct SharedTree {
    live: Arc<LiveTree>,
    device: Arc<Device>,
    /// FO10: what is kept of its segments; those behind are not.
    fresh: Arc<[Option<FreshBlocks>]>,
}

impl fmt::Debug for SharedTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.live.fmt(f)
    }
}

impl SharedTree {
    pub(crate) fn new(
        (live, device): (Arc<LiveTree>, Arc<Device>),
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

    /// Its number.
    pub fn id(&self) -> TreeId {
        self.live.entry().id
    }

    /// What must be known to read it.
    pub fn shape(&self) -> TreeShape {
        self.live.entry().shape
    }

    /// Segments that it takes.
    pub fn segment_count(&self) -> usize {
        self.live.entry().segments.len()
    }

    /// The blocks of one of its segments. One read of the device, past the cache, into the buffer;
    /// or none, if they were kept (FO10).
    ///
    /// # Errors
    /// [`LsmError::DamagedTree`]; they cannot be read, or there is no such segment.
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
        // What is damaged here is no reason to refuse whoever it is brought to.
        check_blocks(entry.id, BlockNumber(first as u32), buffer)?;
        Ok(buffer)
    }
}
