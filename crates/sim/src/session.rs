//! One client's session on the table: the real operations, over the simulated fabric.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use farleaf_fabric::{Batch, BatchErrorKind, Endpoint, OperationKind};
use farleaf_index::load::{LoadPlan, bulk_load, finish_root};
use farleaf_index::operation::{Decision, ScanCursor};
use farleaf_index::snapshot::read_snapshot;
use farleaf_index::{Index, IndexError, IndexState, Layer, LayerKind, LoadError};
use farleaf_leaf::{LeafAccess, LeafError, LeafGeometry};
use farleaf_region::catalog::CatalogEntry;
use farleaf_region::session::{HEARTBEAT_DRAINED, heartbeat_addr};
use farleaf_region::{RegionError, RegionLayout};
use farleaf_types::{OwnerWord, RemoteAddr};

use crate::history::{Answer, Operation};

/// Roots that an operation meets at the most: the first and the loaded one, and room for retired
/// leaves met before and after.
const REFRESH_COUNT_MAX: u32 = 4;

/// A session.
#[derive(Debug)]
pub struct Session<E> {
    endpoint: E,
    owner: OwnerWord,
    layout: RegionLayout,
    entry: CatalogEntry,
    geometry: LeafGeometry,
    state: IndexState,
    root: Cell<RemoteAddr>,
    broken: Rc<Cell<bool>>,
    /// The last value that it saw of each key.
    seen: RefCell<BTreeMap<u64, Option<u64>>>,
}

impl<E: Endpoint> Session<E> {
    /// Opens the table.
    ///
    /// # Errors
    /// Its directory cannot be read.
    ///
    /// # Panics
    /// The catalog names a geometry that there is not.
    pub async fn open(
        endpoint: E,
        owner: OwnerWord,
        layout: RegionLayout,
        entry: CatalogEntry,
    ) -> Result<Self, IndexError> {
        let geometry = LeafGeometry::new(entry.record.slots.into()).expect("made here");
        let snapshot = read_snapshot(&endpoint, &layout, geometry, entry.record.id, entry.root);
        let directory = snapshot.await?;
        let broken = Rc::new(Cell::new(false));
        let state = IndexState::new(
            Layer::new(layer_kind(&entry), directory.into()),
            Rc::clone(&broken),
        );
        let root = Cell::new(entry.root);
        Ok(Self {
            endpoint,
            owner,
            layout,
            entry,
            geometry,
            state,
            root,
            broken,
            seen: RefCell::default(),
        })
    }

    /// Its endpoint.
    pub fn endpoint(&self) -> &E {
        &self.endpoint
    }

    /// Whether it must stop (F6).
    pub fn is_broken(&self) -> bool {
        self.broken.get()
    }

    /// What it saw last of a key.
    pub fn seen(&self, key: u64) -> Option<u64> {
        self.seen.borrow().get(&key).copied().flatten()
    }

    /// Access to the table's leaves.
    pub fn access(&self) -> LeafAccess<'_, E> {
        LeafAccess {
            endpoint: &self.endpoint,
            layout: &self.layout,
            geometry: self.geometry,
            table: self.entry.record.id,
            owner: self.owner,
        }
    }

    /// The table, as this session works on it.
    pub fn index(&self) -> Index<'_, E> {
        Index::new(self.access(), &self.state)
    }

    /// Gives the leased leaves back.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn give_back(&self) -> Result<(), RegionError> {
        let mut lease = self.state.take_lease();
        lease.give_back(&self.access()).await
    }

    /// Says, as the last thing before it closes, that it holds nothing: nobody need sweep after it.
    pub async fn note_drained(&self) {
        let Some((session, _)) = self.owner.holder() else {
            return;
        };
        let mut batch = Batch::new();
        let heartbeat = heartbeat_addr(&self.layout, session);
        batch.write_word(heartbeat, HEARTBEAT_DRAINED);
        // If that fails it is swept like one that died.
        let _ = self.endpoint.execute(&mut batch).await;
        self.record(OperationKind::Control, &mut batch);
    }

    /// Does an operation, and tells what it answered; `Err`: with something that must not happen.
    pub async fn perform(
        &self,
        operation: &Operation,
        expected: Option<u64>,
    ) -> Result<Answer, String> {
        let answer = match operation {
            Operation::Load(records) => return self.load(records).await,
            Operation::Scan(from, limit) => self.scan(*from, *limit).await,
            Operation::Get(key) => self.multi_get(&[*key], OperationKind::Get).await,
            Operation::MultiGet(keys) => self.multi_get(keys, OperationKind::MultiGet).await,
            Operation::Put(key, value) => self.modify(*key, |_| Decision::Set(*value)).await,
            Operation::Insert(key, value) => {
                let decide = |found: Option<u64>| match found {
                    None => Decision::Set(*value),
                    Some(_) => Decision::Keep,
                };
                self.modify(*key, decide).await
            }
            Operation::Update(key, value) => {
                let decide = |found: Option<u64>| match found {
                    Some(_) => Decision::Set(*value),
                    None => Decision::Keep,
                };
                self.modify(*key, decide).await
            }
            Operation::Delete(key) => self.modify(*key, |_| Decision::Remove).await,
            Operation::CompareSwap(key, new) => {
                let decide = |found: Option<u64>| match (found == expected, new) {
                    (false, _) => Decision::Keep,
                    (true, Some(new)) => Decision::Set(*new),
                    (true, None) => Decision::Remove,
                };
                self.modify(*key, decide).await
            }
        };
        answer.or_else(|error| classify(&error))
    }

    async fn modify(
        &self,
        key: u64,
        decide: impl Fn(Option<u64>) -> Decision,
    ) -> Result<Answer, IndexError> {
        let mut batch = Batch::new();
        for _ in 0..REFRESH_COUNT_MAX {
            let index = self.index();
            let modified = index.modify(&mut batch, key, |found| {
                let decision = decide(found);
                let to = match decision {
                    Decision::Keep => found,
                    Decision::Set(value) => Some(value),
                    Decision::Remove => None,
                };
                (decision, (found, to))
            });
            let modified = modified.await;
            self.record(OperationKind::Put, &mut batch);
            match modified {
                Err(IndexError::Outdated) => self.refresh().await?,
                Err(error) => return Err(error),
                Ok((from, to)) => {
                    self.seen.borrow_mut().insert(key, to);
                    return Ok(Answer::Changed { from, to });
                }
            }
        }
        Err(IndexError::Outdated)
    }

    async fn multi_get(&self, keys: &[u64], kind: OperationKind) -> Result<Answer, IndexError> {
        let mut batch = Batch::new();
        let mut values = Vec::new();
        for _ in 0..REFRESH_COUNT_MAX {
            let read = match (kind, keys) {
                (OperationKind::Get, [key]) => {
                    let value = self.index().get(&mut batch, *key).await;
                    value.map(|value| values = vec![value])
                }
                _ => self.index().multi_get(&mut batch, keys, &mut values).await,
            };
            self.record(kind, &mut batch);
            match read {
                Err(IndexError::Outdated) => self.refresh().await?,
                Err(error) => return Err(error),
                Ok(()) => {
                    let mut seen = self.seen.borrow_mut();
                    seen.extend(keys.iter().copied().zip(values.iter().copied()));
                    return Ok(Answer::Values(values));
                }
            }
        }
        Err(IndexError::Outdated)
    }

    async fn scan(&self, from: u64, limit: usize) -> Result<Answer, IndexError> {
        let mut batch = Batch::new();
        let (mut cursor, mut records) = (ScanCursor::from(from), Vec::new());
        for _ in 0..REFRESH_COUNT_MAX {
            let index = self.index();
            let wanted = limit - records.len().min(limit);
            let scanned = index.scan(&mut batch, &mut cursor, wanted, &mut records);
            let scanned = scanned.await;
            self.record(OperationKind::Scan, &mut batch);
            match scanned {
                Err(IndexError::Outdated) => self.refresh().await?,
                Err(error) => return Err(error),
                Ok(()) => {
                    let is_end = cursor.is_finished() && records.len() <= limit;
                    records.truncate(limit);
                    return Ok(Answer::Records(records, is_end));
                }
            }
        }
        Err(IndexError::Outdated)
    }

    async fn load(&self, records: &[(u64, u64)]) -> Result<Answer, String> {
        let plan = LoadPlan {
            kind: layer_kind(&self.entry),
            fill_percent: self.entry.record.fill_percent,
            epsilon_keys: 16.0,
        };
        let records = records.iter().copied();
        let loaded = bulk_load(self.access(), &self.entry, plan, records, |_| ()).await;
        match loaded {
            Ok(_) => Ok(Answer::Loaded),
            Err(LoadError::TableNotEmpty) => Ok(Answer::Nothing("not empty".to_owned())),
            Err(error) => {
                // As the library does: chunks may be owned that nobody knows of.
                if error.is_outcome_unknown() {
                    self.broken.set(true);
                }
                match error {
                    LoadError::Index(error) => classify(&error),
                    error => Err(error.to_string()),
                }
            }
        }
    }

    /// B4: takes the newest root, or follows retired leaves if this is the newest.
    async fn refresh(&self) -> Result<(), IndexError> {
        let root = finish_root(&self.access(), &self.entry).await?;
        if root == self.root.get() {
            self.state.follow_retired();
            return Ok(());
        }
        let access = self.access();
        let snapshot = read_snapshot(
            &self.endpoint,
            &self.layout,
            access.geometry,
            access.table,
            root,
        );
        let directory = snapshot.await?;
        self.state
            .replace_layer(Layer::new(layer_kind(&self.entry), directory.into()));
        self.root.set(root);
        Ok(())
    }

    fn record(&self, kind: OperationKind, batch: &mut Batch) {
        self.endpoint.counters().record(kind, &batch.take_cost());
    }
}

/// The search layer of a table.
fn layer_kind(entry: &CatalogEntry) -> LayerKind {
    LayerKind::from_number(entry.record.search_layer).expect("made here")
}

/// What an error means for a history. `Err`: none that may happen in a run.
fn classify(error: &IndexError) -> Result<Answer, String> {
    let text = error.to_string();
    if let Some(failure) = error.fabric_failure() {
        return match failure.kind() {
            BatchErrorKind::Unknown { .. } => Ok(Answer::Unknown(text)),
            _ => Err(text),
        };
    }
    let is_full = |error: &RegionError| matches!(error, RegionError::Full { .. });
    match error {
        IndexError::Region(region) if is_full(region) => Ok(Answer::Nothing(text)),
        IndexError::Leaf(LeafError::Region(region)) if is_full(region) => Ok(Answer::Nothing(text)),
        _ => Err(text),
    }
}
