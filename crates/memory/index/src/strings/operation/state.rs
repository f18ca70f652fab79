//! State that one session keeps for one table of byte strings between operations.

use core::cell::{Cell, Ref, RefCell, RefMut};
use core::mem::take;
use std::rc::Rc;
use std::sync::Arc;

use crate::operation::HintCounters;
use crate::partial::Budget;
use farleaf_base::RemoteAddr;
use farleaf_leaf::blobs::{BlockStore, StoreHoldings};
use farleaf_leaf::words::LeafLeases;

use crate::strings::directory::ByteDirectory;
use crate::strings::learned::LearnedLayer;
use crate::strings::partial::{PartCounts, PartialDirectory};
use crate::strings::rf_tree::{ListedPage, is_outgrown};
use crate::strings::snapshot::SnapshotParts;

/// State of a session for the listing of a table (see [`rf_tree`](crate::strings::rf_tree)).
#[derive(Debug)]
struct ListingState {
    /// Maximum number of links that one lookup follows before a newer cache is wanted.
    link_count_max: u32,
    wants_newer: Cell<bool>,
    /// Number of lookups that will not trigger a newer cache, because the last one had no new pages
    /// or could not be read.
    wait_count: Cell<u32>,
    /// Value that `wait_count` gets the next time.
    wait_count_next: Cell<u32>,
    /// Pages that this session created and that must be listed.
    made: RefCell<Vec<ListedPage>>,
}

/// Maximum number of lookups with too many links for which no newer cache is read.
const WAIT_COUNT_MAX: u32 = 1 << 16;

/// State that one session keeps for one table between operations.
#[derive(Debug)]
pub struct ByteIndexState {
    layer: RefCell<LearnedLayer>,
    /// Leased pages for splits.
    pub(super) leases: LeafLeases,
    /// Value blocks: leased pieces and unlinked blocks.
    pub(super) blocks: BlockStore,
    /// Number of unlinked blocks at which the next change recycles what it can.
    pub(super) limbo_count_next: Cell<usize>,
    /// Maximum size of a value that is stored in its page, in bytes.
    pub(super) inline_value_size_bytes: usize,
    /// Number of times that the layer was replaced. An operation that began earlier must not record
    /// pages in the new layer that it found by hints of the old one (LEAF-7).
    layer_version: Cell<u32>,
    hint_counters: Cell<HintCounters>,
    /// Mean number of records per page in recent scans; 0 before the first scan.
    records_per_page: Cell<f64>,
    /// Whether to follow a retired page to its successor. Initially false: a newer root leads to
    /// the new pages at once, while links lead page by page.
    follows_retired: Cell<bool>,
    /// Listing state of a table whose pages are listed.
    listing: Option<ListingState>,
    /// Set when an operation of the session was interrupted while it might have held a lock or a
    /// chunk that only this session could give back. The session must stop and be closed
    /// (FABRIC-6).
    pub(super) broken: Rc<Cell<bool>>,
}

impl ByteIndexState {
    /// Creates state without known synonyms and leases.
    ///
    /// `broken` belongs to the session. It is set when an operation (even a read) is interrupted
    /// while it may hold a lock or own a chunk that it does not know of: its future is dropped, or
    /// the fabric fails. The session must then be closed, and others recover what it holds.
    pub fn new(
        directory: Arc<ByteDirectory>,
        inline_value_size_bytes: usize,
        broken: Rc<Cell<bool>>,
    ) -> Self {
        let layer = LearnedLayer::new(directory);
        Self::of(layer, inline_value_size_bytes, broken)
    }

    /// Creates state under a metadata budget: parts of the snapshot are read on demand.
    pub fn partial(
        snapshot: SnapshotParts,
        budget: Budget,
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

    /// Permits this state to use the reserved chunks, for the retrainer, which eventually frees
    /// memory.
    #[must_use]
    pub fn taking_reserve(self) -> Self {
        Self {
            leases: self.leases.taking_reserve(),
            ..self
        }
    }

    /// Marks the table's pages as listed (`rf_tree`) and the directory as a cache of the listing. A
    /// newer cache is wanted when one lookup has followed more than `link_count_max` links.
    #[must_use]
    pub fn with_listing(self, link_count_max: u32) -> Self {
        let listing = ListingState {
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

    /// Records that a scan has passed a page with so many records.
    pub(super) fn note_passed(&self, record_count: usize) {
        let (mean, found) = (self.records_per_page.get(), record_count as f64);
        let mean = if mean == 0.0 {
            found
        } else {
            mean + (found - mean) / 8.0
        };
        self.records_per_page.set(mean);
    }

    /// Returns the expected number of records per page: as recent scans found, or as the training
    /// did.
    pub(super) fn records_per_page(&self) -> f64 {
        let passed = self.records_per_page.get();
        if passed > 0.0 {
            return passed.max(1.0);
        }
        let layer = self.layer();
        let trained = layer.record_count() as f64 / f64::from(layer.page_count());
        trained.max(1.0)
    }

    /// Records that this session has created a page that is linked to.
    pub(super) fn note_new_page(&self, low: &[u8], addr: RemoteAddr) {
        if let Some(listing) = &self.listing {
            let low = low.to_vec();
            listing.made.borrow_mut().push(ListedPage { low, addr });
        }
    }

    /// Records how many links a lookup has followed.
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

    /// Records that a newer cache could not be read, or has no more pages than the current one. The
    /// next one is wanted later.
    pub fn note_not_renewed(&self) {
        if let Some(listing) = &self.listing {
            let wait_count = listing.wait_count_next.get();
            listing.wait_count.set(wait_count);
            listing
                .wait_count_next
                .set(wait_count.saturating_mul(2).min(WAIT_COUNT_MAX));
        }
    }

    /// Returns whether pages must be listed, or a newer cache is wanted.
    pub fn has_listing_work(&self) -> bool {
        let listing = self.listing.as_ref();
        listing.is_some_and(|it| it.wants_newer.get() || !it.made.borrow().is_empty())
    }

    /// Takes the pages that this session created and that are not listed yet.
    pub fn take_new_pages(&self) -> Vec<ListedPage> {
        let listing = self.listing.as_ref();
        listing.map_or_else(Vec::new, |it| take(&mut *it.made.borrow_mut()))
    }

    /// Returns the current cache if the session wants a newer one, and clears that request.
    pub fn wants_newer(&self) -> Option<Arc<ByteDirectory>> {
        let is_wanted = self.listing.as_ref()?.wants_newer.take();
        if !is_wanted {
            return None;
        }
        self.layer().directory().cloned()
    }

    /// Switches to a newer cache of the same root. Returns the pages that the session has found and
    /// the cache does not contain.
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

    /// Switches to a newer root's directory. Clears the known synonyms.
    pub fn replace_directory(&self, directory: Arc<ByteDirectory>) {
        self.layer.replace(LearnedLayer::new(directory));
        self.follows_retired.set(false);
        self.note_replaced();
    }

    /// Switches to a newer root's snapshot under a metadata budget. Drops all parts of the old
    /// root, unless `keeps_parts` is set (a bug that the simulator plants).
    pub fn replace_snapshot(&self, snapshot: SnapshotParts, budget: Budget, keeps_parts: bool) {
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

    /// Returns how often parts of the snapshot were read and evicted; `None` without a metadata
    /// budget.
    pub fn part_counts(&self) -> Option<PartCounts> {
        self.layer().part_counts()
    }

    /// Records that the root was read and is the newest: retired pages are followed from now on.
    pub fn follow_retired(&self) {
        self.follows_retired.set(true);
    }

    /// Returns how often hints were wrong.
    pub fn hint_counters(&self) -> HintCounters {
        self.hint_counters.get()
    }

    /// Returns the bytes that the session holds to find pages.
    pub fn metadata_bytes(&self) -> u64 {
        self.layer().metadata_bytes()
    }

    /// Returns generation, trained records, pages and models of the directory.
    pub fn training(&self) -> (u16, u64, u64, u64) {
        let layer = self.layer();
        (
            layer.generation(),
            layer.record_count(),
            layer.page_count().into(),
            layer.model_count() as u64,
        )
    }

    /// Returns the number of front-coded models among those held.
    pub fn front_coded_model_count(&self) -> u64 {
        self.layer().front_coded_count() as u64
    }

    /// Returns the number of value blocks that the session holds.
    pub fn held(&self) -> StoreHoldings {
        self.blocks.held()
    }

    /// Returns the leases, for giving them back.
    pub fn leases(&self) -> &LeafLeases {
        &self.leases
    }

    /// Returns the value blocks, for giving them back.
    pub fn block_store(&self) -> &BlockStore {
        &self.blocks
    }
}
