//! Freeing trees and log segments that are no longer needed.

use super::Core;
use crate::error::LsmError;
use crate::follow::Edit;
use crate::place::LogNumber;

impl Core {
    /// Frees trees and log segments; returns false if there was nothing to free.
    ///
    /// # Errors
    /// The manifest cannot be written: the disk is full, or the engine has stopped.
    pub(super) fn reclaim(&self) -> Result<bool, LsmError> {
        let trees = self.garbage.take();
        let has_trees = !trees.is_empty();
        for (id, segments) in trees {
            self.cache.forget(id);
            self.trees.give_back(segments);
        }
        let has_log = self.pins.take_change() && self.reclaim_log()?;
        Ok(has_trees || has_log)
    }

    /// Frees log segments to which no tree or snapshot refers.
    ///
    /// No later tree will refer to them, either: a new tree refers to segments that another holder
    /// keeps, or to segments at or behind the start of recovery.
    fn reclaim_log(&self) -> Result<bool, LsmError> {
        let before = self.manifest.not_read_again();
        let mut numbers: Vec<LogNumber> = self.pins.unpinned(before.into_iter());
        let needed_from = self.follow.get().map(|it| it.needed_from());
        if let Some(needed_from) = needed_from
            && numbers.iter().any(|number| *number >= needed_from)
        {
            // The follower has not read these segments yet. Nothing notifies the engine when it
            // has.
            numbers.retain(|number| *number < needed_from);
            self.pins.note_change();
        }
        if numbers.is_empty() {
            return Ok(false);
        }
        let edit = Edit {
            freed: numbers.clone(),
            ..Edit::default()
        };
        // The disk may be full at the moment, so the segments are kept for the next try.
        self.edit(edit, |_| {})
            .inspect_err(|_| self.pins.note_change())?;
        self.log.segments().give_back(&numbers);
        Ok(true)
    }
}
