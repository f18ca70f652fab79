//! Caching of a tree by a session, and the decision to read a newer copy.

use core::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use super::IndexState;
use crate::layer::Layer;
use crate::rf_tree::SearchLayerCache;
use crate::tree::node::ChildEntry;

impl IndexState {
    /// Returns a state for a session that checks `news` before each operation. It is set when a
    /// newer cache of a tree [is wanted](Self::wants_newer): when one lookup has followed more than
    /// `link_count_max` links.
    #[must_use]
    pub fn telling(self, news: Rc<Cell<bool>>, link_count_max: u32) -> Self {
        self.link_count_max.set(link_count_max);
        Self { news, ..self }
    }

    pub(super) fn want_newer(&self) {
        self.wants_newer.set(true);
        self.news.set(true);
    }

    /// Returns the cache of the tree that the session uses if it wants a newer one, and resets that
    /// flag.
    pub fn wants_newer(&self) -> Option<Arc<SearchLayerCache>> {
        if !self.wants_newer.take() {
            return None;
        }
        match &*self.layer.borrow() {
            Layer::RfTree(layer) => Some(Arc::clone(layer.cache())),
            _ => None,
        }
    }

    /// Notes that an operation found this leaf unlisted; two in a row make the listing due.
    pub(super) fn note_unlisted(&self, leaf: ChildEntry) {
        let met = self.met_unlisted.replace(Some(leaf));
        if met == Some(leaf) {
            self.due_listing.set(Some(leaf));
            self.news.set(true);
        }
    }

    /// Takes the leaf that the session is to list before its next operation.
    pub fn take_due_listing(&self) -> Option<ChildEntry> {
        self.due_listing.take()
    }

    /// Replaces the cache by a newer one of the same tree. Returns the leaves that the session has
    /// met and the cache does not list.
    pub fn renew_cache(&self, cache: Arc<SearchLayerCache>) -> Vec<ChildEntry> {
        let unlisted = match &mut *self.layer.borrow_mut() {
            Layer::RfTree(layer) => layer.renew(cache),
            _ => Vec::new(),
        };
        self.note_replaced();
        unlisted
    }

    /// Replaces the tree by another one. Drops what was cached of the old tree; leases for it are
    /// not used any more.
    pub fn replace_tree(&self, layer: Layer) {
        self.layer.replace(layer);
        self.met_unlisted.take();
        self.due_listing.take();
        let lease = self.inner_lease.take();
        self.old_leases.borrow_mut().extend(lease);
        self.note_replaced();
    }
}
