//! The default search layer: runs, models and residual bytes.
//!
//! Leaves of a run are adjacent, so the layer needs no leaf table. A byte per leaf records at which
//! predicted position the leaf begins, so the layer names exactly one leaf. Leaves that splits add
//! later are kept by lower fence as the session meets them.

use std::sync::Arc;

use farleaf_base::RemoteAddr;

use crate::directory::{Directory, Prediction};
use crate::hint::{Announcement, Hint, SearchLayer};
use crate::synonyms::Synonyms;

/// Number of keys that are located together: enough to keep the processor busy during loads from
/// memory.
pub const GROUP_COUNT: usize = 16;

/// Learned layer of one session on one table.
#[derive(Debug)]
pub struct LearnedLayer {
    directory: Arc<Directory>,
    synonyms: Synonyms,
    /// Number of announcements read, per model; empty until the first is read.
    announced: Vec<u32>,
}

impl LearnedLayer {
    /// Creates a layer over a directory without a leaf table, which the process shares.
    pub fn new(directory: Arc<Directory>) -> Self {
        assert!(!directory.has_leaf_table(), "residuals name leaves of runs");
        Self {
            directory,
            synonyms: Synonyms::default(),
            announced: Vec::new(),
        }
    }

    /// Replaces the directory by a newer one. Keeps what was learned of models that stayed.
    pub fn replace_directory(&mut self, directory: Arc<Directory>) {
        let (replaced, models) = self.directory.replaced_by(&directory);
        self.synonyms.replace(&replaced, directory.leaf_count());
        if !self.announced.is_empty() {
            let unread = vec![0; models.after.len()];
            self.announced.splice(models.before, unread);
        }
        self.directory = directory;
    }

    /// Does [`locate`](SearchLayer::locate), and first calls `near` with a leaf close to the
    /// result.
    #[inline]
    pub fn locate_early(&self, key: u64, near: impl FnOnce(RemoteAddr)) -> Hint {
        let prediction = self.directory.predict(key);
        near(self.directory.near(prediction));
        let trained = self.directory.resolve(prediction);
        self.synonyms.find(trained, key).unwrap_or(trained)
    }

    /// Does [`locate`](SearchLayer::locate) for up to [`GROUP_COUNT`] keys, in steps that the
    /// processor can overlap. Calls `found` with each leaf while the next ones are located.
    #[inline]
    pub fn locate_group(
        &self,
        keys: &[u64],
        hints: &mut [Hint; GROUP_COUNT],
        found: impl Fn(RemoteAddr),
    ) {
        let mut predictions = [Prediction::default(); GROUP_COUNT];
        for (prediction, key) in predictions.iter_mut().zip(keys) {
            *prediction = self.directory.predict(*key);
        }
        let predictions = &mut predictions[..keys.len()];
        self.directory.refine(predictions);
        for ((prediction, key), hint) in predictions.iter().zip(keys).zip(hints) {
            let trained = self.directory.resolve(*prediction);
            *hint = self.synonyms.find(trained, *key).unwrap_or(trained);
            found(hint.addr);
        }
    }

    /// Returns the directory that the layer uses.
    pub fn directory(&self) -> &Arc<Directory> {
        &self.directory
    }
}

impl SearchLayer for LearnedLayer {
    #[inline]
    fn locate(&self, key: u64) -> Hint {
        let trained = self.directory.locate(key);
        self.synonyms.find(trained, key).unwrap_or(trained)
    }

    fn left_of(&self, key: u64, failed: Hint) -> Option<Hint> {
        let trained = self.directory.leaf(failed.parent.checked_sub(1)?)?;
        Some(self.synonyms.find(trained, key).unwrap_or(trained))
    }

    #[inline]
    fn next_trained(&self, parent: u32) -> Option<Hint> {
        self.directory.leaf(parent + 1)
    }

    fn learn(&mut self, low: u64, leaf: Hint) {
        if let Some(trained) = self.directory.leaf(leaf.parent) {
            let leaf_count = self.directory.leaf_count();
            self.synonyms.insert(low, leaf.addr, trained, leaf_count);
        }
    }

    fn synonyms_above(&self, parent: u32, from: u64, limit: usize, found: &mut Vec<RemoteAddr>) {
        // Finding the leaf costs more than checking whether it has synonyms.
        if self.synonyms.knows(parent)
            && let Some(trained) = self.directory.leaf(parent)
        {
            self.synonyms.above(trained, from, limit, found);
        }
    }

    fn announcement(&self, parent: u32) -> Option<Announcement> {
        self.directory.announcement(parent)
    }

    fn announced_read_count(&self, model: u32) -> u32 {
        self.announced.get(model as usize).copied().unwrap_or(0)
    }

    fn note_announced(&mut self, model: u32, seen: u32, _entries: &[u64]) {
        if self.announced.is_empty() {
            self.announced = vec![0; self.directory.model_count()];
        }
        self.announced[model as usize] = seen;
    }

    fn metadata_bytes(&self) -> u64 {
        let announced = size_of_val(&*self.announced) as u64;
        self.directory.lookup_bytes() + self.synonyms.size_bytes() + announced
    }
}
