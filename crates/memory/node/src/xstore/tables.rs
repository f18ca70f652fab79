//! The served tables, and the queue of due training.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use farleaf_base::TableId;
use farleaf_base::locks::lock;
use farleaf_index::rpc::Failure;
use farleaf_pool::catalog::CatalogEntry;

use super::served::{LeafTable, TrainingGuard};

/// Leaves per sub-model when all models are trained.
const LEAVES_PER_SUB_MODEL: u64 = 64;

/// All served tables, shared by all threads.
#[derive(Debug)]
pub struct LeafTables {
    leaves_per_sub_model: AtomicU64,
    tables: Mutex<BTreeMap<TableId, Arc<LeafTable>>>,
    due: Mutex<VecDeque<DueTraining>>,
    has_due: Condvar,
}

/// Training that is due.
#[derive(Clone, Debug)]
pub struct DueTraining {
    /// Table to train.
    pub table: Arc<LeafTable>,
    /// Sub-model and its generation; `None`: all models, including the top model.
    pub sub_model: Option<(u32, u32)>,
}

impl Default for LeafTables {
    /// Uses sub-models of some 400 records, twice as many as in the paper.
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
    /// Sets the leaves per sub-model for future trainings of all models; at least one.
    pub fn set_leaves_per_sub_model(&self, count: u64) {
        self.leaves_per_sub_model
            .store(count.max(1), Ordering::Relaxed);
    }

    /// Returns the leaves per sub-model.
    pub fn leaves_per_sub_model(&self) -> u64 {
        self.leaves_per_sub_model.load(Ordering::Relaxed)
    }

    /// Returns a table that has been requested before.
    pub fn get(&self, id: TableId) -> Option<Arc<LeafTable>> {
        lock(&self.tables).get(&id).cloned()
    }

    /// Adds a table at its first request.
    ///
    /// # Errors
    /// The catalog entry is not supported by this version.
    pub fn add(&self, entry: CatalogEntry) -> Result<Arc<LeafTable>, Failure> {
        let id = entry.record.id;
        let mut tables = lock(&self.tables);
        if let Some(table) = tables.get(&id) {
            return Ok(Arc::clone(table));
        }
        let table = LeafTable::new(entry).map_err(|_| Failure::OfLeaves)?;
        let table = Arc::new(table);
        tables.insert(id, Arc::clone(&table));
        Ok(table)
    }

    /// Returns all tables that have been requested.
    pub fn all(&self) -> Vec<Arc<LeafTable>> {
        lock(&self.tables).values().cloned().collect()
    }

    /// Removes a dropped table, with all training that is due for it.
    pub fn forget(&self, id: TableId) {
        lock(&self.tables).remove(&id);
        lock(&self.due).retain(|due| due.table.id() != id);
    }

    /// Adds due training to the queue.
    pub fn push(&self, due: DueTraining) {
        lock(&self.due).push_back(due);
        self.has_due.notify_one();
    }

    /// Removes and returns the oldest due training that no other training excludes.
    pub fn pop(&self) -> Option<(DueTraining, TrainingGuard)> {
        let mut queue = lock(&self.due);
        let mut waiting: Vec<TableId> = Vec::new();
        let started = queue.iter().enumerate().find_map(|(index, due)| {
            let id = due.table.id();
            if waiting.contains(&id) {
                return None;
            }
            let training = due.table.begin_training(due.sub_model);
            if training.is_none() && due.sub_model.is_none() {
                // A training of all models waits for running trainings, but not for those that
                // begin later.
                waiting.push(id);
            }
            Some((index, training?))
        });
        let (index, training) = started?;
        Some((queue.remove(index)?, training))
    }

    /// Waits until training may be due, or until the time limit.
    pub fn wait(&self, at_most: Duration) {
        let queue = lock(&self.due);
        if queue.is_empty() {
            let waited = self.has_due.wait_timeout(queue, at_most);
            drop(waited);
        }
    }

    /// Returns the length of the queue.
    pub fn due_count(&self) -> usize {
        lock(&self.due).len()
    }

    /// Wakes all waiting threads.
    pub fn wake_all(&self) {
        self.has_due.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_base::{NodeId, RemoteAddr, SequenceNumber};
    use farleaf_index::xstore::{Generation, InnerTree, ModelHead, SubModelRecord};
    use farleaf_model::recursive::{SubModel, TopModel};
    use farleaf_pool::catalog::{EntryState, TableKind, TableRecord};

    use crate::xstore::served::{BuiltTree, Models, TrainedSubModel};

    fn at(block: u64) -> RemoteAddr {
        RemoteAddr::new(NodeId(0), block)
    }

    fn entry() -> CatalogEntry {
        CatalogEntry {
            index: 0,
            state: EntryState::Live,
            record: TableRecord {
                id: TableId(1),
                name: "t".to_owned(),
                kind: TableKind::Words { slots: 8 },
                search_layer: 0,
                fill_percent: 50,
                epsilon_milli: 1000,
                first_leaf: at(1),
                part: None,
            },
            dropped_at: SequenceNumber::default(),
            root: at(2),
            underfull_count: 0,
            pending_root: RemoteAddr::NULL,
        }
    }

    /// Returns a table with so many sub-models, of generation 1.
    fn table(tables: &LeafTables, sub_model_count: u32) -> Arc<LeafTable> {
        let table = tables.add(entry()).expect("sound");
        let lows: Vec<u64> = (0..64).map(|low| low * 100).collect();
        let top = TopModel::fit(&lows, lows.len() / sub_model_count as usize);
        assert_eq!(top.sub_model_count(), sub_model_count);
        let head = ModelHead {
            generation: 1,
            sub_model_count,
            line_count: top.lines().len() as u32,
            records: at(10),
            leaf_count: 64,
            record_count: 256,
        };
        let trained = (0..sub_model_count).map(|_| TrainedSubModel {
            record: SubModelRecord {
                version: 1,
                generation: 1,
                model: SubModel::fit(&lows, &(0..=6400)),
                table: at(20),
            },
            table: vec![at(1); 64],
        });
        let newest = Generation { head, top };
        let models = Models::new(table.id(), newest, trained.collect());
        let built = Arc::new(BuiltTree::new(at(2), InnerTree::new(at(1)), 256));
        built.set_models(Arc::new(models));
        let building = table.begin_building().expect("nobody else does");
        building.end(built);
        table
    }

    /// Promise: different sub-models of a table are trained at once, each by one thread. All models
    /// are trained alone, and before training that became due later.
    #[test]
    fn who_may_train_at_once() {
        let tables = LeafTables::default();
        let table = table(&tables, 4);
        let push = |sub_model: Option<(u32, u32)>| {
            tables.push(DueTraining {
                table: Arc::clone(&table),
                sub_model,
            });
        };
        let pop = || {
            tables
                .pop()
                .map(|(due, training)| (due.sub_model, training))
        };
        push(Some((1, 0)));
        push(Some((1, 0)));
        push(Some((1, 1)));
        let (first, first_training) = pop().expect("due");
        assert_eq!(first, Some((1, 0)));
        let (second, second_training) = pop().expect("the same is passed over");
        assert_eq!(second, Some((1, 1)));
        assert!(pop().is_none(), "it is being trained");
        push(None);
        push(Some((1, 2)));
        drop(first_training);
        let (again, again_training) = pop().expect("it is trained no more");
        assert_eq!(again, Some((1, 0)));
        assert!(pop().is_none(), "all wait for two, and the last for all");
        drop(again_training);
        drop(second_training);
        let (all, all_training) = pop().expect("nobody trains");
        assert_eq!(all, None);
        assert!(pop().is_none(), "all are being trained");
        drop(all_training);
        let (last, _training) = pop().expect("nobody trains");
        assert_eq!(last, Some((1, 2)));
        assert_eq!(tables.due_count(), 0);
    }
}
