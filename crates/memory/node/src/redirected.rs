//! Old synonym leaf tables in which splits may still be announced. Sessions that have not taken a
//! new root continue to use the old ones. At every tick the node copies new announcements to the
//! tables of the current root. It stops before the old tables' memory is reused: the last
//! announcements are read after every session has passed, and before the garbage group is freed.
//!
//! The list is not stored: the next agent starts with an empty one, and clients then find those
//! leaves by links.

use std::cell::RefCell;

use farleaf_base::TableId;
use farleaf_fabric::Endpoint;
use farleaf_index::IndexError;
use farleaf_index::retrain::Retraining;
use farleaf_index::retrain::paper::{OldCounter, announce_later};
use farleaf_pool::PoolLayout;
use farleaf_pool::layout::ChunkIndex;

/// Old synonym leaf tables of all tables that were retrained without moving leaves.
#[derive(Debug, Default)]
pub(crate) struct Redirected(RefCell<Vec<(TableId, OldCounter)>>);

impl Redirected {
    /// Announces the leaves that sessions have announced in a table's old tables since the last
    /// call. Returns the number of leaves.
    pub(crate) async fn announce<E: Endpoint>(
        &self,
        work: &Retraining<'_, E>,
    ) -> Result<u64, IndexError> {
        let id = work.access.table;
        let mut own = self.of_table(id);
        if own.is_empty() {
            return Ok(0);
        }
        let late_count = announce_later(work, &mut own).await?;
        let mut tables = self.0.borrow_mut();
        let places = tables.iter_mut().filter(|(table, _)| *table == id);
        for ((_, old), read) in places.zip(own) {
            *old = read;
        }
        Ok(late_count)
    }

    fn of_table(&self, id: TableId) -> Vec<OldCounter> {
        let tables = self.0.borrow();
        let own = tables.iter().filter(|(table, _)| *table == id);
        own.map(|(_, old)| *old).collect()
    }

    /// Adds old synonym leaf tables.
    pub(crate) fn note(&self, table: TableId, old: &[OldCounter]) {
        let old = old.iter().map(|old| (table, *old));
        self.0.borrow_mut().extend(old);
    }

    /// Removes the old tables in these chunks, which are about to be reused: no session can
    /// announce anything there.
    pub(crate) fn forget(&self, layout: &PoolLayout, table: TableId, chunks: &[ChunkIndex]) {
        let is_gone = |old: &OldCounter| {
            let chunk = layout.chunk_of(old.table);
            chunk.is_some_and(|chunk| chunks.contains(&chunk))
        };
        let mut tables = self.0.borrow_mut();
        tables.retain(|(own, old)| *own != table || !is_gone(old));
    }

    /// Returns whether a table has old synonym leaf tables.
    pub(crate) fn has(&self, table: TableId) -> bool {
        self.0.borrow().iter().any(|(own, _)| *own == table)
    }

    /// Returns whether there are no old synonym leaf tables.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// Keeps only the old tables of tables for which `is_there` returns true.
    pub(crate) fn retain(&self, is_there: impl Fn(TableId) -> bool) {
        self.0.borrow_mut().retain(|(table, _)| is_there(*table));
    }
}
