//! Bulk load and creation of tables of byte strings, under the load protocol of `farleaf-index`. A
//! sorted sequence becomes runs of pages, models and residuals, and becomes visible at once.
//!
//! | module | contents |
//! |---|---|
//! | `cut` | cuts records into pages |
//! | `run` | trains, places and writes pages, model by model |
//! | `create` | a new table: one empty page, and a snapshot that leads to it |

mod create;
mod cut;
mod run;

pub use create::{NewByteTable, create_table};

use core::cell::Cell;

use crate::load::{RunExtents, commit, draw_generation, is_untouched};
use farleaf_fabric::{Batch, CountedBatch, Endpoint, OperationKind};
use farleaf_leaf::blobs::BlockStore;
use farleaf_leaf::strings::PageGeometry;
use farleaf_leaf::strings::format::{PageAccess, block_access};
use farleaf_leaf::words::LeaseShape;
use farleaf_pool::allocation::{ChunkAllocator, ChunkRange};
use farleaf_pool::catalog::{CatalogEntry, TableKind};
use farleaf_pool::chunk::ChunkPurpose;
use farleaf_pool::layout::CHUNK_SIZE_BLOCKS;

use crate::strings::error::ByteLoadError;
use crate::strings::operation::check_record;
use crate::strings::rf_tree::ListedPage;
use crate::strings::snapshot::{Contents, give_back_snapshot, write_snapshot};
use cut::Cutter;
use run::RunBuilder;
pub(crate) use run::synonym_capacity;

/// Returns the lease shape of chunks that splits take pages from.
pub fn page_shape(geometry: PageGeometry) -> LeaseShape {
    LeaseShape {
        purpose: ChunkPurpose::Leaves {
            slots: shape_code(geometry),
        },
        piece_count: CHUNK_SIZE_BLOCKS / geometry.stride_blocks(),
        stride_blocks: geometry.stride_blocks(),
    }
}

/// Returns the code of the pages' shape in the block of a leased chunk.
fn shape_code(geometry: PageGeometry) -> u8 {
    let kind = TableKind::Bytes {
        page_size_blocks: geometry.stride_blocks() as u8,
        inline_value_size_bytes: 0,
    };
    kind.leaf_shape()
}

/// Result of a load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByteLoadSummary {
    /// Number of records loaded.
    pub record_count: u64,
    /// Number of pages written.
    pub page_count: u64,
    /// Number of models trained.
    pub model_count: u64,
    /// Number of strings written to value blocks.
    pub block_count: u64,
}

/// Parameters of a load.
#[derive(Clone, Copy, Debug)]
pub struct ByteLoadPlan {
    /// Fill of the pages, in percent of their bytes.
    pub fill_percent: u8,
    /// Error bound of the models, in keys.
    pub epsilon_keys: f64,
    /// Maximum size of a value that is stored in its page, in bytes.
    pub inline_value_size_bytes: usize,
    /// Whether the pages are listed ([`rf_tree`](crate::strings::rf_tree)).
    pub lists_pages: bool,
}

/// Load of a table, and what it shares with the session.
#[derive(Clone, Copy, Debug)]
pub struct ByteLoadJob<'a> {
    /// Entry of the table, which must be empty.
    pub entry: &'a CatalogEntry,
    /// Parameters of the load.
    pub plan: ByteLoadPlan,
    /// Whether the session is broken.
    pub broken: &'a Cell<bool>,
    /// Receives value blocks of the load that could not be given back.
    pub block_store: &'a BlockStore,
}

/// Loads `records`, ascending by key, into an empty table. An empty sequence changes nothing.
///
/// Calls `progress` from time to time with the number of records written so far. If the plan lists
/// pages, calls `list` with the load's generation and pages before the commit. Memory: the pages of
/// two models at a time, and the address of each page if it is listed.
///
/// # Errors
/// The records do not ascend or are too long, the table is not empty, the pool is full, or `list`
/// fails: the table then contains nothing of the load, whose chunks are given back. The fabric
/// failed: if the commit's outcome is unknown (FABRIC-5), the table contains all of the load or
/// nothing. The load's chunks are swept when the session is fenced.
pub async fn bulk_load<E: Endpoint, K: AsRef<[u8]>, V: AsRef<[u8]>>(
    access: PageAccess<'_, E>,
    job: ByteLoadJob<'_>,
    records: impl Iterator<Item = (K, V)>,
    mut progress: impl FnMut(u64),
    list: impl AsyncFnOnce(u16, Vec<ListedPage>) -> Result<(), ByteLoadError>,
) -> Result<ByteLoadSummary, ByteLoadError> {
    let mut batch = Batch::new();
    let generation = begin(&access, &mut batch, job.entry, job.broken).await;
    let counters = access.endpoint.counters();
    counters.record(OperationKind::BulkLoad, &batch.take_cost());
    let generation = generation?;
    let purpose = ChunkPurpose::Run {
        slots: shape_code(access.geometry),
        generation,
    };
    let mut held = LoadClaims {
        generation,
        extents: RunExtents::new(purpose, access.table),
        snapshot: None,
        blocks: BlockStore::new(),
        written: Vec::new(),
    };
    let allocator = ChunkAllocator::new(access.endpoint, access.layout, access.owner);
    let loaded = load_into(&access, job, &mut held, records, &mut progress, list).await;
    if matches!(&loaded, Err(error) if error.is_outcome_unknown()) {
        // The load may have committed. The sweep finds out when the session has ended.
        return loaded;
    }
    let committed = matches!(&loaded, Ok(summary) if summary.record_count > 0);
    held.give_back(&access, &allocator, committed, job.block_store)
        .await?;
    loaded
}

/// Chunks and value blocks that a load has claimed.
struct LoadClaims {
    generation: u16,
    extents: RunExtents,
    snapshot: Option<ChunkRange>,
    blocks: BlockStore,
    /// Value blocks that nothing refers to before the commit.
    written: Vec<farleaf_leaf::blobs::FatPointer>,
}

impl LoadClaims {
    /// Gives everything back: to the table if `committed`, else as free. Pieces in a chunk that
    /// another session leases at that moment cannot be given back. The session keeps them in
    /// `kept`: if they were dropped, the session would close as one that holds nothing, and no
    /// sweep would find them.
    async fn give_back<E: Endpoint>(
        self,
        access: &PageAccess<'_, E>,
        allocator: &ChunkAllocator<'_, E>,
        committed: bool,
        block_store: &BlockStore,
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
                give_back_snapshot(allocator, range, access.table, generation, committed).await?;
            }
            Ok(blocks.give_back(&block_access(access)).await?)
        };
        let given = given.await;
        block_store.take_over(blocks);
        given
    }
}

/// Draws a generation for the load, if the table appears to be empty. Costs two round trips.
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
    job: ByteLoadJob<'_>,
    held: &mut LoadClaims,
    records: impl Iterator<Item = (K, V)>,
    progress: &mut impl FnMut(u64),
    list: impl AsyncFnOnce(u16, Vec<ListedPage>) -> Result<(), ByteLoadError>,
) -> Result<ByteLoadSummary, ByteLoadError> {
    let allocator = ChunkAllocator::new(access.endpoint, access.layout, access.owner);
    let mut cutter = Cutter::new(access.geometry, job.plan.fill_percent);
    let mut builder = RunBuilder::new(access, &allocator, job.plan);
    let mut record_count = 0;
    let mut previous: Option<Vec<u8>> = None;
    for (key, value) in records {
        let (key, value) = (key.as_ref(), value.as_ref());
        check_next(record_count, key, value, previous.as_deref())?;
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
    if job.plan.lists_pages {
        // Another load may have committed in the meantime, and its pages are listed.
        let mut batch = CountedBatch::new(access.endpoint, OperationKind::BulkLoad);
        if !is_untouched(access, &mut batch, job.entry, job.broken).await? {
            return Err(ByteLoadError::TableNotEmpty);
        }
        list(generation, run.pages).await?;
    }
    commit(access, job.entry, first_page, root, None, job.broken).await?;
    progress(record_count);
    Ok(summary)
}

/// Checks that a record is valid and that its key is above the previous one.
///
/// # Errors
/// [`ByteLoadError::BadRecord`] and [`ByteLoadError::NotAscending`], with the record's index.
pub fn check_next(
    index: u64,
    key: &[u8],
    value: &[u8],
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
