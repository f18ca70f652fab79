//! Creates a new table: one empty page over all keys, and a snapshot that leads to it.

use farleaf_base::{OwnerWord, RemoteAddr};
use farleaf_fabric::{Batch, Endpoint, OperationKind};
use farleaf_leaf::strings::format::PageAccess;
use farleaf_leaf::strings::{Fence, PageChange, PageDraft};
use farleaf_model::strings::{LineSegmentBuilder, Residuals, byte_shift};
use farleaf_pool::allocation::{ChunkAllocator, ChunkRange};
use farleaf_pool::chunk::{ChunkPurpose, FreeLeaves};

use super::page_shape;
use crate::strings::directory::Run;
use crate::strings::error::ByteIndexError;
use crate::strings::snapshot::{Contents, give_back_snapshot, write_snapshot};

/// Entries of the synonym leaf table of an empty table. The table fills the rest of the one chunk
/// that the snapshot takes anyway.
const SYNONYM_CAPACITY: u32 = 4094;
/// Error bound, in pages, of models that a retraining of an empty table creates.
const EPSILON_PAGES: f64 = 2.0;

/// Addresses of a new table for its catalog entry, and the chunks that it takes.
#[derive(Debug)]
pub struct NewByteTable {
    /// Address of the first page.
    pub first_page: RemoteAddr,
    /// First root of the table.
    pub root: RemoteAddr,
    pages: ChunkRange,
    snapshot: ChunkRange,
}

/// Writes the first page and the first snapshot of a table. Nothing refers to them yet, and this
/// session owns their chunks until [`NewByteTable::give_back`]. Costs a few round trips.
///
/// # Errors
/// The pool is full, or the fabric failed.
pub async fn create_table<E: Endpoint>(
    access: &PageAccess<'_, E>,
) -> Result<NewByteTable, ByteIndexError> {
    let allocator = ChunkAllocator::new(access.endpoint, access.layout, access.owner);
    let shape = page_shape(access.geometry);
    let pages = allocator.claim(1, shape.purpose, access.table).await?;
    let first_page = access.layout.chunk_start(pages.first);
    let draft = PageDraft::of_records(access.geometry, Fence::START, Fence::End, []);
    let change = PageChange {
        geometry: access.geometry,
        addr: first_page,
        table: access.table,
        next: OwnerWord::FREE,
    };
    let mut batch = Batch::new();
    change.write_new(&mut batch, &mut draft.build(RemoteAddr::NULL));
    let executed = access.endpoint.execute(&mut batch).await;
    let counters = access.endpoint.counters();
    counters.record(OperationKind::Control, &batch.take_cost());
    executed?;
    match write_first_snapshot(access, first_page).await {
        Ok((root, snapshot)) => Ok(NewByteTable {
            first_page,
            root,
            pages,
            snapshot,
        }),
        Err(error) => {
            let free = FreeLeaves::default();
            allocator
                .give_back(pages, ChunkPurpose::Free, access.table, free)
                .await?;
            Err(error)
        }
    }
}

/// Writes the first snapshot; returns its root and its chunks.
async fn write_first_snapshot<E: Endpoint>(
    access: &PageAccess<'_, E>,
    first_page: RemoteAddr,
) -> Result<(RemoteAddr, ChunkRange), ByteIndexError> {
    let mut regression = LineSegmentBuilder::new(EPSILON_PAGES, 1);
    let none_yet = regression.push(b"");
    assert!(none_yet.is_none(), "one page is one segment");
    let segment = regression.finish().expect("there is a page");
    let mut contents = Contents {
        table: access.table,
        generation: 0,
        record_count: 0,
        segments: vec![segment.into()],
        runs: vec![Run::side_by_side(first_page, 1, SYNONYM_CAPACITY)],
        residuals: Residuals::Bytes {
            shift: byte_shift(EPSILON_PAGES),
            residuals: vec![0],
        },
    };
    let allocator = ChunkAllocator::new(access.endpoint, access.layout, access.owner);
    let written = write_snapshot(access, &allocator, &mut contents);
    Ok(written.await?)
}

impl NewByteTable {
    /// Gives the chunks back: to the table if its catalog entry was written, else as free.
    ///
    /// # Errors
    /// The fabric failed; the memory node then sweeps the chunks when the session ends.
    pub async fn give_back<E: Endpoint>(
        self,
        access: &PageAccess<'_, E>,
        committed: bool,
    ) -> Result<(), ByteIndexError> {
        let allocator = ChunkAllocator::new(access.endpoint, access.layout, access.owner);
        let shape = page_shape(access.geometry);
        let purpose = if committed {
            shape.purpose
        } else {
            ChunkPurpose::Free
        };
        let mut unused = FreeLeaves::default();
        (1..shape.piece_count).for_each(|page| unused.insert(page));
        allocator
            .give_back(self.pages, purpose, access.table, unused)
            .await?;
        give_back_snapshot(&allocator, self.snapshot, access.table, 0, committed).await?;
        Ok(())
    }
}
