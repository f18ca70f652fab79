//! Reads all entries of the catalog at once, without its lock, for the node and for audits.

use farleaf_fabric::{CountedBatch, Endpoint, OperationKind};
use farleaf_pool::catalog::{CatalogEntry, ENTRY_SIZE_WORDS, TABLE_COUNT_MAX};
use farleaf_pool::{PoolError, PoolLayout};

/// Reads every entry of the catalog: a table, a free entry, or one that is being written or is
/// corrupted. Costs one round trip.
pub(crate) async fn read_catalog<E: Endpoint>(
    endpoint: &E,
    layout: &PoolLayout,
) -> Result<Vec<Result<Option<CatalogEntry>, PoolError>>, PoolError> {
    let mut batch = CountedBatch::new(endpoint, OperationKind::Control);
    let word_count = TABLE_COUNT_MAX as usize * ENTRY_SIZE_WORDS;
    let read = batch.read(layout.catalog_entry(0), word_count);
    endpoint.execute(&mut batch).await?;
    let entries = batch.words(read).chunks_exact(ENTRY_SIZE_WORDS).enumerate();
    let decode = |(index, words)| CatalogEntry::decode(index as u64, words);
    Ok(entries.map(decode).collect())
}
