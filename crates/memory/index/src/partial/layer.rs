//! Parts of a table's directory that one session holds, and finding leaves in them.

use core::cell::Cell;
use core::ops::{AddAssign, Bound};
use std::rc::Rc;

use farleaf_base::RemoteAddr;

use super::admission_filter::AdmissionFilter;
use super::models::{ALLOCATION_BYTES, ModelPage, PlacedModel};
use crate::clock::{CachedValue, Clock};
use crate::directory::Model;
use crate::hint::{Announcement, Hint, SearchLayer};
use crate::snapshot::{PAGE_LEAF_COUNT, PagedSnapshot};

/// Largest number of leaves of a predicted range that one verb reads; links lead to others.
const RANGE_LEAF_COUNT_MAX: u32 = 64;
/// Largest share, as a divisor, of the budget above the floor for synonyms.
const SYNONYM_SHARE: u64 = 4;

/// Residuals of one page.
pub(crate) type ResidualPage = Box<[i8; PAGE_LEAF_COUNT]>;

impl CachedValue for ResidualPage {
    fn content_bytes(&self) -> u64 {
        size_of_val(&**self) as u64 + ALLOCATION_BYTES
    }
}

impl CachedValue for Hint {
    fn content_bytes(&self) -> u64 {
        0
    }
}

/// Metadata budget in bytes, large enough for what is always held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget(u64);

impl Budget {
    /// Smallest budget, in bytes.
    pub const BYTES_MIN: u64 = 1024;
    /// Largest share of the budget for heads, as a divisor.
    const HEAD_SHARE: u64 = 4;

    /// Creates a budget; `None` if it is less than [`BYTES_MIN`](Self::BYTES_MIN).
    pub const fn new(bytes: u64) -> Option<Self> {
        if bytes < Self::BYTES_MIN {
            None
        } else {
            Some(Self(bytes))
        }
    }

    /// Returns the budget in bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// Returns the largest number of bytes for heads.
    pub const fn head_bytes_max(self) -> u64 {
        self.0 / Self::HEAD_SHARE
    }
}

/// Counts of fetched and evicted pages and synonyms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartialCounts {
    /// Number of model pages fetched.
    pub model_pages_fetched: u64,
    /// Number of residual pages fetched.
    pub residual_pages_fetched: u64,
    /// Number of pages of both kinds evicted.
    pub pages_evicted: u64,
    /// Number of synonyms evicted.
    pub synonyms_evicted: u64,
}

impl AddAssign for PartialCounts {
    fn add_assign(&mut self, other: Self) {
        self.model_pages_fetched += other.model_pages_fetched;
        self.residual_pages_fetched += other.residual_pages_fetched;
        self.pages_evicted += other.pages_evicted;
        self.synonyms_evicted += other.synonyms_evicted;
    }
}

/// Place of a key according to models and available residuals.
#[derive(Clone, Copy, Debug)]
pub enum PredictedPlace {
    /// The key is in this leaf.
    Leaf(Hint),
    /// The key is in one of these leaves.
    Range(PredictedRange),
}

/// Adjacent leaves of one model, one of which has a key.
#[derive(Clone, Copy, Debug)]
pub struct PredictedRange {
    placed: PlacedModel,
    position: i64,
    /// Number of the first leaf in the model; `to` has the last leaf's.
    from: u32,
    to: u32,
}

/// Layer of one session on one table under a budget.
#[derive(Debug)]
pub struct PartialLayer {
    snapshot: Rc<PagedSnapshot>,
    budget_bytes: u64,
    models: Clock<u32, Rc<ModelPage>>,
    residuals: Clock<u32, ResidualPage>,
    synonyms: Clock<u64, Hint>,
    admission_filter: AdmissionFilter,
    counts: Cell<PartialCounts>,
}

impl PartialLayer {
    /// Creates a layer that holds only the floor; `snapshot` keeps as many heads as the budget
    /// permits.
    pub fn new(snapshot: PagedSnapshot, budget: Budget) -> Self {
        let layer = Self {
            admission_filter: AdmissionFilter::new(snapshot.header().residual_page_count()),
            snapshot: Rc::new(snapshot),
            budget_bytes: budget.bytes(),
            models: Clock::default(),
            residuals: Clock::default(),
            synonyms: Clock::default(),
            counts: Cell::default(),
        };
        assert!(layer.floor_bytes() <= layer.budget_bytes, "L3.1");
        layer
    }

    /// Creates a layer over a newer root. Drops pages and synonyms of the old one.
    #[must_use]
    pub fn with_snapshot(&self, snapshot: PagedSnapshot) -> Self {
        let layer = Self::new(snapshot, Budget(self.budget_bytes));
        layer.counts.set(self.counts.get());
        layer
    }

    /// Takes over the pages of a layer over another root, which
    /// [`with_snapshot`](Self::with_snapshot) must not do: a bug that the simulator plants.
    pub(crate) fn take_pages(&mut self, other: &mut Self) {
        self.models = core::mem::take(&mut other.models);
        self.residuals = core::mem::take(&mut other.residuals);
    }

    /// Returns the snapshot that the layer uses.
    pub fn snapshot(&self) -> &Rc<PagedSnapshot> {
        &self.snapshot
    }

    /// Returns the counts of fetches and evictions under all roots.
    pub fn counts(&self) -> PartialCounts {
        self.counts.get()
    }

    fn count(&self, change: impl FnOnce(&mut PartialCounts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    fn shift(&self) -> u32 {
        self.snapshot.header().shift
    }

    /// Returns the bytes that are always held.
    fn floor_bytes(&self) -> u64 {
        self.snapshot.head_bytes() + self.admission_filter.bytes()
    }

    fn held_bytes(&self) -> u64 {
        let pages = self.models.bytes() + self.residuals.bytes();
        self.floor_bytes() + pages + self.synonyms.bytes()
    }

    fn has_space_for(&self, bytes: u64) -> bool {
        self.held_bytes() + bytes <= self.budget_bytes
    }

    /// Returns the leaf of a key, if the necessary models and residuals are held.
    #[inline]
    pub fn locate_held(&self, key: u64) -> Option<Hint> {
        let page = self.models.get(self.snapshot.page_of_key(key))?;
        match self.aim(page, key) {
            PredictedPlace::Leaf(leaf) => Some(leaf),
            PredictedPlace::Range(_) => None,
        }
    }

    /// Returns a model page, if it is held.
    pub fn model_page(&self, page: u32) -> Option<Rc<ModelPage>> {
        self.models.get(page).cloned()
    }

    /// Returns where a key is, given its model page of the layer's root.
    pub fn aim(&self, page: &ModelPage, key: u64) -> PredictedPlace {
        let placed = *page.model_of_key(key);
        let (from, to) = placed.model.predicted_range(key, self.shift());
        let range = PredictedRange {
            placed,
            position: placed.model.position(key, self.shift()),
            from,
            to,
        };
        let mut held = None;
        let residual = |leaf: u32| {
            let page = leaf / PAGE_LEAF_COUNT as u32;
            if held.is_none_or(|(number, _)| number != page) {
                held = Some((page, self.residuals.get(page)?));
            }
            held.map(|(_, page)| page[leaf as usize % PAGE_LEAF_COUNT])
        };
        match self.resolve(&range, residual) {
            Some(leaf) => PredictedPlace::Leaf(self.synonym_or(leaf, key)),
            None => PredictedPlace::Range(range),
        }
    }

    /// Returns the last leaf of a range whose threshold the key's position reaches; `None` if a
    /// needed residual is missing.
    fn resolve(
        &self,
        range: &PredictedRange,
        mut residual: impl FnMut(u32) -> Option<i8>,
    ) -> Option<Hint> {
        let shift = self.shift();
        let mut leaf = range.to;
        while leaf > range.from {
            let residual = residual(range.placed.first_leaf + leaf)?;
            let threshold = (i64::from(leaf) << shift) + i64::from(residual);
            if range.position >= threshold {
                break;
            }
            leaf -= 1;
        }
        Some(self.leaf_of(&range.placed, leaf))
    }

    /// Returns the known synonym of a trained leaf that has the key, or the trained leaf.
    pub fn synonym_or(&self, trained: Hint, key: u64) -> Hint {
        let known = self.synonyms.at_or_below(key);
        let own = known.filter(|synonym| synonym.parent == trained.parent);
        own.copied().unwrap_or(trained)
    }

    /// Returns the leaves to read for a range, and how many of them are adjacent: at most 64 around
    /// the predicted position, then the nearest known synonym that begins at or before the key.
    pub fn leaves_of(&self, range: &PredictedRange, key: u64) -> (Vec<Hint>, usize) {
        let (mut from, mut to) = (range.from, range.to);
        if to - from >= RANGE_LEAF_COUNT_MAX {
            let middle = range.position >> self.shift();
            let first = middle - i64::from(RANGE_LEAF_COUNT_MAX / 2);
            let last_first = to + 1 - RANGE_LEAF_COUNT_MAX;
            from = first.clamp(from.into(), last_first.into()) as u32;
            to = from + RANGE_LEAF_COUNT_MAX - 1;
        }
        let mut leaves: Vec<Hint> = (from..=to)
            .map(|leaf| self.leaf_of(&range.placed, leaf))
            .collect();
        let count = leaves.len();
        let parents = leaves[0].parent..=leaves[count - 1].parent;
        let synonym = self.synonyms.at_or_below(key);
        leaves.extend(synonym.filter(|synonym| parents.contains(&synonym.parent)));
        (leaves, count)
    }

    /// Returns the residual pages that would decide between the leaves of a range and are not held.
    pub fn missing_residuals(&self, range: &PredictedRange) -> Vec<u32> {
        let page_of = |leaf: u32| (range.placed.first_leaf + leaf) / PAGE_LEAF_COUNT as u32;
        let pages = page_of(range.from + 1)..=page_of(range.to);
        let page_count = self.snapshot.header().residual_page_count();
        pages
            .filter(|page| *page < page_count && self.residuals.get(*page).is_none())
            .collect()
    }

    /// Returns whether a residual page that was missed is worth reading and keeping.
    pub fn is_worth_keeping(&mut self, page: u32) -> bool {
        let bytes =
            Clock::<u32, ResidualPage>::ENTRY_BYTES + (PAGE_LEAF_COUNT as u64 + ALLOCATION_BYTES);
        if self.has_space_for(bytes + self.reserved_bytes()) {
            return true;
        }
        let held_count = self.residuals.count();
        held_count > 0 && self.admission_filter.is_second_miss(page, held_count)
    }

    /// Returns the space to keep free for model pages that are not held, which would evict residual
    /// pages. None if not even one fits.
    fn reserved_bytes(&self) -> u64 {
        let page_bytes = Clock::<u32, Rc<ModelPage>>::ENTRY_BYTES
            + ModelPage::bytes(self.snapshot.page_model_count());
        if self.floor_bytes() + page_bytes > self.budget_bytes {
            return 0;
        }
        let missing_count = self.snapshot.heads().len() - self.models.count();
        missing_count as u64 * page_bytes
    }

    /// Returns the leaf of a range, by held and fetched residuals. Returns its first leaf if some
    /// are still missing, because other operations have evicted them meanwhile.
    pub(crate) fn resolve_with(
        &self,
        range: &PredictedRange,
        fetched: &[(u32, ResidualPage)],
    ) -> Hint {
        let residual = |leaf: u32| {
            let page = leaf / PAGE_LEAF_COUNT as u32;
            let mut fetched = fetched.iter();
            let fetched = fetched.find_map(|(number, it)| (*number == page).then_some(it));
            let page = fetched.or_else(|| self.residuals.get(page))?;
            Some(page[leaf as usize % PAGE_LEAF_COUNT])
        };
        let first = || self.leaf_of(&range.placed, range.from);
        self.resolve(range, residual).unwrap_or_else(first)
    }

    /// Caches a model page of this snapshot that was read, if the snapshot is still the layer's and
    /// there is or can be made space.
    pub fn keep_models(
        &mut self,
        snapshot: &Rc<PagedSnapshot>,
        page: u32,
        models: &[Model],
    ) -> Rc<ModelPage> {
        let first_leaf = snapshot.heads()[page as usize].first_leaf;
        let models = Rc::new(ModelPage::new(first_leaf, models));
        self.count(|counts| counts.model_pages_fetched += 1);
        let bytes = Clock::<u32, _>::bytes_of(&models);
        let fits = self.floor_bytes() + bytes <= self.budget_bytes;
        if fits && Rc::ptr_eq(snapshot, &self.snapshot) {
            while !self.has_space_for(bytes) {
                let evicted = self.evict_residuals() || self.evict_synonym() || self.evict_models();
                assert!(evicted, "a page fits once nothing else is held");
            }
            self.models.insert(page, Rc::clone(&models));
        }
        debug_assert!(self.held_bytes() <= self.budget_bytes, "L3.2");
        models
    }

    /// Caches a residual page of this snapshot that was read, under the conditions of
    /// [`keep_models`].
    ///
    /// [`keep_models`]: Self::keep_models
    pub(crate) fn keep_residuals(
        &mut self,
        snapshot: &Rc<PagedSnapshot>,
        page: u32,
        residuals: ResidualPage,
    ) {
        self.count(|counts| counts.residual_pages_fetched += 1);
        if !Rc::ptr_eq(snapshot, &self.snapshot) {
            return;
        }
        let bytes = Clock::<u32, _>::bytes_of(&residuals);
        while !self.has_space_for(bytes) {
            if !self.evict_residuals() {
                return;
            }
        }
        self.residuals.insert(page, residuals);
        debug_assert!(self.held_bytes() <= self.budget_bytes, "L3.2");
    }

    fn evict_residuals(&mut self) -> bool {
        let evicted = self.residuals.evict();
        self.count(|counts| counts.pages_evicted += u64::from(evicted));
        evicted
    }

    fn evict_models(&mut self) -> bool {
        let evicted = self.models.evict();
        self.count(|counts| counts.pages_evicted += u64::from(evicted));
        evicted
    }

    fn evict_synonym(&mut self) -> bool {
        let evicted = self.synonyms.evict();
        self.count(|counts| counts.synonyms_evicted += u64::from(evicted));
        evicted
    }

    fn leaf_of(&self, placed: &PlacedModel, leaf: u32) -> Hint {
        let stride_blocks = self.snapshot.geometry().stride_blocks();
        Hint {
            addr: placed
                .model
                .base
                .offset_blocks(u64::from(leaf) * stride_blocks),
            parent: placed.first_leaf + leaf,
        }
    }

    /// Returns the trained leaf with this number, and how many leaves of its model are adjacent
    /// from it on. `page` is its model page of the layer's root.
    pub(crate) fn run_in(&self, page: &ModelPage, leaf: u32) -> (Hint, u32) {
        let placed = page.model_of_leaf(leaf);
        let index = leaf.saturating_sub(placed.first_leaf);
        let index = index.min(placed.model.leaf_count - 1);
        (self.leaf_of(placed, index), placed.model.leaf_count - index)
    }

    /// Returns the trained leaf with this number, and how many leaves of its model are adjacent
    /// from it on; `None` if its page is not held.
    pub fn run_from(&self, leaf: u32) -> Option<(Hint, u32)> {
        let page = self.models.get(self.snapshot.page_of_leaf(leaf)?)?;
        Some(self.run_in(page, leaf))
    }

    /// Returns whether a leaf is the trained leaf with its number, or its model is not held. Then
    /// it must not be learned as a synonym.
    pub fn may_be_trained(&self, leaf: Hint) -> bool {
        let trained = self.run_from(leaf.parent);
        trained.is_none_or(|(trained, _)| trained.addr == leaf.addr)
    }

    /// Returns the first leaf of a page of models, which is always known.
    pub(crate) fn first_of_page(&self, page: u32) -> Hint {
        let head = self.snapshot.heads()[page as usize];
        Hint {
            addr: head.base,
            parent: head.first_leaf,
        }
    }
}

impl SearchLayer for PartialLayer {
    /// Returns the best hint without fetching anything; operations fetch first.
    fn locate(&self, key: u64) -> Hint {
        let number = self.snapshot.page_of_key(key);
        let Some(page) = self.models.get(number) else {
            return self.first_of_page(number);
        };
        match self.aim(page, key) {
            PredictedPlace::Leaf(leaf) => leaf,
            PredictedPlace::Range(range) => self.leaf_of(&range.placed, range.from),
        }
    }

    fn left_of(&self, key: u64, failed: Hint) -> Option<Hint> {
        let leaf = failed.parent.checked_sub(1)?;
        let page = self.snapshot.page_of_leaf(leaf)?;
        let trained = match self.models.get(page) {
            Some(page) => self.run_in(page, leaf).0,
            None => self.first_of_page(page),
        };
        Some(self.synonym_or(trained, key))
    }

    fn next_trained(&self, parent: u32) -> Option<Hint> {
        self.run_from(parent + 1).map(|(leaf, _)| leaf)
    }

    /// Remembers a synonym, if there is or can be made space.
    fn learn(&mut self, low: u64, leaf: Hint) {
        let bytes = Clock::<u64, Hint>::ENTRY_BYTES;
        let share = (self.budget_bytes - self.floor_bytes()) / SYNONYM_SHARE;
        while self.synonyms.bytes() + bytes > share {
            if !self.evict_synonym() {
                return;
            }
        }
        while !self.has_space_for(bytes) {
            if !self.evict_residuals() && !self.evict_synonym() {
                return;
            }
        }
        self.synonyms.insert(low, leaf);
        debug_assert!(self.held_bytes() <= self.budget_bytes, "L3.2");
    }

    fn synonyms_above(&self, parent: u32, from: u64, limit: usize, found: &mut Vec<RemoteAddr>) {
        let above = self
            .synonyms
            .range((Bound::Excluded(from), Bound::Unbounded));
        let own = above.take_while(|leaf| leaf.parent == parent);
        let left = limit.saturating_sub(found.len());
        found.extend(own.take(left).map(|leaf| leaf.addr));
    }

    /// Returns `None` also if the model is not held.
    fn announcement(&self, parent: u32) -> Option<Announcement> {
        let page = self.snapshot.page_of_leaf(parent)?;
        self.models.get(page)?.announcement(parent)
    }

    /// Returns the largest possible number: the session never reads announcements.
    fn announced_read_count(&self, _model: u32) -> u32 {
        u32::MAX
    }

    fn note_announced(&mut self, _model: u32, _seen: u32, _entries: &[u64]) {}

    fn metadata_bytes(&self) -> u64 {
        self.held_bytes()
    }
}
