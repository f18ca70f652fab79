//! What one session holds of one table, and how it finds leaves in it.

use core::cell::Cell;
use core::ops::{AddAssign, Bound};
use std::rc::Rc;

use farleaf_types::RemoteAddr;

use super::doorkeeper::Doorkeeper;
use super::models::{ALLOCATION_BYTES, ModelPage, PlacedModel};
use crate::clock::{Clock, Held};
use crate::directory::Model;
use crate::hint::{Announcement, Hint, SearchLayer};
use crate::snapshot::{PAGE_LEAF_COUNT, PagedSnapshot};

/// Leaves of a predicted range that are read with one verb at the most; what is not among them is
/// found by links.
const RANGE_LEAF_COUNT_MAX: u32 = 64;
/// Synonyms take at most this part of what the budget leaves above the floor.
const SYNONYM_SHARE: u64 = 4;

/// The residuals of one page.
pub(crate) type ResidualPage = Box<[i8; PAGE_LEAF_COUNT]>;

impl Held for ResidualPage {
    fn content_bytes(&self) -> u64 {
        size_of_val(&**self) as u64 + ALLOCATION_BYTES
    }
}

impl Held for Hint {
    fn content_bytes(&self) -> u64 {
        0
    }
}

/// L3.1: a metadata budget in bytes, large enough for what is always held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget(u64);

impl Budget {
    /// The smallest budget.
    pub const BYTES_MIN: u64 = 1024;
    /// The part of it that heads may take.
    const HEAD_SHARE: u64 = 4;

    /// A budget of at least [`BYTES_MIN`](Self::BYTES_MIN); `None`: it is less.
    pub const fn new(bytes: u64) -> Option<Self> {
        if bytes < Self::BYTES_MIN {
            None
        } else {
            Some(Self(bytes))
        }
    }

    /// In bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// How many bytes of heads to keep.
    pub const fn head_bytes_max(self) -> u64 {
        self.0 / Self::HEAD_SHARE
    }
}

/// How often a layer fetched and forgot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartialCounts {
    /// Model pages that were fetched.
    pub model_pages_fetched: u64,
    /// Residual pages that were fetched.
    pub residual_pages_fetched: u64,
    /// Pages of both sorts that were evicted.
    pub pages_evicted: u64,
    /// Synonyms that were evicted.
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

/// Where a key is, as far as models and residuals at hand tell.
#[derive(Clone, Copy, Debug)]
pub enum Aim {
    /// In this leaf.
    Leaf(Hint),
    /// In one of these.
    Range(PredictedRange),
}

/// Leaves of one model, side by side, one of which a key is in.
#[derive(Clone, Copy, Debug)]
pub struct PredictedRange {
    placed: PlacedModel,
    position: i64,
    /// First and last, counted in the model.
    from: u32,
    to: u32,
}

/// One session's layer on one table under a budget.
#[derive(Debug)]
pub struct PartialLayer {
    snapshot: Rc<PagedSnapshot>,
    budget_bytes: u64,
    models: Clock<u32, Rc<ModelPage>>,
    residuals: Clock<u32, ResidualPage>,
    synonyms: Clock<u64, Hint>,
    doorkeeper: Doorkeeper,
    counts: Cell<PartialCounts>,
}

impl PartialLayer {
    /// A layer that holds nothing yet but what it must; `snapshot` keeps as many heads as the
    /// budget allows.
    pub fn new(snapshot: PagedSnapshot, budget: Budget) -> Self {
        let layer = Self {
            doorkeeper: Doorkeeper::new(snapshot.header().residual_page_count()),
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

    /// A layer over a newer root. Pages and synonyms of the old one are dropped (L3.4).
    #[must_use]
    pub fn with_snapshot(&self, snapshot: PagedSnapshot) -> Self {
        let layer = Self::new(snapshot, Budget(self.budget_bytes));
        layer.counts.set(self.counts.get());
        layer
    }

    /// Takes over the pages of a layer over another root, as [`with_snapshot`](Self::with_snapshot)
    /// must not: the bug that the simulator plants.
    pub(crate) fn take_pages(&mut self, other: &mut Self) {
        self.models = core::mem::take(&mut other.models);
        self.residuals = core::mem::take(&mut other.residuals);
    }

    /// The snapshot that it searches by.
    pub fn snapshot(&self) -> &Rc<PagedSnapshot> {
        &self.snapshot
    }

    /// How often it fetched and forgot, under whichever root.
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

    /// L3.1.
    fn floor_bytes(&self) -> u64 {
        self.snapshot.head_bytes() + self.doorkeeper.bytes()
    }

    fn held_bytes(&self) -> u64 {
        let pages = self.models.bytes() + self.residuals.bytes();
        self.floor_bytes() + pages + self.synonyms.bytes()
    }

    fn has_room_for(&self, bytes: u64) -> bool {
        self.held_bytes() + bytes <= self.budget_bytes
    }

    /// The leaf of a key, if everything that tells is held.
    #[inline]
    pub fn locate_held(&self, key: u64) -> Option<Hint> {
        let page = self.models.get(self.snapshot.page_of_key(key))?;
        match self.aim(page, key) {
            Aim::Leaf(leaf) => Some(leaf),
            Aim::Range(_) => None,
        }
    }

    /// A model page that is held.
    pub fn model_page(&self, page: u32) -> Option<Rc<ModelPage>> {
        self.models.get(page).cloned()
    }

    /// Where a key is that belongs to this page of the layer's root.
    pub fn aim(&self, page: &ModelPage, key: u64) -> Aim {
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
            Some(leaf) => Aim::Leaf(self.synonym_or(leaf, key)),
            None => Aim::Range(range),
        }
    }

    /// The leaf of a range whose threshold is the last one that the key reaches (L2); `None` when a
    /// residual is missing on the way.
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

    /// The synonym that a key of a trained leaf is in as far as is known, or that leaf.
    pub fn synonym_or(&self, trained: Hint, key: u64) -> Hint {
        let known = self.synonyms.at_or_below(key);
        let own = known.filter(|synonym| synonym.parent == trained.parent);
        own.copied().unwrap_or(trained)
    }

    /// The leaves of a range, at most 64 around where the line points to, and behind them the
    /// nearest synonym that is known to begin before the key; how many of them lie side by side.
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

    /// The residual pages that tell which leaf of a range a key is in and that are not held.
    pub fn missing_residuals(&self, range: &PredictedRange) -> Vec<u32> {
        let page_of = |leaf: u32| (range.placed.first_leaf + leaf) / PAGE_LEAF_COUNT as u32;
        let pages = page_of(range.from + 1)..=page_of(range.to);
        let page_count = self.snapshot.header().residual_page_count();
        pages
            .filter(|page| *page < page_count && self.residuals.get(*page).is_none())
            .collect()
    }

    /// L3.3: whether a residual page that was missed is worth reading and keeping.
    pub fn is_worth_keeping(&mut self, page: u32) -> bool {
        let bytes =
            Clock::<u32, ResidualPage>::ENTRY_BYTES + (PAGE_LEAF_COUNT as u64 + ALLOCATION_BYTES);
        if self.has_room_for(bytes + self.reserved_bytes()) {
            return true;
        }
        let held_count = self.residuals.count();
        held_count > 0 && self.doorkeeper.is_second(page, held_count)
    }

    /// Room that model pages will push residual pages out of: of those that are not held. None if
    /// there is no room for even one.
    fn reserved_bytes(&self) -> u64 {
        let page_bytes = Clock::<u32, Rc<ModelPage>>::ENTRY_BYTES
            + ModelPage::bytes(self.snapshot.page_model_count());
        if self.floor_bytes() + page_bytes > self.budget_bytes {
            return 0;
        }
        let missing_count = self.snapshot.heads().len() - self.models.count();
        missing_count as u64 * page_bytes
    }

    /// The leaf of a range, by residuals that are held and others that were fetched; its first one
    /// when some are still missing, because others have evicted them meanwhile.
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

    /// A model page of this snapshot has been read: keeps it, if that is still the layer's (L3.4)
    /// and there is room or can be made (L3.3).
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
            while !self.has_room_for(bytes) {
                let evicted = self.evict_residuals() || self.evict_synonym() || self.evict_models();
                assert!(evicted, "a page fits once nothing else is held");
            }
            self.models.insert(page, Rc::clone(&models));
        }
        debug_assert!(self.held_bytes() <= self.budget_bytes, "L3.2");
        models
    }

    /// A residual page of this snapshot has been read: keeps it, as [`keep_models`] does.
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
        while !self.has_room_for(bytes) {
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

    /// The trained leaf with this number, and how many of its model lie side by side from it on;
    /// `page` is its model page of the layer's root.
    pub(crate) fn run_in(&self, page: &ModelPage, leaf: u32) -> (Hint, u32) {
        let placed = page.model_of_leaf(leaf);
        let index = leaf.saturating_sub(placed.first_leaf);
        let index = index.min(placed.model.leaf_count - 1);
        (self.leaf_of(placed, index), placed.model.leaf_count - index)
    }

    /// The trained leaf with this number, and how many of its model lie side by side from it on;
    /// `None` when its page is not held.
    pub fn run_from(&self, leaf: u32) -> Option<(Hint, u32)> {
        let page = self.models.get(self.snapshot.page_of_leaf(leaf)?)?;
        Some(self.run_in(page, leaf))
    }

    /// Whether a leaf has a trained leaf's number without being known for another leaf: it must not
    /// be learned as a synonym then.
    pub fn may_be_trained(&self, leaf: Hint) -> bool {
        let trained = self.run_from(leaf.parent);
        trained.is_none_or(|(trained, _)| trained.addr == leaf.addr)
    }

    /// The first leaf of a page of models, which is always known.
    pub(crate) fn first_of_page(&self, page: u32) -> Hint {
        let head = self.snapshot.heads()[page as usize];
        Hint {
            addr: head.base,
            parent: head.first_leaf,
        }
    }
}

impl SearchLayer for PartialLayer {
    /// The best that can be told without fetching anything; operations fetch first.
    fn locate(&self, key: u64) -> Hint {
        let number = self.snapshot.page_of_key(key);
        let Some(page) = self.models.get(number) else {
            return self.first_of_page(number);
        };
        match self.aim(page, key) {
            Aim::Leaf(leaf) => leaf,
            Aim::Range(range) => self.leaf_of(&range.placed, range.from),
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

    /// L3.3. What there is no room for is forgotten.
    fn learn(&mut self, low: u64, leaf: Hint) {
        let bytes = Clock::<u64, Hint>::ENTRY_BYTES;
        let share = (self.budget_bytes - self.floor_bytes()) / SYNONYM_SHARE;
        while self.synonyms.bytes() + bytes > share {
            if !self.evict_synonym() {
                return;
            }
        }
        while !self.has_room_for(bytes) {
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

    /// `None`, too, when the model is not held.
    fn announcement(&self, parent: u32) -> Option<Announcement> {
        let page = self.snapshot.page_of_leaf(parent)?;
        self.models.get(page)?.announcement(parent)
    }

    /// As many as there can be: the session never reads any.
    fn announced_seen(&self, _model: u32) -> u32 {
        u32::MAX
    }

    fn note_announced(&mut self, _model: u32, _seen: u32, _entries: &[u64]) {}

    fn metadata_bytes(&self) -> u64 {
        self.held_bytes()
    }
}
