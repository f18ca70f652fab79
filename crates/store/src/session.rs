//! One thread's way into a pool.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

use farleaf_executor::block_on;
use farleaf_fabric::mapped::MappedEndpoint;
use farleaf_fabric::{Batch, BatchError, Cost, Endpoint, KindCounters, OperationKind};
use farleaf_index::load::finish_root;
use farleaf_index::{IndexState, Layer};
use farleaf_leaf::{LeafAccess, LeafError, LeafGeometry};
use farleaf_region::catalog::{CatalogEntry, live_word};
use farleaf_region::session::{HEARTBEAT_DRAINED, heartbeat_addr};
use farleaf_types::{OwnerWord, RemoteAddr, SequenceNumber, TableId};

use crate::begin::{Begun, BegunBriefly, Unfinished};
use crate::options::{TableInfo, TableOptions};
use crate::pool::Pool;
use crate::table::Table;
use crate::{AsyncTable, Error, ErrorKind};

/// One thread's way into a pool. Tables opened through it keep it alive; when the last of them and
/// the session itself are dropped, it gives back what it leased and closes.
#[derive(Debug)]
pub struct Session(Rc<SessionCore>);

#[derive(Debug)]
pub(crate) struct SessionCore {
    pub(crate) endpoint: MappedEndpoint,
    pub(crate) owner: OwnerWord,
    pub(crate) unfinished: Unfinished,
    pub(crate) last_cost: Cell<Cost>,
    tables: RefCell<HashMap<TableId, Rc<TableState>>>,
    #[expect(
        clippy::vec_box,
        reason = "a batch is larger than a pointer and is moved twice per operation"
    )]
    batches: RefCell<Vec<Box<Batch>>>,
    /// Tables that were dropped while the session had them open; operations that began before may
    /// still lease leaves for them.
    dropped_tables: RefCell<Vec<Rc<TableState>>>,
    /// A write was cut off between its lock and its unlock: the session posts nothing any more
    /// (F6).
    broken: Rc<Cell<bool>>,
    /// Chunks may be owned that no lease knows of: a load or a creation is under way, or was cut
    /// off.
    pub(crate) owns_chunks: Cell<bool>,
    shut: Cell<bool>,
    /// Declared last: the pool stays open until the session has closed.
    pub(crate) pool: Pool,
}

/// What a session keeps of a table.
#[derive(Debug)]
pub(crate) struct TableState {
    pub(crate) info: TableInfo,
    pub(crate) entry: CatalogEntry,
    pub(crate) geometry: LeafGeometry,
    pub(crate) index: IndexState,
    /// The root that the index's layer was made from.
    root: Cell<RemoteAddr>,
    pub(crate) dropped: Cell<bool>,
}

impl Session {
    pub(crate) fn open(pool: Pool) -> Result<Self, Error> {
        let owner = pool.0.control.register_session()?;
        let note = pool.0.process.add(owner);
        let process = Arc::clone(&pool.0.process.note);
        Ok(Self(Rc::new(SessionCore {
            endpoint: MappedEndpoint::new(Arc::clone(&pool.0.region)),
            owner,
            unfinished: Unfinished::new(process, note),
            last_cost: Cell::default(),
            tables: RefCell::default(),
            batches: RefCell::default(),
            dropped_tables: RefCell::default(),
            broken: Rc::default(),
            owns_chunks: Cell::new(false),
            shut: Cell::new(false),
            pool,
        })))
    }

    /// Makes an empty table and opens it.
    ///
    /// # Errors
    /// The name is taken or bad, an option is out of range, or the pool is full.
    pub fn create_table(&self, name: &str, options: &TableOptions) -> Result<Table, Error> {
        let (begun, behind) = self.0.unfinished.begin();
        let _begun = self.0.follow(begun, behind)?;
        let entry = self.0.create_entry(name, options)?;
        self.0.open_entry(entry)
    }

    /// Opens a table: reads its directory, unless this process has it already.
    ///
    /// # Errors
    /// There is no such table, or it is damaged.
    pub fn open_table(&self, name: &str) -> Result<Table, Error> {
        let (begun, behind) = self.0.unfinished.begin();
        let _begun = self.0.follow(begun, behind)?;
        let entry = self.0.find_table(name)?;
        self.0.open_entry(entry)
    }

    /// Drops a table. Whoever has it open gets
    /// [`ErrorKind::TableDropped`](crate::ErrorKind::TableDropped) soon; its memory is free when no
    /// operation on it is under way any more anywhere.
    ///
    /// # Errors
    /// There is no such table.
    pub fn drop_table(&self, name: &str) -> Result<(), Error> {
        self.0.drop_entry(name)
    }

    /// All tables, in no order.
    ///
    /// # Errors
    /// The fabric failed, or the catalog is damaged.
    pub fn list_tables(&self) -> Result<Vec<TableInfo>, Error> {
        self.0.list()
    }

    /// The pool.
    pub fn pool(&self) -> &Pool {
        &self.0.pool
    }

    /// What operations of this kind have cost on this session (F9).
    pub fn counters(&self, kind: OperationKind) -> KindCounters {
        self.0.endpoint.counters().kind(kind)
    }

    /// What the operation that ended last has cost. With several operations under way, it is the
    /// right one directly after the await that ended it.
    pub fn last_cost(&self) -> Cost {
        self.0.last_cost.get()
    }

    /// Runs a future of this session's tables to its end.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.0.drive(future)
    }

    /// Closes the session if nothing else keeps it alive, and tells whether that went well;
    /// dropping it does the same and logs what went wrong.
    ///
    /// # Errors
    /// What it leased could not be given back, or the memory node cannot be reached; the node then
    /// sweeps it when the process ends.
    pub fn close(self) -> Result<(), Error> {
        if Rc::strong_count(&self.0) > 1 {
            return Ok(());
        }
        self.0.shut()
    }
}

impl SessionCore {
    pub(crate) fn drive<F: Future>(&self, future: F) -> F::Output {
        block_on(future, || self.endpoint.poll_completions())
    }

    /// A batch from the session's stock.
    #[expect(
        clippy::unnecessary_box_returns,
        reason = "moving a batch costs more than finding it"
    )]
    #[inline]
    pub(crate) fn take_batch(&self) -> Box<Batch> {
        self.batches.borrow_mut().pop().unwrap_or_default()
    }

    /// F6: nobody knows what the session's last batch did; it may hold a lock or a chunk. It posts
    /// nothing any more.
    pub(crate) fn mark_broken(&self) {
        self.broken.set(true);
    }

    /// Executes and counts a batch that is no operation's on a table (F9).
    pub(crate) fn control(&self, batch: &mut Batch) -> Result<(), BatchError> {
        let executed = self.drive(self.endpoint.execute(batch));
        let counters = self.endpoint.counters();
        counters.record(OperationKind::Control, &batch.take_cost());
        executed
    }

    /// Counts what an operation cost and takes its batch back.
    #[inline]
    pub(crate) fn finish(&self, kind: OperationKind, mut batch: Box<Batch>) {
        self.record(kind, batch.take_cost());
        self.batches.borrow_mut().push(batch);
    }

    /// Counts what an operation cost.
    #[inline]
    pub(crate) fn record(&self, kind: OperationKind, cost: Cost) {
        self.endpoint.counters().record(kind, &cost);
        self.last_cost.set(cost);
    }

    pub(crate) fn access<'a>(&'a self, table: &TableState) -> LeafAccess<'a, MappedEndpoint> {
        LeafAccess {
            endpoint: &self.endpoint,
            layout: &self.pool.0.layout,
            geometry: table.geometry,
            table: table.entry.record.id,
            owner: self.owner,
        }
    }

    fn open_entry(self: &Rc<Self>, entry: CatalogEntry) -> Result<Table, Error> {
        let id = entry.record.id;
        let known = self.tables.borrow().get(&id).cloned();
        let state = if let Some(state) = known {
            state
        } else {
            let state = Rc::new(self.table_state(entry)?);
            self.tables.borrow_mut().insert(id, Rc::clone(&state));
            state
        };
        Ok(Table::new(AsyncTable::new(Rc::clone(self), state)))
    }

    fn table_state(&self, entry: CatalogEntry) -> Result<TableState, Error> {
        let info = TableInfo::from_record(&entry.record)?;
        let geometry = info.options.check()?;
        let root = entry.root;
        let directory = self
            .pool
            .0
            .directory(&self.endpoint, geometry, entry.record.id, root)?;
        let layer = Layer::new(info.options.layer, directory);
        let index = IndexState::new(layer, Rc::clone(&self.broken));
        let (root, dropped) = (Cell::new(root), Cell::new(false));
        Ok(TableState {
            info,
            entry,
            geometry,
            index,
            root,
            dropped,
        })
    }

    /// What an operation does first: P1, and if something has changed, P4 and B4.
    #[inline]
    pub(crate) fn begin<'a>(&'a self, table: &TableState) -> Result<Begun<'a>, Error> {
        let (begun, behind) = self.unfinished.begin();
        if behind.is_some() || table.dropped.get() || self.broken.get() {
            return self.begin_slowly(table, begun, behind);
        }
        Ok(begun)
    }

    /// [`begin`](Self::begin) for an operation that ends, or is kept, before anything else of the
    /// session runs. `None`: something has changed, and `begin` sees to it.
    #[inline]
    pub(crate) fn begin_briefly(&self, table: &TableState) -> Option<BegunBriefly<'_>> {
        if table.dropped.get() || self.broken.get() {
            return None;
        }
        self.unfinished.begin_briefly()
    }

    #[cold]
    fn begin_slowly<'a>(
        &'a self,
        table: &TableState,
        begun: Begun<'a>,
        behind: Option<SequenceNumber>,
    ) -> Result<Begun<'a>, Error> {
        if self.broken.get() {
            // Others recover what it holds as soon as it counts as fenced.
            drop(begun);
            self.shut()?;
            return Err(ErrorKind::SessionBroken.into());
        }
        let begun = self.follow(begun, behind)?;
        if table.dropped.get() {
            return Err(ErrorKind::TableDropped {
                name: table.info.name.clone(),
            }
            .into());
        }
        Ok(begun)
    }

    /// P4, if the operation that has begun is behind.
    fn follow<'a>(
        &'a self,
        begun: Begun<'a>,
        behind: Option<SequenceNumber>,
    ) -> Result<Begun<'a>, Error> {
        let Some(sequence) = behind else {
            return Ok(begun);
        };
        self.look_for_dropped()?;
        Ok(self.unfinished.follow(begun, sequence))
    }

    /// Asks the catalog whether a table is still there, for operations that are worth a round trip:
    /// a drop shows there before its number has been drawn.
    pub(crate) fn check_live(&self, table: &TableState) -> Result<(), Error> {
        let layout = &self.pool.0.layout;
        let mut batch = Batch::new();
        let word = batch.read(layout.catalog_entry(table.entry.index), 1);
        self.control(&mut batch)?;
        if batch.words(word)[0] == live_word(table.entry.record.id) {
            return Ok(());
        }
        Err(ErrorKind::TableDropped {
            name: table.info.name.clone(),
        }
        .into())
    }

    /// P4.
    fn look_for_dropped(&self) -> Result<(), Error> {
        let tables: Vec<Rc<TableState>> = self.tables.borrow().values().cloned().collect();
        let mut batch = Batch::new();
        let words: Vec<_> = tables
            .iter()
            .map(|table| {
                (
                    table,
                    batch.read(self.pool.0.layout.catalog_entry(table.entry.index), 1),
                )
            })
            .collect();
        if words.is_empty() {
            return Ok(());
        }
        self.control(&mut batch)?;
        for (table, word) in words {
            let id = table.entry.record.id;
            if batch.words(word)[0] != live_word(id) && !table.dropped.replace(true) {
                self.tables.borrow_mut().remove(&id);
                self.pool.0.forget(id);
                self.dropped_tables.borrow_mut().push(Rc::clone(table));
                let mut lease = table.index.take_lease();
                self.drive(lease.give_back(&self.access(table)))?;
            }
        }
        Ok(())
    }

    /// Takes the newest root, and finishes it if its loader did not (B4).
    pub(crate) fn refresh(&self, table: &TableState) -> Result<(), Error> {
        let access = self.access(table);
        let root = self.drive(finish_root(&access, &table.entry));
        let root = root.map_err(|error| {
            if matches!(error, LeafError::Fabric(_)) {
                self.mark_broken();
            }
            Error::from(farleaf_index::IndexError::from(error))
        })?;
        if root == table.root.get() {
            table.index.follow_retired();
            return Ok(());
        }
        let id = table.entry.record.id;
        let directory = self
            .pool
            .0
            .directory(&self.endpoint, table.geometry, id, root)?;
        let layer = Layer::new(table.info.options.layer, directory);
        table.index.replace_layer(layer);
        table.root.set(root);
        Ok(())
    }

    /// Gives everything back and closes; the second time it does nothing.
    fn shut(&self) -> Result<(), Error> {
        if self.shut.replace(true) {
            return Ok(());
        }
        let mut given_back = Ok(());
        let is_broken = self.broken.get();
        let open = self.tables.take().into_values();
        for table in open.chain(self.dropped_tables.take()) {
            let mut lease = table.index.take_lease();
            if !is_broken {
                let result = self.drive(lease.give_back(&self.access(&table)));
                given_back = given_back.and(result);
            }
        }
        // After this the process's thread writes nothing to the session's block.
        self.pool.0.process.remove(self.unfinished.note());
        if !is_broken && !self.owns_chunks.get() && given_back.is_ok() {
            self.write_drained()?;
        }
        self.pool.0.control.close_session(self.owner)?;
        Ok(given_back?)
    }

    fn write_drained(&self) -> Result<(), Error> {
        let Some((session, _)) = self.owner.holder() else {
            return Ok(());
        };
        let mut batch = Batch::new();
        batch.write_word(
            heartbeat_addr(&self.pool.0.layout, session),
            HEARTBEAT_DRAINED,
        );
        Ok(self.control(&mut batch)?)
    }
}

impl Drop for SessionCore {
    fn drop(&mut self) {
        if let Err(error) = self.shut() {
            tracing::warn!(owner = %self.owner, %error, "a session did not close cleanly");
        }
    }
}
