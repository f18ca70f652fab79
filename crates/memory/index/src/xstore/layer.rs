//! What a client caches of the models, and how it finds leaves by them.

use core::fmt;
use core::ops::RangeInclusive;
use core::str::FromStr;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farleaf_model::recursive::SubModel;
use farleaf_types::RemoteAddr;

use super::record::{Generation, ModelHead, ModelVersion, Place, SubModelRecord};
use crate::hint::{Candidates, Hint, SearchLayer};

/// Positions that a key may be at, at the most; a model that is wrong by more is no help.
const RANGE_LENGTH_MAX: u32 = 64;
/// Entries of a translation table that is kept, at the most; of a longer one they are read for each
/// key.
pub const TABLE_LENGTH_MAX: usize = 1 << 13;

/// What of the models a client keeps (XStore, section 6.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ModelCache {
    /// Sub-models and translation tables: one round trip per get.
    #[default]
    All,
    /// Sub-models: entries of translation tables are read for each key, one round trip more.
    Models,
    /// The top model: sub-models are read, too, two round trips more. What is kept grows with the
    /// clusters that keys lie in, and not with their number.
    Top,
}

/// A name that is no way to cache models.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("'{0}' is no part of XStore's models; there are 'all', 'models' and 'top'")]
pub struct UnknownModelCache(String);

impl ModelCache {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::All, Self::Models, Self::Top];

    /// Whether translation tables are kept.
    pub const fn keeps_tables(self) -> bool {
        matches!(self, Self::All)
    }

    /// The name for users.
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

/// A sub-model as a client has read it.
#[derive(Clone, Debug, PartialEq)]
pub struct CachedSubModel {
    /// What its record says.
    pub record: SubModelRecord,
    /// Its translation table; empty if that is not kept.
    pub table: Vec<RemoteAddr>,
}

impl CachedSubModel {
    fn size_bytes(&self) -> u64 {
        (size_of::<Self>() + size_of_val(&*self.table)) as u64
    }
}

/// What the sessions of a process have read of a table's models.
#[derive(Debug, Default)]
pub struct SharedModels {
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    newest: Option<Arc<Generation>>,
    sub_models: HashMap<u32, Arc<CachedSubModel>>,
}

impl SharedModels {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a sub-model unless there is a newer one, or another generation; returns what there is.
    fn keep(&self, number: u32, sub_model: CachedSubModel) -> Arc<CachedSubModel> {
        let mut kept = self.kept();
        let generation = kept.newest.as_ref().map(|newest| newest.head.generation);
        if generation != Some(sub_model.record.generation) {
            return Arc::new(sub_model);
        }
        let known = kept.sub_models.get(&number);
        if let Some(known) = known.filter(|known| known.record.version >= sub_model.record.version)
        {
            return Arc::clone(known);
        }
        let new = Arc::new(sub_model);
        kept.sub_models.insert(number, Arc::clone(&new));
        new
    }
}

/// What has to be read before a key's leaves are known.
#[derive(Clone, Debug)]
pub enum Need {
    /// Nothing: these.
    Nothing(Candidates),
    /// The node's answer: the head is not known, or the model is no help.
    Node,
    /// This sub-model's record, of this generation.
    Record {
        /// Of the top model.
        generation: u32,
        /// The sub-model's number.
        number: u32,
        /// Where it is.
        place: RemoteAddr,
    },
    /// Entries of a translation table that is not kept.
    Entries(Arc<CachedSubModel>),
}

/// One session's XStore layer on one table.
#[derive(Debug)]
pub struct XstoreLayer {
    cache: ModelCache,
    first_leaf: RemoteAddr,
    newest: Option<Arc<Generation>>,
    sub_models: Vec<Option<Arc<CachedSubModel>>>,
    shared: Arc<SharedModels>,
}

impl XstoreLayer {
    /// Nothing read yet but what others of the process have; the table begins at this leaf, or did.
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

    /// Goes by the newest generation that the process knows.
    fn take_newest(&mut self) {
        let newest = self.shared.kept().newest.clone();
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

    /// What is known of all models.
    pub fn head(&self) -> Option<&ModelHead> {
        self.newest.as_ref().map(|newest| &newest.head)
    }

    /// What it caches.
    pub fn cache(&self) -> ModelCache {
        self.cache
    }

    /// Where the table begins, or did before it was loaded.
    pub fn first_leaf(&self) -> RemoteAddr {
        self.first_leaf
    }

    fn held(&self, number: u32) -> Option<&Arc<CachedSubModel>> {
        self.sub_models.get(number as usize)?.as_ref()
    }

    /// The leaf that a key is in, if what is held predicts one.
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

    /// The leaves to read for a key, or what has to be read before.
    pub fn need(&mut self, key: u64, stride_blocks: u64) -> Need {
        let Some(newest) = &self.newest else {
            return Need::Node;
        };
        let (head, number) = (newest.head, newest.top.sub_model_of(key));
        if self.held(number).is_none() && self.cache != ModelCache::Top {
            self.take_shared(number);
        }
        let Some(sub_model) = self.held(number) else {
            return Need::Record {
                generation: head.generation,
                number,
                place: head.record(number),
            };
        };
        if sub_model.table.is_empty() {
            return Need::Entries(Arc::clone(sub_model));
        }
        let model = &sub_model.record.model;
        let range = indices(model, key);
        let found = range.and_then(|range| {
            let first = *range.start();
            let entries = narrow(model, key, first, sub_model.table.get(range)?);
            candidates(entries, stride_blocks)
        });
        found.map_or(Need::Node, Need::Nothing)
    }

    fn take_shared(&mut self, number: u32) {
        let kept = self.shared.kept();
        let generation = kept.newest.as_ref().map(|newest| newest.head.generation);
        let is_same = generation == self.generation_if_any();
        let found = kept.sub_models.get(&number).filter(|_| is_same).cloned();
        drop(kept);
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

    /// Keeps a sub-model that was read, unless the session goes by another generation by now, or
    /// keeps none. Returns it, or a newer one.
    pub fn keep(&mut self, number: u32, mut sub_model: CachedSubModel) -> Arc<CachedSubModel> {
        let is_same = Some(sub_model.record.generation) == self.generation_if_any();
        let held = self.sub_models.get_mut(number as usize);
        let Some(held) = held.filter(|_| is_same) else {
            return Arc::new(sub_model);
        };
        let kept = if self.cache.keeps_tables() {
            self.shared.keep(number, sub_model)
        } else {
            // Others of the process may want the table.
            sub_model.table = Vec::new();
            Arc::new(sub_model)
        };
        *held = Some(Arc::clone(&kept));
        kept
    }

    /// There is a newer sub-model, which is to be read.
    pub fn forget(&mut self, number: u32) {
        if let Some(held) = self.sub_models.get_mut(number as usize) {
            *held = None;
        }
        self.shared.kept().sub_models.remove(&number);
    }

    /// Whether the session goes by this generation, or a newer one: perhaps from now on, as others
    /// of the process do.
    pub fn is_known(&mut self, generation: u32) -> bool {
        self.take_newest();
        self.generation_if_any() >= Some(generation)
    }

    /// Goes by another generation from now on, if that is newer.
    pub fn take_generation(&mut self, read: Generation) {
        let mut kept = self.shared.kept();
        let known = kept.newest.as_ref().map(|newest| newest.head.generation);
        if known < Some(read.head.generation) {
            *kept = Kept {
                newest: Some(Arc::new(read)),
                sub_models: HashMap::new(),
            };
        }
        drop(kept);
        self.take_newest();
    }

    /// What the session goes by for a key; the node answers with what is newer than that.
    pub fn version_for(&self, key: u64) -> ModelVersion {
        let Some(newest) = &self.newest else {
            return ModelVersion::default();
        };
        let number = newest.top.sub_model_of(key);
        let version = match self.cache {
            // It is read for each key anyhow.
            ModelCache::Top => u32::MAX,
            _ => self.held(number).map_or(0, |held| held.record.version),
        };
        ModelVersion {
            generation: newest.head.generation,
            number,
            version,
        }
    }

    /// Where a key most probably is, for a write to it (Y7).
    pub fn place_of(&self, key: u64) -> Option<Place> {
        let of = self.version_for(key);
        let sub_model = self.held(of.number)?;
        let index = sub_model.record.model.position(key);
        Some(Place { of, index })
    }

    /// The leaves from a key on that sub-models lead to, as far as these are held side by side: at
    /// the most so many, if the key is in the first of those that it may be in.
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
                // The last leaf of a sub-model is mostly the first of the next one, too.
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

/// The entries of a translation table that a key may be at; `None`: there are too many.
pub fn indices(model: &SubModel, key: u64) -> Option<RangeInclusive<usize>> {
    let range = model.range(key);
    let is_short = range.end() - range.start() < RANGE_LENGTH_MAX;
    is_short.then(|| *range.start() as usize..=*range.end() as usize)
}

/// Which of the entries from `first` on a key may be at, as their residuals tell.
fn narrowed(
    model: &SubModel,
    key: u64,
    first: usize,
    entries: &[RemoteAddr],
) -> core::ops::Range<usize> {
    let Some(last) = entries.len().checked_sub(1) else {
        return 0..0;
    };
    // No table is longer.
    let range = first as u32..=(first + last) as u32;
    let residuals = entries.iter().map(|entry| entry.spare());
    let narrow = model.narrow(key, range, residuals);
    *narrow.start() as usize - first..*narrow.end() as usize - first + 1
}

/// The same, as entries.
pub fn narrow<'a>(
    model: &SubModel,
    key: u64,
    first: usize,
    entries: &'a [RemoteAddr],
) -> &'a [RemoteAddr] {
    &entries[narrowed(model, key, first, entries)]
}

/// The leaves that entries name, of which those that lie side by side from the first on are read
/// with one verb; `None`: none.
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

    /// What the session holds, shared or not.
    fn metadata_bytes(&self) -> u64 {
        let top = self.newest.as_ref().map_or(0, |it| it.top.size_bytes());
        let own = (top + size_of_val(&*self.sub_models)) as u64;
        let held = self.sub_models.iter().flatten();
        own + held.map(|held| held.size_bytes()).sum::<u64>()
    }
}
