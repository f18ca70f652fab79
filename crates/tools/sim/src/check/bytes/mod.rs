//! Checks tables of byte strings at the end of a run, after the last sweep: pages tile the keys
//! (LEAF-6), no page is locked (LEAF-8), and every page and value block has one reference or is
//! free.

mod blocks;
mod chain;
mod listing;

use farleaf_base::{BLOCK_SIZE_BYTES, TableId, WordAddr};
use farleaf_executor::block_on;
use farleaf_fabric::{Batch, BatchError, Endpoint};
use farleaf_index::LayerKind;
use farleaf_leaf::blobs::BlockAccess;
use farleaf_leaf::strings::PageGeometry;
use farleaf_node::sweep::MemoryMaintainer;
use farleaf_pool::allocation::ChunkTable;
use farleaf_pool::catalog::{CatalogEntry, EntryState, TableKind};

use super::Violation;
use crate::fabric::endpoint::StillEndpoint;

/// Checks every live table of byte strings.
///
/// # Errors
/// The fabric failed, which the simulated one does not do.
pub fn check(
    keeper: &MemoryMaintainer<StillEndpoint>,
    entries: &[CatalogEntry],
    chunks: &ChunkTable,
) -> Result<Vec<Violation>, BatchError> {
    let mut found = Vec::new();
    for entry in entries.iter().filter(|it| it.state == EntryState::Live) {
        let Some(mut judge) = TableCheck::of(keeper, entry) else {
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

/// Check of one table.
struct TableCheck<'a> {
    keeper: &'a MemoryMaintainer<StillEndpoint>,
    geometry: PageGeometry,
    table: TableId,
    found: Vec<Violation>,
}

impl<'a> TableCheck<'a> {
    /// Prepares the check of a table of byte strings.
    fn of(keeper: &'a MemoryMaintainer<StillEndpoint>, entry: &CatalogEntry) -> Option<Self> {
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

    fn report_violation(&mut self, promise: &'static str, how: impl AsRef<str>) {
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
