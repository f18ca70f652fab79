//! Reading keys: one leaf per key if the hint is right.

use farleaf_base::RemoteAddr;
use farleaf_fabric::{Batch, Endpoint, ProtocolCheck, ReadSlot};
use farleaf_leaf::words::{LeafBuffer, LeafCheck, LeafImage, SearchPath};

use super::pages::post_pages;
use super::{Index, Scratch};
use crate::IndexError;
use crate::announced::{AnnouncementReads, AnnouncementWords};
use crate::hint::{Candidates, Hint, SearchLayer};
use crate::layer::Layer;
use crate::learned::GROUP_COUNT;

/// Largest number of keys in one batch.
pub(super) const MULTI_GET_BATCH_COUNT: usize = 1024;

/// State of a walk from leaf to leaf.
#[derive(Debug, Default)]
struct WalkState {
    course: SearchPath,
    torn_count: u32,
    /// Announcements of the model, once they were read.
    announced: Option<AnnouncementWords>,
}

impl<E: Endpoint> Index<'_, E> {
    /// Returns the value of a key. Costs one round trip and one leaf if the hint is right.
    ///
    /// # Errors
    /// The fabric failed, leaves are corrupted or contradict each other, or the table was dropped.
    #[inline]
    pub async fn get(&self, batch: &mut Batch, key: u64) -> Result<Option<u64>, IndexError> {
        let Some(hint) = self.one_leaf(key) else {
            return Box::pin(self.get_from_range(batch, key)).await;
        };
        batch.clear();
        let read = self.post_leaf(batch, hint.addr);
        self.access.endpoint.execute(batch).await?;
        let image = self.image(batch, read);
        match self.access.look(image, hint.addr, key) {
            LeafCheck::Here => Ok(image.get(key)),
            LeafCheck::Torn if self.skips_check(ProtocolCheck::TornIsNotAbsent) => Ok(None),
            // Boxed: the slow path is rare, and inline it would make every get's future as large as
            // its own.
            look => Box::pin(self.get_slowly(batch, key, hint, look)).await,
        }
    }

    /// Reads the values of many keys, in their order. Costs one round trip per 1024 keys and one
    /// leaf per key if the hints are right.
    ///
    /// # Errors
    /// The errors of [`get`](Self::get).
    pub async fn multi_get(
        &self,
        batch: &mut Batch,
        keys: &[u64],
        values: &mut Vec<Option<u64>>,
    ) -> Result<(), IndexError> {
        values.clear();
        values.reserve(keys.len());
        let Scratch {
            mut hints,
            mut reads,
        } = self.state.scratch.take();
        for part in keys.chunks(MULTI_GET_BATCH_COUNT) {
            hints.clear();
            match &*self.state.layer.borrow() {
                Layer::Learned(layer) => {
                    for group in part.chunks(GROUP_COUNT) {
                        let mut located = [Hint::default(); GROUP_COUNT];
                        layer.locate_group(group, &mut located, |_| {});
                        hints.extend_from_slice(&located[..group.len()]);
                    }
                }
                Layer::RfTree(layer) => hints.extend(part.iter().map(|key| layer.locate(*key))),
                _ => {}
            }
            if hints.is_empty() {
                Box::pin(self.multi_get_from_ranges(batch, part, values)).await?;
                continue;
            }
            batch.clear();
            reads.clear();
            reads.extend(
                hints
                    .iter()
                    .map(|hint| (*hint, self.post_leaf(batch, hint.addr))),
            );
            self.access.endpoint.execute(batch).await?;
            let first = values.len();
            let mut wrong = Vec::new();
            for (key, (hint, read)) in part.iter().zip(&reads) {
                let image = self.image(batch, *read);
                let look = self.access.look(image, hint.addr, *key);
                if look == LeafCheck::Here {
                    values.push(image.get(*key));
                } else {
                    wrong.push((values.len() - first, *hint, look));
                    values.push(None);
                }
            }
            for (index, hint, look) in wrong {
                let walk = Box::pin(self.get_slowly(batch, part[index], hint, look));
                let value = walk.await?;
                values[first + index] = value;
            }
        }
        self.state.scratch.replace(Scratch { hints, reads });
        Ok(())
    }

    pub(super) fn skips_check(&self, check: ProtocolCheck) -> bool {
        self.access.endpoint.skips_check(check)
    }

    /// Returns the leaf to read for a key; `None` if the search layer names a range.
    #[inline]
    pub(super) fn one_leaf(&self, key: u64) -> Option<Hint> {
        self.one_leaf_or(key, one_leaf_of)
    }

    /// Does [`one_leaf`](Self::one_leaf), with `otherwise` for layers other than `learned`.
    #[inline]
    pub(super) fn one_leaf_or(
        &self,
        key: u64,
        otherwise: impl FnOnce(&Layer, u64) -> Option<Hint>,
    ) -> Option<Hint> {
        let layer = &*self.state.layer.borrow();
        let Layer::Learned(learned) = layer else {
            return otherwise(layer, key);
        };
        let geometry = self.access.geometry;
        let near = |leaf| self.access.endpoint.prepare(geometry.state(leaf), 1);
        Some(learned.locate_early(key, near))
    }

    #[cold]
    pub(super) async fn get_slowly(
        &self,
        batch: &mut Batch,
        key: u64,
        hint: Hint,
        look: LeafCheck,
    ) -> Result<Option<u64>, IndexError> {
        if matches!(look, LeafCheck::Right(_) | LeafCheck::Left) && self.trusts_models() {
            return Ok(None);
        }
        let (_, leaf) = self.walk(batch, key, hint, look).await?;
        Ok(leaf.image().get(key))
    }

    /// Walks from a leaf that was read to the leaf that covers the key. The layer learns the leaves
    /// on the way.
    ///
    /// If the future is dropped while it reads a leaf under its lock, the leaf may stay locked; the
    /// session is then broken and must be closed.
    ///
    /// # Errors
    /// The errors of [`get`](Self::get).
    pub(super) async fn walk(
        &self,
        batch: &mut Batch,
        key: u64,
        mut hint: Hint,
        mut look: LeafCheck,
    ) -> Result<(Hint, LeafBuffer), IndexError> {
        let mut walk = WalkState::default();
        let mut low = None;
        loop {
            if look == LeafCheck::Torn {
                let torn_count = &mut walk.torn_count;
                let broken = &self.state.broken;
                let after_torn = self.access.after_torn(batch, hint.addr, torn_count, broken);
                if let Some(leaf) = after_torn.await? {
                    look = self.access.look(leaf.image(), hint.addr, key);
                    low = Some(leaf.image().low());
                    if look == LeafCheck::Here {
                        self.arrive(batch, hint, leaf.image().low(), &walk).await?;
                        return Ok((hint, leaf));
                    }
                    continue;
                }
            } else {
                hint = self.continue_from(batch, &mut walk.course, key, hint, low, look)?;
                walk.torn_count = 0;
            }
            batch.clear();
            let read = self.post_leaf(batch, hint.addr);
            // A hint that led too far left is stale, because other sessions split leaves. Read the
            // number of splits in the same batch.
            let is_asked = matches!(look, LeafCheck::Right(_)) && walk.announced.is_none();
            let asked = is_asked.then(|| self.ask(batch, hint.parent)).flatten();
            self.access.endpoint.execute(batch).await?;
            if let Some(asked) = asked {
                walk.announced = Some(asked.answer(batch));
            }
            let image = self.image(batch, read);
            look = self.access.look(image, hint.addr, key);
            low = Some(image.low());
            match look {
                LeafCheck::Torn => {}
                LeafCheck::Here => {
                    let leaf = LeafBuffer::copy_of(image);
                    self.arrive(batch, hint, leaf.image().low(), &walk).await?;
                    return Ok((hint, leaf));
                }
                _ => self.learn(image.low(), hint),
            }
        }
    }

    async fn arrive(
        &self,
        batch: &mut Batch,
        hint: Hint,
        low: u64,
        walk: &WalkState,
    ) -> Result<(), IndexError> {
        self.arrive_at(low, hint, &walk.course);
        if let Some(announced) = &walk.announced {
            let seen = {
                let layer = self.state.layer.borrow();
                let announcement = layer.announcement(hint.parent);
                announcement.map_or(u32::MAX, |found| layer.announced_read_count(found.model))
            };
            if announced.is_worth_catching_up(seen) {
                Box::pin(self.catch_up(batch, hint.parent, announced)).await?;
            }
        }
        Ok(())
    }

    /// Posts the READs of a model's counter, and of the first entries that this session has not
    /// read.
    fn ask(&self, batch: &mut Batch, parent: u32) -> Option<AnnouncementReads> {
        let layer = self.state.layer.borrow();
        let announcement = layer.announcement(parent)?;
        let seen = layer.announced_read_count(announcement.model);
        if seen == u32::MAX {
            // A session that has read the largest possible number never reads the counter.
            return None;
        }
        Some(AnnouncementReads::post(batch, &announcement, seen))
    }

    /// Does a get of a key whose search layer names a range: reads all of it with one doorbell.
    async fn get_from_range(&self, batch: &mut Batch, key: u64) -> Result<Option<u64>, IndexError> {
        let candidates = self.candidates(batch, key).await?;
        let (hint, look, leaf) = self.read_range(batch, key, &candidates).await?;
        match leaf {
            Some(leaf) => Ok(leaf.image().get(key)),
            None => self.get_slowly(batch, key, hint, look).await,
        }
    }

    /// Reads a predicted range. Returns its leaf that covers the key, or the best leaf to continue
    /// from.
    pub(super) async fn read_range(
        &self,
        batch: &mut Batch,
        key: u64,
        candidates: &Candidates,
    ) -> Result<(Hint, LeafCheck, Option<LeafBuffer>), IndexError> {
        batch.clear();
        let reads = self.post_leaves(batch, candidates);
        let counter = candidates.counter.map(|counter| batch.read(counter, 1));
        let pages = post_pages(batch, core::iter::once(candidates));
        self.access.endpoint.execute(batch).await?;
        let images = self.images(batch, candidates, &reads);
        let chosen = choose(&self.access, key, candidates, images);
        self.keep_pages(batch, pages)?;
        // Otherwise the model's number belongs to an older directory.
        if let Some(counter) = counter.filter(|_| self.is_current()) {
            let slot_use = batch.words(counter)[0];
            let seen = self
                .state
                .layer
                .borrow()
                .announced_read_count(candidates.model);
            if slot_use > u64::from(seen) {
                let parent = candidates.leaves[0].parent;
                let announced = AnnouncementWords::counted(slot_use);
                Box::pin(self.catch_up(batch, parent, &announced)).await?;
            }
        }
        Ok(chosen)
    }

    async fn multi_get_from_ranges(
        &self,
        batch: &mut Batch,
        keys: &[u64],
        values: &mut Vec<Option<u64>>,
    ) -> Result<(), IndexError> {
        let candidates = self.candidates_of_many(batch, keys).await?;
        batch.clear();
        let reads: Vec<RangeReads> = candidates
            .iter()
            .map(|range| self.post_leaves(batch, range))
            .collect();
        let pages = post_pages(batch, candidates.iter());
        self.access.endpoint.execute(batch).await?;
        let chosen: Vec<_> = keys
            .iter()
            .zip(candidates.iter().zip(&reads))
            .map(|(key, (range, reads))| {
                let images = self.images(batch, range, reads);
                choose(&self.access, *key, range, images)
            })
            .collect();
        self.keep_pages(batch, pages)?;
        for (key, (hint, look, leaf)) in keys.iter().zip(chosen) {
            values.push(match leaf {
                Some(leaf) => leaf.image().get(*key),
                None => self.get_slowly(batch, *key, hint, look).await?,
            });
        }
        Ok(())
    }

    /// Posts the READs of all leaves of a range: one verb for the adjacent ones.
    fn post_leaves(&self, batch: &mut Batch, candidates: &Candidates) -> RangeReads {
        let (side_by_side, others) = candidates.leaves.split_at(candidates.side_by_side);
        RangeReads {
            side_by_side: side_by_side
                .first()
                .map(|first| self.post_run(batch, first.addr, side_by_side.len())),
            others: others
                .iter()
                .map(|leaf| self.post_leaf(batch, leaf.addr))
                .collect(),
        }
    }

    /// Posts one READ of adjacent leaves, at least one.
    pub(super) fn post_run(&self, batch: &mut Batch, first: RemoteAddr, count: usize) -> ReadSlot {
        let geometry = self.access.geometry;
        batch.cost_mut().leaves_read += count as u64;
        let words = (count - 1) * geometry.stride_words() + geometry.image_size_words();
        batch.read(geometry.state(first), words)
    }

    /// Returns the images of a range's leaves, in its order.
    fn images<'b>(
        &self,
        batch: &'b Batch,
        candidates: &Candidates,
        reads: &'b RangeReads,
    ) -> impl Iterator<Item = LeafImage<'b>> {
        let geometry = self.access.geometry;
        let run = reads.side_by_side.map_or(&[][..], |slot| batch.words(slot));
        let in_run = (0..candidates.side_by_side)
            .map(move |index| LeafImage::new(geometry, &run[index * geometry.stride_words()..]));
        let others = reads.others.iter();
        let others = others.map(move |slot| LeafImage::new(geometry, batch.words(*slot)));
        in_run.chain(others)
    }
}

/// Does [`Index::one_leaf`] for a layer other than `learned`. Not inlined, because in `learned`
/// every instruction counts.
#[inline(never)]
pub(super) fn one_leaf_of(layer: &Layer, key: u64) -> Option<Hint> {
    match layer {
        Layer::Rolex(_) | Layer::Fg(_) => None,
        Layer::Xstore(layer) => layer.one_leaf(key),
        Layer::Partial(layer) => layer.locate_held(key),
        Layer::InnerCache(layer) => layer.locate_held(key),
        other => Some(other.locate(key)),
    }
}

/// READs of a range.
#[derive(Debug)]
struct RangeReads {
    side_by_side: Option<ReadSlot>,
    others: Vec<ReadSlot>,
}

/// Chooses the leaf of a range that covers the key; else the nearest intact one to its left; else
/// the first.
pub(super) fn choose<'b, E: Endpoint>(
    access: &farleaf_leaf::words::LeafAccess<'_, E>,
    key: u64,
    candidates: &Candidates,
    images: impl Iterator<Item = LeafImage<'b>>,
) -> (Hint, LeafCheck, Option<LeafBuffer>) {
    let mut best: Option<(u64, Hint, LeafCheck)> = None;
    let mut first = None;
    for (hint, image) in candidates.leaves.iter().zip(images) {
        let look = access.look(image, hint.addr, key);
        match look {
            LeafCheck::Here => return (*hint, look, Some(LeafBuffer::copy_of(image))),
            LeafCheck::Right(_) if best.is_none_or(|(low, ..)| low <= image.low()) => {
                best = Some((image.low(), *hint, look));
            }
            _ => {}
        }
        first = first.or(Some((*hint, look)));
    }
    let first = first.expect("a predicted range has at least one leaf");
    let (hint, look) = best.map_or(first, |(_, hint, look)| (hint, look));
    (hint, look, None)
}
