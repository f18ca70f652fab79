//! What a session caches of a tree, and when it wants a newer copy.

use core::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use super::IndexState;
use crate::layer::Layer;
use crate::rf_tree::SearchLayerCache;
use crate::tree::node::Entry;

impl IndexState {
    /// A state for a session that looks at `news` before each operation: it is set when a newer
    /// cache of a tree [is wanted](Self::wants_newer), which is so when one lookup has followed
    /// more than `link_count_max` links.
    #[must_use]
    pub fn telling(self, news: Rc<Cell<bool>>, link_count_max: u32) -> Self {
        self.link_count_max.set(link_count_max);
        Self { news, ..self }
    }

    pub(super) fn want_newer(&self) {
        self.wants_newer.set(true);
        self.news.set(true);
    }

    /// The cache of the tree that the session searches by, if it wants a newer one. Asked once, it
    /// does no more.
    pub fn wants_newer(&self) -> Option<Arc<SearchLayerCache>> {
        if !self.wants_newer.take() {
            return None;
        }
        match &*self.layer.borrow() {
            Layer::RfTree(layer) => Some(Arc::clone(layer.cache())),
            _ => None,
        }
    }

    /// Two operations in a row have found this leaf unlisted, or one has.
    pub(super) fn note_unlisted(&self, leaf: Entry) {
        let met = self.met_unlisted.replace(Some(leaf));
        if met == Some(leaf) {
            self.due_listing.set(Some(leaf));
            self.news.set(true);
        }
    }

    /// A leaf that the session is to list before its next operation. Asked once, there is none any
    /// more.
    pub fn take_due_listing(&self) -> Option<Entry> {
        self.due_listing.take()
    }

    /// Searches by a newer cache of the same tree. Returns the leaves that the session has met and
    /// the cache does not list.
    pub fn renew_cache(&self, cache: Arc<SearchLayerCache>) -> Vec<Entry> {
        let unlisted = match &mut *self.layer.borrow_mut() {
            Layer::RfTree(layer) => layer.renew(cache),
            _ => Vec::new(),
        };
        self.note_replaced();
        unlisted
    }

    /// Searches by another tree: nothing that was cached of the old one is kept, and nothing that
    /// is leased for it is used any more (K4).
    pub fn replace_tree(&self, layer: Layer) {
        self.layer.replace(layer);
        self.met_unlisted.take();
        self.due_listing.take();
        let lease = self.inner_lease.take();
        self.old_leases.borrow_mut().extend(lease);
        self.note_replaced();
    }
}
