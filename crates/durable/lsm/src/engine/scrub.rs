//! Scrubbing an engine (SC1 to SC6).

use std::sync::{Arc, PoisonError};

use super::{Core, Engine};
use crate::device::Device;
use crate::error::LsmError;
use crate::log::ValueLog;
use crate::manifest::Manifest;
use crate::scrub::{
    OpenedTrees, PieceName, Scrub, Scrubbed, Seen, VerifiedPiece, Whole, place_of_damage,
};
use crate::version::LiveTree;

impl Engine {
    /// Reads the next 2 MiB at the most of what there is on its devices, past the cache, and checks
    /// all sums in it: a log segment, or one of a tree. Writes, reads and background work go on
    /// meanwhile; no lock is held while it reads. Any thread may call it, with a [`Scrub`] that is
    /// this engine's.
    ///
    /// # Errors
    /// [`LsmError::DamagedLog`], [`LsmError::DamagedTree`]: it is not what was written there. Files
    /// cannot be read. The next step goes on behind it. [`LsmError::Stopped`]: nothing was looked
    /// at, since what was being written when writing failed is not known.
    pub fn scrub(&self, scrub: &mut Scrub) -> Result<Scrubbed, LsmError> {
        scrub.step(&*self.core)
    }

    /// Reads all of the log that is needed now, and checks the sums in it: who copies it as it is
    /// copies no damage but this. The first [`LsmError::DamagedLog`] of each segment. 2 MiB a read;
    /// writes go on meanwhile.
    ///
    /// # Errors
    /// Files cannot be read. [`LsmError::Stopped`], as of [`scrub`](Self::scrub).
    pub fn damage_of_log(&self) -> Result<Vec<LsmError>, LsmError> {
        Scrub::damage_of_log(&*self.core)
    }

    /// Whether the engine still needs a piece that a scrub step has verified. Waits for an edit
    /// that is being made: when this returns, every edit that is in force has been announced to
    /// whoever follows ([`Follow::edited`](crate::follow::Follow::edited)). So a follower that has
    /// made all announced edits has the piece if this returns true.
    ///
    /// # Errors
    /// [`LsmError::Stopped`].
    pub fn needs_piece(&self, piece: &VerifiedPiece) -> Result<bool, LsmError> {
        let core = &*self.core;
        let editing = core.editing.lock();
        let _editing = editing.unwrap_or_else(PoisonError::into_inner);
        let seen = core.see(&mut OpenedTrees::default())?;
        Ok(match piece.name {
            PieceName::Log { number } => core.log.segments().has(number) && seen.needs(piece.head),
            PieceName::Tree { id, .. } => seen.trees.iter().any(|it| it.entry().id == id),
        })
    }

    /// Which byte of which file a damage that it has told is at, in words: where the record begins,
    /// or the block. `None`: the error is none of damage, or what it is about is not there any
    /// more.
    pub fn place_of_damage(&self, error: &LsmError) -> Option<String> {
        place_of_damage(&*self.core, error)
    }

    /// The trees that there are now.
    pub(crate) fn live_trees(&self) -> Vec<Arc<LiveTree>> {
        self.core.version().trees().cloned().collect()
    }

    /// Where its trees are.
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

    fn see(&self, _opened: &mut OpenedTrees) -> Result<Seen, LsmError> {
        self.check()?;
        // In this order: a flush that comes in between is seen by its tree.
        let read_from = self.manifest.read_from();
        let trees = self.version().trees().cloned().collect();
        Ok(Seen {
            read_from,
            log_end: self.log.written_to()?,
            can_go_on: false,
            trees,
        })
    }
}
