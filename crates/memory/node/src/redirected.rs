//! Old synonym leaf tables in which splits may still be announced: sessions that have not taken a
//! new root go on with what they have (X6). At every tick what is new there is announced in the
//! tables that are in force (X7), until the old ones' memory is reused: what was announced last is
//! read after every session has passed, and before the group is freed (T3).
//!
//! Whoever retrains next knows nothing of them (T4); then links lead to those leaves (X8).

use std::cell::RefCell;

use farleaf_fabric::Endpoint;
use farleaf_index::IndexError;
use farleaf_index::retrain::Retraining;
use farleaf_index::retrain::paper::{OldCounter, announce_later};
use farleaf_region::PoolLayout;
use farleaf_region::layout::ChunkIndex;
use farleaf_types::TableId;

/// Old tables of all tables that were retrained where their leaves are.
#[derive(Debug, Default)]
pub(crate) struct Redirected(RefCell<Vec<(TableId, OldCounter)>>);

impl Redirected {
    /// Announces what has been announced in a table's old tables since. Returns how many leaves.
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

    /// These tables are old from now on.
    pub(crate) fn note(&self, table: TableId, old: &[OldCounter]) {
        let old = old.iter().map(|old| (table, *old));
        self.0.borrow_mut().extend(old);
    }

    /// These chunks are about to be reused: no session can announce anything there.
    pub(crate) fn forget(&self, layout: &PoolLayout, table: TableId, chunks: &[ChunkIndex]) {
        let is_gone = |old: &OldCounter| {
            let chunk = layout.chunk_of(old.table);
            chunk.is_some_and(|chunk| chunks.contains(&chunk))
        };
        let mut tables = self.0.borrow_mut();
        tables.retain(|(own, old)| *own != table || !is_gone(old));
    }

    /// Whether a table has any.
    pub(crate) fn has(&self, table: TableId) -> bool {
        self.0.borrow().iter().any(|(own, _)| *own == table)
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// Keeps only what is of these tables.
    pub(crate) fn retain(&self, is_there: impl Fn(TableId) -> bool) {
        self.0.borrow_mut().retain(|(table, _)| is_there(*table));
    }
}
