//! One served table: the tree over its leaves, and its models.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};

use farleaf_base::locks::{lock, read, write};
use farleaf_base::{RemoteAddr, TableId};
use farleaf_index::operation::Decision;
use farleaf_index::rpc::{Change, ModelNews};
use farleaf_index::xstore::{
    Generation, InnerTree, ModelHead, ModelVersion, SubModelRecord, TablePosition,
};
use farleaf_leaf::words::{GeometryError, LeafGeometry};
use farleaf_model::recursive::TopModel;
use farleaf_pool::catalog::CatalogEntry;

use super::area::ModelArea;
use super::tables::{DueTraining, LeafTables};

/// Growth of the number of leaves, as a factor, after which all models are trained again.
const GROWTH: u64 = 2;

/// Value of the training count while one thread trains all models.
const TRAINS_ALL: u32 = u32::MAX;

/// A split that makes more sub-models due than this makes all due.
const DUE_COUNT_MAX: u32 = 64;
/// Maximum number of entries of a translation table in a reply: half a ring. Clients read longer
/// tables themselves.
const NEWS_TABLE_LENGTH_MAX: usize = 1000;

/// Table whose leaves only the node's sessions change.
#[derive(Debug)]
pub struct LeafTable {
    /// Catalog entry as of the first request.
    pub entry: CatalogEntry,
    /// Geometry of the leaves.
    pub geometry: LeafGeometry,
    /// Whether a thread is building the tree.
    is_building: AtomicBool,
    built: RwLock<Option<Arc<BuiltTree>>>,
    /// Number of threads that train one sub-model each, or [`TRAINS_ALL`].
    training_count: AtomicU32,
    /// Whether all models are due, or being trained.
    is_all_due: AtomicBool,
    area: Mutex<ModelArea>,
    last_generation: AtomicU32,
}

/// Guard of the one thread that builds a table's tree. When it is dropped, another thread may
/// build.
pub(super) struct BuildGuard<'a> {
    pub(super) table: &'a Arc<LeafTable>,
}

impl BuildGuard<'_> {
    /// Installs the finished tree.
    pub(super) fn end(self, built: Arc<BuiltTree>) {
        *write(&self.table.built) = Some(built);
    }
}

impl Drop for BuildGuard<'_> {
    fn drop(&mut self) {
        self.table.is_building.store(false, Ordering::Release);
    }
}

/// Guard that excludes other threads from training the same models.
#[derive(Debug)]
pub struct TrainingGuard {
    table: Arc<LeafTable>,
    /// The sub-model, and the models that contained it at the beginning; `None`: all, or a
    /// sub-model of replaced models.
    one: Option<(Arc<Models>, u32)>,
    is_of_all: bool,
}

impl Drop for TrainingGuard {
    fn drop(&mut self) {
        if let Some((models, number)) = &self.one {
            let served = &models.served[*number as usize];
            served.is_training.store(false, Ordering::Release);
        }
        let count = &self.table.training_count;
        if self.is_of_all {
            count.store(0, Ordering::Release);
        } else {
            count.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Tree and models of one root.
#[derive(Debug)]
pub struct BuiltTree {
    /// Root of the table.
    pub root: RemoteAddr,
    /// Tree over the leaves.
    pub tree: Arc<InnerTree>,
    /// Number of records in the leaves.
    pub record_count: AtomicU64,
    models: RwLock<Option<Arc<Models>>>,
}

/// One generation of models.
#[derive(Debug)]
pub struct Models {
    /// Header with which clients find the models.
    pub head: ModelHead,
    /// Model that assigns keys to sub-models.
    pub top: TopModel,
    table: TableId,
    served: Vec<ServedSubModel>,
}

#[derive(Debug)]
struct ServedSubModel {
    trained: RwLock<Arc<TrainedSubModel>>,
    /// Highest version of a record that far memory may contain, including records whose write
    /// failed.
    last_version: AtomicU32,
    is_due: AtomicBool,
    /// Whether a thread is training the sub-model.
    is_training: AtomicBool,
}

/// Trained sub-model.
#[derive(Clone, Debug)]
pub struct TrainedSubModel {
    /// Record of the sub-model, as it is in far memory.
    pub record: SubModelRecord,
    /// Translation table, as it is in far memory.
    pub table: Vec<RemoteAddr>,
}

impl LeafTable {
    /// Creates a table without a tree.
    pub(super) fn new(entry: CatalogEntry) -> Result<Self, GeometryError> {
        let geometry = LeafGeometry::new(entry.record.kind.slots().unwrap_or(0).into())?;
        Ok(Self {
            area: Mutex::default(),
            entry,
            geometry,
            is_building: AtomicBool::new(false),
            built: RwLock::default(),
            training_count: AtomicU32::new(0),
            is_all_due: AtomicBool::new(false),
            last_generation: AtomicU32::new(0),
        })
    }

    /// Returns the number of the table.
    pub fn id(&self) -> TableId {
        self.entry.record.id
    }

    /// Returns the tree and the models of the newest known root.
    pub fn built(&self) -> Option<Arc<BuiltTree>> {
        let built = read(&self.built);
        built.clone()
    }

    /// Begins to build the tree; `None` if another thread is building it.
    pub(super) fn begin_building(self: &Arc<Self>) -> Option<BuildGuard<'_>> {
        let is_first = !self.is_building.swap(true, Ordering::AcqRel);
        // Created only then: dropping the guard ends the building.
        is_first.then(|| BuildGuard { table: self })
    }

    /// Begins to train a sub-model of this generation, or all. `None` if another thread trains the
    /// sub-model or all models; if all are requested, also if any sub-model is being trained.
    pub(super) fn begin_training(
        self: &Arc<Self>,
        sub_model: Option<(u32, u32)>,
    ) -> Option<TrainingGuard> {
        let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
        let started = self
            .training_count
            .fetch_update(set, fetch, |count| match sub_model {
                None => (count == 0).then_some(TRAINS_ALL),
                Some(_) => (count < TRAINS_ALL - 1).then(|| count + 1),
            });
        started.ok()?;
        let mut training = TrainingGuard {
            table: Arc::clone(self),
            one: None,
            is_of_all: sub_model.is_none(),
        };
        // The guard keeps other threads from replacing the models of this root.
        let models = self.built().and_then(|built| built.models());
        let one = models.zip(sub_model);
        if let Some((models, (generation, number))) = one
            && models.head.generation == generation
        {
            let served = &models.served[number as usize];
            if served.is_training.swap(true, Ordering::AcqRel) {
                return None;
            }
            training.one = Some((models, number));
        }
        Some(training)
    }

    pub(super) fn area(&self) -> MutexGuard<'_, ModelArea> {
        lock(&self.area)
    }

    pub(super) fn next_generation(&self) -> u32 {
        self.last_generation.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Makes all models due, once.
    pub(super) fn make_all_due(self: &Arc<Self>, tables: &LeafTables) {
        if !self.is_all_due.swap(true, Ordering::SeqCst) {
            tables.push(DueTraining {
                table: Arc::clone(self),
                sub_model: None,
            });
        }
    }

    /// Begins to train all models: later changes make them due again.
    pub(super) fn begin_all(&self) {
        // Cleared before the leaves are read.
        self.is_all_due.swap(false, Ordering::SeqCst);
    }

    /// Makes sub-models due after a leaf that begins at `low` was added to the tree.
    pub(super) fn note_added(self: &Arc<Self>, tables: &LeafTables, built: &BuiltTree, low: u64) {
        let Some(models) = built.models() else {
            return;
        };
        if models.are_outgrown(built.tree.leaf_count(), tables.leaves_per_sub_model()) {
            self.make_all_due(tables);
        }
        let (first, last) = built.tree.around(low);
        let top = &models.top;
        let numbers = top.sub_model_of(first)..=top.sub_model_of(last);
        if numbers.end() - numbers.start() > DUE_COUNT_MAX {
            return self.make_all_due(tables);
        }
        for number in numbers {
            self.make_due(tables, &models, number);
        }
    }

    /// Makes the sub-model of a key due after the newest models did not lead to the key: there was
    /// no free space to train them when they were due, or their leaves have changed and they are
    /// already due.
    pub(super) fn note_missed(self: &Arc<Self>, tables: &LeafTables, built: &BuiltTree, key: u64) {
        let Some(models) = built.models() else {
            return self.make_all_due(tables);
        };
        let number = models.top.sub_model_of(key);
        if !models.is_current(number, &built.tree) {
            self.make_due(tables, &models, number);
        }
    }

    /// Makes a sub-model due, once.
    pub(super) fn make_due(self: &Arc<Self>, tables: &LeafTables, models: &Models, number: u32) {
        let served = &models.served[number as usize];
        if !served.is_due.swap(true, Ordering::SeqCst) {
            tables.push(DueTraining {
                table: Arc::clone(self),
                sub_model: Some((models.head.generation, number)),
            });
        }
    }
}

impl BuiltTree {
    /// Creates a tree without models.
    pub(super) fn new(root: RemoteAddr, tree: InnerTree, record_count: u64) -> Self {
        Self {
            root,
            tree: Arc::new(tree),
            record_count: AtomicU64::new(record_count),
            models: RwLock::default(),
        }
    }

    /// Updates the number of records after a change that found the value `found`.
    pub(super) fn count(&self, change: Change, found: Option<u64>) {
        match (change.decide(found), found) {
            (Decision::Set(_), None) => {
                self.record_count.fetch_add(1, Ordering::Relaxed);
            }
            (Decision::Remove, Some(_)) => {
                // If a change had an unknown outcome, its record may not have been counted.
                let less = |count: u64| Some(count.saturating_sub(1));
                let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
                let _ = self.record_count.fetch_update(set, fetch, less);
            }
            _ => {}
        }
    }

    /// Returns the newest generation of models.
    pub fn models(&self) -> Option<Arc<Models>> {
        let models = read(&self.models);
        models.clone()
    }

    /// Installs models; returns the previous generation.
    pub(super) fn set_models(&self, models: Arc<Models>) -> Option<Arc<Models>> {
        let mut place = write(&self.models);
        place.replace(models)
    }

    /// Returns the leaf in which a client expects a key; `None` if the client's models are not the
    /// newest.
    pub fn leaf_at(&self, place: TablePosition) -> Option<RemoteAddr> {
        let models = self.models()?;
        let TablePosition { of, index } = place;
        let is_same = of.generation == models.head.generation;
        let served = models.served.get(of.number as usize);
        let trained = served.filter(|_| is_same)?.trained();
        let entry = trained.table.get(index as usize)?;
        Some(entry.place())
    }

    /// Returns the models for a key that are newer than those of the client.
    pub fn news_for(&self, key: u64, known: ModelVersion) -> ModelNews {
        let Some(models) = self.models() else {
            return ModelNews::None;
        };
        if known.generation != models.head.generation {
            return ModelNews::Head(models.head);
        }
        let number = models.top.sub_model_of(key);
        let trained = models.trained(number);
        if known.number != number || known.version >= trained.record.version {
            return ModelNews::None;
        }
        let place = models.head.record(number);
        let is_short = trained.table.len() <= NEWS_TABLE_LENGTH_MAX;
        let table = trained.table.iter().filter(|_| is_short);
        ModelNews::SubModel {
            number,
            record: trained.record.encode(place, models.table),
            table: table.map(|leaf| leaf.word()).collect(),
        }
    }
}

impl Models {
    /// Creates a generation with all of its sub-models.
    pub(super) fn new(
        table: TableId,
        Generation { head, top }: Generation,
        trained: Vec<TrainedSubModel>,
    ) -> Self {
        let served = |trained: TrainedSubModel| ServedSubModel {
            last_version: AtomicU32::new(trained.record.version),
            trained: RwLock::new(Arc::new(trained)),
            is_due: AtomicBool::new(false),
            is_training: AtomicBool::new(false),
        };
        Self {
            table,
            head,
            top,
            served: trained.into_iter().map(served).collect(),
        }
    }

    /// Returns a sub-model.
    pub fn trained(&self, number: u32) -> Arc<TrainedSubModel> {
        self.served[number as usize].trained()
    }

    /// Returns the version of the next training of a sub-model.
    pub(super) fn next_version(&self, number: u32) -> u32 {
        let last_version = &self.served[number as usize].last_version;
        last_version.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Iterates over all sub-models.
    pub fn all_trained(&self) -> impl Iterator<Item = Arc<TrainedSubModel>> {
        self.served.iter().map(ServedSubModel::trained)
    }

    /// Begins to train a sub-model: later changes make it due again.
    pub(super) fn begin(&self, number: u32) {
        let served = &self.served[number as usize];
        // Cleared before the leaves are read.
        served.is_due.swap(false, Ordering::SeqCst);
    }

    /// Returns whether a sub-model was trained on the current leaves.
    pub(super) fn is_current(&self, number: u32, tree: &InnerTree) -> bool {
        let Some(span) = self.top.span(number) else {
            return true;
        };
        let (_, leaves) = tree.overlapping(*span.start(), *span.end());
        let trained = self.trained(number);
        let known = trained.table.iter().map(|entry| entry.place());
        known.eq(leaves)
    }

    /// Replaces a sub-model; returns the previous one.
    pub(super) fn replace(&self, number: u32, trained: TrainedSubModel) -> Arc<TrainedSubModel> {
        let mut place = write(&self.served[number as usize].trained);
        std::mem::replace(&mut place, Arc::new(trained))
    }

    /// Returns whether the number of leaves has grown so much that all models must be trained
    /// again.
    fn are_outgrown(&self, leaf_count: u64, leaves_per_sub_model: u64) -> bool {
        leaf_count >= self.head.leaf_count * GROWTH + leaves_per_sub_model
    }
}

impl ServedSubModel {
    fn trained(&self) -> Arc<TrainedSubModel> {
        let trained = read(&self.trained);
        Arc::clone(&trained)
    }
}
