//! What one session keeps of one table of byte strings between operations.

use core::cell::{Cell, Ref, RefCell, RefMut};
use core::mem::take;
use std::rc::Rc;
use std::sync::Arc;

use farleaf_block::{BlockStore, Held};
use farleaf_index::operation::HintCounters;
use farleaf_index::partial::Budget;
use farleaf_leaf::LeafLeases;
use farleaf_types::RemoteAddr;

use crate::directory::ByteDirectory;
use crate::learned::LearnedLayer;
use crate::partial::{PartCounts, PartialDirectory};
use crate::rf_tree::{ListedPage, is_outgrown};
use crate::snapshot::SnapshotParts;

/// What a session owes the listing of a table (BT3, BT4).
#[derive(Debug)]
struct Listing {
    /// Links that one lookup may follow before a newer cache is wanted.
    link_count_max: u32,
    wants_newer: Cell<bool>,
    /// A newer cache is not wanted for so many lookups that would want one: the last ones brought
    /// nothing, or could not be read.
    wait_count: Cell<u32>,
    /// As many at the next time that this is so.
    wait_count_next: Cell<u32>,
    /// Pages that this session has made, to be listed.
    made: RefCell<Vec<ListedPage>>,
}

/// Lookups that follow too many links, for which no newer cache is read, at the most.
const WAIT_COUNT_MAX: u32 = 1 << 16;

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
    /// Records of a page, as scans find them, in the mean of the last ones; 0: none was passed.
    records_per_page: Cell<f64>,
    /// Whether to go on from a retired page to its successor. Not at first: a newer root leads
    /// there at once, where links lead page by page.
    follows_retired: Cell<bool>,
    /// Of a table whose pages are listed.
    listing: Option<Listing>,
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
        let layer = LearnedLayer::new(directory);
        Self::of(layer, inline_value_size_bytes, broken)
    }

    /// The same under a metadata budget: parts of the snapshot are read as they are needed.
    pub fn partial(
        (snapshot, budget): (SnapshotParts, Budget),
        inline_value_size_bytes: usize,
        broken: Rc<Cell<bool>>,
    ) -> Self {
        let layer = LearnedLayer::partial(PartialDirectory::new(snapshot, budget));
        Self::of(layer, inline_value_size_bytes, broken)
    }

    fn of(layer: LearnedLayer, inline_value_size_bytes: usize, broken: Rc<Cell<bool>>) -> Self {
        Self {
            layer: RefCell::new(layer),
            leases: LeafLeases::default(),
            blocks: BlockStore::new(),
            limbo_count_next: Cell::new(0),
            inline_value_size_bytes,
            layer_version: Cell::new(0),
            hint_counters: Cell::default(),
            records_per_page: Cell::new(0.0),
            follows_retired: Cell::new(false),
            listing: None,
            broken,
        }
    }

    /// State of who makes room in the end, and may take what is kept for that (A6).
    #[must_use]
    pub fn taking_reserve(self) -> Self {
        Self {
            leases: self.leases.taking_reserve(),
            ..self
        }
    }

    /// State of a table whose pages are listed (`rf_tree`), and whose directory is a cache of that:
    /// a newer one is wanted when one lookup has followed more than `link_count_max` links.
    #[must_use]
    pub fn with_listing(self, link_count_max: u32) -> Self {
        let listing = Listing {
            link_count_max,
            wants_newer: Cell::new(false),
            wait_count: Cell::new(0),
            wait_count_next: Cell::new(1),
            made: RefCell::default(),
        };
        Self {
            listing: Some(listing),
            ..self
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

    /// A scan has passed a page with so many records.
    pub(super) fn note_passed(&self, record_count: usize) {
        let (mean, found) = (self.records_per_page.get(), record_count as f64);
        let mean = if mean == 0.0 {
            found
        } else {
            mean + (found - mean) / 8.0
        };
        self.records_per_page.set(mean);
    }

    /// Records that a page is expected to have: as scans find them, or as the training did.
    pub(super) fn records_per_page(&self) -> f64 {
        let passed = self.records_per_page.get();
        if passed > 0.0 {
            return passed.max(1.0);
        }
        let layer = self.layer();
        let trained = layer.record_count() as f64 / f64::from(layer.page_count());
        trained.max(1.0)
    }

    /// This session has made a page, which is linked to.
    pub(super) fn note_made(&self, low: &[u8], addr: RemoteAddr) {
        if let Some(listing) = &self.listing {
            let low = low.to_vec();
            listing.made.borrow_mut().push(ListedPage { low, addr });
        }
    }

    /// A lookup has followed so many links.
    pub(super) fn note_links(&self, link_count: u32) {
        let Some(listing) = &self.listing else {
            return;
        };
        let is_wanted = link_count > listing.link_count_max || {
            let layer = self.layer();
            is_outgrown(layer.met_count(), layer.page_count())
        };
        if !is_wanted {
            return;
        }
        match listing.wait_count.get().checked_sub(1) {
            Some(left) => listing.wait_count.set(left),
            None => listing.wants_newer.set(true),
        }
    }

    /// A newer cache could not be read, or has no more pages than the one before: the next one is
    /// wanted later.
    pub fn note_not_renewed(&self) {
        if let Some(listing) = &self.listing {
            let wait_count = listing.wait_count_next.get();
            listing.wait_count.set(wait_count);
            listing
                .wait_count_next
                .set(wait_count.saturating_mul(2).min(WAIT_COUNT_MAX));
        }
    }

    /// Whether there is anything to be listed, or a newer cache is wanted.
    pub fn has_chores(&self) -> bool {
        let listing = self.listing.as_ref();
        listing.is_some_and(|it| it.wants_newer.get() || !it.made.borrow().is_empty())
    }

    /// Pages that this session has made and nobody has listed. Asked once, there are none any more.
    pub fn take_made(&self) -> Vec<ListedPage> {
        let listing = self.listing.as_ref();
        listing.map_or_else(Vec::new, |it| take(&mut *it.made.borrow_mut()))
    }

    /// The cache that the session searches by, if it wants a newer one. Asked once, it does no
    /// more.
    pub fn wants_newer(&self) -> Option<Arc<ByteDirectory>> {
        let is_wanted = self.listing.as_ref()?.wants_newer.take();
        if !is_wanted {
            return None;
        }
        self.layer().directory().cloned()
    }

    /// Searches by a newer cache of the same root. Returns the pages that the session has met and
    /// the cache does not have.
    pub fn renew_cache(&self, cache: Arc<ByteDirectory>) -> Vec<ListedPage> {
        let page_count = self.layer().page_count();
        if cache.page_count() > page_count {
            if let Some(listing) = &self.listing {
                listing.wait_count_next.set(1);
            }
        } else {
            self.note_not_renewed();
        }
        let missing = self.layer_mut().renew(cache);
        self.note_replaced();
        missing
    }

    fn note_replaced(&self) {
        self.layer_version.update(|version| version.wrapping_add(1));
        self.count_hint(|counters| counters.refresh_count += 1);
    }

    /// Searches in a newer root's directory from now on. What was learned is forgotten.
    pub fn replace_directory(&self, directory: Arc<ByteDirectory>) {
        self.layer.replace(LearnedLayer::new(directory));
        self.follows_retired.set(false);
        self.note_replaced();
    }

    /// The same under a metadata budget: all parts of the old root are dropped (BL4), unless the
    /// simulator `keeps_parts` as a planted bug.
    pub fn replace_snapshot(&self, (snapshot, budget): (SnapshotParts, Budget), keeps_parts: bool) {
        let mut newer = PartialDirectory::new(snapshot, budget);
        if let Some(older) = self.layer_mut().as_partial_mut() {
            newer = newer.counting_on(older);
            if keeps_parts {
                newer.take_parts(older);
            }
        }
        self.layer.replace(LearnedLayer::partial(newer));
        self.follows_retired.set(false);
        self.note_replaced();
    }

    /// How often parts of the snapshot were read and forgotten; `None` without a metadata budget.
    pub fn part_counts(&self) -> Option<PartCounts> {
        self.layer().part_counts()
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
        (
            layer.generation(),
            layer.record_count(),
            layer.page_count().into(),
            layer.model_count() as u64,
        )
    }

    /// How many models are front-coded, of those at hand.
    pub fn front_coded_model_count(&self) -> u64 {
        self.layer().front_coded_count() as u64
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
