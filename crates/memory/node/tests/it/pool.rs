//! A region with its sessions, and clients over any endpoint.

use std::cell::Cell;
use std::error::Error;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use farleaf_executor::block_on;
use farleaf_fabric::mapped::{MappedEndpoint, MappedRegion};
use farleaf_fabric::{Batch, Endpoint};
use farleaf_index::load::{LoadPlan, LoadSummary, bulk_load, finish_root};
use farleaf_index::operation::{Decision, ScanCursor};
use farleaf_index::snapshot::read_snapshot;
use farleaf_index::{Index, IndexError, IndexState, Layer, LayerKind, LoadError};
use farleaf_leaf::{LeafAccess, LeafGeometry};
use farleaf_node::sessions::{AgentEvent, Sessions, format_region};
use farleaf_node::sweep::Keeper;
use farleaf_region::PoolLayout;
use farleaf_region::catalog::CatalogEntry;
use farleaf_types::{OwnerWord, RemoteAddr};

use crate::cutting::{Cut, CuttingEndpoint};

/// What operations end with in these tests.
pub(crate) type Outcome = Result<(), Box<dyn Error>>;

/// Less than a load would claim ahead.
const REGION_SIZE_BYTES: u64 = 3 << 20;
/// A newer root, and then none any more.
const REFRESH_COUNT_MAX: u32 = 3;

/// A region and its session table.
pub(crate) struct Pool {
    pub(crate) region: Arc<MappedRegion>,
    pub(crate) layout: PoolLayout,
    /// The way in of everybody to whom nothing happens.
    pub(crate) plain: MappedEndpoint,
    sessions: Sessions,
    _events: Receiver<AgentEvent>,
}

/// One session's work on one table.
pub(crate) struct Client<'a, E> {
    pub(crate) endpoint: &'a E,
    pub(crate) owner: OwnerWord,
    pub(crate) entry: CatalogEntry,
    layout: &'a PoolLayout,
    pub(crate) state: IndexState,
    /// Whether the session was cut off and must be closed.
    pub(crate) broken: Rc<Cell<bool>>,
    /// What the state was made from.
    root: RemoteAddr,
}

impl Pool {
    /// A fresh region without tables.
    pub(crate) fn new() -> Self {
        Self::with_size(REGION_SIZE_BYTES)
    }

    /// The same, of this size.
    pub(crate) fn with_size(size_bytes: u64) -> Self {
        let region = Arc::new(MappedRegion::anonymous(size_bytes).expect("memory"));
        let layout = format_region(&region).expect("large enough");
        let (sender, events) = channel();
        let sessions = Sessions::new(MappedEndpoint::new(Arc::clone(&region)), layout, sender);
        Self {
            plain: MappedEndpoint::new(Arc::clone(&region)),
            region,
            layout: layout.into(),
            sessions,
            _events: events,
        }
    }

    pub(crate) fn register(&mut self) -> OwnerWord {
        self.sessions.open(1).expect("a session is left")
    }

    /// Fences a session, as the node does after its death.
    pub(crate) fn fence(&mut self, owner: OwnerWord) {
        self.sessions.close(owner);
    }

    pub(crate) fn endpoint(&self) -> MappedEndpoint {
        MappedEndpoint::new(Arc::clone(&self.region))
    }

    pub(crate) fn cutting(&self, cut: Cut) -> CuttingEndpoint {
        CuttingEndpoint::new(&self.region, cut)
    }

    pub(crate) fn keeper<E: Endpoint>(&self, endpoint: E, owner: OwnerWord) -> Keeper<E> {
        Keeper {
            blocks: farleaf_node::sweep::BlockSweepers::default(),
            endpoint,
            layout: self.layout.clone(),
            owner,
        }
    }

    /// A sweep by a keeper that nothing happens to.
    pub(crate) fn sweep(&mut self) {
        let owner = self.register();
        let keeper = self.keeper(self.endpoint(), owner);
        block_on(keeper.sweep(), || 0).expect("a sweep after a crash succeeds");
        self.fence(owner);
    }

    /// The catalog's entries that are not free.
    pub(crate) fn catalog(&self) -> Vec<CatalogEntry> {
        let keeper = self.keeper(self.endpoint(), OwnerWord::FREE);
        block_on(keeper.catalog(), || 0).expect("the catalog is readable")
    }

    /// A word of the region, as it is now.
    pub(crate) fn word(&self, at: farleaf_types::WordAddr) -> u64 {
        let mut word = [0];
        let index = at.index() as usize;
        MappedRegion::copy_out(&self.region.words()[index..=index], &mut word);
        word[0]
    }

    /// A client that nothing happens to.
    pub(crate) fn client(
        &self,
        owner: OwnerWord,
        entry: &CatalogEntry,
    ) -> Client<'_, MappedEndpoint> {
        Client::open(&self.plain, &self.layout, owner, entry).expect("the table opens")
    }
}

/// The search layer of a table.
pub(crate) fn layer_kind(entry: &CatalogEntry) -> LayerKind {
    LayerKind::from_number(entry.record.search_layer).expect("made here")
}

pub(crate) fn access<'a, E>(
    endpoint: &'a E,
    layout: &'a PoolLayout,
    owner: OwnerWord,
    entry: &CatalogEntry,
) -> LeafAccess<'a, E> {
    LeafAccess {
        endpoint,
        layout,
        geometry: LeafGeometry::new(entry.record.kind.slots().expect("of words").into())
            .expect("made here"),
        table: entry.record.id,
        owner,
    }
}

impl<'a, E: Endpoint> Client<'a, E> {
    /// Opens a table by the root that its catalog entry names.
    pub(crate) fn open(
        endpoint: &'a E,
        layout: &'a PoolLayout,
        owner: OwnerWord,
        entry: &CatalogEntry,
    ) -> Result<Self, IndexError> {
        let geometry = LeafGeometry::new(entry.record.kind.slots().expect("of words").into())
            .expect("made here");
        let directory = read_snapshot(endpoint, layout, geometry, entry.record.id, entry.root);
        let directory = block_on(directory, || 0)?;
        let layer = Layer::new(layer_kind(entry), directory.into());
        let broken = Rc::new(Cell::new(false));
        Ok(Self {
            endpoint,
            owner,
            entry: entry.clone(),
            layout,
            state: IndexState::new(layer, Rc::clone(&broken)),
            broken,
            root: entry.root,
        })
    }

    pub(crate) fn access(&self) -> LeafAccess<'_, E> {
        access(self.endpoint, self.layout, self.owner, &self.entry)
    }

    /// B4: follows to the newest root, or from retired leaves if this is the newest.
    pub(crate) fn refresh(&mut self) -> Result<(), IndexError> {
        let root = block_on(
            finish_root(&self.access(), &self.entry, &Cell::default()),
            || 0,
        )?;
        if root.is_null() || root == self.root {
            self.state.follow_retired();
            return Ok(());
        }
        let access = self.access();
        let directory = read_snapshot(
            self.endpoint,
            self.layout,
            access.geometry,
            access.table,
            root,
        );
        let directory = block_on(directory, || 0)?;
        self.state.replace_directory(directory.into());
        self.root = root;
        Ok(())
    }

    /// Does something, and once more after each refresh that it takes.
    fn refreshed<R>(
        &mut self,
        mut operation: impl FnMut(&Index<'_, E>, &mut Batch) -> Result<R, IndexError>,
    ) -> Result<R, IndexError> {
        let mut batch = Batch::new();
        for _ in 0..REFRESH_COUNT_MAX {
            match operation(&self.index(), &mut batch) {
                Err(IndexError::Outdated) => self.refresh()?,
                other => return other,
            }
        }
        Err(IndexError::Outdated)
    }

    /// Asks what to do with a key and does it.
    pub(crate) fn modify(
        &mut self,
        key: u64,
        mut decide: impl FnMut(Option<u64>) -> (Decision, ()),
    ) -> Outcome {
        self.refreshed(|index, batch| block_on(index.modify(batch, key, &mut decide), || 0))?;
        Ok(())
    }

    pub(crate) fn put(&mut self, key: u64, value: u64) -> Outcome {
        self.modify(key, |_| (Decision::Set(value), ()))
    }

    pub(crate) fn get(&mut self, key: u64) -> Result<Option<u64>, IndexError> {
        self.refreshed(|index, batch| block_on(index.get(batch, key), || 0))
    }

    pub(crate) fn scan(&mut self) -> Result<Vec<(u64, u64)>, IndexError> {
        self.scan_from(0)
    }

    pub(crate) fn scan_from(&mut self, key: u64) -> Result<Vec<(u64, u64)>, IndexError> {
        let (mut cursor, mut records) = (ScanCursor::from(key), Vec::new());
        while !cursor.is_finished() {
            self.refreshed(|index, batch| {
                block_on(index.scan(batch, &mut cursor, 32, &mut records), || 0)
            })?;
        }
        Ok(records)
    }

    /// What the table's leaves say, one by one.
    pub(crate) fn index(&self) -> Index<'_, E> {
        Index::new(self.access(), &self.state)
    }

    pub(crate) fn load(&mut self, records: &[(u64, u64)]) -> Result<LoadSummary, LoadError> {
        let plan = LoadPlan {
            kind: layer_kind(&self.entry),
            fill_percent: self.entry.record.fill_percent,
            epsilon_keys: 16.0,
            entry_count_max: 61,
        };
        let broken = Cell::default();
        let loaded = bulk_load(
            self.access(),
            &self.entry,
            plan,
            &broken,
            records.iter().copied(),
            |_| (),
        );
        block_on(loaded, || 0)
    }

    /// Gives the leased leaves back, as a session does when it closes.
    pub(crate) fn give_back(&self) -> Outcome {
        for mut lease in self.state.take_leases() {
            block_on(lease.give_back(&self.access()), || 0)?;
        }
        Ok(())
    }
}
