//! What one session keeps of one table of byte strings between operations.

use core::cell::{Cell, Ref, RefCell, RefMut};
use std::rc::Rc;
use std::sync::Arc;

use farleaf_block::{BlockStore, Held};
use farleaf_index::operation::HintCounters;
use farleaf_leaf::LeafLeases;

use crate::directory::ByteDirectory;
use crate::learned::LearnedLayer;

/// What one session keeps of one table between operations.
#[derive(Debug)]
pub struct ByteIndexState {
    layer: RefCell<LearnedLayer>,
    /// Pages for splits.
    pub(super) leases: LeafLeases,
    /// Value blocks, to write into and unlinked.
    pub(super) blocks: BlockStore,
    /// With so many blocks in limbo the next change makes use of what it can.
    pub(super) limbo_count_next: Cell<usize>,
    /// The largest value that lies in a page, in bytes.
    pub(super) inline_value_size_bytes: usize,
    /// How often the layer was replaced: an operation that began before must not teach the new one
    /// what it met by the old one's hints (D7).
    layer_version: Cell<u32>,
    hint_counters: Cell<HintCounters>,
    /// Whether to go on from a retired page to its successor. Not at first: a newer root leads
    /// there at once, where links lead page by page.
    follows_retired: Cell<bool>,
    /// An operation of the session was cut off while it may have held a lock or a chunk that
    /// nobody else gives back: the session must stop and be closed (F6).
    pub(super) broken: Rc<Cell<bool>>,
}

impl ByteIndexState {
    /// State with nothing learned and nothing leased. `broken` is the session's: it is set when an
    /// operation, a read too, is cut off (its future is dropped, or the fabric fails) while it may
    /// hold a lock, or own a chunk that it does not know of. The session must be closed then:
    /// others recover what it holds.
    pub fn new(
        directory: Arc<ByteDirectory>,
        inline_value_size_bytes: usize,
        broken: Rc<Cell<bool>>,
    ) -> Self {
        Self {
            layer: RefCell::new(LearnedLayer::new(directory)),
            leases: LeafLeases::default(),
            blocks: BlockStore::new(),
            limbo_count_next: Cell::new(0),
            inline_value_size_bytes,
            layer_version: Cell::new(0),
            hint_counters: Cell::default(),
            follows_retired: Cell::new(false),
            broken,
        }
    }

    #[inline]
    pub(super) fn layer(&self) -> Ref<'_, LearnedLayer> {
        self.layer.borrow()
    }

    pub(super) fn layer_mut(&self) -> RefMut<'_, LearnedLayer> {
        self.layer.borrow_mut()
    }

    #[inline]
    pub(super) fn layer_version(&self) -> u32 {
        self.layer_version.get()
    }

    pub(super) fn follows_retired(&self) -> bool {
        self.follows_retired.get()
    }

    pub(super) fn count_hint(&self, change: impl FnOnce(&mut HintCounters)) {
        let mut counters = self.hint_counters.get();
        change(&mut counters);
        self.hint_counters.set(counters);
    }

    /// Searches in a newer root's directory from now on. What was learned is forgotten.
    pub fn replace_directory(&self, directory: Arc<ByteDirectory>) {
        self.layer.replace(LearnedLayer::new(directory));
        self.layer_version.update(|version| version.wrapping_add(1));
        self.follows_retired.set(false);
        self.count_hint(|counters| counters.refresh_count += 1);
    }

    /// The root was looked at and is the newest: from now on retired pages are followed.
    pub fn follow_retired(&self) {
        self.follows_retired.set(true);
    }

    /// How often hints were not right.
    pub fn hint_counters(&self) -> HintCounters {
        self.hint_counters.get()
    }

    /// Bytes that the session holds to find pages.
    pub fn metadata_bytes(&self) -> u64 {
        self.layer().metadata_bytes()
    }

    /// The directory's load and counts: generation, trained records, pages, models.
    pub fn training(&self) -> (u16, u64, u64, u64) {
        let layer = self.layer();
        let directory = layer.directory();
        (
            directory.generation(),
            directory.record_count(),
            directory.page_count().into(),
            directory.model_count() as u64,
        )
    }

    /// How many models of the directory are front-coded.
    pub fn front_coded_model_count(&self) -> u64 {
        self.layer().directory().front_coded_count() as u64
    }

    /// How many value blocks the session holds.
    pub fn held(&self) -> Held {
        self.blocks.held()
    }

    /// The leases, to give them back.
    pub fn leases(&self) -> &LeafLeases {
        &self.leases
    }

    /// The value blocks, to give them back.
    pub fn block_store(&self) -> &BlockStore {
        &self.blocks
    }
}
