//! The tables that are served, and what is due to be trained.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use farleaf_index::rpc::Failure;
use farleaf_region::catalog::CatalogEntry;
use farleaf_types::TableId;

use super::served::LeafTable;

/// Leaves that a sub-model gets when all are trained.
const LEAVES_PER_SUB_MODEL: u64 = 64;

/// All of them. Threads share it.
#[derive(Debug)]
pub struct LeafTables {
    leaves_per_sub_model: AtomicU64,
    tables: Mutex<BTreeMap<TableId, Arc<LeafTable>>>,
    due: Mutex<VecDeque<Due>>,
    has_due: Condvar,
}

/// What is due to be trained.
#[derive(Clone, Debug)]
pub struct Due {
    /// The table.
    pub table: Arc<LeafTable>,
    /// Which of its sub-models, of which generation; `None`: all, and a top model (Y7).
    pub sub_model: Option<(u32, u32)>,
}

impl Default for LeafTables {
    /// With sub-models of some 400 records, twice as many as in the paper.
    fn default() -> Self {
        Self {
            leaves_per_sub_model: AtomicU64::new(LEAVES_PER_SUB_MODEL),
            tables: Mutex::default(),
            due: Mutex::default(),
            has_due: Condvar::default(),
        }
    }
}

impl LeafTables {
    /// How many leaves a sub-model gets from now on when all are trained, at least one.
    pub fn set_leaves_per_sub_model(&self, count: u64) {
        self.leaves_per_sub_model
            .store(count.max(1), Ordering::Relaxed);
    }

    /// How many it gets.
    pub fn leaves_per_sub_model(&self) -> u64 {
        self.leaves_per_sub_model.load(Ordering::Relaxed)
    }

    fn tables(&self) -> MutexGuard<'_, BTreeMap<TableId, Arc<LeafTable>>> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<Due>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A table that has been asked for before.
    pub fn get(&self, id: TableId) -> Option<Arc<LeafTable>> {
        self.tables().get(&id).cloned()
    }

    /// A table that is asked for the first time.
    ///
    /// # Errors
    /// Its entry says what no table of this version's says.
    pub fn add(&self, entry: CatalogEntry) -> Result<Arc<LeafTable>, Failure> {
        let id = entry.record.id;
        let mut tables = self.tables();
        if let Some(table) = tables.get(&id) {
            return Ok(Arc::clone(table));
        }
        let table = LeafTable::new(entry).map_err(|_| Failure::OfLeaves)?;
        let table = Arc::new(table);
        tables.insert(id, Arc::clone(&table));
        Ok(table)
    }

    /// All that have been asked for.
    pub fn all(&self) -> Vec<Arc<LeafTable>> {
        self.tables().values().cloned().collect()
    }

    /// The table was dropped: nobody asks for it any more, and nothing of it is trained.
    pub fn forget(&self, id: TableId) {
        self.tables().remove(&id);
        self.queue().retain(|due| due.table.id() != id);
    }

    /// Something is due.
    pub fn push(&self, due: Due) {
        self.queue().push_back(due);
        self.has_due.notify_one();
    }

    /// What has been due for longest, of a table that nobody trains (Z3).
    pub fn pop(&self) -> Option<Due> {
        let mut queue = self.queue();
        let index = queue.iter().position(|due| due.table.begin_training())?;
        queue.remove(index)
    }

    /// Waits until something may be due, or for so long.
    pub fn wait(&self, at_most: Duration) {
        let queue = self.queue();
        if queue.is_empty() {
            let waited = self.has_due.wait_timeout(queue, at_most);
            drop(waited);
        }
    }

    /// How much is due.
    pub fn due_count(&self) -> usize {
        self.queue().len()
    }

    /// Whoever waits looks again.
    pub fn wake_all(&self) {
        self.has_due.notify_all();
    }
}
