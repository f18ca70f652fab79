//! Session of the node that executes requests.

use core::cell::{Cell, RefCell};
use core::fmt;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use farleaf_base::{OwnerWord, RemoteAddr, SequenceNumber, TableId};
use farleaf_executor::backoff;
use farleaf_fabric::{Batch, CountedBatch, Endpoint, OperationKind};
use farleaf_index::load::finish_root;
use farleaf_index::snapshot::read_snapshot;
use farleaf_index::xstore::{InnerLayer, InnerTree};
use farleaf_index::{Index, IndexError, IndexState, Layer, LayerKind};
use farleaf_leaf::words::{LeafAccess, LeafError, LeafLease};
use farleaf_pool::PoolLayout;
use farleaf_pool::catalog::live_word;
use farleaf_pool::members::MemberState;
use farleaf_pool::session::{HEARTBEAT_DRAINED, heartbeat_addr, published_addr};

use super::served::{BuildGuard, BuiltTree, LeafTable};
use super::tables::LeafTables;

/// Provider of endpoints and sessions for workers.
pub trait SessionFactory {
    /// Endpoint to the leaves.
    type Endpoint: Endpoint;

    /// Opens a session.
    ///
    /// # Errors
    /// No session is left, or the device has no queue pair left. The message is for the client.
    fn open_worker_session(&self) -> Result<(Self::Endpoint, OwnerWord), String>;

    /// Ends a session that does nothing any more, and has no verbs in flight (FABRIC-6).
    fn end_worker_session(&self, owner: OwnerWord);
}

/// Worker, owned by one thread; opens a session when it first needs one.
pub struct Worker<B: SessionFactory> {
    session_factory: B,
    layout: PoolLayout,
    tables: Arc<LeafTables>,
    session: RefCell<Option<Rc<WorkerSession<B::Endpoint>>>>,
}

/// Session of a worker.
pub(super) struct WorkerSession<E> {
    pub(super) endpoint: E,
    pub(super) owner: OwnerWord,
    pub(super) broken: Rc<Cell<bool>>,
    published: Cell<SequenceNumber>,
    open: RefCell<BTreeMap<TableId, Rc<OpenTable>>>,
}

/// Table as a session has opened it.
pub(super) struct OpenTable {
    pub(super) table: Arc<LeafTable>,
    pub(super) built: Arc<BuiltTree>,
    pub(super) state: IndexState,
}

impl<B: SessionFactory> fmt::Debug for Worker<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owner = self
            .session
            .borrow()
            .as_ref()
            .map(|worker_session| worker_session.owner);
        f.debug_struct("Worker")
            .field("owner", &owner)
            .finish_non_exhaustive()
    }
}

impl<B: SessionFactory> Worker<B> {
    /// Creates a worker without a session.
    pub fn new(session_factory: B, layout: PoolLayout, tables: Arc<LeafTables>) -> Self {
        Self {
            session_factory,
            layout,
            tables,
            session: RefCell::default(),
        }
    }

    /// Returns the tables that it serves.
    pub fn tables(&self) -> &Arc<LeafTables> {
        &self.tables
    }

    pub(super) fn layout(&self) -> &PoolLayout {
        &self.layout
    }

    /// Gives back everything that the session holds, and ends it; the next request opens another
    /// one.
    ///
    /// # Errors
    /// The fabric failed; what the session held is swept.
    pub async fn close(&self) -> Result<(), IndexError> {
        let Some(worker_session) = self.session.take() else {
            return Ok(());
        };
        let given = worker_session.close(&self.layout).await;
        let owner = worker_session.owner;
        drop(worker_session);
        self.session_factory.end_worker_session(owner);
        given
    }

    /// Processes completions of the session's batches; returns how many.
    pub fn poll_completions(&self) -> usize {
        let worker_session = self.session.borrow().clone();
        worker_session.map_or(0, |worker_session| {
            worker_session.endpoint.poll_completions()
        })
    }

    /// Returns the session, and opens one if there is none or it is broken.
    pub(super) fn worker_session(&self) -> Result<Rc<WorkerSession<B::Endpoint>>, String> {
        self.end_broken_session();
        let known = self.session.borrow().clone();
        if let Some(worker_session) = known {
            return Ok(worker_session);
        }
        let (endpoint, owner) = self.session_factory.open_worker_session()?;
        let worker_session = Rc::new(WorkerSession {
            endpoint,
            owner,
            broken: Rc::default(),
            published: Cell::default(),
            open: RefCell::default(),
        });
        self.session.replace(Some(Rc::clone(&worker_session)));
        Ok(worker_session)
    }

    /// FABRIC-6: ends a broken session, so that others recover what it held.
    fn end_broken_session(&self) {
        let is_broken = |worker_session: &Rc<WorkerSession<_>>| worker_session.broken.get();
        if !self.session.borrow().as_ref().is_some_and(is_broken) {
            return;
        }
        if let Some(worker_session) = self.session.take() {
            let owner = worker_session.owner;
            // Its endpoint is closed first.
            drop(worker_session);
            self.session_factory.end_worker_session(owner);
        }
    }

    /// Follows the sequence number. Costs one round trip while nothing has changed, and nothing
    /// without a session.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn follow(&self) -> Result<(), IndexError> {
        self.end_broken_session();
        let worker_session = self.session.borrow().clone();
        let Some(worker_session) = worker_session else {
            return Ok(());
        };
        let followed = worker_session.follow(&self.layout, &self.tables).await;
        if let Err(error) = &followed {
            worker_session.note_failure(error);
        }
        followed
    }

    /// Opens a table with a tree for the session.
    pub(super) async fn open(
        &self,
        worker_session: &WorkerSession<B::Endpoint>,
        table: &Arc<LeafTable>,
    ) -> Result<Rc<OpenTable>, IndexError> {
        let known = worker_session.open.borrow().get(&table.id()).cloned();
        let newest = table.built();
        let is_newest = |open: &Rc<OpenTable>| {
            let newest = newest.as_ref();
            newest.is_some_and(|newest| Arc::ptr_eq(&open.built, newest))
        };
        if let Some(open) = known.filter(is_newest) {
            return Ok(open);
        }
        // Before it is used: it may have been dropped since the request.
        if !worker_session.is_live(&self.layout, table).await? {
            let table = table.id();
            return Err(LeafError::TableDropped { table }.into());
        }
        let built = match newest {
            Some(built) => built,
            None => self.build(worker_session, table, None).await?,
        };
        let before = worker_session.open.borrow_mut().remove(&table.id());
        if let Some(before) = before {
            let leases = before.state.take_leases();
            worker_session
                .give_back(&self.layout, table, leases)
                .await?;
        }
        let layer = Layer::Inner(Box::new(InnerLayer::new(Arc::clone(&built.tree))));
        let open = Rc::new(OpenTable {
            table: Arc::clone(table),
            built,
            state: IndexState::new(layer, Rc::clone(&worker_session.broken)),
        });
        let mut all = worker_session.open.borrow_mut();
        all.insert(table.id(), Rc::clone(&open));
        Ok(open)
    }

    /// Builds a tree for a newer root than that of `before`; returns `before` if there is none.
    pub(super) async fn build(
        &self,
        worker_session: &WorkerSession<B::Endpoint>,
        table: &Arc<LeafTable>,
        before: Option<&Arc<BuiltTree>>,
    ) -> Result<Arc<BuiltTree>, IndexError> {
        for attempt in 0.. {
            let building = table.begin_building();
            // The thread that may build checks this, too: another one may have finished just
            // before.
            let is_same = |now: &Arc<BuiltTree>| before.is_some_and(|old| Arc::ptr_eq(old, now));
            let newer = table.built().filter(|now| !is_same(now));
            match (newer, building) {
                (Some(newer), _) => return Ok(newer),
                (None, Some(building)) => {
                    return self.build_alone(worker_session, building, before).await;
                }
                (None, None) => backoff(attempt).await,
            }
        }
        unreachable!("it goes on")
    }

    async fn build_alone(
        &self,
        worker_session: &WorkerSession<B::Endpoint>,
        building: BuildGuard<'_>,
        before: Option<&Arc<BuiltTree>>,
    ) -> Result<Arc<BuiltTree>, IndexError> {
        let table = building.table;
        let access = worker_session.access(&self.layout, table);
        let root = finish_root(&access, &table.entry, &worker_session.broken).await?;
        if root.is_null() {
            let table = table.id();
            return Err(LeafError::TableDropped { table }.into());
        }
        if let Some(before) = before.filter(|before| before.root == root) {
            return Ok(Arc::clone(before));
        }
        let walked = walk(&access, root, &worker_session.broken).await?;
        let built = Arc::new(BuiltTree::new(root, walked.0, walked.1));
        building.end(Arc::clone(&built));
        table.make_all_due(&self.tables);
        Ok(built)
    }
}

/// Reads all leaves behind a root, by links, and counts their records.
async fn walk<E: Endpoint>(
    access: &LeafAccess<'_, E>,
    root: RemoteAddr,
    broken: &Rc<Cell<bool>>,
) -> Result<(InnerTree, u64), IndexError> {
    let (endpoint, layout) = (access.endpoint, access.layout);
    let directory = read_snapshot(endpoint, layout, access.geometry, access.table, root).await?;
    let layer = Layer::new(LayerKind::Xstore, Arc::new(directory));
    let state = IndexState::new(layer, Rc::clone(broken));
    state.follow_retired();
    let index = Index::new(*access, &state);
    let mut survey = index.survey();
    let mut batch = CountedBatch::new(endpoint, OperationKind::Control);
    let mut found: Option<(InnerTree, u64)> = None;
    while let Some(leaf) = index.survey_next(&mut batch, &mut survey).await? {
        let (tree, record_count) = found.get_or_insert_with(|| (InnerTree::new(leaf.addr), 0));
        tree.insert(leaf.low, leaf.addr);
        *record_count += leaf.record_count as u64;
    }
    Ok(found.expect("keys begin in some leaf"))
}

impl<E: Endpoint> WorkerSession<E> {
    pub(super) fn access<'a>(
        &'a self,
        layout: &'a PoolLayout,
        table: &LeafTable,
    ) -> LeafAccess<'a, E> {
        LeafAccess {
            endpoint: &self.endpoint,
            layout,
            geometry: table.geometry,
            table: table.id(),
            owner: self.owner,
        }
    }

    /// Returns whether a table exists, after [`follow`](Self::follow): its memory is not reused
    /// before that is called again.
    pub(super) async fn is_live(
        &self,
        layout: &PoolLayout,
        table: &LeafTable,
    ) -> Result<bool, IndexError> {
        let mut batch = Batch::new();
        let word = batch.read(layout.catalog_entry(table.entry.index), 1);
        self.endpoint.execute(&mut batch).await?;
        Ok(batch.words(word)[0] == live_word(table.id()))
    }

    async fn follow(&self, layout: &PoolLayout, tables: &LeafTables) -> Result<(), IndexError> {
        let Some((session, _)) = self.owner.holder() else {
            return Ok(());
        };
        let mut batch = Batch::new();
        let sequence = batch.read(layout.sequence(), 1);
        self.endpoint.execute(&mut batch).await?;
        let sequence = SequenceNumber(batch.words(sequence)[0]);
        if sequence == self.published.get() {
            return Ok(());
        }
        let open: Vec<_> = self.open.borrow().values().cloned().collect();
        for open in open {
            if !self.is_live(layout, &open.table).await? {
                tables.forget(open.table.id());
                self.give_back(layout, &open.table, open.state.take_leases())
                    .await?;
                self.open.borrow_mut().remove(&open.table.id());
                continue;
            }
            // Nothing is leased on draining nodes.
            let members = layout.members();
            let is_open = |node| members.state(node) == Some(MemberState::Active);
            let closed = open.state.take_leases_but(is_open);
            self.give_back(layout, &open.table, closed).await?;
        }
        batch.clear();
        batch.write_word(published_addr(layout, session), sequence.0);
        self.endpoint.execute(&mut batch).await?;
        self.published.set(sequence);
        Ok(())
    }

    /// Ends the session after a failure of the fabric: another one may reach nodes that this one
    /// does not.
    pub(super) fn note_failure(&self, error: &IndexError) {
        if error.fabric_failure().is_some() && error.lost_node().is_none() {
            self.broken.set(true);
        }
    }

    async fn close(&self, layout: &PoolLayout) -> Result<(), IndexError> {
        let Some((session, _)) = self.owner.holder().filter(|_| !self.broken.get()) else {
            return Ok(());
        };
        let open = self.open.take();
        for open in open.values() {
            self.give_back(layout, &open.table, open.state.take_leases())
                .await?;
        }
        let mut batch = Batch::new();
        batch.write_word(heartbeat_addr(layout, session), HEARTBEAT_DRAINED);
        Ok(self.endpoint.execute(&mut batch).await?)
    }

    /// Gives back chunks that the session leases for a table. If that fails, the session may own
    /// chunks that it does not know of, until it is fenced.
    async fn give_back(
        &self,
        layout: &PoolLayout,
        table: &LeafTable,
        leases: Vec<LeafLease>,
    ) -> Result<(), IndexError> {
        for mut lease in leases {
            let given = lease.give_back(&self.access(layout, table)).await;
            if let Err(error) = given {
                self.broken.set(true);
                return Err(error.into());
            }
        }
        Ok(())
    }
}
