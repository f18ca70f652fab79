//! The catalog, as the node and audits read it: all entries at once, without its lock.

use farleaf_fabric::{Batch, Endpoint, OperationKind};
use farleaf_region::catalog::{CatalogEntry, ENTRY_SIZE_WORDS, TABLE_COUNT_MAX};
use farleaf_region::{PoolLayout, RegionError};

/// Every place of the catalog: a table, nothing, or an entry that is being written or is damaged.
/// One round trip.
pub(crate) async fn read_catalog<E: Endpoint>(
    endpoint: &E,
    layout: &PoolLayout,
) -> Result<Vec<Result<Option<CatalogEntry>, RegionError>>, RegionError> {
    let mut batch = Batch::new();
    let word_count = TABLE_COUNT_MAX as usize * ENTRY_SIZE_WORDS;
    let read = batch.read(layout.catalog_entry(0), word_count);
    endpoint.execute(&mut batch).await?;
    endpoint
        .counters()
        .record(OperationKind::Control, &batch.take_cost());
    let entries = batch.words(read).chunks_exact(ENTRY_SIZE_WORDS).enumerate();
    let decode = |(index, words)| CatalogEntry::decode(index as u64, words);
    Ok(entries.map(decode).collect())
}
