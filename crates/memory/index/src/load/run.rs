//! Leaves of a load, trained and written model by model.

use farleaf_base::RemoteAddr;
use farleaf_fabric::{Batch, Endpoint, OperationKind};
use farleaf_leaf::words::{LeafAccess, LeafBuffer};
use farleaf_model::{Segment, SegmentBuilder};
use farleaf_pool::allocation::ChunkAllocator;

use crate::LoadError;
use crate::directory::Model;
use crate::hint::SYNONYM_TABLE_HEADER_SIZE_WORDS;
use crate::layer::LayerKind;
use crate::load::cut::LeafSink;
use crate::load::extent::RunExtents;
use crate::load::train::{Boundaries, Gap, shift_for};

/// Number of leaves that one WRITE transfers.
const WRITE_LEAF_COUNT: usize = 1024;
/// Number of entries of a synonym leaf table in `rolex`: 2^8, as in the paper.
const PAPER_SYNONYM_CAPACITY: u32 = 256;
/// Number of leaves per entry of a synonym leaf table: there are twice as many entries as splits
/// that make a model due for retraining.
const LEAVES_PER_SYNONYM_ENTRY: u32 = 4;
const SYNONYM_CAPACITY_MAX: u32 = Model::TRAINED_LEAF_COUNT_MAX / LEAVES_PER_SYNONYM_ENTRY - 2;
/// Largest difference between the lookups' arithmetic and the one here, in leaves.
const ROUNDING_MARGIN: f32 = 1e-5;

/// Models and residuals of all leaves of a load.
#[derive(Debug)]
pub(super) struct Run {
    /// Models, whose synonym leaf tables have no address yet.
    pub(super) models: Vec<Model>,
    /// Residual of each leaf.
    pub(super) residuals: Vec<i8>,
    /// Scale of positions: their unit is 2^-shift leaves.
    pub(super) shift: u32,
}

/// Builder of a run: takes leaves in order, trains models, and places and writes the leaves.
pub(super) struct RunBuilder<'a, E> {
    access: &'a LeafAccess<'a, E>,
    allocator: &'a ChunkAllocator<'a, E>,
    extents: &'a mut RunExtents,
    kind: LayerKind,
    regression: SegmentBuilder,
    run: Run,
    /// Records of leaves without a finished model.
    records: Vec<(u64, u64)>,
    /// Record counts of these leaves, and the gaps before them.
    leaves: Vec<(usize, Gap)>,
    /// Last key of the last leaf.
    last_key: Option<u64>,
    /// Last leaf of the last written model, whose link is not known yet.
    held_back: Option<(RemoteAddr, LeafBuffer)>,
    batch: Batch,
}

impl<'a, E: Endpoint> RunBuilder<'a, E> {
    /// Creates a builder without leaves.
    pub(super) fn new(
        access: &'a LeafAccess<'a, E>,
        allocator: &'a ChunkAllocator<'a, E>,
        extents: &'a mut RunExtents,
        kind: LayerKind,
        epsilon_leaves: f64,
    ) -> Self {
        let shift = shift_for(epsilon_leaves);
        Self {
            access,
            allocator,
            extents,
            kind,
            regression: SegmentBuilder::new(epsilon_leaves, leaf_count_max(kind)),
            run: Run {
                models: Vec::new(),
                residuals: Vec::new(),
                shift,
            },
            records: Vec::new(),
            leaves: Vec::new(),
            last_key: None,
            held_back: None,
            batch: Batch::new(),
        }
    }

    /// Finishes the last model. Returns `None` if there was no leaf.
    ///
    /// # Errors
    /// The pool is full, or the fabric failed.
    pub(super) async fn finish(mut self) -> Result<Option<Run>, LoadError> {
        let Some(segment) = self.regression.finish() else {
            return Ok(None);
        };
        self.write_model(&segment, None).await?;
        self.write_held_back(RemoteAddr::NULL).await?;
        let cost = self.batch.take_cost();
        self.access
            .endpoint
            .counters()
            .record(OperationKind::BulkLoad, &cost);
        Ok(Some(self.run))
    }

    /// Decides the fences of a segment's leaves and writes them. `next` is the fence and the record
    /// count of the following leaf, whose records are already at the end of `records`.
    async fn write_model(
        &mut self,
        segment: &Segment,
        next: Option<(u64, usize)>,
    ) -> Result<(), LoadError> {
        let stride = self.access.geometry.stride_blocks();
        let leaf_count = self.leaves.len() as u64;
        let layout = self.access.layout;
        let base = self
            .extents
            .place(self.allocator, layout, leaf_count * stride)
            .await?;
        self.write_held_back(base).await?;
        let mut model = self.model_of(segment, base);
        let gaps: Vec<Gap> = self.leaves.iter().map(|(_, gap)| *gap).collect();
        let mut boundaries = Boundaries::decide(&model, &gaps, self.run.shift);
        model.error_max = error_max(&model, &boundaries.lows);
        if self.run.models.is_empty() {
            boundaries.lows[0] = 0;
        }
        boundaries.lows.push(next.map_or(0, |(fence, _)| fence));
        self.write_leaves(base, &boundaries.lows).await?;
        self.run.models.push(model);
        self.run.residuals.extend(&boundaries.residuals);
        let keep = next.map_or(0, |(_, count)| count);
        self.records.drain(..self.records.len() - keep);
        self.leaves.clear();
        Ok(())
    }

    fn model_of(&self, segment: &Segment, base: RemoteAddr) -> Model {
        let leaf_count = self.leaves.len() as u32;
        assert_eq!(
            leaf_count, segment.point_count,
            "each leaf is one point of the regression"
        );
        Model {
            first_key: segment.first_x,
            slope: segment.slope,
            intercept: segment.intercept as f32,
            error_max: 0.0,
            base,
            leaf_count,
            synonym_table: RemoteAddr::NULL,
            synonym_capacity: synonym_capacity(self.kind, leaf_count),
        }
    }

    /// Writes all leaves but the last, which is held back until its link is known. `lows` has one
    /// more fence than there are leaves: the one where the next model begins, 0 at the end.
    async fn write_leaves(&mut self, base: RemoteAddr, lows: &[u64]) -> Result<(), LoadError> {
        let geometry = self.access.geometry;
        let stride = geometry.stride_words();
        let mut records = self.records.iter();
        let mut words: Vec<u64> = Vec::new();
        let mut words_start = base;
        for (index, (count, _)) in self.leaves.iter().enumerate() {
            let addr = base.offset_blocks(index as u64 * geometry.stride_blocks());
            let next = base.offset_blocks((index as u64 + 1) * geometry.stride_blocks());
            let high = lows[index + 1].wrapping_sub(1);
            let mut leaf = LeafBuffer::new(geometry, lows[index], high, next);
            for (slot, (key, value)) in records.by_ref().take(*count).enumerate() {
                leaf.set_record(slot, *key, *value);
            }
            if index + 1 == self.leaves.len() {
                self.held_back = Some((addr, leaf));
                break;
            }
            leaf.seal(addr, self.access.table);
            let (leaf_words, size) = leaf.leaf_words();
            words.extend_from_slice(&leaf_words[..size]);
            words.resize(words.len().next_multiple_of(stride), 0);
            if words.len() >= WRITE_LEAF_COUNT * stride {
                write_words(self.access.endpoint, &mut self.batch, words_start, &words).await?;
                words.clear();
                words_start = next;
            }
        }
        write_words(self.access.endpoint, &mut self.batch, words_start, &words).await
    }

    async fn write_held_back(&mut self, link: RemoteAddr) -> Result<(), LoadError> {
        let Some((addr, mut leaf)) = self.held_back.take() else {
            return Ok(());
        };
        leaf.set_link(link);
        self.batch.clear();
        self.access
            .change(addr)
            .write_new(&mut self.batch, &mut leaf);
        Ok(self.access.endpoint.execute(&mut self.batch).await?)
    }
}

impl<E: Endpoint> LeafSink for RunBuilder<'_, E> {
    fn records_mut(&mut self) -> &mut Vec<(u64, u64)> {
        &mut self.records
    }

    async fn add_leaf(&mut self, count: usize) -> Result<(), LoadError> {
        let leaf = &self.records[self.records.len() - count..];
        let (first, last) = (leaf[0].0, leaf[count - 1].0);
        let gap = Gap {
            last: self.last_key.unwrap_or(first),
            first,
        };
        self.last_key = Some(last);
        if let Some(segment) = self.regression.push(gap.middle()) {
            self.write_model(&segment, Some((gap.middle(), count)))
                .await?;
        }
        self.leaves.push((count, gap));
        Ok(())
    }
}

async fn write_words<E: Endpoint>(
    endpoint: &E,
    batch: &mut Batch,
    to: RemoteAddr,
    words: &[u64],
) -> Result<(), LoadError> {
    if words.is_empty() {
        return Ok(());
    }
    batch.clear();
    batch.write(to.word_at(0), words);
    Ok(endpoint.execute(batch).await?)
}

/// Returns the number of entries of a model's synonym leaf table.
pub(crate) fn synonym_capacity(kind: LayerKind, leaf_count: u32) -> u32 {
    if kind == LayerKind::Rolex {
        return PAPER_SYNONYM_CAPACITY;
    }
    // Together with the table's header, the entries fill whole blocks.
    let header = SYNONYM_TABLE_HEADER_SIZE_WORDS as u32;
    let wanted = (leaf_count / LEAVES_PER_SYNONYM_ENTRY + header).next_multiple_of(8);
    (wanted - header).min(SYNONYM_CAPACITY_MAX)
}

/// Returns the largest number of leaves of a model.
pub(crate) fn leaf_count_max(kind: LayerKind) -> u32 {
    if kind == LayerKind::Rolex {
        Model::LEAF_COUNT_MAX
    } else {
        Model::TRAINED_LEAF_COUNT_MAX
    }
}

/// Returns the largest error over the decided fences, rounded up.
pub(crate) fn error_max(model: &Model, lows: &[u64]) -> f32 {
    let predict =
        |key: u64| model.slope * (key - model.first_key) as f64 + f64::from(model.intercept);
    let errors = lows
        .iter()
        .enumerate()
        .map(|(index, low)| (predict(*low) - index as f64).abs());
    (errors.fold(0.0, f64::max) as f32 + ROUNDING_MARGIN).next_up()
}
