//! Writing snapshots to far memory, and reading them.

use std::collections::BTreeSet;
use std::sync::Arc;

use farleaf_base::{BLOCK_SIZE_WORDS, RemoteAddr, TableId, WordAddr, crc32c};
use farleaf_fabric::{Batch, BatchError, Endpoint, OperationKind};
use farleaf_leaf::words::LeafGeometry;
use farleaf_pool::PoolError;
use farleaf_pool::PoolLayout;
use farleaf_pool::allocation::{ChunkAllocator, ChunkRange};
use farleaf_pool::chunk::{ChunkPurpose, FreeLeaves};
use farleaf_pool::layout::{CHUNK_SIZE_BYTES, ChunkIndex};

use super::leaf_table;
use crate::directory::{Directory, Model};
use crate::hint::SYNONYM_TABLE_HEADER_SIZE_WORDS;
use crate::snapshot::format::{
    HEADER_SIZE_WORDS, MODEL_SIZE_WORDS, SnapshotHeader, decode_model, encode_model,
};
use crate::snapshot::page::{PageHead, WordRange, decode_residual_page, encode_residuals};
use crate::{IndexError, SnapshotDamage};

/// Largest number of words that one verb transfers.
pub const TRANSFER_SIZE_WORDS: usize = 64 << 10;

/// Result of a training, before it has a place in far memory.
#[derive(Clone, Debug)]
pub struct SnapshotContents {
    /// Table that the models belong to.
    pub table: TableId,
    /// Generation of the load that created the table's contents.
    pub generation: u16,
    /// Number of records that the training saw.
    pub record_count: u64,
    /// Scale of positions: their unit is 2^-shift leaves.
    pub shift: u32,
    /// Models in order. A model with synonym capacity but no synonym leaf table gets a table after
    /// the snapshot.
    pub models: Vec<Model>,
    /// Residual of each leaf.
    pub residuals: Vec<i8>,
    /// Address of each leaf; `None` if the leaves of a model are adjacent, starting at its base.
    /// With a leaf table, a model's base is its first leaf.
    pub leaf_table: Option<Arc<[RemoteAddr]>>,
}

/// Claims space for a snapshot and writes it, with empty synonym leaf tables. Returns the root word
/// to install: the address, with the generation in the spare bits.
///
/// # Errors
/// The pool is full, or the fabric failed; then the claimed chunks are released if possible.
pub async fn write_snapshot<E: Endpoint>(
    endpoint: &E,
    allocator: &ChunkAllocator<'_, E>,
    layout: &PoolLayout,
    mut contents: SnapshotContents,
) -> Result<(RemoteAddr, ChunkRange), PoolError> {
    let tables_start = own_size_words(&contents.header());
    let tables_start = tables_start.next_multiple_of(BLOCK_SIZE_WORDS as usize);
    let wanting = contents.models.iter().filter(|model| wants_table(model));
    let size_words = tables_start + wanting.map(table_size_words).sum::<usize>();
    let chunk_count = (size_words as u64 * 8).div_ceil(CHUNK_SIZE_BYTES);
    let purpose = ChunkPurpose::Snapshot {
        generation: contents.generation,
    };
    let range = allocator
        .claim(chunk_count, purpose, contents.table)
        .await?;
    let place = layout.chunk_start(range.first);
    let mut next_table = tables_start;
    for model in contents
        .models
        .iter_mut()
        .filter(|model| wants_table(model))
    {
        model.synonym_table = place.offset_blocks(next_table as u64 / BLOCK_SIZE_WORDS);
        next_table += table_size_words(model);
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

fn encode_heads(models: &[Model], generation: u16) -> Vec<u64> {
    let heads = (0..).zip(PageHead::of_models(models));
    heads
        .flat_map(|(page, head)| head.encode(generation, page))
        .collect()
}

/// Returns the number of words before the synonym leaf tables.
fn own_size_words(header: &SnapshotHeader) -> usize {
    let leaf_table = header.leaf_table();
    leaf_table.start + leaf_table.word_count
}

fn wants_table(model: &Model) -> bool {
    model.synonym_table.is_null() && model.synonym_capacity > 0
}

/// Returns the size of a model's synonym leaf table in words: whole blocks.
pub(crate) fn table_size_words(model: &Model) -> usize {
    let words = SYNONYM_TABLE_HEADER_SIZE_WORDS as usize + model.synonym_capacity as usize;
    words.next_multiple_of(BLOCK_SIZE_WORDS as usize)
}

/// Reads the snapshot that a root names, and verifies all of it.
///
/// # Errors
/// [`IndexError::SnapshotDamaged`], or the fabric failed.
pub async fn read_snapshot<E: Endpoint>(
    endpoint: &E,
    layout: &PoolLayout,
    geometry: LeafGeometry,
    table: TableId,
    root: RemoteAddr,
) -> Result<Directory, IndexError> {
    let contents = read_contents(endpoint, layout, geometry, table, root).await?;
    Ok(contents.into_directory(geometry))
}

impl SnapshotContents {
    /// Returns the number of chunks that the snapshot takes.
    pub(crate) fn chunk_count(&self) -> u64 {
        (own_size_words(&self.header()) as u64 * 8).div_ceil(CHUNK_SIZE_BYTES)
    }

    fn header(&self) -> SnapshotHeader {
        SnapshotHeader {
            table: self.table,
            generation: self.generation,
            model_count: self.models.len() as u32,
            leaf_count: self.residuals.len() as u32,
            record_count: self.record_count,
            shift: self.shift,
            leaf_table_checksum: self.leaf_table_words().as_deref().map(crc32c),
        }
    }

    fn leaf_table_words(&self) -> Option<Vec<u64>> {
        self.leaf_table.as_deref().map(leaf_table::encode)
    }

    /// Returns the chunks of everything that the snapshot at `root` names: runs, synonym leaf
    /// tables, and itself. Other such chunks of the table are garbage.
    pub fn named_chunks(
        &self,
        layout: &PoolLayout,
        geometry: LeafGeometry,
        root: RemoteAddr,
    ) -> BTreeSet<ChunkIndex> {
        let own_words = own_size_words(&self.header());
        let blocks = |words: usize| (words as u64).div_ceil(BLOCK_SIZE_WORDS);
        let stride = geometry.stride_blocks();
        let is_listed = self.leaf_table.is_some();
        let runs = self.models.iter().filter(|_| !is_listed);
        let runs = runs.map(|model| (model.base, u64::from(model.leaf_count) * stride));
        let leaves = self.leaf_table.iter().flat_map(|table| table.iter());
        let leaves = leaves.map(|leaf| (*leaf, stride));
        let placed = self.models.iter();
        let placed = placed.filter(|model| !model.synonym_table.is_null());
        let tables = placed.map(|model| (model.synonym_table, blocks(table_size_words(model))));
        let pieces = runs
            .chain(leaves)
            .chain(tables)
            .chain([(root.place(), blocks(own_words))]);
        pieces
            .flat_map(|(start, block_count)| {
                let last = start.offset_blocks(block_count.max(1) - 1);
                let chunks = layout.chunk_of(start).zip(layout.chunk_of(last));
                chunks
                    .into_iter()
                    .flat_map(|(from, to)| (from.0..=to.0).map(ChunkIndex))
            })
            .collect()
    }

    /// Returns the directory that the contents describe.
    pub fn into_directory(self, geometry: LeafGeometry) -> Directory {
        let directory = Directory::new(
            geometry,
            self.generation,
            self.record_count,
            self.shift,
            &self.models,
            self.residuals,
        );
        match self.leaf_table {
            Some(leaf_table) => directory.with_leaf_table(leaf_table),
            None => directory,
        }
    }

    /// Returns the addresses of some models' leaves, in order.
    pub fn leaves_of(
        &self,
        geometry: LeafGeometry,
        models: core::ops::Range<usize>,
    ) -> Vec<RemoteAddr> {
        let count = |models: &[Model]| -> usize {
            let counts = models.iter().map(|model| model.leaf_count as usize);
            counts.sum()
        };
        let own = &self.models[models.clone()];
        if let Some(table) = &self.leaf_table {
            let first = count(&self.models[..models.start]);
            return table[first..first + count(own)].to_vec();
        }
        let side_by_side = |model: &Model| {
            let (base, leaf_count) = (model.base, u64::from(model.leaf_count));
            (0..leaf_count).map(move |leaf| base.offset_blocks(leaf * geometry.stride_blocks()))
        };
        own.iter().flat_map(side_by_side).collect()
    }

    fn encode(&self) -> Vec<u64> {
        let header = self.header();
        let mut words = Vec::with_capacity(own_size_words(&header));
        words.extend(header.encode());
        let models = self.models.iter();
        words.extend(models.flat_map(|model| encode_model(model, self.generation)));
        words.extend(encode_heads(&self.models, self.generation));
        words.extend(encode_residuals(&self.residuals, self.generation));
        words.extend(self.leaf_table_words().into_iter().flatten());
        words
    }
}

/// Does [`read_snapshot`], and returns the contents as they were written.
///
/// # Errors
/// [`IndexError::SnapshotDamaged`], or the fabric failed.
pub async fn read_contents<E: Endpoint>(
    endpoint: &E,
    layout: &PoolLayout,
    geometry: LeafGeometry,
    table: TableId,
    root: RemoteAddr,
) -> Result<SnapshotContents, IndexError> {
    let place = root.place();
    let damaged = |what: String| damage(place, table, what);
    let header = read_header(endpoint, table, root).await?;
    let at = |piece: WordRange| place.word_at(piece.start as u64);
    let is_listed = header.leaf_table_checksum.is_some();
    let piece = header.models();
    let words = read_words(endpoint, at(piece), piece.word_count).await?;
    let models =
        decode_models(&words, header.generation, layout, geometry, is_listed).map_err(damaged)?;
    let leaf_count = models
        .iter()
        .map(|model| u64::from(model.leaf_count))
        .sum::<u64>();
    if leaf_count != u64::from(header.leaf_count) {
        return Err(damaged("its models contradict its header".to_owned()));
    }
    let piece = header.heads();
    let words = read_words(endpoint, at(piece), piece.word_count).await?;
    if words != encode_heads(&models, header.generation) {
        return Err(damaged("its page heads contradict its models".to_owned()));
    }
    let start = header.residuals();
    let words = read_words(endpoint, at(start), start.word_count).await?;
    let mut residuals = Vec::with_capacity(header.leaf_count as usize);
    for page in 0..header.residual_page_count() {
        let piece = header.residual_page(page);
        let words = &words[piece.start - start.start..][..piece.word_count];
        residuals.extend(decode_residual_page(words, header.generation, page).map_err(damaged)?);
    }
    residuals.truncate(header.leaf_count as usize);
    let leaf_table = if let Some(checksum) = header.leaf_table_checksum {
        let piece = header.leaf_table();
        let words = read_words(endpoint, at(piece), piece.word_count).await?;
        let decoded = leaf_table::decode(&words, checksum, layout, geometry, &models);
        Some(decoded.map_err(damaged)?)
    } else {
        None
    };
    Ok(SnapshotContents {
        table,
        generation: header.generation,
        record_count: header.record_count,
        shift: header.shift,
        models,
        residuals,
        leaf_table,
    })
}

/// Reads and verifies the header of the snapshot that a root names.
pub(super) async fn read_header<E: Endpoint>(
    endpoint: &E,
    table: TableId,
    root: RemoteAddr,
) -> Result<SnapshotHeader, IndexError> {
    let place = root.place();
    let words = read_words(endpoint, place.word_at(0), HEADER_SIZE_WORDS).await?;
    let header = SnapshotHeader::decode(&words).map_err(|what| damage(place, table, what))?;
    if (header.table, header.generation) != (table, root.spare()) {
        let what = format!(
            "it is generation {} of {}, and the root names generation {}",
            header.generation,
            header.table,
            root.spare()
        );
        return Err(damage(place, table, what));
    }
    Ok(header)
}

/// Returns the error for a corrupted snapshot.
pub(super) fn damage(addr: RemoteAddr, table: TableId, what: String) -> IndexError {
    IndexError::SnapshotDamaged(Box::new(SnapshotDamage { addr, table, what }))
}

/// Decodes adjacent models: each must be intact, inside the memory, and begin after the previous
/// one.
///
/// # Errors
/// A description of the corruption.
pub(super) fn decode_models(
    words: &[u64],
    generation: u16,
    layout: &PoolLayout,
    geometry: LeafGeometry,
    is_listed: bool,
) -> Result<Vec<Model>, String> {
    let models = words.chunks_exact(MODEL_SIZE_WORDS);
    let models: Vec<Model> = models
        .map(|words| decode_model(words, generation))
        .collect::<Result<_, _>>()?;
    let is_outside = |model: &&Model| !is_inside(model, layout, geometry, is_listed);
    if let Some(model) = models.iter().find(is_outside) {
        return Err(format!("the model at {} is outside the pool", model.base));
    }
    let mut pairs = models.windows(2);
    if pairs.all(|pair| pair[0].first_key < pair[1].first_key) {
        Ok(models)
    } else {
        Err("its models are not in ascending order".to_owned())
    }
}

/// Returns whether all that a model points to is in chunks of the memory. Leaves in a leaf table
/// are checked with that table.
fn is_inside(model: &Model, layout: &PoolLayout, geometry: LeafGeometry, is_listed: bool) -> bool {
    let spans = |start: RemoteAddr, block_count: u64| {
        let last = start.block() + block_count.max(1) - 1;
        last < RemoteAddr::BLOCK_COUNT_MAX
            && layout.chunk_of(start).is_some()
            && layout
                .chunk_of(RemoteAddr::new(start.node(), last))
                .is_some()
    };
    let table_words = SYNONYM_TABLE_HEADER_SIZE_WORDS + u64::from(model.synonym_capacity);
    let run_count = if is_listed { 1 } else { model.leaf_count };
    spans(model.base, u64::from(run_count) * geometry.stride_blocks())
        && (model.synonym_table.is_null()
            || spans(model.synonym_table, table_words.div_ceil(BLOCK_SIZE_WORDS)))
}

/// Writes adjacent words. Costs one round trip per 512 KiB.
///
/// # Errors
/// The fabric failed.
pub async fn write_words<E: Endpoint>(
    endpoint: &E,
    to: WordAddr,
    words: &[u64],
) -> Result<(), BatchError> {
    let mut batch = Batch::new();
    for (index, part) in words.chunks(TRANSFER_SIZE_WORDS).enumerate() {
        batch.clear();
        batch.write(to.offset((index * TRANSFER_SIZE_WORDS) as u64), part);
        endpoint.execute(&mut batch).await?;
    }
    endpoint
        .counters()
        .record(OperationKind::Control, &batch.take_cost());
    Ok(())
}

/// Reads adjacent words. Costs one round trip per 512 KiB.
///
/// # Errors
/// The fabric failed.
pub async fn read_words<E: Endpoint>(
    endpoint: &E,
    from: WordAddr,
    word_count: usize,
) -> Result<Vec<u64>, BatchError> {
    let mut batch = Batch::new();
    let mut words = Vec::new();
    for start in (0..word_count).step_by(TRANSFER_SIZE_WORDS) {
        batch.clear();
        let part = (word_count - start).min(TRANSFER_SIZE_WORDS);
        let read = batch.read(from.offset(start as u64), part);
        endpoint.execute(&mut batch).await?;
        words.extend_from_slice(batch.words(read));
    }
    endpoint
        .counters()
        .record(OperationKind::Control, &batch.take_cost());
    Ok(words)
}
