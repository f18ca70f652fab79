//! Scrubbing a follower (SC1 to SC6).

use super::follower::{Follower, Index};
use crate::device::Device;
use crate::error::LsmError;
use crate::log::ValueLog;
use crate::manifest::Manifest;
use crate::place::LogNumber;
use crate::scrub::{OpenedTrees, Scrub, Scrubbed, Seen, Whole, place_of_damage};

impl Follower {
    /// As [`Engine::scrub`](crate::Engine::scrub), for a directory that follows, of either kind.
    /// Opens the trees that are new, which reads their references.
    ///
    /// # Errors
    /// [`LsmError::DamagedLog`], [`LsmError::DamagedTree`]: it is not what was written there. Files
    /// cannot be read. The next step goes on behind it.
    pub fn scrub(&self, scrub: &mut Scrub) -> Result<Scrubbed, LsmError> {
        scrub.step(self)
    }

    /// As [`Engine::place_of_damage`](crate::Engine::place_of_damage).
    pub fn place_of_damage(&self, error: &LsmError) -> Option<String> {
        place_of_damage(self, error)
    }

    /// Whether its log has a segment: none that it never had, or that was collected. Costs a lock.
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

    fn see(&self, opened: &mut OpenedTrees) -> Result<Seen, LsmError> {
        let read_from = self.manifest.read_from();
        let trees = match &self.index {
            Index::Sent { trees, .. } => opened.named_by(&self.manifest, &trees.device)?,
            Index::Built { engine } => engine.live_trees(),
        };
        Ok(Seen {
            read_from,
            log_end: if self.knows_end {
                self.written_to()
            } else {
                read_from
            },
            can_go_on: true,
            trees,
        })
    }
}
