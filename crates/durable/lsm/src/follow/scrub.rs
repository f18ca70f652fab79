//! Scrubbing a follower.

use serde::{Deserialize, Serialize};

use super::follower::{Follower, Index};
use crate::device::Device;
use crate::error::LsmError;
use crate::log::ValueLog;
use crate::manifest::{Manifest, TreeEntry};
use crate::place::{
    BLOCK_SIZE_BYTES, LogNumber, SEGMENT_SIZE_BLOCKS, SEGMENT_SIZE_BYTES, SegmentId, TreeId,
};
use crate::scrub::{OpenedTrees, PieceName, Scrub, ScrubView, Scrubbed, Whole, corruption_place};
use crate::written::WrittenSum;

/// State of a piece on a follower's disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OwnPiece {
    /// Length and checksum of the requested number of bytes, or of the whole tree segment if its
    /// length differs.
    Found(WrittenSum),
    /// The manifest does not name the piece.
    Absent,
    /// The segment is not closed yet.
    NotYet,
}

impl Follower {
    /// Does a scrub step like [`Engine::scrub`](crate::Engine::scrub), for a follower that receives
    /// or builds its trees. Opens new trees, which reads their references.
    ///
    /// # Errors
    /// - [`LsmError::CorruptLog`], [`LsmError::CorruptTree`]: the data is corrupted. The next step
    ///   continues behind it.
    /// - [`LsmError::Storage`]: files cannot be read. The next step continues behind the place.
    pub fn scrub(&self, scrub: &mut Scrub) -> Result<Scrubbed, LsmError> {
        scrub.step(self)
    }

    /// Returns the place of corruption, like
    /// [`Engine::corruption_place`](crate::Engine::corruption_place).
    pub fn corruption_place(&self, error: &LsmError) -> Option<String> {
        corruption_place(self, error)
    }

    /// Reads the first `size_bytes` bytes of a piece from the disk, past the cache, and returns
    /// their checksum. Does not verify them.
    ///
    /// # Errors
    /// Files cannot be read. [`LsmError::CannotFollow`]: no piece has so many bytes.
    pub fn own_piece(&self, name: PieceName, size_bytes: u32) -> Result<OwnPiece, LsmError> {
        if u64::from(size_bytes) > SEGMENT_SIZE_BYTES {
            let how = format!("{size_bytes} bytes exceed the size of a segment");
            return Err(LsmError::CannotFollow { how });
        }
        let (device, segment, size_bytes) = match name {
            PieceName::Log { number } => {
                if number >= self.written_to().number() {
                    return Ok(OwnPiece::NotYet);
                }
                let segments = self.log.segments();
                if !segments.has(number) {
                    return Ok(OwnPiece::Absent);
                }
                (&segments.device, segments.place(number)?, size_bytes)
            }
            PieceName::Tree { id, index } => match self.tree_segment(id, index) {
                Some((segment, own)) => (self.tree_device(), segment, own),
                None => return Ok(OwnPiece::Absent),
            },
        };
        let mut bytes = vec![0; size_bytes as usize];
        device.read(segment, 0, &mut bytes)?;
        Ok(OwnPiece::Found(WrittenSum::of(&bytes)))
    }

    /// Returns the place of a tree's segment, and its length in bytes.
    fn tree_segment(&self, id: TreeId, index: usize) -> Option<(SegmentId, u32)> {
        self.manifest.with_state(|state| {
            let mut trees = state.levels.iter().flatten();
            let tree: &TreeEntry = trees.find(|it| it.id == id)?;
            let segment = *tree.segments.get(index)?;
            let before = u32::try_from(index)
                .ok()?
                .checked_mul(SEGMENT_SIZE_BLOCKS)?;
            let left = tree.shape.block_count.saturating_sub(before);
            let count = left.min(SEGMENT_SIZE_BLOCKS);
            Some((segment, count * BLOCK_SIZE_BYTES as u32))
        })
    }

    /// Returns true if the log has a segment: it was received, and not collected. Costs a lock.
    pub fn has_log_segment(&self, number: LogNumber) -> bool {
        self.log.segments().has(number)
    }
}

impl Whole for Follower {
    fn log(&self) -> &ValueLog {
        &self.log
    }

    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn tree_device(&self) -> &Device {
        match &self.index {
            Index::Sent { trees, .. } => &trees.device,
            Index::Built { engine } => engine.tree_device(),
        }
    }

    fn current_view(&self, opened: &mut OpenedTrees) -> Result<ScrubView, LsmError> {
        let read_from = self.manifest.read_from();
        let trees = match &self.index {
            Index::Sent { trees, .. } => opened.named_by(&self.manifest, &trees.device)?,
            Index::Built { engine } => engine.live_trees(),
        };
        Ok(ScrubView {
            read_from,
            log_end: if self.knows_end {
                self.written_to()
            } else {
                read_from
            },
            may_be_incomplete: true,
            trees,
        })
    }
}
