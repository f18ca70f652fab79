//! Inspecting a whole table: its leaves one by one, and an estimate of its records.

use farleaf_base::{NodeId, RemoteAddr, WordAddr};
use farleaf_fabric::{Batch, Endpoint};
use farleaf_leaf::words::{Critical, LeafCheck};

use super::Index;
use crate::IndexError;
use crate::hint::{Announcement, Hint, SearchLayer};

/// Largest number of synonyms of one leaf that a survey reads to get past it.
const SYNONYM_COUNT_MAX: usize = 1024;
/// Number of leaves of each kind that an estimate reads.
const SAMPLE_COUNT: u32 = 256;

/// Leaf as a survey meets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafReport {
    /// Address of the leaf.
    pub addr: RemoteAddr,
    /// Inclusive lower fence.
    pub low: u64,
    /// Inclusive upper fence.
    pub high: u64,
    /// Number of records.
    pub record_count: usize,
    /// True if every key is within the fences, and none occurs twice.
    pub is_sound: bool,
    /// True if the directory has the leaf as trained; otherwise a split made it.
    pub is_trained: bool,
    /// Lock word as read.
    pub lock: u64,
}

/// Keys that a survey could not reach: their leaves were on a lost node, or after such a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostRange {
    /// First unreachable key.
    pub low: u64,
    /// Last unreachable key.
    pub high: u64,
    /// Lost node that had the first of these leaves.
    pub node: NodeId,
}

/// Walk over all leaves of a table, from the first key on. Costs two round trips per leaf.
#[derive(Debug)]
pub struct Survey {
    next: Option<(u64, Hint)>,
    /// True if the hint is the link of the last leaf.
    is_linked: bool,
    /// Version of the layer that the hint belongs to.
    layer_version: u32,
    /// Lost nodes that the survey met.
    lost: Vec<NodeId>,
}

impl<E: Endpoint> Index<'_, E> {
    /// Starts a survey at the first leaf.
    pub fn survey(&self) -> Survey {
        Survey {
            next: Some((0, self.locate(0))),
            is_linked: false,
            layer_version: self.layer_version,
            lost: Vec::new(),
        }
    }

    /// Returns the next leaf; `None` after the last. Leaves split meanwhile are reported once each;
    /// of a leaf that was merged with a reported one, the rest is reported. Unless LEAF-6 holds
    /// between two consecutive reports, the table is broken.
    ///
    /// # Errors
    /// [`IndexError::Outdated`]: another operation can continue the survey. Or the fabric failed, a
    /// leaf is corrupted, or the table was dropped.
    pub async fn survey_next(
        &self,
        batch: &mut Batch,
        survey: &mut Survey,
    ) -> Result<Option<LeafReport>, IndexError> {
        let _patient = self.state.follow_all_links();
        let Some((key, mut hint)) = survey.next else {
            return Ok(None);
        };
        if survey.layer_version != self.layer_version {
            let exact = self.exact_hint(batch, key).await?;
            hint = exact.unwrap_or_else(|| self.locate(key));
            (survey.is_linked, survey.layer_version) = (false, self.layer_version);
            survey.next = Some((key, hint));
        }
        let leaf = self.read_intact(batch, hint.addr).await?;
        let look = self.access.look(leaf.image(), hint.addr, key);
        let (hint, leaf) = match look {
            LeafCheck::Here => (hint, leaf),
            look => {
                survey.is_linked = false;
                self.walk(batch, key, hint, look).await?
            }
        };
        batch.clear();
        let lock = batch.read(self.access.geometry.lock(hint.addr), 1);
        self.access.endpoint.execute(batch).await?;
        let image = leaf.image();
        let mut records = Vec::new();
        image.append_sorted(0, &mut records);
        let fences = image.low()..=image.high();
        let lock = batch.words(lock)[0];
        let is_sound = records.iter().all(|(key, _)| fences.contains(key))
            && records.windows(2).all(|pair| pair[0].0 < pair[1].0);
        let trained = self.trained(batch, hint.parent).await?;
        let link = image.link().place();
        let next_trained = self.trained(batch, hint.parent + 1).await?;
        let next = match next_trained {
            Some(next) if next.addr == link => next,
            _ => Hint {
                addr: link,
                parent: hint.parent,
            },
        };
        // A link leads to where the last leaf ended, or the table is broken (LEAF-6).
        let low = if survey.is_linked {
            image.low()
        } else {
            image.low().max(key)
        };
        records.retain(|(key, _)| *key >= low || !fences.contains(key));
        survey.next = image.high().checked_add(1).map(|key| (key, next));
        survey.is_linked = true;
        Ok(Some(LeafReport {
            addr: hint.addr,
            low,
            high: image.high(),
            record_count: records.len(),
            is_sound,
            is_trained: trained.is_some_and(|trained| trained.addr == hint.addr),
            lock,
        }))
    }

    /// Continues after leaves on `lost`, where [`survey_next`](Self::survey_next) failed, at the
    /// first known leaf on another node. Returns the keys in between; `None` if there are none, and
    /// the survey continues. Costs a round trip per leaf that is tried, mostly one.
    ///
    /// # Errors
    /// The errors of [`survey_next`](Self::survey_next) except for a lost node.
    pub async fn survey_past(
        &self,
        batch: &mut Batch,
        survey: &mut Survey,
        lost: NodeId,
    ) -> Result<Option<LostRange>, IndexError> {
        let Some((key, hint)) = survey.next else {
            return Ok(None);
        };
        if survey.layer_version != self.layer_version {
            return Err(IndexError::Outdated);
        }
        survey.lost.push(lost);
        let mut parent = hint.parent;
        let mut last = Some((key, hint.parent));
        loop {
            let found = self
                .next_known(batch, survey, &mut parent, &mut last)
                .await?;
            let Some(next) = found else {
                survey.next = None;
                let high = u64::MAX;
                return Ok(Some(LostRange {
                    low: key,
                    high,
                    node: lost,
                }));
            };
            let leaf = match self.read_intact(batch, next.addr).await {
                Ok(leaf) => leaf,
                Err(error) => {
                    let error = IndexError::from(error);
                    survey.lost.push(error.lost_node().ok_or(error)?);
                    continue;
                }
            };
            // A lower fence never changes, not even in a retired leaf (LEAF-2).
            let low = leaf.image().low();
            (survey.next, survey.is_linked) = (Some((low.max(key), next)), false);
            return Ok((low > key).then(|| LostRange {
                low: key,
                high: low - 1,
                node: lost,
            }));
        }
    }

    /// Returns the next known leaf after the last one that is not on a lost node: a synonym of the
    /// parent above a key, or a later trained leaf.
    async fn next_known(
        &self,
        batch: &mut Batch,
        survey: &Survey,
        parent: &mut u32,
        last: &mut Option<(u64, u32)>,
    ) -> Result<Option<Hint>, IndexError> {
        let is_there = |addr: RemoteAddr| !survey.lost.contains(&addr.node());
        if let Some((key, parent)) = last.take() {
            let mut synonyms = Vec::new();
            let layer = self.state.layer.borrow();
            layer.synonyms_above(parent, key, SYNONYM_COUNT_MAX, &mut synonyms);
            if let Some(addr) = synonyms.into_iter().find(|addr| is_there(*addr)) {
                return Ok(Some(Hint { addr, parent }));
            }
        }
        loop {
            *parent += 1;
            match self.trained(batch, *parent).await? {
                Some(leaf) if !is_there(leaf.addr) => {}
                found => return Ok(found),
            }
        }
    }

    /// Returns the leaf that covers a key.
    ///
    /// # Errors
    /// The fabric failed, a leaf is corrupted, or the table was dropped.
    pub async fn leaf_of(&self, batch: &mut Batch, key: u64) -> Result<RemoteAddr, IndexError> {
        let hint = self.exact_hint(batch, key).await?;
        let hint = hint.unwrap_or_else(|| self.locate(key));
        let leaf = self.read_intact(batch, hint.addr).await?;
        match self.access.look(leaf.image(), hint.addr, key) {
            LeafCheck::Here => Ok(hint.addr),
            look => Ok(self.walk(batch, key, hint, look).await?.0.addr),
        }
    }

    /// Returns whether a leaf is in use: a search for its lower fence arrives at it. Before
    /// returning false, locks the leaf at which the search arrived instead, and checks that it is
    /// unchanged. A session that recovers that leaf from a dead owner may be about to retire it in
    /// favor of this one (LEAF-8); until then the move is not visible.
    ///
    /// # Errors
    /// The errors of [`leaf_of`](Self::leaf_of).
    pub async fn is_in_use(
        &self,
        batch: &mut Batch,
        place: RemoteAddr,
        low: u64,
    ) -> Result<bool, IndexError> {
        let (access, broken) = (&self.access, &*self.state.broken);
        loop {
            let arrived = self.leaf_of(batch, low).await?;
            if arrived == place {
                return Ok(true);
            }
            let mut leaf = access.blank();
            let lock = access.lock(batch, arrived, None, &mut leaf, broken);
            lock.await?;
            let critical = Critical::enter(broken);
            let look = access.check_intact(leaf.image(), low);
            access.unlock(batch, arrived, broken).await?;
            critical.passed();
            if look == LeafCheck::Here {
                return Ok(false);
            }
        }
    }

    /// Returns an estimate of the number of records: the number of leaves, exact as far as splits
    /// were announced, times the mean fill of a sample. Costs at most a few hundred round trips.
    ///
    /// # Errors
    /// The errors of [`leaf_of`](Self::leaf_of).
    pub async fn estimate_len(&self, batch: &mut Batch) -> Result<u64, IndexError> {
        if let Some(count) = Box::pin(self.estimate_by_tree(batch, SAMPLE_COUNT)).await? {
            return Ok(count);
        }
        let leaf_count = self.state.layer.borrow().leaf_count();
        let mut records = 0.0;
        let mut leaves = 0.0;
        let counters = self.split_counters(batch).await?;
        batch.clear();
        let counters: Vec<_> = counters
            .into_iter()
            .map(|counter| batch.read(counter, 1))
            .collect();
        self.access.endpoint.execute(batch).await?;
        let splits = counters
            .iter()
            .map(|counter| batch.words(*counter)[0] as f64);
        let splits: f64 = splits.sum();
        let step = (leaf_count / SAMPLE_COUNT).max(1);
        for parent in (0..leaf_count).step_by(step as usize) {
            let Some(trained) = self.trained(batch, parent).await? else {
                break;
            };
            let leaf = self.read_intact(batch, trained.addr).await?;
            if leaf.image().is_retired() && !self.state.follows_retired.get() {
                return Err(IndexError::Outdated);
            }
            records += leaf.image().record_count() as f64;
            leaves += 1.0;
            let next = leaf.image().link().place();
            let next_trained = self.trained(batch, parent + 1).await?;
            if !next.is_null() && next_trained.is_none_or(|trained| trained.addr != next) {
                let leaf = self.read_intact(batch, next).await?;
                records += leaf.image().record_count() as f64;
                leaves += 1.0;
            }
        }
        let mean: f64 = if leaves > 0.0 { records / leaves } else { 0.0 };
        Ok((mean * (f64::from(leaf_count) + splits)).round() as u64)
    }

    /// Returns the addresses of the counters of each model's splits. With a metadata budget, costs
    /// one round trip per missing model page.
    async fn split_counters(&self, batch: &mut Batch) -> Result<Vec<WordAddr>, IndexError> {
        let counter = |found: Announcement| found.counter;
        let mut counters = Vec::new();
        let mut page_count = 0;
        while let Some(page) = self
            .models_of(batch, |it| {
                let is_page = page_count < it.heads().len() as u32;
                is_page.then_some(page_count)
            })
            .await?
        {
            counters.extend(page.announcements().map(counter));
            page_count += 1;
        }
        if page_count == 0 {
            let layer = self.state.layer.borrow();
            let first_leaves =
                (0..layer.model_count() as u32).filter_map(|model| layer.first_leaf_of(model));
            let announcements = first_leaves.filter_map(|leaf| layer.announcement(leaf));
            counters.extend(announcements.map(counter));
        }
        Ok(counters)
    }
}
