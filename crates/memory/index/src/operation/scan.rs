//! Reading keys in order (D6, D9): a trained piece is one contiguous READ.

use core::ops::Range;

use farleaf_fabric::{Batch, Endpoint, ReadSlot};
use farleaf_leaf::{LeafGeometry, LeafImage, Look};
use farleaf_types::RemoteAddr;

use super::pages::post_pages;
use super::{Index, Rare};
use crate::IndexError;
use crate::hint::{Candidates, Hint, SearchLayer};
use crate::layer::Layer;
use crate::partial::ModelPage;
use crate::snapshot::PagedSnapshot;

/// Trained leaves that one batch reads at the most.
const LEAF_COUNT_MAX: u64 = 512;
/// Leaves read beyond the expected number, in standard deviations of what that number of leaves
/// holds; a second round trip costs more than a leaf.
const SPARE_DEVIATIONS: f64 = 1.0;

/// Where a scan stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanCursor {
    /// The smallest key not passed yet; `None` at the end.
    next_key: Option<u64>,
    /// Where that key was expected, if the scan knows better than the search layer, and of which
    /// directory that is: when there is a newer one, the leaf may be anything by now (D7).
    hint: Option<(Hint, u32)>,
}

/// Leaves side by side that one READ of a scan brings.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// The first of them.
    first: Hint,
    count: u64,
    slot: ReadSlot,
    /// Whether training knows them: then each has the parent after that of the one before.
    is_trained: bool,
}

impl Piece {
    #[inline]
    fn leaf(&self, index: u64, stride_blocks: u64) -> Hint {
        Hint {
            addr: self.first.addr.offset_blocks(index * stride_blocks),
            parent: self.first.parent + if self.is_trained { index as u32 } else { 0 },
        }
    }
}

/// What a scan has to do before it knows which leaves to read, where the layer does not know them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Fetch pages.
    Pages,
    /// Read inner nodes.
    Tree,
    /// Go by models of the memory node's.
    Models,
}

#[inline]
fn way_of(layer: &Layer) -> Option<Way> {
    match layer {
        Layer::Partial(_) => Some(Way::Pages),
        Layer::Fg(_) | Layer::InnerCache(_) => Some(Way::Tree),
        Layer::Xstore(_) => Some(Way::Models),
        Layer::Learned(_) | Layer::Rolex(_) | Layer::RfTree(_) | Layer::Inner(_) => None,
    }
}

/// Where a batch of a scan starts.
#[derive(Clone, Copy, Debug)]
struct Start<'a> {
    hint: Hint,
    /// The predicted range that `hint` is the first leaf of.
    range: Option<&'a Candidates>,
    /// Models that the layer may not hold.
    models: Option<&'a ModelPage>,
}

impl<'a> Start<'a> {
    fn at(hint: Hint) -> Self {
        Self {
            hint,
            range: None,
            models: None,
        }
    }

    /// Leaves of the range before the one that is wanted, at the most.
    fn spare_count(&self) -> u64 {
        self.range
            .map_or(0, |range| range.side_by_side.saturating_sub(1) as u64)
    }

    /// Synonyms that come with the range.
    fn synonyms(&self) -> impl Iterator<Item = Hint> + 'a {
        let ranges = self.range.into_iter();
        let ranges = ranges.filter(|range| range.side_by_side > 0);
        ranges.flat_map(|range| range.leaves[range.side_by_side..].iter().copied())
    }

    /// A trained leaf, and how many lie side by side from it on, of `count_max` at the most.
    fn run_from(
        &self,
        (layer, geometry): (&Layer, LeafGeometry),
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

/// What one batch of a scan reads: a few pieces, in the order of their keys as far as is known.
#[derive(Debug, Default)]
struct ReadAhead {
    pieces: Vec<Piece>,
}

impl ReadAhead {
    /// A leaf that was read, and the piece and the place in it where its image is.
    #[inline]
    fn find(&self, addr: RemoteAddr, stride_blocks: u64) -> Option<(Hint, ReadSlot, u64)> {
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
    /// A scan from `key` on, inclusive.
    pub fn from(key: u64) -> Self {
        Self {
            next_key: Some(key),
            hint: None,
        }
    }

    /// A scan that has passed all keys.
    pub fn at_end() -> Self {
        Self {
            next_key: None,
            hint: None,
        }
    }

    /// The smallest key not passed yet; `None` at the end.
    pub fn next_key(&self) -> Option<u64> {
        self.next_key
    }

    /// Takes the records of a leaf that covers the cursor and moves it behind the leaf.
    fn pass(&mut self, image: LeafImage<'_>, records: &mut Vec<(u64, u64)>) {
        image.append_sorted(self.next_key.unwrap_or(u64::MAX), records);
        self.next_key = image.high().checked_add(1);
    }

    /// Whether all keys have been passed.
    pub fn is_finished(&self) -> bool {
        self.next_key.is_none()
    }
}

impl<E: Endpoint> Index<'_, E> {
    /// Adds at least `wanted` records to `records`, ascending, unless the keys end before; goes on
    /// until a leaf is complete, so there may be more than that. One round trip on a trained table.
    ///
    /// # Errors
    /// The fabric failed, a leaf is damaged, or the table was dropped. The cursor then stands
    /// behind the last record that was added.
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
            let way = way_of(&self.state.layer.borrow());
            let (hint, ahead) = if let Some(way) = way {
                let ahead: Rare<'_, _> =
                    Box::pin(self.read_ahead_slowly(batch, way, hint, (from, wanted)));
                ahead.await?
            } else {
                let hint = hint.unwrap_or_else(|| self.locate(from));
                let start = Start::at(hint);
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
        way: Way,
        hint: Option<Hint>,
        (from, wanted): (u64, usize),
    ) -> Result<(Hint, ReadAhead), IndexError> {
        match way {
            Way::Tree => self.read_ahead_by_tree(batch, from, wanted).await,
            Way::Models => self.read_ahead_by_models(batch, hint, from, wanted).await,
            Way::Pages => self.read_ahead_by_pages(batch, hint, from, wanted).await,
        }
    }

    /// The cursor's next key is in this leaf, as the memory node says (Y6).
    pub fn go_on_at(&self, cursor: &mut ScanCursor, leaf: RemoteAddr) {
        let hint = Hint {
            addr: leaf,
            parent: 0,
        };
        cursor.hint = Some((hint, self.layer_version));
    }

    /// [`read_ahead`](Self::read_ahead) with a metadata budget: fetches models that are missing,
    /// and where residuals are missing begins at the first leaf of the predicted range. Returns the
    /// leaf to begin with.
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
        let start = Start {
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

    /// [`read_ahead`](Self::read_ahead) for layers that read inner nodes: the leaves that the node
    /// above the cursor's leaf lists, one verb for each piece side by side, whatever memory node
    /// they are on.
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

    /// [`read_ahead`](Self::read_ahead) for a layer whose models are the memory node's: the leaves
    /// that they lead to, and the one that the cursor knows.
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
            // The node has said where to go on; perhaps nothing is trained yet.
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

    /// Reads leaves that lie anywhere, one verb for each piece side by side; the table's first leaf
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

    /// The leaf among those read ahead that covers a key, or the nearest one to its left.
    fn first_covering(&self, batch: &Batch, ahead: &ReadAhead, key: u64) -> Option<Hint> {
        let geometry = self.access.geometry;
        let mut nearest: Option<(u64, Hint)> = None;
        for piece in &ahead.pieces {
            for index in 0..piece.count {
                let hint = piece.leaf(index, geometry.stride_blocks());
                let words = &batch.words(piece.slot)[index as usize * geometry.stride_words()..];
                let image = LeafImage::new(geometry, words);
                match self.access.look(image, hint.addr, key) {
                    Look::Here => return Some(hint),
                    Look::Right(_) if nearest.is_none_or(|(low, _)| low <= image.low()) => {
                        nearest = Some((image.low(), hint));
                    }
                    _ => {}
                }
            }
        }
        nearest.map(|(_, hint)| hint)
    }

    /// Reads the leaf where it starts, the synonyms known of it, and the trained leaves behind it
    /// that are expected to hold `wanted` records, with their known synonyms: one batch, and one
    /// verb for each contiguous piece.
    async fn read_ahead(
        &self,
        batch: &mut Batch,
        start: Start<'_>,
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
            let trained = start.run_from((&layer, self.access.geometry), hint.parent, 1);
            let is_trained = trained.is_some_and(|(leaf, _)| leaf.addr == hint.addr);
            if !is_trained {
                self.post_piece(batch, &mut ahead, hint, 1, false);
                left = left.saturating_sub(1).max(1);
            }
            let mut parent = hint.parent + u32::from(!is_trained);
            synonyms_of(&layer, hint.parent..parent, (from, limit), &mut synonyms);
            while left > 0 {
                // No more than `LEAF_COUNT_MAX`.
                let geometry = self.access.geometry;
                let run = start.run_from((&layer, geometry), parent, left as u32);
                let Some((first, count)) = run else {
                    break;
                };
                let count = u64::from(count);
                self.post_piece(batch, &mut ahead, first, count, true);
                let parents = parent..parent + count as u32;
                synonyms_of(&layer, parents, (from, limit), &mut synonyms);
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

    /// One READ over leaves that lie side by side.
    fn post_piece(
        &self,
        batch: &mut Batch,
        ahead: &mut ReadAhead,
        first: Hint,
        count: u64,
        is_trained: bool,
    ) {
        let slot = self.post_run(batch, first.addr, count as usize);
        ahead.pieces.push(Piece {
            first,
            count,
            slot,
            is_trained,
        });
    }

    /// D6: takes leaves from what was read as long as each covers the cursor.
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
            if look != Look::Here {
                // A walk uses the batch for itself; what was read ahead is gone then.
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

    /// Where the keys behind a leaf are, by which directory: its right sibling, which is the next
    /// trained leaf or a synonym of the same parent.
    fn hint_behind(&self, hint: Hint, image: LeafImage<'_>) -> Option<(Hint, u32)> {
        let link = image.link().place();
        let layer = self.state.layer.borrow();
        let next = layer.next_trained(hint.parent);
        if next.is_none() && layer.as_partial().is_some() {
            // Its model may not be held: the key tells better then.
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

/// How many leaves should hold so many records, and one more for the part of the first that lies
/// before the cursor.
fn expected_leaf_count(layer: &Layer, geometry: LeafGeometry, wanted: usize) -> u64 {
    let trained = layer.record_count() as f64 / f64::from(layer.leaf_count());
    // Leaves of a table that was never loaded are as splits leave them.
    let mean = trained.max(geometry.slot_count() as f64 / 2.0);
    let expected = wanted as f64 / mean;
    let leaves = 1.0 + expected + SPARE_DEVIATIONS * (expected / mean).sqrt();
    (leaves.ceil() as u64).clamp(1, LEAF_COUNT_MAX)
}

/// Synonyms known of trained leaves, no more than the limit in all.
fn synonyms_of(
    layer: &Layer,
    parents: Range<u32>,
    (from, limit): (u64, u64),
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
