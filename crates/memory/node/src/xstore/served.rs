//! One table: the tree over its leaves, and its models.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use farleaf_index::operation::Decision;
use farleaf_index::rpc::{Change, ModelNews};
use farleaf_index::xstore::{
    Generation, InnerTree, ModelHead, ModelVersion, Place, SubModelRecord,
};
use farleaf_leaf::{GeometryError, LeafGeometry};
use farleaf_model::recursive::TopModel;
use farleaf_region::catalog::CatalogEntry;
use farleaf_types::{RemoteAddr, TableId};

use super::area::ModelArea;
use super::tables::{Due, LeafTables};

/// All are trained anew when there are so many times more leaves than when they were last (Y7).
const GROWTH: u64 = 2;

/// One thread trains all of a table's models.
const TRAINS_ALL: u32 = u32::MAX;

/// A split that makes more sub-models due makes all due.
const DUE_COUNT_MAX: u32 = 64;
/// Entries of a translation table that a reply brings at the most: half a ring. A longer one the
/// client reads by itself.
const NEWS_TABLE_LENGTH_MAX: usize = 1000;

/// A table whose leaves the node's sessions change.
#[derive(Debug)]
pub struct LeafTable {
    /// As it was when it was asked for first.
    pub entry: CatalogEntry,
    /// Of its leaves.
    pub geometry: LeafGeometry,
    /// Z2: somebody makes the tree.
    is_building: AtomicBool,
    built: RwLock<Option<Arc<Built>>>,
    /// Z3: how many threads train a sub-model each, or [`TRAINS_ALL`].
    training_count: AtomicU32,
    /// All of it is due, or being trained.
    is_all_due: AtomicBool,
    area: Mutex<ModelArea>,
    last_generation: AtomicU32,
}

/// While it lives, one thread makes a table's tree; dropped, another one may (Z2).
pub(super) struct Building<'a> {
    pub(super) table: &'a Arc<LeafTable>,
}

impl Building<'_> {
    /// The tree is made.
    pub(super) fn end(self, built: Arc<Built>) {
        let place = self.table.built.write();
        *place.unwrap_or_else(PoisonError::into_inner) = Some(built);
    }
}

impl Drop for Building<'_> {
    fn drop(&mut self) {
        self.table.is_building.store(false, Ordering::Release);
    }
}

/// While it lives, nobody else trains what it is of (Z3).
#[derive(Debug)]
pub struct Training {
    table: Arc<LeafTable>,
    /// The sub-model, of the models that it was one of when this began; `None`: all, or one of
    /// models that are no more.
    one: Option<(Arc<Models>, u32)>,
    is_of_all: bool,
}

impl Drop for Training {
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

/// What belongs to one root.
#[derive(Debug)]
pub struct Built {
    /// The root.
    pub root: RemoteAddr,
    /// The leaves.
    pub tree: Arc<InnerTree>,
    /// How many records they hold.
    pub record_count: AtomicU64,
    models: RwLock<Option<Arc<Models>>>,
}

/// One generation of models.
#[derive(Debug)]
pub struct Models {
    /// What clients need to find them.
    pub head: ModelHead,
    /// Sends keys to sub-models.
    pub top: TopModel,
    table: TableId,
    served: Vec<Served>,
}

#[derive(Debug)]
struct Served {
    trained: RwLock<Arc<Trained>>,
    /// The highest that far memory may have a record of, also of one whose writing failed.
    last_version: AtomicU32,
    is_due: AtomicBool,
    /// Z3: somebody trains it.
    is_training: AtomicBool,
}

/// A sub-model.
#[derive(Clone, Debug)]
pub struct Trained {
    /// As it is in far memory.
    pub record: SubModelRecord,
    /// Its translation table, as it is in far memory.
    pub table: Vec<RemoteAddr>,
}

impl LeafTable {
    /// Nothing is known of its leaves.
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

    /// Which table.
    pub fn id(&self) -> TableId {
        self.entry.record.id
    }

    /// The tree and the models of the newest root that is known here.
    pub fn built(&self) -> Option<Arc<Built>> {
        let built = self.built.read().unwrap_or_else(PoisonError::into_inner);
        built.clone()
    }

    /// Z2: `None`: somebody else is making the tree.
    pub(super) fn begin_building(self: &Arc<Self>) -> Option<Building<'_>> {
        let is_first = !self.is_building.swap(true, Ordering::AcqRel);
        // Made only then: dropped, it would say that nobody does.
        is_first.then(|| Building { table: self })
    }

    /// Z3: `None`: somebody trains the sub-model, of this generation, or all of them; or something,
    /// where all of them are asked for.
    pub(super) fn begin_training(
        self: &Arc<Self>,
        sub_model: Option<(u32, u32)>,
    ) -> Option<Training> {
        let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
        let begun = self
            .training_count
            .fetch_update(set, fetch, |count| match sub_model {
                None => (count == 0).then_some(TRAINS_ALL),
                Some(_) => (count < TRAINS_ALL - 1).then(|| count + 1),
            });
        begun.ok()?;
        let mut training = Training {
            table: Arc::clone(self),
            one: None,
            is_of_all: sub_model.is_none(),
        };
        // Nobody replaces the models of this root meanwhile.
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
        self.area.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn next_generation(&self) -> u32 {
        self.last_generation.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Y7: all models are due, once.
    pub(super) fn make_all_due(self: &Arc<Self>, tables: &LeafTables) {
        if !self.is_all_due.swap(true, Ordering::SeqCst) {
            tables.push(Due {
                table: Arc::clone(self),
                sub_model: None,
            });
        }
    }

    /// All models begin to be trained: what changes from now on makes them due again.
    pub(super) fn begin_all(&self) {
        // Before the leaves are looked at.
        self.is_all_due.swap(false, Ordering::SeqCst);
    }

    /// Y4: a leaf that begins at `low` was added to the tree.
    pub(super) fn note_added(self: &Arc<Self>, tables: &LeafTables, built: &Built, low: u64) {
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

    /// The newest models do not lead to a key: there was no room to train them when they were due,
    /// or what they were trained on has changed and they are due already.
    pub(super) fn note_missed(self: &Arc<Self>, tables: &LeafTables, built: &Built, key: u64) {
        let Some(models) = built.models() else {
            return self.make_all_due(tables);
        };
        let number = models.top.sub_model_of(key);
        if !models.is_current(number, &built.tree) {
            self.make_due(tables, &models, number);
        }
    }

    /// A sub-model is due, once.
    pub(super) fn make_due(self: &Arc<Self>, tables: &LeafTables, models: &Models, number: u32) {
        let served = &models.served[number as usize];
        if !served.is_due.swap(true, Ordering::SeqCst) {
            tables.push(Due {
                table: Arc::clone(self),
                sub_model: Some((models.head.generation, number)),
            });
        }
    }
}

impl Built {
    /// A tree without models.
    pub(super) fn new(root: RemoteAddr, tree: InnerTree, record_count: u64) -> Self {
        Self {
            root,
            tree: Arc::new(tree),
            record_count: AtomicU64::new(record_count),
            models: RwLock::default(),
        }
    }

    /// What a change has made of the number of records, which found this.
    pub(super) fn count(&self, change: Change, found: Option<u64>) {
        match (change.decide(found), found) {
            (Decision::Set(_), None) => {
                self.record_count.fetch_add(1, Ordering::Relaxed);
            }
            (Decision::Remove, Some(_)) => {
                // Of a change whose outcome nobody knows, the record may not have been counted.
                let less = |count: u64| Some(count.saturating_sub(1));
                let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
                let _ = self.record_count.fetch_update(set, fetch, less);
            }
            _ => {}
        }
    }

    /// The newest generation.
    pub fn models(&self) -> Option<Arc<Models>> {
        let models = self.models.read().unwrap_or_else(PoisonError::into_inner);
        models.clone()
    }

    /// Returns the generation before.
    pub(super) fn set_models(&self, models: Arc<Models>) -> Option<Arc<Models>> {
        let mut place = self.models.write().unwrap_or_else(PoisonError::into_inner);
        place.replace(models)
    }

    /// The leaf that a client expects a key in (Y7); `None`: by models that are not the newest.
    pub fn leaf_at(&self, place: Place) -> Option<RemoteAddr> {
        let models = self.models()?;
        let Place { of, index } = place;
        let is_same = of.generation == models.head.generation;
        let served = models.served.get(of.number as usize);
        let trained = served.filter(|_| is_same)?.trained();
        let entry = trained.table.get(index as usize)?;
        Some(entry.place())
    }

    /// What is newer than what a client goes by for a key (Y6).
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
    /// A generation, with all of its sub-models.
    pub(super) fn new(
        table: TableId,
        Generation { head, top }: Generation,
        trained: Vec<Trained>,
    ) -> Self {
        let served = |trained: Trained| Served {
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

    /// A sub-model.
    pub fn trained(&self, number: u32) -> Arc<Trained> {
        self.served[number as usize].trained()
    }

    /// Y5: the version of the next one that is trained in place of a sub-model.
    pub(super) fn next_version(&self, number: u32) -> u32 {
        let last_version = &self.served[number as usize].last_version;
        last_version.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// All of them.
    pub fn all_trained(&self) -> impl Iterator<Item = Arc<Trained>> {
        self.served.iter().map(Served::trained)
    }

    /// A sub-model begins to be trained: what changes from now on makes it due again.
    pub(super) fn begin(&self, number: u32) {
        let served = &self.served[number as usize];
        // Before the leaves are looked at.
        served.is_due.swap(false, Ordering::SeqCst);
    }

    /// Whether a sub-model was trained on the leaves that there are.
    pub(super) fn is_current(&self, number: u32, tree: &InnerTree) -> bool {
        let Some(span) = self.top.span(number) else {
            return true;
        };
        let (_, leaves) = tree.overlapping(*span.start(), *span.end());
        let trained = self.trained(number);
        let known = trained.table.iter().map(|entry| entry.place());
        known.eq(leaves)
    }

    /// Takes another one in place of a sub-model, and returns that.
    pub(super) fn replace(&self, number: u32, trained: Trained) -> Arc<Trained> {
        let place = self.served[number as usize].trained.write();
        let mut place = place.unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut place, Arc::new(trained))
    }

    /// Y7.
    fn are_outgrown(&self, leaf_count: u64, leaves_per_sub_model: u64) -> bool {
        leaf_count >= self.head.leaf_count * GROWTH + leaves_per_sub_model
    }
}

impl Served {
    fn trained(&self) -> Arc<Trained> {
        let trained = self.trained.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&trained)
    }
}
