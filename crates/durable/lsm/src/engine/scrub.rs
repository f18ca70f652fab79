//! Scrubbing an engine.

use std::sync::{Arc, PoisonError};

use super::{Core, Engine};
use crate::device::Device;
use crate::error::LsmError;
use crate::log::ValueLog;
use crate::manifest::Manifest;
use crate::scrub::{
    OpenedTrees, PieceName, Scrub, ScrubView, Scrubbed, VerifiedPiece, Whole, corruption_place,
};
use crate::version::LiveTree;

impl Engine {
    /// Reads at most the next 2 MiB of the devices' data, past the cache, and verifies all
    /// checksums in it: one log segment or one tree segment.
    ///
    /// Writes, reads and background work continue meanwhile; no lock is held during the read. Any
    /// thread may call it, with this engine's [`Scrub`].
    ///
    /// # Errors
    /// - [`LsmError::CorruptLog`], [`LsmError::CorruptTree`]: the data is corrupted. The next step
    ///   continues behind it.
    /// - [`LsmError::Storage`]: files cannot be read. The next step continues behind the place.
    /// - [`LsmError::Stopped`]: nothing was checked, since a failed write has left the device in an
    ///   unknown state.
    pub fn scrub(&self, scrub: &mut Scrub) -> Result<Scrubbed, LsmError> {
        scrub.step(&*self.core)
    }

    /// Reads all log data that is currently needed and verifies its checksums. A copy of the log
    /// taken now has no corruption except the returned errors: the first [`LsmError::CorruptLog`]
    /// of each segment. Each read has 2 MiB; writes continue meanwhile.
    ///
    /// # Errors
    /// Files cannot be read, or [`LsmError::Stopped`] as for [`scrub`](Self::scrub).
    pub fn log_corruption(&self) -> Result<Vec<LsmError>, LsmError> {
        Scrub::log_corruption(&*self.core)
    }

    /// Returns true if the engine still needs a piece that a scrub step has verified.
    ///
    /// Waits for an edit in progress. So when it returns, every edit in force has been announced to
    /// the follower ([`Follow::edited`](crate::follow::Follow::edited)). If it returns true, a
    /// follower that has made all announced edits has the piece.
    ///
    /// # Errors
    /// [`LsmError::Stopped`].
    pub fn needs_piece(&self, piece: &VerifiedPiece) -> Result<bool, LsmError> {
        let core = &*self.core;
        let editing = core.editing.lock();
        let _editing = editing.unwrap_or_else(PoisonError::into_inner);
        let seen = core.current_view(&mut OpenedTrees::default())?;
        Ok(match piece.name {
            PieceName::Log { number } => core.log.segments().has(number) && seen.needs(piece.head),
            PieceName::Tree { id, .. } => seen.trees.iter().any(|it| it.entry().id == id),
        })
    }

    /// Returns the file and byte of corruption that the engine has reported, in words: the
    /// beginning of the record, or the block. Returns `None` if the error is not corruption, or its
    /// place is no longer in use.
    pub fn corruption_place(&self, error: &LsmError) -> Option<String> {
        corruption_place(&*self.core, error)
    }

    /// Returns the current trees.
    pub(crate) fn live_trees(&self) -> Vec<Arc<LiveTree>> {
        self.core.version().trees().cloned().collect()
    }

    /// Returns the device of the trees.
    pub(crate) fn tree_device(&self) -> &Device {
        &self.core.trees
    }
}

impl Whole for Core {
    fn log(&self) -> &ValueLog {
        &self.log
    }

    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn tree_device(&self) -> &Device {
        &self.trees
    }

    fn current_view(&self, _opened: &mut OpenedTrees) -> Result<ScrubView, LsmError> {
        self.check()?;
        // The start of recovery is read first. If a flush comes in between, its tree covers the log
        // before it.
        let read_from = self.manifest.read_from();
        let trees = self.version().trees().cloned().collect();
        Ok(ScrubView {
            read_from,
            log_end: self.log.written_to()?,
            may_be_incomplete: false,
            trees,
        })
    }
}
