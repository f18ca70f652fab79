//! What nobody needs any more becomes free (LC3, LC5).

use super::Core;
use crate::error::LsmError;
use crate::follow::Edit;
use crate::place::LogNumber;

impl Core {
    /// Frees trees and log segments; false: there was nothing to free.
    ///
    /// # Errors
    /// The manifest cannot be written: there is no room, or the engine has stopped.
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

    /// LC5: no tree or snapshot leads into these segments, and none will: what is written anew
    /// leads where something else leads that somebody has, or behind the place from which the log
    /// is read.
    fn reclaim_log(&self) -> Result<bool, LsmError> {
        let before = self.manifest.not_read_again();
        let mut numbers: Vec<LogNumber> = self.pins.unpinned(before.into_iter());
        let needed_from = self.follow.get().map(|it| it.needed_from());
        if let Some(needed_from) = needed_from
            && numbers.iter().any(|number| *number >= needed_from)
        {
            // FO2: who follows has not read them yet, and nothing is told when it has.
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
        // There may be no room for the edit now.
        self.edit(edit, |_| {})
            .inspect_err(|_| self.pins.note_change())?;
        self.log.segments().give_back(&numbers);
        Ok(true)
    }
}
