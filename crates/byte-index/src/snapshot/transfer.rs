//! Snapshots to far memory and back.

use farleaf_fabric::Endpoint;
use farleaf_index::snapshot::{read_words, write_words};
use farleaf_index::{IndexError, SnapshotDamage};
use farleaf_page::PageGeometry;
use farleaf_region::allocation::{ChunkAllocator, ChunkRange};
use farleaf_region::chunk::{ChunkPurpose, FreeLeaves};
use farleaf_region::layout::CHUNK_SIZE_BYTES;
use farleaf_region::{PoolLayout, RegionError};
use farleaf_types::{BLOCK_SIZE_WORDS, RemoteAddr, TableId};

use super::format::{Contents, HEADER_SIZE_WORDS, Header, table_size_words};
use crate::directory::ByteDirectory;

/// Claims room for a snapshot and writes it, with empty synonym leaf tables for the runs that have
/// room for synonyms and no place for them. Returns the root word to install: the place, with the
/// generation in the spare bits.
///
/// # Errors
/// The pool is full, or the fabric failed; what was claimed is then given back, if that goes.
pub async fn write_snapshot<E: Endpoint>(
    endpoint: &E,
    allocator: &ChunkAllocator<'_, E>,
    layout: &PoolLayout,
    mut contents: Contents,
) -> Result<(RemoteAddr, ChunkRange), RegionError> {
    let tables_start = contents.encode().len();
    let tables_start = tables_start.next_multiple_of(BLOCK_SIZE_WORDS as usize);
    let wanting = contents.runs.iter_mut();
    let wanting = wanting.filter(|run| run.synonym_table.is_null() && run.synonym_capacity > 0);
    let wanting: Vec<_> = wanting.collect();
    let tables = wanting.iter();
    let tables = tables.map(|run| table_size_words(run.synonym_capacity));
    let size_words = tables_start + tables.sum::<usize>();
    let chunk_count = (size_words as u64 * 8).div_ceil(CHUNK_SIZE_BYTES);
    let purpose = ChunkPurpose::Snapshot {
        generation: contents.generation,
    };
    let range = allocator
        .claim(chunk_count, purpose, contents.table)
        .await?;
    let place = layout.chunk_start(range.first);
    let mut next_table = tables_start;
    for run in wanting {
        run.synonym_table = place.offset_blocks(next_table as u64 / BLOCK_SIZE_WORDS);
        next_table += table_size_words(run.synonym_capacity);
    }
    let mut words = contents.encode();
    // The chunks may have been used before; the counters must start at zero.
    words.resize(size_words, 0);
    match write_words(endpoint, place.word_at(0), &words).await {
        Ok(()) => Ok((place.with_spare(contents.generation), range)),
        Err(error) => {
            let free = ChunkPurpose::Free;
            allocator
                .give_back(range, free, contents.table, FreeLeaves::default())
                .await?;
            Err(error.into())
        }
    }
}

/// Reads the snapshot that a root names, and checks all of it. Two round trips, and one more for
/// each 512 KiB.
///
/// # Errors
/// [`IndexError::SnapshotDamaged`], or the fabric failed.
pub async fn read_contents<E: Endpoint>(
    endpoint: &E,
    layout: &PoolLayout,
    geometry: PageGeometry,
    table: TableId,
    root: RemoteAddr,
) -> Result<Contents, IndexError> {
    let place = root.place();
    let damaged = |what: String| {
        let addr = place;
        IndexError::SnapshotDamaged(Box::new(SnapshotDamage { addr, table, what }))
    };
    if layout.chunk_of(place).is_none() {
        return Err(damaged("there is no chunk there".to_owned()));
    }
    let mut words = read_words(endpoint, place.word_at(0), HEADER_SIZE_WORDS).await?;
    let header = Header::decode(&words).map_err(damaged)?;
    if (header.table, header.generation) != (table, root.spare()) {
        return Err(damaged(format!("it belongs to {}", header.table)));
    }
    let body_size_words = header.body_size_words();
    let last = |size_words: &usize| {
        let blocks = (HEADER_SIZE_WORDS + size_words) as u64 / BLOCK_SIZE_WORDS;
        let last = place.block().checked_add(blocks)?;
        let is_one = last < RemoteAddr::BLOCK_COUNT_MAX;
        is_one.then(|| layout.chunk_of(RemoteAddr::new(place.node(), last)))?
    };
    let body_size_words = body_size_words.filter(|size_words| last(size_words).is_some());
    let Some(body_size_words) = body_size_words else {
        return Err(damaged("its sizes cannot be right".to_owned()));
    };
    let body = place.word_at(HEADER_SIZE_WORDS as u64);
    words.extend(read_words(endpoint, body, body_size_words).await?);
    Contents::decode(&words, (layout, geometry)).map_err(damaged)
}

/// [`read_contents`], as a directory.
///
/// # Errors
/// As for [`read_contents`].
pub async fn read_directory<E: Endpoint>(
    endpoint: &E,
    layout: &PoolLayout,
    geometry: PageGeometry,
    table: TableId,
    root: RemoteAddr,
) -> Result<ByteDirectory, IndexError> {
    let contents = read_contents(endpoint, layout, geometry, table, root).await?;
    contents.into_directory(geometry).map_err(|what| {
        let addr = root.place();
        IndexError::SnapshotDamaged(Box::new(SnapshotDamage { addr, table, what }))
    })
}
