//! Writes snapshots to far memory and reads them.

use crate::snapshot::{TRANSFER_SIZE_WORDS, read_words, write_words};
use crate::{IndexError, SnapshotDamage};
use farleaf_base::{BLOCK_SIZE_WORDS, RemoteAddr, TableId, WordAddr};
use farleaf_fabric::{Batch, Endpoint};
use farleaf_leaf::strings::PageGeometry;
use farleaf_leaf::strings::format::PageAccess;
use farleaf_pool::allocation::{ChunkAllocator, ChunkRange};
use farleaf_pool::chunk::{ChunkPurpose, FreeLeaves};
use farleaf_pool::layout::CHUNK_SIZE_BYTES;
use farleaf_pool::{PoolError, PoolLayout};

use super::contents::{Contents, table_size_words};
use super::header::{HEADER_SIZE_WORDS, Header};
use super::heads::Heads;
use super::part::Part;
use crate::strings::directory::ByteDirectory;

/// Claims chunks for a snapshot and writes it, with empty synonym leaf tables for runs that have a
/// capacity for synonyms and no table; stores the new addresses in `contents`. Returns the root
/// word to install: the address, with the generation in the spare bits.
///
/// # Errors
/// The pool is full, or the fabric failed. The claimed chunks are then given back, if possible.
pub async fn write_snapshot<E: Endpoint>(
    access: &PageAccess<'_, E>,
    allocator: &ChunkAllocator<'_, E>,
    contents: &mut Contents,
) -> Result<(RemoteAddr, ChunkRange), PoolError> {
    write_snapshot_into(access, allocator, contents, None).await
}

/// Does the same as [`write_snapshot`], in reserved chunks if they suffice. Gives back reserved
/// chunks that are not needed.
///
/// # Errors
/// Fails like [`write_snapshot`].
pub async fn write_snapshot_into<E: Endpoint>(
    access: &PageAccess<'_, E>,
    allocator: &ChunkAllocator<'_, E>,
    contents: &mut Contents,
    held: Option<ChunkRange>,
) -> Result<(RemoteAddr, ChunkRange), PoolError> {
    let geometry = access.geometry;
    let tables_start = contents.encode(geometry).len();
    let tables_start = tables_start.next_multiple_of(BLOCK_SIZE_WORDS as usize);
    let wanting = contents.runs.iter_mut();
    let wanting = wanting.filter(|run| run.synonym_table.is_null() && run.synonym_capacity > 0);
    let wanting: Vec<_> = wanting.collect();
    let tables = wanting.iter();
    let tables = tables.map(|run| table_size_words(run.synonym_capacity));
    let size_words = tables_start + tables.sum::<usize>();
    let chunk_count = (size_words as u64 * 8).div_ceil(CHUNK_SIZE_BYTES);
    let (table, generation) = (contents.table, contents.generation);
    let range = take_space(allocator, chunk_count, table, generation, held).await?;
    let place = access.layout.chunk_start(range.first);
    let mut next_table = tables_start;
    for run in wanting {
        run.synonym_table = place.offset_blocks(next_table as u64 / BLOCK_SIZE_WORDS);
        next_table += table_size_words(run.synonym_capacity);
    }
    let mut words = contents.encode(geometry);
    // The chunks may have been used before; the counters must start at zero.
    words.resize(size_words, 0);
    match write_words(access.endpoint, place.word_at(0), &words).await {
        Ok(()) => Ok((place.with_spare(generation), range)),
        Err(error) => {
            give_back_snapshot(allocator, range, table, generation, false).await?;
            Err(error.into())
        }
    }
}

/// Takes chunks from the reserved ones, or claims others.
async fn take_space<E: Endpoint>(
    allocator: &ChunkAllocator<'_, E>,
    chunk_count: u64,
    table: TableId,
    generation: u16,
    held: Option<ChunkRange>,
) -> Result<ChunkRange, PoolError> {
    let Some(held) = held else {
        let purpose = ChunkPurpose::Snapshot { generation };
        return allocator.claim(chunk_count, purpose, table).await;
    };
    if held.count < chunk_count {
        give_back_snapshot(allocator, held, table, generation, false).await?;
        return Box::pin(take_space(allocator, chunk_count, table, generation, None)).await;
    }
    let range = ChunkRange {
        count: chunk_count,
        ..held
    };
    if chunk_count < held.count {
        let rest = ChunkRange {
            first: range.end(),
            count: held.count - chunk_count,
        };
        give_back_snapshot(allocator, rest, table, generation, false).await?;
    }
    Ok(range)
}

/// Gives the chunks of a snapshot back: to the table if its root names the snapshot, else as free.
///
/// # Errors
/// The fabric failed; the memory node then sweeps the chunks when the session ends.
pub async fn give_back_snapshot<E: Endpoint>(
    allocator: &ChunkAllocator<'_, E>,
    range: ChunkRange,
    table: TableId,
    generation: u16,
    is_named: bool,
) -> Result<(), PoolError> {
    let purpose = if is_named {
        ChunkPurpose::Snapshot { generation }
    } else {
        ChunkPurpose::Free
    };
    let none = FreeLeaves::default();
    allocator.give_back(range, purpose, table, none).await
}

/// Returns the error for a corrupted snapshot.
pub(crate) fn damaged(table: TableId, root: RemoteAddr, what: String) -> IndexError {
    let addr = root.place();
    IndexError::SnapshotDamaged(Box::new(SnapshotDamage { addr, table, what }))
}

/// Reads the header of the snapshot that a root names, and checks that all of the snapshot lies in
/// the pool. Costs one round trip.
async fn read_header<E: Endpoint>(
    endpoint: &E,
    layout: &PoolLayout,
    table: TableId,
    root: RemoteAddr,
) -> Result<(Header, Vec<u64>), IndexError> {
    let place = root.place();
    let damaged = |what: &str| damaged(table, root, what.to_owned());
    if layout.chunk_of(place).is_none() {
        return Err(damaged("its address is not in a chunk of the pool"));
    }
    let words = read_words(endpoint, place.word_at(0), HEADER_SIZE_WORDS).await?;
    let header = Header::decode(&words).map_err(|what| damaged(&what))?;
    let shape = &header.shape;
    if (shape.table, shape.generation) != (table, root.spare()) {
        return Err(damaged(&format!(
            "it is generation {} of {}, and the root names generation {}",
            shape.generation,
            shape.table,
            root.spare()
        )));
    }
    let last = place
        .block()
        .checked_add((header.size_words() - 1) / BLOCK_SIZE_WORDS);
    let last = last.filter(|last| *last < RemoteAddr::BLOCK_COUNT_MAX);
    let is_inside = last.is_some_and(|last| {
        let last = RemoteAddr::new(place.node(), last);
        layout.chunk_of(last).is_some()
    });
    if !is_inside {
        return Err(damaged("its sizes are invalid"));
    }
    Ok((header, words))
}

/// Reads and checks the snapshot that a root names. Costs two round trips, and one more for each
/// 512 KiB.
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
    let (header, mut words) = read_header(endpoint, layout, table, root).await?;
    let rest = root.place().word_at(HEADER_SIZE_WORDS as u64);
    let rest_size_words = header.size_words() as usize - HEADER_SIZE_WORDS;
    words.extend(read_words(endpoint, rest, rest_size_words).await?);
    Contents::decode(&words, layout, geometry).map_err(|what| damaged(table, root, what))
}

/// Reads the snapshot that a root names as a directory; see [`read_contents`] for the cost.
///
/// # Errors
/// Fails like [`read_contents`].
pub async fn read_directory<E: Endpoint>(
    endpoint: &E,
    layout: &PoolLayout,
    geometry: PageGeometry,
    table: TableId,
    root: RemoteAddr,
) -> Result<ByteDirectory, IndexError> {
    let contents = read_contents(endpoint, layout, geometry, table, root).await?;
    let directory = contents.into_directory(geometry);
    directory.map_err(|what| damaged(table, root, what))
}

/// Open snapshot whose parts are read on demand.
#[derive(Debug)]
pub struct SnapshotParts {
    heads: Heads,
    table: TableId,
    root: RemoteAddr,
    parts: WordAddr,
}

impl SnapshotParts {
    /// Opens the snapshot that a root names and keeps its part table, thinned to a maximum number
    /// of bytes if possible. Costs two round trips, and one more for each 512 KiB of the table.
    ///
    /// # Errors
    /// [`IndexError::SnapshotDamaged`], or the fabric failed.
    pub async fn open<E: Endpoint>(
        endpoint: &E,
        layout: &PoolLayout,
        geometry: PageGeometry,
        table: TableId,
        root: RemoteAddr,
        head_size_bytes_max: u64,
    ) -> Result<Self, IndexError> {
        let (header, mut words) = read_header(endpoint, layout, table, root).await?;
        let part_table = root.place().word_at(HEADER_SIZE_WORDS as u64);
        let part_table_size_words = header.table_size_words;
        words.extend(read_words(endpoint, part_table, part_table_size_words).await?);
        let heads = Heads::decode(&header, &words, layout, geometry);
        let heads = heads.map_err(|what| damaged(table, root, what))?;
        Ok(Self {
            heads: heads.thinned(head_size_bytes_max),
            table,
            root,
            parts: part_table.offset(part_table_size_words as u64),
        })
    }

    /// Returns the heads of the parts.
    pub(crate) fn heads(&self) -> &Heads {
        &self.heads
    }

    /// Reads the parts that some heads lead to. Costs one round trip, and one more for each 512
    /// KiB.
    pub(crate) async fn read<E: Endpoint>(
        &self,
        endpoint: &E,
        batch: &mut Batch,
        layout: &PoolLayout,
        geometry: PageGeometry,
        numbers: &[usize],
    ) -> Result<Vec<Part>, IndexError> {
        let mut words: Vec<Vec<u64>> = vec![Vec::new(); numbers.len()];
        let places = numbers.iter().map(|number| self.heads.words_of(*number));
        let pieces = places.enumerate().flat_map(|(index, place)| {
            let end = place.end;
            let starts = place.step_by(TRANSFER_SIZE_WORDS);
            starts.map(move |start| (index, start, (end - start).min(TRANSFER_SIZE_WORDS)))
        });
        let mut pieces = pieces.peekable();
        while pieces.peek().is_some() {
            batch.clear();
            let (mut reads, mut left_words) = (Vec::new(), TRANSFER_SIZE_WORDS);
            while let Some((index, start, size_words)) = pieces.next_if(|it| it.2 <= left_words) {
                let from = self.parts.offset(start as u64);
                reads.push((index, batch.read(from, size_words)));
                left_words -= size_words;
            }
            endpoint.execute(batch).await?;
            for (index, read) in reads {
                words[index].extend_from_slice(batch.words(read));
            }
        }
        let parts = numbers
            .iter()
            .zip(&words)
            .map(|(number, words)| self.heads.decode_part(*number, words, layout, geometry));
        let parts: Result<Vec<Part>, String> = parts.collect();
        parts.map_err(|what| self.damage(what))
    }

    /// Returns the error for a contradiction in the snapshot.
    pub(crate) fn damage(&self, what: String) -> IndexError {
        damaged(self.table, self.root, what)
    }
}
