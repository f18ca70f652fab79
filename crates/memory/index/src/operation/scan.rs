//! Reading keys in order (LEAF-6, LEAF-9): one READ for adjacent trained leaves.

use core::ops::Range;

use farleaf_base::RemoteAddr;
use farleaf_fabric::{Batch, Endpoint, ReadSlot};
use farleaf_leaf::words::{LeafCheck, LeafGeometry, LeafImage};

use super::pages::post_pages;
use super::{Index, Rare};
use crate::IndexError;
use crate::hint::{Candidates, Hint, SearchLayer};
use crate::layer::Layer;
use crate::partial::ModelPage;
use crate::snapshot::PagedSnapshot;

/// Largest number of trained leaves that one batch reads.
const LEAF_COUNT_MAX: u64 = 512;
/// Leaves read beyond the expected number, in standard deviations of the number of records in that
/// many leaves. A second round trip costs more than a leaf.
const SPARE_DEVIATIONS: f64 = 1.0;

/// Position of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanCursor {
    /// Smallest key not passed yet; `None` at the end.
    next_key: Option<u64>,
    /// Leaf where that key is expected, if the scan knows better than the search layer, and the
    /// version of the layer that it belongs to. With a newer layer the leaf may have been reused
    /// (LEAF-7).
    hint: Option<(Hint, u32)>,
}

/// Adjacent leaves that one READ of a scan returns.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadPiece {
    /// First leaf of the piece.
    first: Hint,
    pub(super) count: u64,
    pub(super) slot: ReadSlot,
    /// True if the directory has the leaves as trained ones: then the parent of each is the one
    /// after the previous leaf's.
    is_trained: bool,
}

impl ReadPiece {
    #[inline]
    pub(super) fn leaf(&self, index: u64, stride_blocks: u64) -> Hint {
        Hint {
            addr: self.first.addr.offset_blocks(index * stride_blocks),
            parent: self.first.parent + if self.is_trained { index as u32 } else { 0 },
        }
    }
}

/// Index structure that a scan reads first, for layers that do not hold what names the leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadAheadSource {
    /// Fetch pages.
    Pages,
    /// Read inner nodes.
    Tree,
    /// Follow models of the memory node.
    Models,
}

#[inline]
fn read_ahead_source(layer: &Layer) -> Option<ReadAheadSource> {
    match layer {
        Layer::Partial(_) => Some(ReadAheadSource::Pages),
        Layer::Fg(_) | Layer::InnerCache(_) => Some(ReadAheadSource::Tree),
        Layer::Xstore(_) => Some(ReadAheadSource::Models),
        Layer::Learned(_) | Layer::Rolex(_) | Layer::RfTree(_) | Layer::Inner(_) => None,
    }
}

/// Place where a batch of a scan starts.
#[derive(Clone, Copy, Debug)]
struct ScanStart<'a> {
    hint: Hint,
    /// Predicted range whose first leaf is `hint`.
    range: Option<&'a Candidates>,
    /// Models that the layer may not hold.
    models: Option<&'a ModelPage>,
}

impl<'a> ScanStart<'a> {
    fn at(hint: Hint) -> Self {
        Self {
            hint,
            range: None,
            models: None,
        }
    }

    /// Returns the largest number of leaves of the range before the wanted one.
    fn spare_count(&self) -> u64 {
        self.range
            .map_or(0, |range| range.side_by_side.saturating_sub(1) as u64)
    }

    /// Returns the synonyms in the range.
    fn synonyms(&self) -> impl Iterator<Item = Hint> + 'a {
        let ranges = self.range.into_iter();
        let ranges = ranges.filter(|range| range.side_by_side > 0);
        ranges.flat_map(|range| range.leaves[range.side_by_side..].iter().copied())
    }

    /// Returns a trained leaf, and how many leaves are adjacent from it on, at most `count_max`.
    fn run_from(
        &self,
        layer: &Layer,
        geometry: LeafGeometry,
        leaf: u32,
        count_max: u32,
    ) -> Option<(Hint, u32)> {
        let models = self.models.filter(|models| models.leaves().contains(&leaf));
        match (layer, models) {
            (Layer::Partial(layer), Some(models)) => {
                let (leaf, count) = layer.run_in(models, leaf);
                Some((leaf, count.min(count_max.max(1))))
            }
            _ => layer.run_from(geometry, leaf, count_max),
        }
    }
}

/// Leaves that one batch of a scan reads: a few pieces, in key order as far as known.
#[derive(Debug, Default)]
pub(super) struct ReadAhead {
    pub(super) pieces: Vec<ReadPiece>,
}

impl ReadAhead {
    /// Returns a leaf that was read, with the piece and the place in it of its image.
    #[inline]
    pub(super) fn find(
        &self,
        addr: RemoteAddr,
        stride_blocks: u64,
    ) -> Option<(Hint, ReadSlot, u64)> {
        self.pieces.iter().find_map(|piece| {
            let first = piece.first.addr;
            let blocks = addr.block().checked_sub(first.block())?;
            let index = blocks / stride_blocks;
            let hit = addr.node() == first.node()
                && index < piece.count
                && index * stride_blocks == blocks;
            let parent = piece.first.parent + if piece.is_trained { index as u32 } else { 0 };
            hit.then_some((Hint { addr, parent }, piece.slot, index))
        })
    }
}

impl ScanCursor {
    /// Creates a cursor for a scan from `key` on, inclusive.
    pub fn from(key: u64) -> Self {
        Self {
            next_key: Some(key),
            hint: None,
        }
    }

    /// Creates a cursor that has passed all keys.
    pub fn at_end() -> Self {
        Self {
            next_key: None,
            hint: None,
        }
    }

    /// Returns the smallest key not passed yet; `None` at the end.
    pub fn next_key(&self) -> Option<u64> {
        self.next_key
    }

    /// Takes the records of a leaf that covers the cursor, and moves the cursor past the leaf.
    fn pass(&mut self, image: LeafImage<'_>, records: &mut Vec<(u64, u64)>) {
        image.append_sorted(self.next_key.unwrap_or(u64::MAX), records);
        self.next_key = image.high().checked_add(1);
    }

    /// Returns whether all keys have been passed.
    pub fn is_finished(&self) -> bool {
        self.next_key.is_none()
    }
}

impl<E: Endpoint> Index<'_, E> {
    /// Adds at least `wanted` records to `records` in ascending order, or fewer if the keys end
    /// first. Each leaf is completed, so there may be more. Costs one round trip on a trained
    /// table.
    ///
    /// # Errors
    /// The fabric failed, a leaf is corrupted, or the table was dropped. The cursor is then after
    /// the last record that was added.
    pub async fn scan(
        &self,
        batch: &mut Batch,
        cursor: &mut ScanCursor,
        wanted: usize,
        records: &mut Vec<(u64, u64)>,
    ) -> Result<(), IndexError> {
        let end = records.len().saturating_add(wanted);
        while let Some(from) = cursor.next_key {
            if records.len() >= end {
                break;
            }
            let wanted = end - records.len();
            let known = cursor.hint.take();
            let known = known.filter(|(_, version)| *version == self.layer_version);
            let hint = known.map(|(hint, _)| hint);
            let source = read_ahead_source(&self.state.layer.borrow());
            let (hint, ahead) = if let Some(source) = source {
                let ahead: Rare<'_, _> =
                    Box::pin(self.read_ahead_slowly(batch, source, hint, from, wanted));
                ahead.await?
            } else {
                let hint = hint.unwrap_or_else(|| self.locate(from));
                let start = ScanStart::at(hint);
                (hint, self.read_ahead(batch, start, from, wanted).await?)
            };
            self.consume(batch, cursor, hint, &ahead, end, records)
                .await?;
        }
        Ok(())
    }

    async fn read_ahead_slowly(
        &self,
        batch: &mut Batch,
        source: ReadAheadSource,
        hint: Option<Hint>,
        from: u64,
        wanted: usize,
    ) -> Result<(Hint, ReadAhead), IndexError> {
        match source {
            ReadAheadSource::Tree => self.read_ahead_by_tree(batch, from, wanted).await,
            ReadAheadSource::Models => self.read_ahead_by_models(batch, hint, from, wanted).await,
            ReadAheadSource::Pages => self.read_ahead_by_pages(batch, hint, from, wanted).await,
        }
    }

    /// Sets the leaf of the cursor's next key, as returned by the memory node.
    pub fn set_leaf(&self, cursor: &mut ScanCursor, leaf: RemoteAddr) {
        let hint = Hint {
            addr: leaf,
            parent: 0,
        };
        cursor.hint = Some((hint, self.layer_version));
    }

    /// Does [`read_ahead`](Self::read_ahead) with a metadata budget. Fetches missing models, and
    /// where residuals are missing starts at the first leaf of the predicted range. Returns the
    /// first leaf.
    async fn read_ahead_by_pages(
        &self,
        batch: &mut Batch,
        hint: Option<Hint>,
        from: u64,
        wanted: usize,
    ) -> Result<(Hint, ReadAhead), IndexError> {
        let find = |snapshot: &PagedSnapshot| match hint {
            Some(hint) => snapshot.page_of_leaf(hint.parent),
            None => Some(snapshot.page_of_key(from)),
        };
        let models = self.models_of(batch, find).await?;
        let range = match hint {
            Some(hint) => Candidates::of(hint),
            None => self.candidates_by(models.as_deref(), from),
        };
        let first = range.leaves[0];
        let start = ScanStart {
            hint: first,
            range: Some(&range),
            models: models.as_deref(),
        };
        let ahead = self.read_ahead(batch, start, from, wanted).await?;
        Ok((
            self.first_covering(batch, &ahead, from).unwrap_or(first),
            ahead,
        ))
    }

    /// Does [`read_ahead`](Self::read_ahead) for layers that read inner nodes. Reads the leaves
    /// that the node above the cursor's leaf lists, one verb per piece of adjacent leaves, on all
    /// memory nodes.
    async fn read_ahead_by_tree(
        &self,
        batch: &mut Batch,
        from: u64,
        wanted: usize,
    ) -> Result<(Hint, ReadAhead), IndexError> {
        let geometry = self.access.geometry;
        let limit = expected_leaf_count(&self.state.layer.borrow(), geometry, wanted);
        let leaves = self.tree_leaves(batch, from, limit as usize).await?;
        self.read_leaves(batch, leaves).await
    }

    /// Does [`read_ahead`](Self::read_ahead) for a layer whose models the memory node trains. Reads
    /// the leaves that the models lead to, and the one that the cursor knows.
    async fn read_ahead_by_models(
        &self,
        batch: &mut Batch,
        hint: Option<Hint>,
        from: u64,
        wanted: usize,
    ) -> Result<(Hint, ReadAhead), IndexError> {
        let geometry = self.access.geometry;
        let limit = expected_leaf_count(&self.state.layer.borrow(), geometry, wanted);
        let leaves = self.model_leaves(batch, from, limit as usize).await;
        let mut leaves = match (leaves, hint) {
            // The node has named the next leaf; perhaps nothing is trained yet.
            (Err(IndexError::FallBack { .. }), Some(_)) => Vec::new(),
            (leaves, _) => leaves?,
        };
        if let Some(hint) = hint {
            leaves.retain(|leaf| *leaf != hint.addr);
            leaves.insert(0, hint.addr);
        }
        let (first, ahead) = self.read_leaves(batch, leaves).await?;
        let begin = match hint {
            Some(hint) => hint,
            None => self.first_covering(batch, &ahead, from).unwrap_or(first),
        };
        Ok((begin, ahead))
    }

    /// Reads leaves at any addresses, one verb per piece of adjacent leaves; the table's first leaf
    /// if there are none. Returns the first of them.
    async fn read_leaves(
        &self,
        batch: &mut Batch,
        leaves: Vec<RemoteAddr>,
    ) -> Result<(Hint, ReadAhead), IndexError> {
        let first = leaves.first().map_or_else(
            || self.state.layer.borrow().first_leaf(),
            |addr| Hint {
                addr: *addr,
                parent: 0,
            },
        );
        batch.clear();
        let mut ahead = ReadAhead::default();
        if leaves.is_empty() {
            self.post_piece(batch, &mut ahead, first, 1, false);
        }
        let stride = self.access.geometry.stride_blocks();
        let beside = |left: &RemoteAddr, right: &RemoteAddr| {
            left.node() == right.node() && left.block() + stride == right.block()
        };
        for piece in leaves.chunk_by(beside) {
            let hint = Hint {
                addr: piece[0],
                parent: 0,
            };
            self.post_piece(batch, &mut ahead, hint, piece.len() as u64, false);
        }
        self.access.endpoint.execute(batch).await?;
        Ok((first, ahead))
    }

    /// Returns the leaf that covers a key, among those read ahead, or the nearest one to its left.
    fn first_covering(&self, batch: &Batch, ahead: &ReadAhead, key: u64) -> Option<Hint> {
        let geometry = self.access.geometry;
        let mut nearest: Option<(u64, Hint)> = None;
        for piece in &ahead.pieces {
            for index in 0..piece.count {
                let hint = piece.leaf(index, geometry.stride_blocks());
                let words = &batch.words(piece.slot)[index as usize * geometry.stride_words()..];
                let image = LeafImage::new(geometry, words);
                match self.access.look(image, hint.addr, key) {
                    LeafCheck::Here => return Some(hint),
                    LeafCheck::Right(_) if nearest.is_none_or(|(low, _)| low <= image.low()) => {
                        nearest = Some((image.low(), hint));
                    }
                    _ => {}
                }
            }
        }
        nearest.map(|(_, hint)| hint)
    }

    /// Reads the start leaf, its known synonyms, and the following trained leaves that are expected
    /// to have `wanted` records, with their known synonyms. Costs one batch, with one verb per
    /// contiguous piece.
    async fn read_ahead(
        &self,
        batch: &mut Batch,
        start: ScanStart<'_>,
        from: u64,
        wanted: usize,
    ) -> Result<ReadAhead, IndexError> {
        let hint = start.hint;
        batch.clear();
        let mut ahead = ReadAhead::default();
        let mut synonyms = Vec::new();
        {
            let layer = self.state.layer.borrow();
            let limit = expected_leaf_count(&layer, self.access.geometry, wanted);
            let limit = (limit + start.spare_count()).min(LEAF_COUNT_MAX);
            let mut left = limit;
            let trained = start.run_from(&layer, self.access.geometry, hint.parent, 1);
            let is_trained = trained.is_some_and(|(leaf, _)| leaf.addr == hint.addr);
            if !is_trained {
                self.post_piece(batch, &mut ahead, hint, 1, false);
                left = left.saturating_sub(1).max(1);
            }
            let mut parent = hint.parent + u32::from(!is_trained);
            synonyms_of(&layer, hint.parent..parent, from, limit, &mut synonyms);
            while left > 0 {
                // `left` is at most `LEAF_COUNT_MAX`.
                let geometry = self.access.geometry;
                let run = start.run_from(&layer, geometry, parent, left as u32);
                let Some((first, count)) = run else {
                    break;
                };
                let count = u64::from(count);
                self.post_piece(batch, &mut ahead, first, count, true);
                let parents = parent..parent + count as u32;
                synonyms_of(&layer, parents, from, limit, &mut synonyms);
                left -= count;
                parent += count as u32;
            }
        }
        synonyms.extend(start.synonyms());
        for synonym in synonyms {
            self.post_piece(batch, &mut ahead, synonym, 1, false);
        }
        let pages = post_pages(batch, start.range.into_iter());
        self.access.endpoint.execute(batch).await?;
        self.keep_pages(batch, pages)?;
        Ok(ahead)
    }

    /// Posts one READ of adjacent leaves.
    pub(super) fn post_piece(
        &self,
        batch: &mut Batch,
        ahead: &mut ReadAhead,
        first: Hint,
        count: u64,
        is_trained: bool,
    ) {
        let slot = self.post_run(batch, first.addr, count as usize);
        ahead.pieces.push(ReadPiece {
            first,
            count,
            slot,
            is_trained,
        });
    }

    /// Takes leaves from what was read as long as each covers the cursor (LEAF-6).
    async fn consume(
        &self,
        batch: &mut Batch,
        cursor: &mut ScanCursor,
        hint: Hint,
        ahead: &ReadAhead,
        end: usize,
        records: &mut Vec<(u64, u64)>,
    ) -> Result<(), IndexError> {
        let geometry = self.access.geometry;
        let mut found = ahead.find(hint.addr, geometry.stride_blocks());
        while let Some((hint, slot, index)) = found
            && let Some(from) = cursor.next_key
        {
            let words = &batch.words(slot)[index as usize * geometry.stride_words()..];
            let image = LeafImage::new(geometry, words);
            let look = self.access.look(image, hint.addr, from);
            if look != LeafCheck::Here {
                // A walk reuses the batch, which discards what was read ahead.
                let (hint, leaf) = Box::pin(self.walk(batch, from, hint, look)).await?;
                cursor.pass(leaf.image(), records);
                cursor.hint = self.hint_behind(hint, leaf.image());
                return Ok(());
            }
            cursor.pass(image, records);
            let link = image.link().place();
            found = ahead.find(link, geometry.stride_blocks());
            if records.len() >= end || found.is_none() {
                cursor.hint = self.hint_behind(hint, image);
                return Ok(());
            }
        }
        Ok(())
    }

    /// Returns where the keys after a leaf are, and the version of the layer: the right sibling,
    /// which is the next trained leaf or a synonym of the same parent.
    fn hint_behind(&self, hint: Hint, image: LeafImage<'_>) -> Option<(Hint, u32)> {
        let link = image.link().place();
        let layer = self.state.layer.borrow();
        let next = layer.next_trained(hint.parent);
        if next.is_none() && layer.as_partial().is_some() {
            // The model may not be held; then the key gives the better hint.
            return None;
        }
        let synonym = Hint {
            addr: link,
            parent: hint.parent,
        };
        let behind = next.filter(|next| next.addr == link).unwrap_or(synonym);
        (!link.is_null()).then_some((behind, self.layer_version))
    }
}

/// Returns how many leaves should have `wanted` records, and one more for the part of the first
/// leaf before the cursor.
pub(super) fn expected_leaf_count(layer: &Layer, geometry: LeafGeometry, wanted: usize) -> u64 {
    let trained = layer.record_count() as f64 / f64::from(layer.leaf_count());
    // Leaves of a table that was never loaded are as splits leave them.
    let mean = trained.max(geometry.slot_count() as f64 / 2.0);
    let expected = wanted as f64 / mean;
    let leaves = 1.0 + expected + SPARE_DEVIATIONS * (expected / mean).sqrt();
    (leaves.ceil() as u64).clamp(1, LEAF_COUNT_MAX)
}

/// Returns known synonyms of trained leaves, at most the limit in total.
fn synonyms_of(
    layer: &Layer,
    parents: Range<u32>,
    from: u64,
    limit: u64,
    synonyms: &mut Vec<Hint>,
) {
    let mut found = Vec::new();
    for parent in parents {
        let left = (limit as usize).saturating_sub(synonyms.len());
        layer.synonyms_above(parent, from, left, &mut found);
        if !found.is_empty() {
            synonyms.extend(found.drain(..).map(|addr| Hint { addr, parent }));
        }
    }
}
