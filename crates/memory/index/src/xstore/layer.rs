//! Models that a client caches, and finding leaves by them.

use core::fmt;
use core::ops::RangeInclusive;
use core::str::FromStr;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farleaf_base::RemoteAddr;
use farleaf_model::recursive::SubModel;

use super::record::{Generation, ModelHead, ModelVersion, SubModelRecord, TablePosition};
use crate::hint::{Candidates, Hint, SearchLayer};

/// Largest number of positions that a key may have; a model with a larger error is useless.
const RANGE_LENGTH_MAX: u32 = 64;
/// Largest number of entries of a cached translation table. Entries of a longer table are read for
/// each key.
pub const TABLE_LENGTH_MAX: usize = 1 << 13;

/// Parts of the models that a client caches (XStore, section 6.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ModelCache {
    /// Sub-models and translation tables: one round trip per get.
    #[default]
    All,
    /// Sub-models. Entries of translation tables are read for each key, which costs one more round
    /// trip.
    Models,
    /// The top model. Sub-models are also read for each key, which costs two more round trips. Its
    /// size grows with the number of clusters of keys, not with the number of keys.
    Top,
}

/// Error for a name that is not a [`ModelCache`].
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("'{0}' is not a part of XStore's models; expected 'all', 'models' or 'top'")]
pub struct UnknownModelCache(String);

impl ModelCache {
    /// All kinds of caches.
    pub const ALL: [Self; 3] = [Self::All, Self::Models, Self::Top];

    /// Returns whether translation tables are cached.
    pub const fn keeps_tables(self) -> bool {
        matches!(self, Self::All)
    }

    /// Returns the name for users.
    pub const fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Models => "models",
            Self::Top => "top",
        }
    }
}

impl fmt::Display for ModelCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ModelCache {
    type Err = UnknownModelCache;

    fn from_str(name: &str) -> Result<Self, UnknownModelCache> {
        let found = Self::ALL.into_iter().find(|cache| cache.name() == name);
        found.ok_or_else(|| UnknownModelCache(name.to_owned()))
    }
}

/// Sub-model as a client has read it.
#[derive(Clone, Debug, PartialEq)]
pub struct CachedSubModel {
    /// Contents of the record.
    pub record: SubModelRecord,
    /// Translation table; empty if it is not cached.
    pub table: Vec<RemoteAddr>,
}

impl CachedSubModel {
    fn size_bytes(&self) -> u64 {
        (size_of::<Self>() + size_of_val(&*self.table)) as u64
    }
}

/// Models of a table that the sessions of a process have read.
#[derive(Debug, Default)]
pub struct SharedModels {
    state: Mutex<SharedModelsState>,
}

#[derive(Debug, Default)]
struct SharedModelsState {
    newest: Option<Arc<Generation>>,
    sub_models: HashMap<u32, Arc<CachedSubModel>>,
}

impl SharedModels {
    fn state(&self) -> MutexGuard<'_, SharedModelsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a sub-model unless there is a newer one, or another generation; returns the one to
    /// use.
    fn keep(&self, number: u32, sub_model: CachedSubModel) -> Arc<CachedSubModel> {
        let mut state = self.state();
        let generation = state.newest.as_ref().map(|newest| newest.head.generation);
        if generation != Some(sub_model.record.generation) {
            return Arc::new(sub_model);
        }
        let known = state.sub_models.get(&number);
        if let Some(known) = known.filter(|known| known.record.version >= sub_model.record.version)
        {
            return Arc::clone(known);
        }
        let new = Arc::new(sub_model);
        state.sub_models.insert(number, Arc::clone(&new));
        new
    }
}

/// Reads that are necessary before a key's leaves are known.
#[derive(Clone, Debug)]
pub enum RequiredRead {
    /// No read: these are the candidates.
    Nothing(Candidates),
    /// A call to the node: the head is not known, or the model is useless.
    Node,
    /// The record of a sub-model.
    Record {
        /// Generation of the top model.
        generation: u32,
        /// Number of the sub-model.
        number: u32,
        /// Address of the record.
        place: RemoteAddr,
    },
    /// Entries of a translation table that is not cached.
    Entries(Arc<CachedSubModel>),
}

/// XStore layer of one session on one table.
#[derive(Debug)]
pub struct XstoreLayer {
    cache: ModelCache,
    first_leaf: RemoteAddr,
    newest: Option<Arc<Generation>>,
    sub_models: Vec<Option<Arc<CachedSubModel>>>,
    shared: Arc<SharedModels>,
}

impl XstoreLayer {
    /// Creates a layer that has only what other sessions of the process have read. `first_leaf` is,
    /// or was, the table's first leaf.
    pub fn new(cache: ModelCache, first_leaf: RemoteAddr, shared: Arc<SharedModels>) -> Self {
        let mut layer = Self {
            cache,
            first_leaf,
            newest: None,
            sub_models: Vec::new(),
            shared,
        };
        layer.take_newest();
        layer
    }

    /// Takes over the newest generation that the process knows.
    fn take_newest(&mut self) {
        let newest = self.shared.state().newest.clone();
        let generation = newest.as_ref().map(|newest| newest.head.generation);
        if generation <= self.generation_if_any() {
            return;
        }
        self.newest = newest;
        self.sub_models.clear();
        if let Some(head) = self.head().filter(|_| self.cache != ModelCache::Top) {
            let count = head.sub_model_count as usize;
            self.sub_models.resize(count, None);
        }
    }

    /// Returns the head of the models, if known.
    pub fn head(&self) -> Option<&ModelHead> {
        self.newest.as_ref().map(|newest| &newest.head)
    }

    /// Returns which parts the layer caches.
    pub fn cache(&self) -> ModelCache {
        self.cache
    }

    /// Returns the table's first leaf, or the one before it was loaded.
    pub fn first_leaf(&self) -> RemoteAddr {
        self.first_leaf
    }

    fn held(&self, number: u32) -> Option<&Arc<CachedSubModel>> {
        self.sub_models.get(number as usize)?.as_ref()
    }

    /// Returns the leaf of a key, if held models predict a single one.
    #[inline]
    pub fn one_leaf(&self, key: u64) -> Option<Hint> {
        let number = self.newest.as_ref()?.top.sub_model_of(key);
        let sub_model = self.held(number)?;
        let range = indices(&sub_model.record.model, key)?;
        let first = *range.start();
        let entries = sub_model.table.get(range)?;
        match narrow(&sub_model.record.model, key, first, entries) {
            [addr] if !addr.is_null() => Some(Hint {
                addr: addr.place(),
                parent: 0,
            }),
            _ => None,
        }
    }

    /// Returns the leaves to read for a key, or what has to be read first.
    pub fn need(&mut self, key: u64, stride_blocks: u64) -> RequiredRead {
        let Some(newest) = &self.newest else {
            return RequiredRead::Node;
        };
        let (head, number) = (newest.head, newest.top.sub_model_of(key));
        if self.held(number).is_none() && self.cache != ModelCache::Top {
            self.take_shared(number);
        }
        let Some(sub_model) = self.held(number) else {
            return RequiredRead::Record {
                generation: head.generation,
                number,
                place: head.record(number),
            };
        };
        if sub_model.table.is_empty() {
            return RequiredRead::Entries(Arc::clone(sub_model));
        }
        let model = &sub_model.record.model;
        let range = indices(model, key);
        let found = range.and_then(|range| {
            let first = *range.start();
            let entries = narrow(model, key, first, sub_model.table.get(range)?);
            candidates(entries, stride_blocks)
        });
        found.map_or(RequiredRead::Node, RequiredRead::Nothing)
    }

    fn take_shared(&mut self, number: u32) {
        let state = self.shared.state();
        let generation = state.newest.as_ref().map(|newest| newest.head.generation);
        let is_same = generation == self.generation_if_any();
        let found = state.sub_models.get(&number).filter(|_| is_same).cloned();
        drop(state);
        let Some(found) = found else {
            return;
        };
        let keeps_tables = self.cache.keeps_tables();
        if let Some(held) = self.sub_models.get_mut(number as usize) {
            *held = Some(if keeps_tables {
                found
            } else {
                Arc::new(CachedSubModel {
                    record: found.record,
                    table: Vec::new(),
                })
            });
        }
    }

    fn generation_if_any(&self) -> Option<u32> {
        self.head().map(|head| head.generation)
    }

    /// Caches a sub-model that was read, unless the session uses another generation by now, or
    /// caches none. Returns it, or a newer one.
    pub fn keep(&mut self, number: u32, mut sub_model: CachedSubModel) -> Arc<CachedSubModel> {
        let is_same = Some(sub_model.record.generation) == self.generation_if_any();
        let held = self.sub_models.get_mut(number as usize);
        let Some(held) = held.filter(|_| is_same) else {
            return Arc::new(sub_model);
        };
        let cached = if self.cache.keeps_tables() {
            self.shared.keep(number, sub_model)
        } else {
            // Other sessions of the process may cache the table.
            sub_model.table = Vec::new();
            Arc::new(sub_model)
        };
        *held = Some(Arc::clone(&cached));
        cached
    }

    /// Removes a sub-model for which there is a newer one to read.
    pub fn forget(&mut self, number: u32) {
        if let Some(held) = self.sub_models.get_mut(number as usize) {
            *held = None;
        }
        self.shared.state().sub_models.remove(&number);
    }

    /// Returns whether the session uses this generation or a newer one, after taking over the
    /// newest that the process knows.
    pub fn is_known(&mut self, generation: u32) -> bool {
        self.take_newest();
        self.generation_if_any() >= Some(generation)
    }

    /// Takes over another generation, if it is newer.
    pub fn take_generation(&mut self, read: Generation) {
        let mut state = self.shared.state();
        let known = state.newest.as_ref().map(|newest| newest.head.generation);
        if known < Some(read.head.generation) {
            *state = SharedModelsState {
                newest: Some(Arc::new(read)),
                sub_models: HashMap::new(),
            };
        }
        drop(state);
        self.take_newest();
    }

    /// Returns the version of what the session uses for a key; the node replies with what is newer.
    pub fn version_for(&self, key: u64) -> ModelVersion {
        let Some(newest) = &self.newest else {
            return ModelVersion::default();
        };
        let number = newest.top.sub_model_of(key);
        let version = match self.cache {
            // The sub-model is read for each key anyway.
            ModelCache::Top => u32::MAX,
            _ => self.held(number).map_or(0, |held| held.record.version),
        };
        ModelVersion {
            generation: newest.head.generation,
            number,
            version,
        }
    }

    /// Returns the most probable position of a key, for a write to it.
    pub fn place_of(&self, key: u64) -> Option<TablePosition> {
        let of = self.version_for(key);
        let sub_model = self.held(of.number)?;
        let index = sub_model.record.model.position(key);
        Some(TablePosition { of, index })
    }

    /// Returns the leaves from a key on that sub-models lead to, as far as adjacent sub-models are
    /// held: at most `count_max`, if the first predicted leaf has the key.
    pub fn leaves_from(&self, key: u64, count_max: usize) -> Vec<RemoteAddr> {
        let Some(newest) = &self.newest else {
            return Vec::new();
        };
        let mut leaves: Vec<RemoteAddr> = Vec::new();
        let mut number = newest.top.sub_model_of(key);
        let mut wanted = 0;
        while let Some(sub_model) = self.held(number) {
            let table = &sub_model.table;
            let from = if leaves.is_empty() {
                let model = &sub_model.record.model;
                let range = model.range(key);
                let (first, last) = (*range.start() as usize, *range.end() as usize);
                let entries = table.get(first..=last).unwrap_or_default();
                let narrow = narrowed(model, key, first, entries);
                wanted = narrow.len() + count_max.saturating_sub(1);
                first + narrow.start
            } else {
                0
            };
            let entries = table.get(from..).unwrap_or_default().iter().copied();
            for leaf in entries
                .map(RemoteAddr::place)
                .filter(|leaf| !leaf.is_null())
            {
                // The last leaf of a sub-model is usually the first of the next one, too.
                if leaves.last() != Some(&leaf) {
                    leaves.push(leaf);
                }
            }
            if leaves.len() >= wanted || table.is_empty() {
                break;
            }
            number += 1;
        }
        leaves.truncate(wanted);
        leaves
    }
}

/// Returns the indices of a translation table's entries that a key may be at; `None` if there are
/// too many.
pub fn indices(model: &SubModel, key: u64) -> Option<RangeInclusive<usize>> {
    let range = model.range(key);
    let is_short = range.end() - range.start() < RANGE_LENGTH_MAX;
    is_short.then(|| *range.start() as usize..=*range.end() as usize)
}

/// Returns which of the entries from `first` on a key may be at, according to their residuals.
fn narrowed(
    model: &SubModel,
    key: u64,
    first: usize,
    entries: &[RemoteAddr],
) -> core::ops::Range<usize> {
    let Some(last) = entries.len().checked_sub(1) else {
        return 0..0;
    };
    // The conversion is exact: no table is longer.
    let range = first as u32..=(first + last) as u32;
    let residuals = entries.iter().map(|entry| entry.spare());
    let narrow = model.narrow(key, range, residuals);
    *narrow.start() as usize - first..*narrow.end() as usize - first + 1
}

/// Returns the entries from `first` on that a key may be at, according to their residuals.
pub fn narrow<'a>(
    model: &SubModel,
    key: u64,
    first: usize,
    entries: &'a [RemoteAddr],
) -> &'a [RemoteAddr] {
    &entries[narrowed(model, key, first, entries)]
}

/// Returns the leaves that entries name; the adjacent ones at the start are read with one verb.
/// `None` if there are none.
pub fn candidates(entries: &[RemoteAddr], stride_blocks: u64) -> Option<Candidates> {
    let leaves = entries.iter().filter(|leaf| !leaf.is_null());
    let hint = |addr: &RemoteAddr| Hint {
        addr: addr.place(),
        parent: 0,
    };
    let leaves: Vec<Hint> = leaves.map(hint).collect();
    let pairs = leaves.windows(2);
    let is_beside = |left: RemoteAddr, right: RemoteAddr| {
        left.node() == right.node() && left.block() + stride_blocks == right.block()
    };
    let beside = pairs.take_while(|it| is_beside(it[0].addr, it[1].addr));
    let side_by_side = 1 + beside.count();
    (!leaves.is_empty()).then(|| Candidates {
        leaves,
        side_by_side,
        ..Candidates::default()
    })
}

impl SearchLayer for XstoreLayer {
    fn locate(&self, key: u64) -> Hint {
        let found = self.one_leaf(key);
        let first = || {
            let leaves = self.leaves_from(key, 1);
            let addr = leaves.first().copied().unwrap_or(self.first_leaf);
            Hint { addr, parent: 0 }
        };
        found.unwrap_or_else(first)
    }

    fn left_of(&self, _key: u64, failed: Hint) -> Option<Hint> {
        let first = Hint {
            addr: self.first_leaf,
            parent: 0,
        };
        (failed.addr != first.addr).then_some(first)
    }

    /// Returns the bytes that the session uses, shared or not.
    fn metadata_bytes(&self) -> u64 {
        let top = self.newest.as_ref().map_or(0, |it| it.top.size_bytes());
        let own = (top + size_of_val(&*self.sub_models)) as u64;
        let held = self.sub_models.iter().flatten();
        own + held.map(|held| held.size_bytes()).sum::<u64>()
    }
}
