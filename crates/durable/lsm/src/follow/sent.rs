//! Trees received from the followed engine, as blocks.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::fault::WriteFault;
use super::follower::InstalledEdit;
use crate::cache::BlockCache;
use crate::device::Device;
use crate::engine::Source;
use crate::error::LsmError;
use crate::manifest::{Change, ManifestState, TreeEntry};
use crate::place::{
    BLOCK_SIZE_BYTES, BlockNumber, SEGMENT_SIZE_BLOCKS, SEGMENT_SIZE_BYTES, SegmentId, TreeId,
};
use crate::tree::{Tree, TreeShape, check_blocks};
use crate::written::WrittenSum;

/// Device of trees, and trees that were received in part.
#[derive(Debug)]
pub(super) struct SentTrees {
    pub(super) device: Arc<Device>,
    /// Segments of trees that no edit names yet.
    staged: BTreeMap<TreeId, Vec<SegmentId>>,
    write_fault: WriteFault,
}

impl SentTrees {
    pub(super) fn new(device: Arc<Device>, write_fault: WriteFault) -> Self {
        Self {
            device,
            staged: BTreeMap::new(),
            write_fault,
        }
    }

    /// Writes the next segment of a tree to this device; returns length and checksum of what was
    /// written. Its first segment starts the tree over, and drops what was received of it before.
    pub(super) fn stage(
        &mut self,
        id: TreeId,
        index: usize,
        blocks: &[u8],
    ) -> Result<WrittenSum, LsmError> {
        let first = self.check_next(id, index, blocks.len())?;
        check_blocks(id, first, blocks)?;
        if index == 0 {
            self.forget(id);
        }
        let segment = self.device.allocate();
        self.staged.entry(id).or_default().push(segment);
        let blocks = self.write_fault.of_tree(blocks);
        self.device.write(segment, 0, &blocks)?;
        Ok(WrittenSum::of(&blocks))
    }

    /// Checks that a segment of a tree can be received now; returns the number of its first block.
    pub(super) fn check_next(
        &self,
        id: TreeId,
        index: usize,
        size_bytes: usize,
    ) -> Result<BlockNumber, LsmError> {
        let there = self.staged.get(&id).map_or(0, Vec::len);
        let is_whole = size_bytes.is_multiple_of(BLOCK_SIZE_BYTES) && size_bytes > 0;
        if !is_whole || size_bytes as u64 > SEGMENT_SIZE_BYTES || (index > 0 && index != there) {
            let id = id.0;
            let how = format!(
                "invalid segment {index} of tree {id}: {size_bytes} bytes, after {there} segments"
            );
            return Err(LsmError::CannotFollow { how });
        }
        let first = index as u64 * u64::from(SEGMENT_SIZE_BLOCKS);
        let first = u32::try_from(first).map_err(|_| LsmError::CannotFollow {
            how: format!("tree {} has too many segments", id.0),
        })?;
        Ok(BlockNumber(first))
    }

    /// Uses a segment of the previous copy as the next segment of a tree, after
    /// [`check_next`](Self::check_next). Returns false if this copy uses it already.
    pub(super) fn take(&mut self, id: TreeId, index: usize, segment: SegmentId) -> bool {
        if index == 0 {
            self.forget(id);
        }
        let is_taken = self.device.adopt_segment(segment);
        if is_taken {
            self.staged.entry(id).or_default().push(segment);
        }
        is_taken
    }

    /// Frees the received segments of a tree.
    fn forget(&mut self, id: TreeId) {
        if let Some(segments) = self.staged.remove(&id) {
            self.device.give_back(segments);
        }
    }

    /// Returns the manifest entry of a completely received tree. Reads its references.
    pub(super) fn entry(
        &self,
        id: TreeId,
        shape: TreeShape,
        is_there: impl Fn(&crate::place::LogNumber) -> bool,
    ) -> Result<TreeEntry, LsmError> {
        let cannot = |how: &str| LsmError::CannotFollow {
            how: format!("tree {}: {how}", id.0),
        };
        let segments = self.staged.get(&id);
        let segments = segments.ok_or_else(|| cannot("no segment of it was received"))?;
        if shape.block_count.div_ceil(SEGMENT_SIZE_BLOCKS) as usize != segments.len() {
            return Err(cannot("wrong number of segments received"));
        }
        shape.check().map_err(&cannot)?;
        let source = Arc::new(Source {
            device: Arc::clone(&self.device),
            id,
            segments: segments.clone(),
        });
        let tree = Tree::new(id, shape, source, Arc::new(BlockCache::new(0)));
        if let Some(lost) = tree.references()?.needed().find(|it| !is_there(it)) {
            let how = format!("it needs log segment {}, which does not exist", lost.0);
            return Err(cannot(&how));
        }
        Ok(TreeEntry {
            id,
            segments: segments.clone(),
            shape,
        })
    }

    /// Records that an edit in force names the tree.
    pub(super) fn named(&mut self, id: TreeId) {
        self.staged.remove(&id);
    }

    /// Returns the changes of an edit for this directory's manifest, and the segments of trees that
    /// become free when it is in force.
    pub(super) fn changes(
        &self,
        edit: &InstalledEdit,
        state: &ManifestState,
    ) -> Result<(Vec<Change>, Vec<SegmentId>), LsmError> {
        let mut changes = Vec::new();
        changes.extend(edit.read_from.map(Change::ReadFrom));
        let mut free = Vec::new();
        if !edit.removed.is_empty() {
            let trees = state.levels.iter().flatten();
            let removed = trees.filter(|tree| edit.removed.contains(&tree.id));
            free.extend(removed.flat_map(|tree| tree.segments.iter().copied()));
            let ids = edit.removed.clone();
            changes.push(Change::RemoveTrees { ids });
        }
        if let Some((level, id, shape)) = edit.added {
            let tree = self.entry(id, shape, |number| state.log.contains_key(number))?;
            changes.push(Change::AddTree { level, tree });
        }
        // Segments that were already dead when the base was taken are not here.
        let freed = edit.freed.iter().copied();
        let numbers: Vec<_> = freed.filter(|it| state.log.contains_key(it)).collect();
        if !numbers.is_empty() {
            changes.push(Change::FreeLog { numbers });
        }
        Ok((changes, free))
    }
}
