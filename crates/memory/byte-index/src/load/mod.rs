//! Bulk load and new tables of byte strings (rules B1 to B5 of `farleaf-index`): a sorted sequence
//! becomes runs of pages, models and residuals, and appears at once.
//!
//! | module | what it holds |
//! |---|---|
//! | `cut` | records into pages |
//! | `run` | pages trained, placed and written model by model |
//! | `create` | a new table: one empty page, and a snapshot that leads to it |

mod create;
mod cut;
mod run;

pub use create::{NewByteTable, create_table};

use core::cell::Cell;

use farleaf_block::BlockStore;
use farleaf_fabric::{Batch, CountedBatch, Endpoint, OperationKind};
use farleaf_index::load::{RunExtents, commit, draw_generation, is_untouched};
use farleaf_leaf::LeaseShape;
use farleaf_page::PageGeometry;
use farleaf_page::format::{PageAccess, block_access};
use farleaf_region::allocation::{ChunkAllocator, ChunkRange};
use farleaf_region::catalog::{CatalogEntry, TableKind};
use farleaf_region::chunk::ChunkPurpose;
use farleaf_region::layout::CHUNK_SIZE_BLOCKS;

use crate::error::ByteLoadError;
use crate::operation::check_record;
use crate::rf_tree::ListedPage;
use crate::snapshot::{Contents, give_back_snapshot, write_snapshot};
use cut::Cutter;
use run::RunBuilder;
pub(crate) use run::synonym_capacity;

/// What chunks of pages that splits take from are leased as.
pub fn page_shape(geometry: PageGeometry) -> LeaseShape {
    LeaseShape {
        purpose: ChunkPurpose::Leaves {
            slots: shape_code(geometry),
        },
        piece_count: CHUNK_SIZE_BLOCKS / geometry.stride_blocks(),
        stride_blocks: geometry.stride_blocks(),
    }
}

/// How the block of a chunk names the shape of its pages.
fn shape_code(geometry: PageGeometry) -> u8 {
    let kind = TableKind::Bytes {
        page_size_blocks: geometry.stride_blocks() as u8,
        inline_value_size_bytes: 0,
    };
    kind.leaf_shape()
}

/// What a load made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByteLoadSummary {
    /// Records loaded.
    pub record_count: u64,
    /// Pages written.
    pub page_count: u64,
    /// Models trained.
    pub model_count: u64,
    /// Strings written to value blocks.
    pub block_count: u64,
}

/// How a load cuts and trains.
#[derive(Clone, Copy, Debug)]
pub struct ByteLoadPlan {
    /// How full pages become, in percent of their bytes.
    pub fill_percent: u8,
    /// Error bound in keys.
    pub epsilon_keys: f64,
    /// The largest value that lies in a page, in bytes.
    pub inline_value_size_bytes: usize,
    /// Whether its pages are listed (BT1).
    pub lists_pages: bool,
}

/// Loads `records`, ascending by key, into an empty table (rules B1 to B5). `progress` is told now
/// and then how many records have been written; `broken` and `kept` are the session's, which holds
/// in `kept` what of the load's value blocks could not be given back. `list` is told the load's
/// generation and its pages before the commit (BT2), if the plan wants that. Memory: two models'
/// pages at a time, and where each page is if it is listed. An empty sequence changes nothing.
///
/// # Errors
/// The records do not ascend or are too long, the table is not empty, the pool is full, or `list`
/// fails: then nothing of the load is in the table, and its chunks are given back. Or the fabric
/// failed: if the commit's outcome is unknown (F5), all of it is in the table or nothing, and its
/// chunks are swept when the session is fenced.
pub async fn bulk_load<E: Endpoint, K: AsRef<[u8]>, V: AsRef<[u8]>>(
    access: PageAccess<'_, E>,
    (entry, plan): (&CatalogEntry, ByteLoadPlan),
    (broken, kept): (&Cell<bool>, &BlockStore),
    records: impl Iterator<Item = (K, V)>,
    mut progress: impl FnMut(u64),
    list: impl AsyncFnOnce(u16, Vec<ListedPage>) -> Result<(), ByteLoadError>,
) -> Result<ByteLoadSummary, ByteLoadError> {
    let mut batch = Batch::new();
    let begun = begin(&access, &mut batch, entry, broken).await;
    let counters = access.endpoint.counters();
    counters.record(OperationKind::BulkLoad, &batch.take_cost());
    let generation = begun?;
    let purpose = ChunkPurpose::Run {
        slots: shape_code(access.geometry),
        generation,
    };
    let mut held = Held {
        generation,
        extents: RunExtents::new(purpose, access.table),
        snapshot: None,
        blocks: BlockStore::new(),
        written: Vec::new(),
    };
    let allocator = ChunkAllocator::new(access.endpoint, access.layout, access.owner);
    let loaded = load_into(
        &access,
        (entry, plan, broken),
        &mut held,
        records,
        (&mut progress, list),
    )
    .await;
    if matches!(&loaded, Err(error) if error.is_outcome_unknown()) {
        // It may have committed: the sweep will tell (W4), when the session has ended.
        return loaded;
    }
    let committed = matches!(&loaded, Ok(summary) if summary.record_count > 0);
    held.give_back(&access, &allocator, (committed, kept))
        .await?;
    loaded
}

/// What a load has claimed.
struct Held {
    generation: u16,
    extents: RunExtents,
    snapshot: Option<ChunkRange>,
    blocks: BlockStore,
    /// Value blocks that nothing refers to before the commit.
    written: Vec<farleaf_block::FatPointer>,
}

impl Held {
    /// Gives all back: to the table what was `committed`, else as free. Pieces in a chunk that
    /// somebody else leases just then cannot be, and are `kept` by the session (BV11): were they
    /// forgotten, it would close as one that holds nothing, and nobody would look for them.
    async fn give_back<E: Endpoint>(
        self,
        access: &PageAccess<'_, E>,
        allocator: &ChunkAllocator<'_, E>,
        (committed, kept): (bool, &BlockStore),
    ) -> Result<(), ByteLoadError> {
        if !committed {
            for pointer in self.written {
                self.blocks.put_back(pointer);
            }
        }
        let (blocks, generation) = (self.blocks, self.generation);
        let given = async {
            self.extents.release(allocator, committed).await?;
            if let Some(range) = self.snapshot {
                let whose = (access.table, generation);
                give_back_snapshot(allocator, range, whose, committed).await?;
            }
            Ok(blocks.give_back(&block_access(access)).await?)
        };
        let given = given.await;
        kept.take_over(blocks);
        given
    }
}

/// A generation for the load, if the table looks as if it could be loaded. Two round trips.
async fn begin<E: Endpoint>(
    access: &PageAccess<'_, E>,
    batch: &mut Batch,
    entry: &CatalogEntry,
    broken: &Cell<bool>,
) -> Result<u16, ByteLoadError> {
    if !is_untouched(access, batch, entry, broken).await? {
        return Err(ByteLoadError::TableNotEmpty);
    }
    Ok(draw_generation(access, batch).await?)
}

async fn load_into<E: Endpoint, K: AsRef<[u8]>, V: AsRef<[u8]>>(
    access: &PageAccess<'_, E>,
    (entry, plan, broken): (&CatalogEntry, ByteLoadPlan, &Cell<bool>),
    held: &mut Held,
    records: impl Iterator<Item = (K, V)>,
    (progress, list): (
        &mut impl FnMut(u64),
        impl AsyncFnOnce(u16, Vec<ListedPage>) -> Result<(), ByteLoadError>,
    ),
) -> Result<ByteLoadSummary, ByteLoadError> {
    let allocator = ChunkAllocator::new(access.endpoint, access.layout, access.owner);
    let mut cutter = Cutter::new(access.geometry, plan.fill_percent);
    let mut builder = RunBuilder::new(access, &allocator, plan);
    let mut record_count = 0;
    let mut previous: Option<Vec<u8>> = None;
    for (key, value) in records {
        let (key, value) = (key.as_ref(), value.as_ref());
        check_next(record_count, (key, value), previous.as_deref())?;
        let record = builder.record(held, key, value).await?;
        if let Some(page) = cutter.push(record) {
            builder.add(held, page).await?;
        }
        previous = Some(key.to_vec());
        record_count += 1;
        if record_count % 4096 == 0 {
            progress(record_count);
        }
    }
    for page in cutter.finish() {
        builder.add(held, page).await?;
    }
    if record_count == 0 {
        return Ok(ByteLoadSummary::default());
    }
    let run = builder.finish(held).await?;
    held.extents.return_unused(&allocator).await?;
    let summary = ByteLoadSummary {
        record_count,
        page_count: run.runs.iter().map(|run| u64::from(run.page_count)).sum(),
        model_count: run.runs.len() as u64,
        block_count: held.written.len() as u64,
    };
    let (first_page, generation) = (run.runs[0].base, held.generation);
    let mut contents = Contents {
        table: access.table,
        generation,
        record_count,
        segments: run.segments,
        runs: run.runs,
        residuals: run.residuals,
    };
    let written = write_snapshot(access, &allocator, &mut contents).await;
    let (root, range) = written?;
    held.snapshot = Some(range);
    if plan.lists_pages {
        // Another load may have committed meanwhile, and its pages are listed.
        let mut batch = CountedBatch::new(access.endpoint, OperationKind::BulkLoad);
        if !is_untouched(access, &mut batch, entry, broken).await? {
            return Err(ByteLoadError::TableNotEmpty);
        }
        list(generation, run.pages).await?;
    }
    commit(access, entry, first_page, (root, None), broken).await?;
    progress(record_count);
    Ok(summary)
}

/// Refuses a record that no table can have, or that does not follow the one before it.
///
/// # Errors
/// [`ByteLoadError::BadRecord`] and [`ByteLoadError::NotAscending`], with the record's index.
pub fn check_next(
    index: u64,
    (key, value): (&[u8], &[u8]),
    previous: Option<&[u8]>,
) -> Result<(), ByteLoadError> {
    check_record(key, value).map_err(|source| ByteLoadError::BadRecord {
        index,
        source: Box::new(source),
    })?;
    match previous {
        Some(previous) if key <= previous => Err(ByteLoadError::NotAscending {
            index,
            key: key.into(),
            previous: previous.into(),
        }),
        _ => Ok(()),
    }
}
