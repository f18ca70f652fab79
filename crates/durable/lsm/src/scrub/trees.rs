//! Trees of a follower that receives them: nothing reads them there, so only a scrub opens them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::cache::BlockCache;
use crate::device::Device;
use crate::engine::Source;
use crate::error::LsmError;
use crate::log::LogPins;
use crate::manifest::{Manifest, TreeEntry};
use crate::place::{BLOCK_SIZE_BYTES, TreeId};
use crate::tree::Tree;
use crate::version::{Garbage, LiveTree};

/// Trees that were opened for their references.
#[derive(Debug, Default)]
pub(crate) struct OpenedTrees {
    trees: BTreeMap<TreeId, Arc<LiveTree>>,
    /// Trees with corrupted references, which was already reported in this round.
    unreadable: BTreeSet<TreeId>,
    /// Bytes of references that were read.
    pub(super) read_size_bytes: u64,
}

impl OpenedTrees {
    /// Returns the trees that a manifest names; opens the new ones.
    ///
    /// # Errors
    /// A tree cannot be read. It is skipped until the round is complete.
    pub(crate) fn named_by(
        &mut self,
        manifest: &Manifest,
        device: &Arc<Device>,
    ) -> Result<Vec<Arc<LiveTree>>, LsmError> {
        let new = manifest.with_state(|state| {
            let entries: BTreeMap<TreeId, &TreeEntry> = state
                .levels
                .iter()
                .flatten()
                .map(|entry| (entry.id, entry))
                .collect();
            self.trees.retain(|id, _| entries.contains_key(id));
            let is_new =
                |id: &TreeId| !self.trees.contains_key(id) && !self.unreadable.contains(id);
            let new = entries.into_iter().filter(|(id, _)| is_new(id));
            new.map(|(_, entry)| entry.clone()).collect::<Vec<_>>()
        });
        for entry in new {
            let id = entry.id;
            self.read_size_bytes +=
                u64::from(entry.shape.references.count) * BLOCK_SIZE_BYTES as u64;
            let opened = open(entry, device).inspect_err(|_| {
                self.unreadable.insert(id);
            })?;
            self.trees.insert(id, opened);
        }
        Ok(self.trees.values().cloned().collect())
    }

    /// Forgets unreadable trees, so that the next round reports them again.
    pub(super) fn forget_unreadable(&mut self) {
        self.unreadable.clear();
    }
}

fn open(entry: TreeEntry, device: &Arc<Device>) -> Result<Arc<LiveTree>, LsmError> {
    let source = Arc::new(Source {
        device: Arc::clone(device),
        id: entry.id,
        segments: entry.segments.clone(),
    });
    let cache = Arc::new(BlockCache::new(0));
    let tree = Arc::new(Tree::new(entry.id, entry.shape, source, cache));
    let references = tree.references()?;
    // Dropping these trees frees nothing: a follower frees what its primary orders.
    let owners = (Arc::new(Garbage::default()), Arc::new(LogPins::default()));
    Ok(Arc::new(LiveTree::new(
        tree, entry, references, owners.0, &owners.1,
    )))
}
