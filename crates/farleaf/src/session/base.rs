//! State that all forms of a session share, and the closing of a session.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

use farleaf_base::{OwnerWord, RemoteAddr, SequenceNumber, TableId};
use farleaf_executor::{backoff, block_on};
use farleaf_fabric::message::CallerRings;
use farleaf_fabric::{Batch, BatchError, Cost, Endpoint, OperationKind, ProtocolCheck};
use farleaf_index::fg::FgLayer;
use farleaf_index::inner_cache::InnerCacheLayer;
use farleaf_index::operation::LINK_COUNT_MAX_DEFAULT;
use farleaf_index::partial::Budget;
use farleaf_index::rf_tree::RfTreeLayer;
use farleaf_index::snapshot::{PagedSnapshot, read_paged};
use farleaf_index::tree::TreeAccess;
use farleaf_index::tree::head::read_head;
use farleaf_index::xstore::XstoreLayer;
use farleaf_index::{IndexState, Layer, LayerKind};
use farleaf_leaf::words::{LeafAccess, LeafGeometry};
use farleaf_pool::PoolLayout;
use farleaf_pool::catalog::{CatalogEntry, underfull_count_addr};
use farleaf_pool::session::{HEARTBEAT_DRAINED, heartbeat_addr};

use crate::begin::{OperationGuard, UnfinishedOperations};
use crate::bytes::{ByteTableState, DroppedByteTable, Transfers};
use crate::host::{PoolShare, SessionHost};
use crate::options::{SessionOptions, TableInfo, TableKind};
use crate::{AsyncTable, Error};

#[derive(Debug)]
pub(crate) struct SessionCore<H: SessionHost> {
    pub(crate) endpoint: H::Endpoint,
    pub(crate) owner: OwnerWord,
    pub(crate) options: SessionOptions,
    pub(crate) unfinished: UnfinishedOperations,
    pub(crate) last_cost: Cell<Cost>,
    pub(super) tables: RefCell<BTreeMap<TableId, Rc<TableState>>>,
    /// Open tables of byte strings.
    pub(crate) byte_tables: RefCell<BTreeMap<TableId, Rc<ByteTableState>>>,
    /// Catalog entries of listings whose tables are being created.
    pub(super) new_listings: RefCell<Vec<CatalogEntry>>,
    /// Number of tables ever opened, which shows whether `tables` has changed.
    pub(crate) opened_count: Cell<u64>,
    #[expect(
        clippy::vec_box,
        reason = "a batch is larger than a pointer and is moved twice per operation"
    )]
    batches: RefCell<Vec<Box<Batch>>>,
    /// Tables that were dropped while the session had them open. Operations that began before may
    /// still lease leaves for them.
    pub(super) dropped_tables: RefCell<Vec<DroppedTable>>,
    pub(crate) dropped_byte_tables: RefCell<Vec<DroppedByteTable>>,
    /// Set if dropped tables are left, or a table's index needs a newer cache.
    pub(crate) has_pending_work: Rc<Cell<bool>>,
    /// Set if an operation was cancelled while it may have held a lock, or the session is closed.
    /// The session then posts nothing any more (FABRIC-6).
    pub(crate) broken: Rc<Cell<bool>>,
    /// Loads and creations that are unfinished or were cancelled: they may own chunks that are not
    /// part of a lease.
    pub(crate) chunk_owner_count: Cell<u32>,
    /// Rings by which the session calls the memory node, after its first call.
    pub(super) rings: RefCell<Option<Rc<CallerRings>>>,
    /// Number of loads and other multi-part transfers to the memory node ever begun.
    load_count: Cell<u64>,
    /// Multi-part transfers for tables of byte strings that the memory node stores.
    pub(crate) transfers: Transfers,
    shut_down: Cell<bool>,
    /// Declared last: the pool stays open until the session has closed.
    pub(crate) host: H,
}

/// Table that was dropped while the session had it open.
#[derive(Debug)]
pub(crate) struct DroppedTable {
    pub(super) table: Rc<TableState>,
    /// Number to which the session caught up when it found the table dropped. Operations on the
    /// table began earlier.
    pub(super) caught_up_to: SequenceNumber,
}

/// State of an open table in a session.
#[derive(Debug)]
pub(crate) struct TableState {
    pub(crate) info: TableInfo,
    pub(crate) entry: CatalogEntry,
    pub(crate) geometry: LeafGeometry,
    pub(crate) index: IndexState,
    /// Root from which the index's search layer was read.
    pub(super) root: Cell<RemoteAddr>,
    pub(crate) dropped: Cell<bool>,
    /// Whether the memory node executes all operations.
    pub(crate) is_remote: bool,
    /// Whether the memory node executes the writes.
    pub(crate) has_node_writes: bool,
    /// Whether operations must not take the fast path: the table was dropped, or the memory node
    /// executes its operations.
    pub(super) needs_slow_path: Cell<bool>,
    /// Whether reads must not take the fast path; they may if the node executes only the writes.
    pub(super) reads_need_slow_path: Cell<bool>,
}

impl<H: SessionHost> SessionCore<H> {
    pub(crate) fn new(
        host: H,
        endpoint: H::Endpoint,
        owner: OwnerWord,
        options: SessionOptions,
    ) -> Self {
        let process = &host.share().process;
        let note = process.add(owner);
        let broken = Rc::<Cell<bool>>::default();
        let unfinished =
            UnfinishedOperations::new(Arc::clone(&process.note), note, Rc::clone(&broken));
        Self {
            endpoint,
            owner,
            options,
            unfinished,
            last_cost: Cell::default(),
            tables: RefCell::default(),
            byte_tables: RefCell::default(),
            new_listings: RefCell::default(),
            opened_count: Cell::new(0),
            batches: RefCell::default(),
            dropped_tables: RefCell::default(),
            dropped_byte_tables: RefCell::default(),
            has_pending_work: Rc::default(),
            broken,
            chunk_owner_count: Cell::new(0),
            rings: RefCell::default(),
            load_count: Cell::new(0),
            transfers: Transfers::default(),
            shut_down: Cell::new(false),
            host,
        }
    }

    #[inline]
    pub(crate) fn share(&self) -> &PoolShare {
        self.host.share()
    }

    #[inline]
    pub(crate) fn layout(&self) -> &PoolLayout {
        &self.host.share().layout
    }

    pub(crate) fn drive<F: Future>(&self, future: F) -> F::Output {
        block_on(future, self.endpoint.completions())
    }

    /// Returns a batch from the session's stock. Boxed, because moving a batch costs more than an
    /// indirection.
    #[inline]
    pub(crate) fn take_batch(&self) -> Box<Batch> {
        self.batches.borrow_mut().pop().unwrap_or_default()
    }

    /// Returns a number for a load or another multi-part transfer, unique within the session.
    pub(crate) fn next_load(&self) -> u64 {
        self.load_count.update(|count| count + 1);
        self.load_count.get()
    }

    /// Returns the number that [`next_load`](Self::next_load) would return.
    pub(crate) fn next_number(&self) -> u64 {
        self.load_count.get() + 1
    }

    #[inline]
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.get()
    }

    /// Marks the session as broken: the outcome of its last batch is unknown, so it may hold a lock
    /// or a chunk, and posts nothing any more (FABRIC-6).
    pub(crate) fn mark_broken(&self) {
        self.broken.set(true);
    }

    /// Executes and counts a batch that does not belong to a table operation (FABRIC-9).
    pub(crate) async fn control(&self, batch: &mut Batch) -> Result<(), BatchError> {
        let executed = self.endpoint.execute(batch).await;
        let counters = self.endpoint.counters();
        counters.record(OperationKind::Control, &batch.take_cost());
        executed
    }

    /// Counts an operation's cost and returns its batch to the stock.
    #[inline]
    pub(crate) fn finish(&self, kind: OperationKind, mut batch: Box<Batch>) {
        self.record(kind, batch.take_cost());
        self.batches.borrow_mut().push(batch);
    }

    /// Returns the number of links that one lookup in an RF-tree table may follow before a newer
    /// cache is read.
    pub(crate) fn link_count_max(&self) -> u32 {
        let chosen = self.options.link_count_max;
        chosen.unwrap_or(LINK_COUNT_MAX_DEFAULT)
    }

    /// Counts an operation's cost.
    #[inline]
    pub(crate) fn record(&self, kind: OperationKind, cost: Cost) {
        self.endpoint.counters().record(kind, &cost);
        self.last_cost.set(cost);
    }

    #[inline]
    pub(crate) fn access<'a>(&'a self, table: &TableState) -> LeafAccess<'a, H::Endpoint> {
        self.access_to(table.geometry, table.entry.record.id)
    }

    #[inline]
    pub(super) fn access_to(
        &self,
        geometry: LeafGeometry,
        table: TableId,
    ) -> LeafAccess<'_, H::Endpoint> {
        LeafAccess {
            endpoint: &self.endpoint,
            layout: self.layout(),
            geometry,
            table,
            owner: self.owner,
        }
    }

    /// Returns access to a table's tree.
    pub(super) fn tree_access(
        &self,
        geometry: LeafGeometry,
        table: TableId,
    ) -> TreeAccess<'_, H::Endpoint> {
        TreeAccess {
            leaves: self.access_to(geometry, table),
            broken: &self.broken,
        }
    }

    /// Reads the search layer of a table with a tree, starting at this root.
    async fn tree_layer(
        &self,
        kind: LayerKind,
        tree: TreeAccess<'_, H::Endpoint>,
        root: RemoteAddr,
    ) -> Result<Layer, Error> {
        if kind == LayerKind::RfTree {
            let cache = self.share().tree_cache(tree, root).await?;
            return Ok(Layer::RfTree(RfTreeLayer::new(cache)));
        }
        self.share().refresh_nodes(&self.endpoint).await?;
        let head = read_head(&tree.leaves, root).await?;
        Ok(match kind.cached_level_min() {
            Some(level_min) => {
                let layer = InnerCacheLayer::new(head, self.options.cache_bytes(), level_min);
                Layer::InnerCache(Box::new(layer))
            }
            None => Layer::Fg(FgLayer::new(head)),
        })
    }

    /// Opens a table that the operation `guard` has found in the catalog.
    pub(super) async fn open_entry(
        self: &Rc<Self>,
        entry: CatalogEntry,
        guard: &OperationGuard<'_>,
    ) -> Result<AsyncTable<H>, Error> {
        let id = entry.record.id;
        let known = self.tables.borrow().get(&id).cloned();
        let state = if let Some(state) = known {
            state
        } else {
            let state = Rc::new(self.table_state(entry).await?);
            // Another future of the session may have opened it meanwhile; they share one state.
            self.opened_count.update(|count| count + 1);
            Rc::clone(self.tables.borrow_mut().entry(id).or_insert(state))
        };
        // Other futures may have caught up meanwhile without this table, so check whether it was
        // dropped.
        if guard.is_behind() {
            self.find_dropped(self.unfinished.followed()).await?;
        }
        Ok(AsyncTable::new(Rc::clone(self), state))
    }

    async fn table_state(&self, entry: CatalogEntry) -> Result<TableState, Error> {
        let info = TableInfo::from_record(&entry.record)?;
        info.check_kind(TableKind::Words)?;
        let geometry = info.options.leaf_geometry()?;
        let (root, id) = (entry.root, entry.record.id);
        let kind = info.options.layer;
        let layer = if let Some(budget) = self.options.budget_for(kind)? {
            Layer::partial(self.snapshot(geometry, id, root, budget).await?, budget)
        } else if kind.has_tree() {
            let tree = self.tree_access(geometry, id);
            self.tree_layer(kind, tree, root).await?
        } else if kind.has_node_writes() {
            self.share().refresh_nodes(&self.endpoint).await?;
            let shared = self.share().models(id);
            let first_leaf = entry.record.first_leaf;
            let cache = self.options.model_cache;
            Layer::Xstore(Box::new(XstoreLayer::new(cache, first_leaf, shared)))
        } else {
            let directory = self.share().directory(&self.endpoint, geometry, id, root);
            Layer::new(kind, directory.await?)
        };
        let index = IndexState::new(layer, Rc::clone(&self.broken))
            .telling(Rc::clone(&self.has_pending_work), self.link_count_max());
        let local_locks = Arc::clone(&self.share().local_locks);
        let has_local_locks = kind == LayerKind::Sherman;
        let index = index.with_local_locks(has_local_locks.then_some(local_locks));
        let underfull_counter = underfull_count_addr(self.layout(), entry.index);
        let index = index.with_underfull_counter(kind.has_tree().then_some(underfull_counter));
        let (root, dropped) = (Cell::new(root), Cell::new(false));
        let is_remote = !kind.has_leaves();
        let has_node_writes = kind.has_node_writes();
        if has_node_writes {
            // Only loads retire leaves of such tables, and no directory names a retired leaf's
            // successor.
            index.follow_retired();
            index.set_speculative(!self.options.does_not_speculate);
        }
        Ok(TableState {
            info,
            entry,
            geometry,
            index,
            root,
            dropped,
            is_remote,
            has_node_writes,
            needs_slow_path: Cell::new(is_remote || has_node_writes),
            reads_need_slow_path: Cell::new(is_remote),
        })
    }

    /// Reads the part of the snapshot behind a root that a session with a metadata budget always
    /// holds.
    async fn snapshot(
        &self,
        geometry: LeafGeometry,
        table: TableId,
        root: RemoteAddr,
        budget: Budget,
    ) -> Result<PagedSnapshot, Error> {
        let head_bytes_max = budget.head_bytes_max();
        self.share().refresh_nodes(&self.endpoint).await?;
        let (endpoint, layout) = (&self.endpoint, self.layout());
        let read = read_paged(endpoint, layout, geometry, table, root, head_bytes_max);
        Ok(read.await?)
    }

    /// Replaces the root `from`, through which a table is searched, by `to`. Returns false if
    /// another future has replaced it meanwhile, perhaps by a newer root.
    pub(super) async fn take_root(
        &self,
        table: &TableState,
        from: RemoteAddr,
        to: RemoteAddr,
    ) -> Result<bool, Error> {
        let id = table.entry.record.id;
        let kind = table.info.options.layer;
        if let Some(budget) = self.options.budget_for(kind)? {
            let snapshot = self.snapshot(table.geometry, id, to, budget).await?;
            if table.root.get() != from {
                return Ok(false);
            }
            let keeps_pages = self.endpoint.skips_check(ProtocolCheck::PagesBelongToRoot);
            let index = &table.index;
            index.replace_snapshot(snapshot, budget, keeps_pages);
        } else if kind.has_tree() {
            let tree = self.tree_access(table.geometry, id);
            let layer = self.tree_layer(kind, tree, to).await?;
            if table.root.get() != from {
                return Ok(false);
            }
            table.index.replace_tree(layer);
        } else if kind.has_node_writes() {
            // The models apply to whatever leaves exist, and a leaf of such a table never
            // disappears.
        } else {
            let share = self.share();
            let directory = share.directory(&self.endpoint, table.geometry, id, to);
            let directory = directory.await?;
            if table.root.get() != from {
                return Ok(false);
            }
            table.index.replace_directory(directory);
        }
        table.root.set(to);
        Ok(true)
    }

    /// Returns leased memory and closes the session; further calls do nothing. Operations that
    /// begin afterwards fail.
    pub(crate) async fn shut_down(&self) -> Result<(), Error> {
        if self.shut_down.get() {
            return Ok(());
        }
        // If this is cancelled from here on, the next call runs it again without returning memory.
        let was_broken = self.broken.replace(true);
        // Whether nothing is left for the memory node to sweep.
        let mut given_back: Result<bool, Error> = Ok(true);
        let open: Vec<_> = self.tables.take().into_values().collect();
        let dropped = self.dropped_tables.take().into_iter();
        let dropped = dropped.map(|dropped| dropped.table);
        for table in open.into_iter().chain(dropped) {
            for mut lease in table.index.take_leases() {
                if !was_broken && let Err(error) = lease.give_back(&self.access(&table)).await {
                    given_back = given_back.and(Err(error.into()));
                }
            }
        }
        let bytes_given_back = self.return_byte_tables(was_broken).await;
        given_back = match (given_back, bytes_given_back) {
            (Ok(words), Ok(bytes)) => Ok(words && bytes),
            (Err(error), _) | (_, Err(error)) => Err(error),
        };
        // After this the process writes nothing to the session's block.
        self.share().process.remove(self.unfinished.note()).await;
        let holds_nothing = matches!(given_back, Ok(true));
        if !was_broken && self.chunk_owner_count.get() == 0 && holds_nothing {
            self.write_drained().await?;
        }
        // Dropped futures may have left batches in flight (FABRIC-6).
        for attempt in 0.. {
            if self.endpoint.in_flight_count() == 0 {
                break;
            }
            backoff(attempt).await;
        }
        self.host.close_session(self.owner)?;
        self.shut_down.set(true);
        given_back.map(drop)
    }

    async fn write_drained(&self) -> Result<(), Error> {
        let Some((session, _)) = self.owner.holder() else {
            return Ok(());
        };
        let mut batch = Batch::new();
        batch.write_word(heartbeat_addr(self.layout(), session), HEARTBEAT_DRAINED);
        match self.control(&mut batch).await {
            // Over verbs, the card rejects all WRITEs of a session with only the `read` right, even
            // to its own words. Such a session never held anything, and the node detects its end.
            Err(error) if error.is_forbidden() => Ok(()),
            written => Ok(written?),
        }
    }
}

impl<H: SessionHost> Drop for SessionCore<H> {
    fn drop(&mut self) {
        if !H::CLOSES_DROPPED_SESSIONS {
            return;
        }
        if let Err(error) = self.drive(self.shut_down()) {
            tracing::warn!(owner = %self.owner, %error, "a session did not close cleanly");
        }
    }
}
