//! Trains, places and writes the pages of a load, model by model.

use crate::directory::Model;
use farleaf_base::{NodeId, OwnerWord, RemoteAddr};
use farleaf_fabric::{CountedBatch, Endpoint, OperationKind};
use farleaf_leaf::blobs::{Content, FatPointer, Role};
use farleaf_leaf::strings::format::{PageAccess, block_access};
use farleaf_leaf::strings::words::Reference;
use farleaf_leaf::strings::{PageBuffer, PageChange, PageDraft, StringPlace};
use farleaf_model::strings::{
    Boundary, PackedBlock, Residuals, StringSegment, StringSegmentBuilder, byte_shift,
};
use farleaf_pool::allocation::ChunkAllocator;

use super::cut::{CutPage, LoadRecord, LoadValue};
use super::{ByteLoadPlan, LoadClaims};
use crate::strings::directory::Run;
use crate::strings::error::{ByteIndexError, ByteLoadError};
use crate::strings::rf_tree::ListedPage;

/// Words of pages per WRITE.
const WRITE_SIZE_WORDS: usize = 32 << 10;
/// Bytes of value blocks per batch.
const BLOCK_BATCH_SIZE_BYTES: usize = 256 << 10;
/// Pages per entry of a synonym leaf table: twice as many entries as splits that make a model due
/// for retraining.
const PAGES_PER_SYNONYM_ENTRY: u32 = 4;
const SYNONYM_CAPACITY_MAX: u32 = 1022;
/// Pages with fewer records get residuals of half a byte, because metadata counts per key.
const RECORD_COUNT_FOR_BYTES: usize = 2;
/// Largest error, in pages, at which residuals of a byte still resolve a 16th of a page.
const EPSILON_PAGES_MAX: f64 = 7.8;

/// Result of writing all pages of a load.
#[derive(Debug)]
pub(super) struct TrainedRun {
    pub(super) segments: Vec<StringSegment>,
    pub(super) runs: Vec<Run>,
    pub(super) residuals: Residuals,
    /// Address of each page, if the pages are to be listed.
    pub(super) pages: Vec<ListedPage>,
}

/// Page whose model is not complete yet.
struct PendingPage {
    page: CutPage,
    /// Lower fence of the page, on which the model is trained.
    fence: Vec<u8>,
    /// Last key of the previous page.
    last: Option<Vec<u8>>,
}

/// Takes pages in order; trains, places and writes them.
pub(super) struct RunBuilder<'a, E: Endpoint> {
    access: &'a PageAccess<'a, E>,
    allocator: &'a ChunkAllocator<'a, E>,
    plan: ByteLoadPlan,
    /// Regression, created with the first page, which gives the number of records per page.
    regression: Option<StringSegmentBuilder>,
    trained: TrainedRun,
    /// Pages whose model is not complete yet, in order: of at most two models.
    waiting: Vec<PendingPage>,
    last_key: Option<Vec<u8>>,
    /// Last page of the last written model, whose link is not known yet.
    held_back: Option<(RemoteAddr, PageBuffer)>,
    batch: CountedBatch<'a, E>,
    /// Value blocks to be written with the next batch.
    blocks: CountedBatch<'a, E>,
    block_size_bytes: usize,
}

impl<'a, E: Endpoint> RunBuilder<'a, E> {
    /// Creates a builder without pages.
    pub(super) fn new(
        access: &'a PageAccess<'a, E>,
        allocator: &'a ChunkAllocator<'a, E>,
        plan: ByteLoadPlan,
    ) -> Self {
        Self {
            access,
            allocator,
            plan,
            regression: None,
            trained: TrainedRun {
                segments: Vec::new(),
                runs: Vec::new(),
                residuals: Residuals::None,
                pages: Vec::new(),
            },
            waiting: Vec::new(),
            last_key: None,
            held_back: None,
            batch: CountedBatch::new(access.endpoint, OperationKind::BulkLoad),
            blocks: CountedBatch::new(access.endpoint, OperationKind::BulkLoad),
            block_size_bytes: 0,
        }
    }

    /// Returns a record with its value in the page, or outside and about to be written.
    pub(super) async fn record(
        &mut self,
        held: &mut LoadClaims,
        key: &[u8],
        value: &[u8],
    ) -> Result<LoadRecord, ByteLoadError> {
        let inline = self.plan.inline_value_size_bytes;
        let value = if self.access.geometry.is_value_inline(value.len(), inline) {
            LoadValue::Inline(value.to_vec())
        } else {
            let content = content(Role::Value, key, value)?;
            LoadValue::Outside(self.write_block(held, &content).await?)
        };
        let key = key.to_vec();
        Ok(LoadRecord { key, value })
    }

    /// Returns the node for new value blocks: that of the pages being written.
    fn node(&self) -> NodeId {
        let last = self.trained.runs.last();
        last.map_or(self.access.layout.main_node().node, |run| run.base.node())
    }

    /// Writes a string to a value block, before anything refers to it.
    async fn write_block(
        &mut self,
        held: &mut LoadClaims,
        content: &Content<'_>,
    ) -> Result<Reference, ByteLoadError> {
        let access = block_access(self.access);
        let node = self.node();
        let pointer: FatPointer = match content.space_need() {
            farleaf_leaf::blobs::SpaceNeed::Piece(class) => {
                if held.blocks.piece_count(node, class) == 0 {
                    held.blocks.lease_more(&access, node, class).await?;
                }
                let pointer = held.blocks.take(node, class).expect("one was just leased");
                access.post_write(&mut self.blocks, pointer, content);
                self.block_size_bytes += content.block_word_count() as usize * 8;
                pointer
            }
            farleaf_leaf::blobs::SpaceNeed::Chunks(_) => {
                let endpoint = self.access.endpoint;
                let mut batch = CountedBatch::new(endpoint, OperationKind::BulkLoad);
                let written = held.blocks.write_ahead(&access, &mut batch, node, content);
                written.await?
            }
        };
        held.written.push(pointer);
        if self.block_size_bytes >= BLOCK_BATCH_SIZE_BYTES {
            self.flush_blocks().await?;
        }
        let place = RemoteAddr::from_word(pointer.word());
        Ok(Reference::of(place, content.string()))
    }

    async fn flush_blocks(&mut self) -> Result<(), ByteLoadError> {
        if !self.blocks.is_empty() {
            self.access.endpoint.execute(&mut self.blocks).await?;
            self.blocks.clear();
            self.block_size_bytes = 0;
        }
        Ok(())
    }

    /// Adds the next page.
    ///
    /// # Errors
    /// The pool is full, or the fabric failed.
    pub(super) async fn add(
        &mut self,
        held: &mut LoadClaims,
        page: CutPage,
    ) -> Result<(), ByteLoadError> {
        let fence = if page.low.is_start() {
            // There is no page before the first one. Its model begins at the first key, whose
            // prefix is longer than that of the empty fence.
            page.records[0].key.clone()
        } else {
            page.low.least_key().unwrap_or_default()
        };
        let record_count = page.records.len();
        let last = page.records.last().map(|record| record.key.clone());
        if self.regression.is_none() {
            self.regression = Some(self.begin_regression(record_count));
        }
        let regression = self.regression.as_mut().expect("it was just made");
        for segment in regression.push(&fence) {
            self.write_model(held, segment).await?;
        }
        self.waiting.push(PendingPage {
            page,
            fence,
            last: core::mem::replace(&mut self.last_key, last),
        });
        Ok(())
    }

    /// Starts the regression over pages of which the first one has so many records, and chooses the
    /// residuals.
    fn begin_regression(&mut self, record_count: usize) -> StringSegmentBuilder {
        // What a packed residual can resolve does not depend on the error of the models.
        let is_packed = record_count < RECORD_COUNT_FOR_BYTES;
        let (epsilon, residuals) = if is_packed {
            let blocks = Vec::new();
            (PackedBlock::EPSILON_MAX, Residuals::Packed { blocks })
        } else {
            let epsilon = self.plan.epsilon_keys / record_count as f64;
            let epsilon = epsilon.clamp(0.5, EPSILON_PAGES_MAX);
            let (shift, residuals) = (byte_shift(epsilon), Vec::new());
            (epsilon, Residuals::Bytes { shift, residuals })
        };
        self.trained.residuals = residuals;
        StringSegmentBuilder::new(epsilon, Model::TRAINED_LEAF_COUNT_MAX)
    }

    /// Completes the last model.
    ///
    /// # Errors
    /// The pool is full, or the fabric failed.
    pub(super) async fn finish(
        mut self,
        held: &mut LoadClaims,
    ) -> Result<TrainedRun, ByteLoadError> {
        let regression = self.regression.as_mut().expect("there is a page");
        for segment in regression.finish() {
            self.write_model(held, segment).await?;
        }
        self.write_held_back(RemoteAddr::NULL).await?;
        self.flush_blocks().await?;
        Ok(self.trained)
    }

    /// Places the pages of a segment and writes them.
    async fn write_model(
        &mut self,
        held: &mut LoadClaims,
        segment: StringSegment,
    ) -> Result<(), ByteLoadError> {
        let count = segment.leaf_count() as usize;
        assert!(
            count <= self.waiting.len(),
            "each page is one point of the regression"
        );
        let pages: Vec<_> = self.waiting.drain(..count).collect();
        let boundaries = pages.iter().map(|waiting| Boundary {
            last: waiting.last.as_deref(),
            fence: &waiting.fence,
            first: &waiting.page.records[0].key,
        });
        self.trained.residuals.push(&segment, boundaries);
        let stride = self.access.geometry.stride_blocks();
        let blocks = pages.len() as u64 * stride;
        let layout = self.access.layout;
        let base = held.extents.place(self.allocator, layout, blocks).await?;
        self.write_held_back(base).await?;
        let page_count = pages.len() as u32;
        self.write_pages(held, base, pages).await?;
        self.trained.segments.push(segment);
        let capacity = synonym_capacity(page_count);
        self.trained
            .runs
            .push(Run::side_by_side(base, page_count, capacity));
        Ok(())
    }

    /// Writes all pages but the last, which is held back until its link is known.
    async fn write_pages(
        &mut self,
        held: &mut LoadClaims,
        base: RemoteAddr,
        pages: Vec<PendingPage>,
    ) -> Result<(), ByteLoadError> {
        let geometry = self.access.geometry;
        let stride = geometry.stride_blocks();
        let count = pages.len();
        let mut words: Vec<u64> = Vec::new();
        let mut words_start = base;
        for (index, waiting) in pages.into_iter().enumerate() {
            let addr = base.offset_blocks(index as u64 * stride);
            if self.plan.lists_pages {
                let low = waiting.page.low.least_key().unwrap_or_default();
                self.trained.pages.push(ListedPage { low, addr });
            }
            let next = base.offset_blocks((index as u64 + 1) * stride);
            let mut page = self.build(held, &waiting.page, next).await?;
            if index + 1 == count {
                self.held_back = Some((addr, page));
                break;
            }
            page.seal(addr, self.access.table);
            let (page_words, size_words) = page.page_words(OwnerWord::FREE.word());
            words.extend_from_slice(&page_words[..size_words]);
            if words.len() >= WRITE_SIZE_WORDS {
                self.write_words(words_start, &words).await?;
                words.clear();
                words_start = next;
            }
        }
        self.write_words(words_start, &words).await
    }

    /// Builds a page after its outside strings are written.
    async fn build(
        &mut self,
        held: &mut LoadClaims,
        page: &CutPage,
        link: RemoteAddr,
    ) -> Result<PageBuffer, ByteLoadError> {
        let records = page.records.iter();
        let records = records.map(|it| (it.key.clone(), it.value.as_value()));
        let (low, high) = (page.low.clone(), page.high.clone());
        let mut draft = PageDraft::of_records(self.access.geometry, low, high, records);
        let low = page.low.least_key().unwrap_or_default();
        let wanted = draft.wanted().into_iter();
        let wanted: Vec<(StringPlace, Vec<u8>)> = wanted
            .map(|(place, string)| (place, string.to_vec()))
            .collect();
        for (place, string) in wanted {
            let (role, locator) = match place {
                StringPlace::Prefix => (Role::Prefix, &low),
                StringPlace::Low => (Role::Low, &low),
                StringPlace::High => (Role::High, &low),
                StringPlace::Key(_) => (Role::Key, &string),
            };
            let content = content(role, locator, &string)?;
            let reference = self.write_block(held, &content).await?;
            draft.give(place, reference);
        }
        Ok(draft.build(link))
    }

    async fn write_held_back(&mut self, link: RemoteAddr) -> Result<(), ByteLoadError> {
        let Some((addr, mut page)) = self.held_back.take() else {
            return Ok(());
        };
        page.set_link(link);
        let change = PageChange {
            geometry: self.access.geometry,
            addr,
            table: self.access.table,
            next: OwnerWord::FREE,
        };
        self.batch.clear();
        change.write_new(&mut self.batch, &mut page);
        Ok(self.access.endpoint.execute(&mut self.batch).await?)
    }

    async fn write_words(&mut self, to: RemoteAddr, words: &[u64]) -> Result<(), ByteLoadError> {
        if words.is_empty() {
            return Ok(());
        }
        self.batch.clear();
        self.batch.write(to.word_at(0), words);
        Ok(self.access.endpoint.execute(&mut self.batch).await?)
    }
}

fn content<'s>(
    role: Role,
    locator: &'s [u8],
    string: &'s [u8],
) -> Result<Content<'s>, ByteIndexError> {
    let content = Content::new(role, locator, string);
    content.map_err(|error| farleaf_leaf::blobs::BlockError::from(error).into())
}

/// Returns the number of entries of a model's synonym leaf table: with its header, whole blocks.
pub(crate) fn synonym_capacity(page_count: u32) -> u32 {
    const HEADER: u32 = crate::hint::SYNONYM_TABLE_HEADER_SIZE_WORDS as u32;
    let wanted = (page_count / PAGES_PER_SYNONYM_ENTRY + HEADER).next_multiple_of(8);
    (wanted - HEADER).min(SYNONYM_CAPACITY_MAX)
}
