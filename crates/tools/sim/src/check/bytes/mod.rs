//! Tables of byte strings, when nobody works any more and all was swept: pages tile the keys (D6),
//! none is locked (D8), and every page and every value block is referred to once, or free (BV1 to
//! BV10, W3).

mod blocks;
mod chain;
mod listing;

use farleaf_block::BlockAccess;
use farleaf_executor::block_on;
use farleaf_fabric::{Batch, BatchError, Endpoint};
use farleaf_index::LayerKind;
use farleaf_node::sweep::Keeper;
use farleaf_page::PageGeometry;
use farleaf_region::allocation::ChunkTable;
use farleaf_region::catalog::{CatalogEntry, EntryState, TableKind};
use farleaf_types::{BLOCK_SIZE_BYTES, TableId, WordAddr};

use super::Violation;
use crate::fabric::endpoint::StillEndpoint;

/// Checks every live table of byte strings.
///
/// # Errors
/// The fabric failed, which it does not.
pub fn check(
    keeper: &Keeper<StillEndpoint>,
    entries: &[CatalogEntry],
    chunks: &ChunkTable,
) -> Result<Vec<Violation>, BatchError> {
    let mut found = Vec::new();
    for entry in entries.iter().filter(|it| it.state == EntryState::Live) {
        let Some(mut judge) = Judge::of(keeper, entry) else {
            continue;
        };
        let chain = judge.walk(entry)?;
        if judge.found.is_empty() {
            judge.account_for_pages(entry, &chain, chunks)?;
            judge.account_for_blocks(&chain, chunks)?;
        }
        if judge.found.is_empty() && entry.record.search_layer == LayerKind::RfTree.number() {
            judge.check_listing(entry, entries)?;
        }
        found.extend(judge.found);
    }
    Ok(found)
}

/// Who looks at one table.
struct Judge<'a> {
    keeper: &'a Keeper<StillEndpoint>,
    geometry: PageGeometry,
    table: TableId,
    found: Vec<Violation>,
}

impl<'a> Judge<'a> {
    /// Of a table of byte strings.
    fn of(keeper: &'a Keeper<StillEndpoint>, entry: &CatalogEntry) -> Option<Self> {
        let TableKind::Bytes {
            page_size_blocks, ..
        } = entry.record.kind
        else {
            return None;
        };
        let geometry = PageGeometry::new(u64::from(page_size_blocks) * BLOCK_SIZE_BYTES);
        Some(Self {
            keeper,
            geometry: geometry.expect("tables are made with pages that there are"),
            table: entry.record.id,
            found: Vec::new(),
        })
    }

    fn complain(&mut self, promise: &'static str, how: impl AsRef<str>) {
        let how = format!("table {}: {}", self.table.0, how.as_ref());
        self.found.push(Violation::new(promise, how));
    }

    fn blocks(&self) -> BlockAccess<'a, StillEndpoint> {
        BlockAccess {
            endpoint: &self.keeper.endpoint,
            layout: &self.keeper.layout,
            table: self.table,
            owner: self.keeper.owner,
        }
    }

    fn read(&self, from: WordAddr, word_count: usize) -> Result<Vec<u64>, BatchError> {
        let mut batch = Batch::new();
        let read = batch.read(from, word_count);
        block_on(self.keeper.endpoint.execute(&mut batch), || 0)?;
        Ok(batch.words(read).to_vec())
    }
}
