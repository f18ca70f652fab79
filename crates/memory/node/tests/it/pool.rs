//! A node's memory with its sessions, and clients over any endpoint.

use std::cell::Cell;
use std::error::Error;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use farleaf_base::{OwnerWord, RemoteAddr};
use farleaf_executor::block_on;
use farleaf_fabric::mapped::{MappedEndpoint, MappedMemory};
use farleaf_fabric::{Batch, Endpoint};
use farleaf_index::load::{LoadPlan, LoadSummary, bulk_load, finish_root};
use farleaf_index::operation::{Decision, ScanCursor};
use farleaf_index::snapshot::read_snapshot;
use farleaf_index::{Index, IndexError, IndexState, Layer, LayerKind, LoadError};
use farleaf_leaf::words::{LeafAccess, LeafGeometry};
use farleaf_node::sessions::{AgentEvent, Sessions, format_memory};
use farleaf_node::sweep::MemoryMaintainer;
use farleaf_pool::PoolLayout;
use farleaf_pool::catalog::CatalogEntry;

use crate::cutting::{Cut, CuttingEndpoint};

/// Result of operations in these tests.
pub(crate) type Outcome = Result<(), Box<dyn Error>>;

/// Size of the memory: less than a load would claim ahead.
const REGION_SIZE_BYTES: u64 = 3 << 20;
/// Maximum number of refreshes: a newer root, and then no newer one.
const REFRESH_COUNT_MAX: u32 = 3;

/// Node's memory and its session table.
pub(crate) struct Pool {
    pub(crate) memory: Arc<MappedMemory>,
    pub(crate) layout: PoolLayout,
    /// Endpoint that is never interrupted.
    pub(crate) plain: MappedEndpoint,
    sessions: Sessions,
    _events: Receiver<AgentEvent>,
}

/// Session that uses one table.
pub(crate) struct Client<'a, E> {
    pub(crate) endpoint: &'a E,
    pub(crate) owner: OwnerWord,
    pub(crate) entry: CatalogEntry,
    layout: &'a PoolLayout,
    pub(crate) state: IndexState,
    /// Whether the session was interrupted and must be closed.
    pub(crate) broken: Rc<Cell<bool>>,
    /// Root from which the state was created.
    root: RemoteAddr,
}

impl Pool {
    /// Creates a fresh memory without tables.
    pub(crate) fn new() -> Self {
        Self::with_size(REGION_SIZE_BYTES)
    }

    /// Creates a fresh memory of this size without tables.
    pub(crate) fn with_size(size_bytes: u64) -> Self {
        let memory = Arc::new(MappedMemory::anonymous(size_bytes).expect("memory"));
        let layout = format_memory(&memory).expect("large enough");
        let (sender, events) = channel();
        let sessions = Sessions::new(MappedEndpoint::new(Arc::clone(&memory)), layout, sender);
        Self {
            plain: MappedEndpoint::new(Arc::clone(&memory)),
            memory,
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
        MappedEndpoint::new(Arc::clone(&self.memory))
    }

    pub(crate) fn cutting(&self, cut: Cut) -> CuttingEndpoint {
        CuttingEndpoint::new(&self.memory, cut)
    }

    pub(crate) fn maintainer<E: Endpoint>(
        &self,
        endpoint: E,
        owner: OwnerWord,
    ) -> MemoryMaintainer<E> {
        MemoryMaintainer {
            blocks: farleaf_node::sweep::BlockSweepers::default(),
            endpoint,
            layout: self.layout.clone(),
            owner,
        }
    }

    /// Runs a sweep that is not interrupted.
    pub(crate) fn sweep(&mut self) {
        let owner = self.register();
        let maintainer = self.maintainer(self.endpoint(), owner);
        block_on(maintainer.sweep(), || 0).expect("a sweep after a crash succeeds");
        self.fence(owner);
    }

    /// Returns the catalog's entries in use.
    pub(crate) fn catalog(&self) -> Vec<CatalogEntry> {
        let maintainer = self.maintainer(self.endpoint(), OwnerWord::FREE);
        block_on(maintainer.catalog(), || 0).expect("the catalog is readable")
    }

    /// Reads a word of the memory.
    pub(crate) fn word(&self, at: farleaf_base::WordAddr) -> u64 {
        let mut word = [0];
        let index = at.index() as usize;
        MappedMemory::copy_out(&self.memory.words()[index..=index], &mut word);
        word[0]
    }

    /// Opens a client that is not interrupted.
    pub(crate) fn client(
        &self,
        owner: OwnerWord,
        entry: &CatalogEntry,
    ) -> Client<'_, MappedEndpoint> {
        Client::open(&self.plain, &self.layout, owner, entry).expect("the table opens")
    }
}

/// Returns the search layer of a table.
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
    /// Opens a table by the root in its catalog entry.
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

    /// Follows to the newest root; if the current one is the newest, follows retired leaves from
    /// now on.
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

    /// Runs an operation, and repeats it after each refresh that it needs.
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

    /// Decides a change of a key and makes it.
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

    /// Returns the operations on the table.
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

    /// Gives back the leased leaves, as a session does when it closes.
    pub(crate) fn give_back(&self) -> Outcome {
        for mut lease in self.state.take_leases() {
            block_on(lease.give_back(&self.access()), || 0)?;
        }
        Ok(())
    }
}
