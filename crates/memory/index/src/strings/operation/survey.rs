//! Scans a whole table page by page, and answers questions of the memory node about pages.

use crate::hint::Hint;
use farleaf_base::{OwnerWord, RemoteAddr};
use farleaf_fabric::{Batch, Endpoint};
use farleaf_leaf::strings::{Fence, Outside, PageError, PageGeometry};
use farleaf_leaf::words::{LeafCheck, LeafError, LeafFormat};

use super::{ByteIndex, PageVerdict};
use crate::strings::error::ByteIndexError;

/// State of a page in a survey.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageReport {
    /// Address of the page.
    pub addr: RemoteAddr,
    /// Lower fence.
    pub low: Fence,
    /// Upper fence.
    pub high: Fence,
    /// Number of records.
    pub record_count: usize,
    /// Number of the page's strings in value blocks.
    pub block_count: usize,
    /// Used bytes: header, slots and listed bytes.
    pub used_size_bytes: usize,
    /// Lock word of the page.
    pub lock: u64,
    /// Whether the page is a trained one.
    pub is_trained: bool,
    /// Whether the keys ascend strictly and lie between the fences.
    pub is_sound: bool,
    link: RemoteAddr,
    parent: u32,
}

/// Walk over all pages, in order.
#[derive(Clone, Debug, Default)]
pub struct PageSurvey {
    next: Option<Hint>,
    /// Upper fence of the last page, if it linked to a retired page. The successor may have
    /// replaced both, and is examined from there on.
    passed: Option<Fence>,
    last_high: Option<Fence>,
    stale_count: u32,
    is_over: bool,
}

impl<E: Endpoint> ByteIndex<'_, E> {
    /// Returns whether a search for a page's lower fence arrives at the page: then the page is in
    /// use.
    ///
    /// # Errors
    /// Pages are corrupted, or the fabric failed.
    pub async fn is_in_use(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
    ) -> Result<bool, ByteIndexError> {
        batch.clear();
        let read = self.post_page(batch, addr);
        self.access.endpoint.execute(batch).await?;
        let image = batch.words(read).to_vec();
        let low = <PageGeometry as LeafFormat>::low(&self.access, batch, addr, &image).await;
        let low = match low {
            Ok(Some(low)) => low,
            Ok(None) | Err(LeafError::Damaged { .. }) if !self.access.is_intact(&image, addr) => {
                return Ok(!self.is_left(batch, addr, &image).await?);
            }
            // The page was retired in the meantime; the retrainer is responsible for it.
            Ok(None) => return Ok(true),
            Err(error) => return Err(error.into()),
        };
        let key = low.fence.least_key().unwrap_or_default();
        let arrival = self.arrive_at(batch, &key).await?;
        Ok(arrival.0 == addr)
    }

    /// Returns whether no live session works on a page with these contents. If such a page is not
    /// intact and its lower fence is unreadable, it was never written completely: a page that
    /// others link to keeps its lower fence, even if its lock holder dies. A replacement page is
    /// written with its creator's lock. A page locked by the node itself was left by a failed
    /// sweep.
    async fn is_left(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
        image: &[u64],
    ) -> Result<bool, ByteIndexError> {
        batch.clear();
        let lock = batch.read(self.access.geometry.lock(addr), 1);
        let read = self.post_page(batch, addr);
        self.access.endpoint.execute(batch).await?;
        let owner = OwnerWord::from_word(batch.words(lock)[0]);
        if batch.words(read) != image {
            return Ok(false);
        }
        let is_left = owner.is_free() || owner == self.access.owner;
        Ok(is_left || self.access.is_fenced(batch, owner).await?)
    }

    /// Returns whether the page that covers a key refers to a value block, given by the word of its
    /// pointer.
    ///
    /// # Errors
    /// Pages are corrupted, or the fabric failed.
    pub async fn refers(
        &self,
        batch: &mut Batch,
        key: &[u8],
        pointer_word: u64,
    ) -> Result<bool, ByteIndexError> {
        let (_, references) = self.arrive_at(batch, key).await?;
        Ok(references.contains(&pointer_word))
    }

    /// Returns the page that covers a key, and the pointers in it.
    async fn arrive_at(
        &self,
        batch: &mut Batch,
        key: &[u8],
    ) -> Result<(RemoteAddr, Vec<u64>), ByteIndexError> {
        let hint = self.place(batch, key).await?.page;
        let sight = PageVerdict::LeafCheck(LeafCheck::Here);
        let arrival = self.walk(batch, key, hint, sight).await?;
        let references = arrival.page.image().references().into_iter();
        let pointers = references.map(|reference| reference.pointer.word());
        Ok((arrival.hint.addr, pointers.collect()))
    }

    /// Returns the next page of a survey; `None` at the end. Costs two round trips, and one for
    /// each string outside the page.
    ///
    /// # Errors
    /// A page is corrupted, or the fabric failed.
    pub async fn survey_next(
        &self,
        batch: &mut Batch,
        survey: &mut PageSurvey,
    ) -> Result<Option<PageReport>, ByteIndexError> {
        if survey.is_over {
            return Ok(None);
        }
        let first = || {
            let layer = self.state.layer();
            layer.first_page()
        };
        let hint = survey.next.unwrap_or_else(first);
        // Which pages are trained, and which one is next, is looked up below.
        self.hold_page(batch, hint.parent).await?;
        let broken = &self.state.broken;
        let page = self.access.read_intact(batch, hint.addr, broken).await?;
        batch.clear();
        let lock = batch.read(self.access.geometry.lock(hint.addr), 1);
        self.access.endpoint.execute(batch).await?;
        let lock = batch.words(lock)[0];
        let link = page.image().link();
        if link.is_retired() {
            // A retraining, or a replaced page: the successor begins at the same key or before.
            let addr = link.place();
            survey.pass_retired(Hint { addr, ..hint });
            return Box::pin(self.survey_next(batch, survey)).await;
        }
        let mut outside = Outside::new();
        let read = self
            .with_strings(batch, hint.addr, &mut outside, |outside| {
                let image = page.image();
                let slots = image.sorted_slots(outside)?;
                let keys = slots.into_iter().map(|slot| image.whole_key(slot, outside));
                let mut keys = keys.collect::<Result<Vec<_>, _>>()?;
                let mut low = image.whole_fence(image.low(), outside)?;
                if let Some(passed) = survey.passed.as_ref().filter(|passed| low < **passed) {
                    keys.retain(|key| !passed.is_behind(key));
                    low.clone_from(passed);
                }
                let high = image.whole_fence(image.high(), outside)?;
                Ok::<_, PageError>((keys, low, high))
            })
            .await?;
        let Some((keys, low, high)) = read else {
            self.note_stale(hint.addr, &mut survey.stale_count)?;
            return Box::pin(self.survey_next(batch, survey)).await;
        };
        survey.stale_count = 0;
        let is_between = |key: &Vec<u8>| !low.is_behind(key) && high.is_behind(key);
        let layer = self.state.layer();
        let trained = layer.page(hint.parent);
        let report = PageReport {
            addr: hint.addr,
            record_count: keys.len(),
            block_count: page.image().references().len(),
            used_size_bytes: page.image().used_size_bytes(),
            lock,
            is_trained: trained.is_some_and(|trained| trained.addr == hint.addr),
            is_sound: keys.is_sorted_by(|one, next| one < next) && keys.iter().all(is_between),
            low,
            high,
            link: link.place(),
            parent: hint.parent,
        };
        survey.pass(&report, layer.next_trained(report.parent));
        Ok(Some(report))
    }
}

impl PageSurvey {
    /// Moves from a page to the one that it links to.
    fn pass(&mut self, report: &PageReport, next_trained: Option<Hint>) {
        self.is_over = report.link.is_null();
        (self.passed, self.last_high) = (None, Some(report.high.clone()));
        self.next = Some(match next_trained {
            Some(next) if next.addr == report.link => next,
            _ => Hint {
                addr: report.link,
                parent: report.parent,
            },
        });
    }

    /// Moves from a retired page to its successor.
    fn pass_retired(&mut self, hint: Hint) {
        self.next = Some(hint);
        self.passed.clone_from(&self.last_high);
    }
}

impl PageReport {
    /// Returns the lock's owner, if the page is locked.
    pub fn owner(&self) -> OwnerWord {
        OwnerWord::from_word(self.lock)
    }
}
