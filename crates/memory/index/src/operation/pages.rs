//! Pages that operations of a session with a metadata budget fetch before they continue. For other
//! search layers these methods post nothing.

use std::rc::Rc;

use farleaf_fabric::{Batch, Endpoint, ReadSlot};

use super::Index;
use crate::IndexError;
use crate::hint::{Announcement, Candidates, Hint, SearchLayer};
use crate::layer::Layer;
use crate::partial::{ModelPage, PartialLayer, PredictedPlace};
use crate::snapshot::{PageRead, PagedSnapshot};

/// Result of [`Index::models_of_many`]: snapshot, held pages, pages to read.
type PagesOfMany = (Rc<PagedSnapshot>, Vec<(u32, Rc<ModelPage>)>, Vec<PageRead>);

/// READs of residual pages in a batch.
pub(super) struct ResidualReads {
    snapshot: Rc<PagedSnapshot>,
    reads: Vec<(PageRead, ReadSlot)>,
}

impl<E: Endpoint> Index<'_, E> {
    /// Returns the model page that `find` names, of the root that the layer uses when this returns.
    /// `None` if it names none, or without a budget. Costs one round trip if the page is missing.
    pub(super) async fn models_of(
        &self,
        batch: &mut Batch,
        find: impl Fn(&PagedSnapshot) -> Option<u32>,
    ) -> Result<Option<Rc<ModelPage>>, IndexError> {
        loop {
            let (snapshot, read) = {
                let layer = self.state.layer.borrow();
                let Some(layer) = layer.as_partial() else {
                    return Ok(None);
                };
                let snapshot = layer.snapshot();
                let Some(number) = find(snapshot) else {
                    return Ok(None);
                };
                if let Some(page) = layer.model_page(number) {
                    return Ok(Some(page));
                }
                (Rc::clone(snapshot), snapshot.model_page(number))
            };
            batch.clear();
            let slot = batch.read(read.from, read.word_count);
            self.access.endpoint.execute(batch).await?;
            let page = self.keep_models(&snapshot, read, batch.words(slot))?;
            if page.is_some() {
                return Ok(page);
            }
        }
    }

    /// Caches a model page that was read; `None` if the root has changed.
    fn keep_models(
        &self,
        snapshot: &Rc<PagedSnapshot>,
        read: PageRead,
        words: &[u64],
    ) -> Result<Option<Rc<ModelPage>>, IndexError> {
        let models = snapshot.decode_models(self.access.layout, read.page, words)?;
        let mut layer = self.state.layer.borrow_mut();
        let layer = layer.as_partial_mut();
        Ok(layer.and_then(|layer| {
            let page = layer.keep_models(snapshot, read.page, &models);
            Rc::ptr_eq(layer.snapshot(), snapshot).then_some(page)
        }))
    }

    /// Returns the range of leaves to read for a key; one leaf if the search layer names one.
    #[cold]
    pub(super) async fn candidates(
        &self,
        batch: &mut Batch,
        key: u64,
    ) -> Result<Candidates, IndexError> {
        if let Some(hint) = self.tree_hint(batch, key).await? {
            return Ok(Candidates::of(hint));
        }
        if let Some(candidates) = self.candidates_by_models(batch, key).await? {
            return Ok(candidates);
        }
        let find = |snapshot: &PagedSnapshot| Some(snapshot.page_of_key(key));
        let page = self.models_of(batch, find).await?;
        Ok(self.candidates_by(page.as_deref(), key))
    }

    /// Does [`candidates`](Self::candidates) with the key's model page already read, if there are
    /// pages.
    pub(super) fn candidates_by(&self, page: Option<&ModelPage>, key: u64) -> Candidates {
        match (&mut *self.state.layer.borrow_mut(), page) {
            (Layer::Rolex(layer), _) => layer.candidates(key),
            (Layer::Partial(layer), Some(page)) => partial_candidates(layer, page, key),
            (layer, _) => Candidates::of(layer.locate(key)),
        }
    }

    /// Does [`candidates`](Self::candidates) for many keys: one round trip for all missing model
    /// pages.
    pub(super) async fn candidates_of_many(
        &self,
        batch: &mut Batch,
        keys: &[u64],
    ) -> Result<Vec<Candidates>, IndexError> {
        if let Some(hints) = self.tree_hints(batch, keys).await? {
            return Ok(hints.into_iter().map(Candidates::of).collect());
        }
        if self.is_xstore() {
            let mut all = Vec::with_capacity(keys.len());
            for key in keys {
                all.extend(self.candidates_by_models(batch, *key).await?);
            }
            return Ok(all);
        }
        loop {
            let Some((snapshot, mut pages, missing)) = self.models_of_many(keys) else {
                let candidates = keys.iter().map(|key| self.candidates_by(None, *key));
                return Ok(candidates.collect());
            };
            if !missing.is_empty() {
                batch.clear();
                let slots: Vec<(PageRead, ReadSlot)> = missing
                    .iter()
                    .map(|read| (*read, batch.read(read.from, read.word_count)))
                    .collect();
                self.access.endpoint.execute(batch).await?;
                for (read, slot) in slots {
                    let page = self.keep_models(&snapshot, read, batch.words(slot))?;
                    pages.extend(page.map(|page| (read.page, page)));
                }
                pages.sort_unstable_by_key(|(number, _)| *number);
            }
            if !self.searches_by(&snapshot) {
                continue;
            }
            let candidates = keys.iter().map(|key| {
                let number = snapshot.page_of_key(*key);
                let at = pages.binary_search_by_key(&number, |(number, _)| *number);
                let at = at.expect("the page of each key is held or was read");
                self.candidates_by(Some(&pages[at].1), *key)
            });
            return Ok(candidates.collect());
        }
    }

    fn searches_by(&self, snapshot: &Rc<PagedSnapshot>) -> bool {
        let layer = self.state.layer.borrow();
        let layer = layer.as_partial();
        layer.is_some_and(|layer| Rc::ptr_eq(layer.snapshot(), snapshot))
    }

    /// Returns the model pages of keys: those that are held, which the operation keeps alive, and
    /// those to be read. `None` without a budget.
    fn models_of_many(&self, keys: &[u64]) -> Option<PagesOfMany> {
        let layer = self.state.layer.borrow();
        let layer = layer.as_partial()?;
        let snapshot = layer.snapshot();
        let mut numbers: Vec<u32> = keys.iter().map(|key| snapshot.page_of_key(*key)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let (mut held, mut missing) = (Vec::new(), Vec::new());
        for number in numbers {
            match layer.model_page(number) {
                Some(page) => held.push((number, page)),
                None => missing.push(snapshot.model_page(number)),
            }
        }
        Some((Rc::clone(snapshot), held, missing))
    }

    /// Returns the leaf of a key according to models and residuals, after fetching what is missing:
    /// at most two round trips. For layers that read inner nodes, according to those; `None` for
    /// others.
    pub(super) async fn exact_hint(
        &self,
        batch: &mut Batch,
        key: u64,
    ) -> Result<Option<Hint>, IndexError> {
        if let Some(hint) = self.tree_hint(batch, key).await? {
            return Ok(Some(hint));
        }
        loop {
            let find = |snapshot: &PagedSnapshot| Some(snapshot.page_of_key(key));
            let Some(page) = self.models_of(batch, find).await? else {
                return Ok(None);
            };
            let (range, snapshot, missing) = {
                let layer = self.state.layer.borrow();
                let Some(layer) = layer.as_partial() else {
                    return Ok(None);
                };
                match layer.aim(&page, key) {
                    PredictedPlace::Leaf(leaf) => return Ok(Some(leaf)),
                    PredictedPlace::Range(range) => {
                        let snapshot = Rc::clone(layer.snapshot());
                        (range, snapshot, layer.missing_residuals(&range))
                    }
                }
            };
            batch.clear();
            let pages = missing.iter().map(|page| snapshot.residual_page(*page));
            let pages: Vec<PageRead> = pages.collect();
            let posted = post_residuals(batch, &snapshot, &pages);
            self.access.endpoint.execute(batch).await?;
            let fetched = posted.decode(batch)?;
            let mut layer = self.state.layer.borrow_mut();
            let Some(layer) = layer.as_partial_mut() else {
                return Ok(None);
            };
            if !Rc::ptr_eq(layer.snapshot(), &snapshot) {
                continue;
            }
            let leaf = layer.resolve_with(&range, &fetched);
            let hint = layer.synonym_or(leaf, key);
            for (page, residuals) in fetched {
                if layer.is_worth_keeping(page) {
                    layer.keep_residuals(&snapshot, page, residuals);
                }
            }
            return Ok(Some(hint));
        }
    }

    /// Caches the residual pages that a batch has read.
    pub(super) fn keep_pages(
        &self,
        batch: &Batch,
        posted: Option<ResidualReads>,
    ) -> Result<(), IndexError> {
        let Some(posted) = posted else {
            return Ok(());
        };
        let fetched = posted.decode(batch)?;
        let mut layer = self.state.layer.borrow_mut();
        if let Some(layer) = layer.as_partial_mut() {
            for (page, residuals) in fetched {
                layer.keep_residuals(&posted.snapshot, page, residuals);
            }
        }
        Ok(())
    }

    /// Returns the trained leaf with this number, after fetching its model if necessary.
    pub(super) async fn trained(
        &self,
        batch: &mut Batch,
        number: u32,
    ) -> Result<Option<Hint>, IndexError> {
        let find = |snapshot: &PagedSnapshot| snapshot.page_of_leaf(number);
        let page = self.models_of(batch, find).await?;
        let layer = self.state.layer.borrow();
        Ok(match (layer.as_partial(), page) {
            (Some(layer), Some(page)) => Some(layer.run_in(&page, number).0),
            _ => layer.leaf(number),
        })
    }

    /// Returns where a split is announced, after fetching the model if necessary. `None` if it is
    /// corrupted: the caller holds a lock, which must not stay.
    pub(super) async fn announcement(
        &self,
        batch: &mut Batch,
        parent: u32,
    ) -> Result<Option<Announcement>, IndexError> {
        let find = |snapshot: &PagedSnapshot| snapshot.page_of_leaf(parent);
        let page = match self.models_of(batch, find).await {
            Ok(page) => page,
            Err(IndexError::SnapshotDamaged(_)) => None,
            Err(error) => return Err(error),
        };
        let layer = self.state.layer.borrow();
        Ok(match page {
            Some(page) => page.announcement(parent),
            None => layer.announcement(parent),
        })
    }
}

impl ResidualReads {
    fn decode(
        &self,
        batch: &Batch,
    ) -> Result<Vec<(u32, crate::partial::ResidualPage)>, IndexError> {
        let reads = self.reads.iter();
        reads
            .map(|(read, slot)| {
                let words = batch.words(*slot);
                let residuals = self.snapshot.decode_residuals(read.page, words)?;
                Ok((read.page, residuals))
            })
            .collect()
    }
}

/// Posts the READs of the residual pages that belong to these candidates, each once.
pub(super) fn post_pages<'c>(
    batch: &mut Batch,
    candidates: impl Iterator<Item = &'c Candidates>,
) -> Option<ResidualReads> {
    let mut snapshot = None;
    let mut pages: Vec<PageRead> = Vec::new();
    for range in candidates {
        snapshot = snapshot.or(range.snapshot.as_ref());
        pages.extend_from_slice(&range.pages);
    }
    pages.sort_unstable_by_key(|read| read.page);
    pages.dedup();
    let snapshot = snapshot.filter(|_| !pages.is_empty())?;
    Some(post_residuals(batch, snapshot, &pages))
}

fn post_residuals(
    batch: &mut Batch,
    snapshot: &Rc<PagedSnapshot>,
    pages: &[PageRead],
) -> ResidualReads {
    let reads = pages.iter();
    ResidualReads {
        snapshot: Rc::clone(snapshot),
        reads: reads
            .map(|read| (*read, batch.read(read.from, read.word_count)))
            .collect(),
    }
}

/// Returns one leaf, or the predicted range with the residual pages worth reading in the same
/// batch.
fn partial_candidates(layer: &mut PartialLayer, page: &ModelPage, key: u64) -> Candidates {
    let range = match layer.aim(page, key) {
        PredictedPlace::Leaf(leaf) => return Candidates::of(leaf),
        PredictedPlace::Range(range) => range,
    };
    let (leaves, side_by_side) = layer.leaves_of(&range, key);
    let mut pages = layer.missing_residuals(&range);
    pages.retain(|page| layer.is_worth_keeping(*page));
    let snapshot = layer.snapshot();
    let pages = pages.iter().map(|page| snapshot.residual_page(*page));
    Candidates {
        leaves,
        side_by_side,
        pages: pages.collect(),
        snapshot: Some(Rc::clone(snapshot)),
        ..Candidates::default()
    }
}
