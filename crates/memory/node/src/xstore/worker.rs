//! A session of the node that executes requests (Z1).

use core::cell::{Cell, RefCell};
use core::fmt;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use farleaf_executor::backoff;
use farleaf_fabric::{Batch, Endpoint, OperationKind};
use farleaf_index::load::finish_root;
use farleaf_index::snapshot::read_snapshot;
use farleaf_index::xstore::{InnerLayer, InnerTree};
use farleaf_index::{Index, IndexError, IndexState, Layer, LayerKind};
use farleaf_leaf::{LeafAccess, LeafError, LeafLease};
use farleaf_region::PoolLayout;
use farleaf_region::catalog::live_word;
use farleaf_region::members::MemberState;
use farleaf_region::session::{HEARTBEAT_DRAINED, heartbeat_addr, published_addr};
use farleaf_types::{OwnerWord, RemoteAddr, SequenceNumber, TableId};

use super::served::{Building, Built, LeafTable};
use super::tables::LeafTables;

/// Gives sessions of the node what they work with.
pub trait Employer {
    /// The way to the leaves.
    type Endpoint: Endpoint;

    /// A session.
    ///
    /// # Errors
    /// There is none left, or the device has no queue pair left; in words for the client.
    fn hire(&self) -> Result<(Self::Endpoint, OwnerWord), String>;

    /// The session does nothing any more, and has nothing under way (F6).
    fn dismiss(&self, owner: OwnerWord);
}

/// One thread's; it has a session once it was needed.
pub struct Worker<B: Employer> {
    employer: B,
    layout: PoolLayout,
    tables: Arc<LeafTables>,
    session: RefCell<Option<Rc<Hired<B::Endpoint>>>>,
}

/// A worker's session.
pub(super) struct Hired<E> {
    pub(super) endpoint: E,
    pub(super) owner: OwnerWord,
    pub(super) broken: Rc<Cell<bool>>,
    published: Cell<SequenceNumber>,
    open: RefCell<BTreeMap<TableId, Rc<Open>>>,
}

/// A table, as a session works on it.
pub(super) struct Open {
    pub(super) table: Arc<LeafTable>,
    pub(super) built: Arc<Built>,
    pub(super) state: IndexState,
}

impl<B: Employer> fmt::Debug for Worker<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owner = self.session.borrow().as_ref().map(|hired| hired.owner);
        f.debug_struct("Worker")
            .field("owner", &owner)
            .finish_non_exhaustive()
    }
}

impl<B: Employer> Worker<B> {
    /// Without a session yet.
    pub fn new(employer: B, layout: PoolLayout, tables: Arc<LeafTables>) -> Self {
        Self {
            employer,
            layout,
            tables,
            session: RefCell::default(),
        }
    }

    /// The tables that it works on.
    pub fn tables(&self) -> &Arc<LeafTables> {
        &self.tables
    }

    pub(super) fn layout(&self) -> &PoolLayout {
        &self.layout
    }

    /// Gives back what its session holds, and ends it; the next request begins another one.
    ///
    /// # Errors
    /// The fabric failed; what it held is swept.
    pub async fn close(&self) -> Result<(), IndexError> {
        let Some(hired) = self.session.take() else {
            return Ok(());
        };
        let given = hired.close(&self.layout).await;
        let owner = hired.owner;
        drop(hired);
        self.employer.dismiss(owner);
        given
    }

    /// Lets batches of its session that are under way go on.
    pub fn poll_completions(&self) -> usize {
        let hired = self.session.borrow().clone();
        hired.map_or(0, |hired| hired.endpoint.poll_completions())
    }

    /// Its session, which is an unbroken one.
    pub(super) fn hired(&self) -> Result<Rc<Hired<B::Endpoint>>, String> {
        self.let_go_of_broken();
        let known = self.session.borrow().clone();
        if let Some(hired) = known {
            return Ok(hired);
        }
        let (endpoint, owner) = self.employer.hire()?;
        let hired = Rc::new(Hired {
            endpoint,
            owner,
            broken: Rc::default(),
            published: Cell::default(),
            open: RefCell::default(),
        });
        self.session.replace(Some(Rc::clone(&hired)));
        Ok(hired)
    }

    /// F6: a session that is broken is over, and others recover what it held.
    fn let_go_of_broken(&self) {
        let is_broken = |hired: &Rc<Hired<_>>| hired.broken.get();
        if !self.session.borrow().as_ref().is_some_and(is_broken) {
            return;
        }
        if let Some(hired) = self.session.take() {
            let owner = hired.owner;
            // Its way to the memory ends first.
            drop(hired);
            self.employer.dismiss(owner);
        }
    }

    /// Z1. One round trip while nothing has changed. Nothing without a session.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn follow(&self) -> Result<(), IndexError> {
        self.let_go_of_broken();
        let hired = self.session.borrow().clone();
        let Some(hired) = hired else {
            return Ok(());
        };
        let followed = hired.follow(&self.layout, &self.tables).await;
        if let Err(error) = &followed {
            hired.note_failure(error);
        }
        followed
    }

    /// A table as the session works on it, with a tree (Z2).
    pub(super) async fn open(
        &self,
        hired: &Hired<B::Endpoint>,
        table: &Arc<LeafTable>,
    ) -> Result<Rc<Open>, IndexError> {
        let known = hired.open.borrow().get(&table.id()).cloned();
        let newest = table.built();
        let is_newest = |open: &Rc<Open>| {
            let newest = newest.as_ref();
            newest.is_some_and(|newest| Arc::ptr_eq(&open.built, newest))
        };
        if let Some(open) = known.filter(is_newest) {
            return Ok(open);
        }
        // Before anything of it is looked at: it may have been dropped since it was asked for.
        if !hired.is_live(&self.layout, table).await? {
            let table = table.id();
            return Err(LeafError::TableDropped { table }.into());
        }
        let built = match newest {
            Some(built) => built,
            None => self.build(hired, table, None).await?,
        };
        let before = hired.open.borrow_mut().remove(&table.id());
        if let Some(before) = before {
            let leases = before.state.take_leases();
            hired.give_back(&self.layout, table, leases).await?;
        }
        let layer = Layer::Inner(Box::new(InnerLayer::new(Arc::clone(&built.tree))));
        let open = Rc::new(Open {
            table: Arc::clone(table),
            built,
            state: IndexState::new(layer, Rc::clone(&hired.broken)),
        });
        let mut all = hired.open.borrow_mut();
        all.insert(table.id(), Rc::clone(&open));
        Ok(open)
    }

    /// Z2: a tree for a newer root than `before`; the same if there is none.
    pub(super) async fn build(
        &self,
        hired: &Hired<B::Endpoint>,
        table: &Arc<LeafTable>,
        before: Option<&Arc<Built>>,
    ) -> Result<Arc<Built>, IndexError> {
        for attempt in 0.. {
            let building = table.begin_building();
            // Looked at by who may build, too: somebody may have been done just before.
            let is_same = |now: &Arc<Built>| before.is_some_and(|old| Arc::ptr_eq(old, now));
            let newer = table.built().filter(|now| !is_same(now));
            match (newer, building) {
                (Some(newer), _) => return Ok(newer),
                (None, Some(building)) => return self.build_alone(hired, building, before).await,
                (None, None) => backoff(attempt).await,
            }
        }
        unreachable!("it goes on")
    }

    async fn build_alone(
        &self,
        hired: &Hired<B::Endpoint>,
        building: Building<'_>,
        before: Option<&Arc<Built>>,
    ) -> Result<Arc<Built>, IndexError> {
        let table = building.table;
        let access = hired.access(&self.layout, table);
        let root = finish_root(&access, &table.entry, &hired.broken).await?;
        if root.is_null() {
            let table = table.id();
            return Err(LeafError::TableDropped { table }.into());
        }
        if let Some(before) = before.filter(|before| before.root == root) {
            return Ok(Arc::clone(before));
        }
        let walked = walk(&access, root, &hired.broken).await?;
        let built = Arc::new(Built::new(root, walked.0, walked.1));
        building.end(Arc::clone(&built));
        table.make_all_due(&self.tables);
        Ok(built)
    }
}

/// All leaves behind a root, by links, and how many records they hold.
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
    let mut batch = Batch::new();
    let mut found: Option<(InnerTree, u64)> = None;
    while let Some(leaf) = index.survey_next(&mut batch, &mut survey).await? {
        let (tree, record_count) = found.get_or_insert_with(|| (InnerTree::new(leaf.addr), 0));
        tree.insert(leaf.low, leaf.addr);
        *record_count += leaf.record_count as u64;
    }
    let counters = endpoint.counters();
    counters.record(OperationKind::Control, &batch.take_cost());
    Ok(found.expect("keys begin in some leaf"))
}

impl<E: Endpoint> Hired<E> {
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

    /// Whether a table is there, after [`follow`](Self::follow): then its memory is not used again
    /// before that was called once more.
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
            // U5: nothing is leased on nodes that are to be left.
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

    /// V6: after a failure of the fabric another session may reach what this one does not.
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

    /// Gives chunks back that it leases for a table. If that fails, some may be the session's that
    /// nobody knows of, until it is fenced.
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
