//! State of open tables of byte strings in a session, and the background work for them.

use std::cell::Cell;
use std::rc::Rc;

use farleaf_base::{RemoteAddr, SequenceNumber, TableId};
use farleaf_fabric::{Batch, ProtocolCheck};
use farleaf_index::load::finish_root;
use farleaf_index::partial::Budget;
use farleaf_index::strings::ByteIndexState;
use farleaf_index::strings::snapshot::SnapshotParts;
use farleaf_index::{IndexError, LayerKind};
use farleaf_leaf::strings::PageGeometry;
use farleaf_leaf::strings::format::{PageAccess, block_access};
use farleaf_pool::catalog::{CatalogEntry, live_word, root_addr};
use farleaf_pool::members::MemberState;

use super::AsyncByteTable;
use super::operating::{WAIT_COUNT_MAX, rest};
use crate::begin::OperationGuard;
use crate::host::SessionHost;
use crate::options::{PageOptions, TableInfo, TableKind};
use crate::session::{KnownSessionCheck, SessionCore};
use crate::{Error, ErrorKind};

/// State of an open table of byte strings in a session.
#[derive(Debug)]
pub(crate) struct ByteTableState {
    pub(crate) info: TableInfo,
    pub(crate) pages: PageOptions,
    pub(crate) entry: CatalogEntry,
    pub(crate) geometry: PageGeometry,
    pub(crate) index: ByteIndexState,
    /// Listing of the table's pages, if its search layer is `rf-tree`.
    pub(super) listing: Option<Rc<ByteTableState>>,
    /// Root from which the index's search layer was read.
    pub(super) root: Cell<RemoteAddr>,
    dropped: Cell<bool>,
}

/// Table that was dropped while the session had it open.
#[derive(Debug)]
pub(crate) struct DroppedByteTable {
    table: Rc<ByteTableState>,
    /// Number to which the session caught up when it found the table dropped. Operations on the
    /// table began earlier.
    caught_up_to: SequenceNumber,
}

impl<H: SessionHost> SessionCore<H> {
    pub(crate) fn page_access(
        &self,
        geometry: PageGeometry,
        table: TableId,
    ) -> PageAccess<'_, H::Endpoint> {
        PageAccess {
            endpoint: &self.endpoint,
            layout: self.layout(),
            geometry,
            table,
            owner: self.owner,
        }
    }

    pub(crate) fn byte_access<'a>(&'a self, table: &ByteTableState) -> PageAccess<'a, H::Endpoint> {
        self.page_access(table.geometry, table.entry.record.id)
    }

    /// Opens a table that the operation `guard` has found in the catalog.
    pub(crate) async fn open_bytes(
        self: &Rc<Self>,
        entry: CatalogEntry,
        guard: &OperationGuard<'_>,
    ) -> Result<AsyncByteTable<H>, Error> {
        let id = entry.record.id;
        let known = self.byte_tables.borrow().get(&id).cloned();
        let state = if let Some(state) = known {
            state
        } else {
            let state = Rc::new(self.byte_table_state(entry, guard).await?);
            // Another future of the session may have opened it meanwhile; they share one state.
            self.opened_count.update(|count| count + 1);
            Rc::clone(self.byte_tables.borrow_mut().entry(id).or_insert(state))
        };
        // Other futures may have caught up meanwhile without this table, so check whether it was
        // dropped.
        if guard.is_behind() {
            self.find_dropped_byte_tables(self.unfinished.followed())
                .await?;
        }
        Ok(AsyncByteTable::new(Rc::clone(self), state))
    }

    async fn byte_table_state(
        self: &Rc<Self>,
        entry: CatalogEntry,
        guard: &OperationGuard<'_>,
    ) -> Result<ByteTableState, Error> {
        let info = TableInfo::from_record(&entry.record)?;
        let TableKind::Bytes(pages) = info.options.kind else {
            info.check_kind(TableKind::Bytes(PageOptions::default()))?;
            unreachable!("other kinds are refused");
        };
        let geometry = info.options.page_geometry(pages)?;
        let (root, id) = (entry.root, entry.record.id);
        let budget = self.options.budget_for(info.options.layer)?;
        let listing = match info.options.layer {
            LayerKind::RfTree => Some(self.open_listing(&entry, guard).await?),
            _ => None,
        };
        let (inline, broken) = (
            pages.inline_value_size_bytes as usize,
            Rc::clone(&self.broken),
        );
        let mut index = if let Some(budget) = budget {
            let snapshot = self.byte_snapshot(geometry, id, root, budget).await?;
            ByteIndexState::partial(snapshot, budget, inline, broken)
        } else {
            let directory = self.byte_directory(geometry, id, root, listing.as_deref());
            ByteIndexState::new(directory.await?, inline, broken)
        };
        if listing.is_some() {
            index = index.with_listing(self.link_count_max());
        }
        Ok(ByteTableState {
            info,
            pages,
            entry,
            geometry,
            index,
            listing,
            root: Cell::new(root),
            dropped: Cell::new(false),
        })
    }

    /// Begins an operation on a table of byte strings.
    pub(crate) async fn begin_bytes(
        &self,
        table: &ByteTableState,
    ) -> Result<OperationGuard<'_>, Error> {
        let guard = self.begin().await?;
        if table.dropped.get() {
            return Err(dropped(table));
        }
        Ok(guard)
    }

    /// Checks which open tables of byte strings were dropped or have new roots, and returns memory
    /// leased for dropped ones.
    pub(crate) async fn find_dropped_byte_tables(
        &self,
        sequence: SequenceNumber,
    ) -> Result<(), Error> {
        // Collected first, so that nothing is borrowed below, where dropped tables are removed and
        // others may be opened.
        let tables: Vec<Rc<ByteTableState>> = self.byte_tables.borrow().values().cloned().collect();
        if tables.is_empty() {
            return Ok(());
        }
        let mut batch = Batch::new();
        let words = tables.iter().map(|table| {
            let (layout, index) = (self.layout(), table.entry.index);
            let word = batch.read(layout.catalog_entry(index), 1);
            (table, word, batch.read(root_addr(layout, index), 1))
        });
        let words: Vec<_> = words.collect();
        // A node that has restarted is empty, which does not mean that its tables were dropped.
        let known = KnownSessionCheck::ask(&mut batch, self.layout(), self.owner);
        self.control(&mut batch).await?;
        known.check(&batch)?;
        for (table, word, root) in words {
            let id = table.entry.record.id;
            let root = batch.words(root)[0];
            let is_dropped = batch.words(word)[0] != live_word(id)
                && !self.skips_check(ProtocolCheck::DropsAreFollowed);
            if is_dropped && !table.dropped.replace(true) {
                self.byte_tables.borrow_mut().remove(&id);
                self.share().forget(id);
                self.dropped_byte_tables
                    .borrow_mut()
                    .push(DroppedByteTable {
                        table: Rc::clone(table),
                        caught_up_to: sequence,
                    });
                self.has_pending_work.set(true);
                self.return_pages(table).await?;
            } else if !is_dropped
                && root != table.root.get().word()
                && !self.skips_check(ProtocolCheck::RootsAreFollowed)
            {
                self.refresh_bytes(table).await?;
            }
            self.leave_closed_nodes_with_bytes(table).await?;
        }
        Ok(())
    }

    pub(super) fn skips_check(&self, check: ProtocolCheck) -> bool {
        farleaf_fabric::Endpoint::skips_check(&self.endpoint, check)
    }

    /// Returns pages that the session leases on nodes that are draining or lost.
    async fn leave_closed_nodes_with_bytes(&self, table: &ByteTableState) -> Result<(), Error> {
        if table.index.leases().has_unlinked() {
            return Ok(());
        }
        let members = self.layout().members();
        let is_open = |node| members.state(node) == Some(MemberState::Active);
        for mut lease in table.index.leases().take_except(is_open) {
            self.chunk_owner_count.update(|count| count + 1);
            lease.give_back(&self.byte_access(table)).await?;
            self.chunk_owner_count.update(|count| count - 1);
        }
        Ok(())
    }

    /// Returns memory that operations which began before a drop have leased since, once the last of
    /// them has ended. Until then the table's memory cannot become free.
    pub(crate) async fn forget_dropped_bytes(&self) -> Result<(), Error> {
        if self.dropped_byte_tables.borrow().is_empty() {
            return Ok(());
        }
        if self.unfinished.has_older() {
            self.has_pending_work.set(true);
            return Ok(());
        }
        let followed = self.unfinished.followed();
        let dropped = self.dropped_byte_tables.take().into_iter();
        let (over, waiting): (Vec<_>, Vec<_>) =
            dropped.partition(|dropped| dropped.caught_up_to <= followed);
        if !waiting.is_empty() {
            self.has_pending_work.set(true);
        }
        self.dropped_byte_tables.replace(waiting);
        for dropped in over {
            self.return_pages(&dropped.table).await?;
        }
        Ok(())
    }

    /// Returns a table's leased memory. If this is cancelled or fails, the session owns chunks that
    /// are not part of a lease.
    async fn return_pages(&self, table: &ByteTableState) -> Result<(), Error> {
        self.chunk_owner_count.update(|count| count + 1);
        for mut lease in table.index.leases().take_all() {
            lease.give_back(&self.byte_access(table)).await?;
        }
        self.chunk_owner_count.update(|count| count - 1);
        Ok(())
    }

    /// Returns the memory that a closing session holds for tables of byte strings, and returns
    /// whether nothing is left for the memory node to sweep. If the session `was_broken`, it
    /// returns no memory and leaves that to others.
    pub(crate) async fn return_byte_tables(&self, was_broken: bool) -> Result<bool, Error> {
        let open: Vec<_> = self.byte_tables.take().into_values().collect();
        let dropped = self.dropped_byte_tables.take().into_iter();
        let mut holds_nothing = true;
        for table in dropped.map(|dropped| dropped.table) {
            if !was_broken {
                self.return_pages(&table).await?;
            }
        }
        for table in open {
            if was_broken {
                continue;
            }
            self.return_pages(&table).await?;
            let access = self.byte_access(&table);
            let blocks = table.index.block_store();
            self.wait_for_chunks(&table).await?;
            blocks
                .give_back(&block_access(&access))
                .await
                .map_err(farleaf_index::strings::ByteIndexError::from)?;
            // Pieces of chunks count as well: in a chunk that another session leases they are still
            // held.
            holds_nothing &= blocks.is_empty();
        }
        Ok(holds_nothing)
    }

    /// Waits, for at most a fifth of a second, until large values that this session has unlinked
    /// pass their grace period, so that it can free them while it closes. The memory node would
    /// free them only some seconds later, and the next large value might find the pool full.
    async fn wait_for_chunks(&self, table: &ByteTableState) -> Result<(), Error> {
        let blocks = table.index.block_store();
        let access = self.byte_access(table);
        let mut wait_count = 0;
        while blocks.has_unlinked_chunks() && wait_count < WAIT_COUNT_MAX {
            if wait_count > 0 {
                rest().await;
            }
            wait_count += 1;
            let recycled = blocks.recycle(&block_access(&access)).await;
            recycled.map_err(farleaf_index::strings::ByteIndexError::from)?;
        }
        Ok(())
    }

    /// Takes the newest root, and completes its load if the loader did not.
    pub(crate) async fn refresh_bytes(&self, table: &ByteTableState) -> Result<(), Error> {
        loop {
            let before = table.root.get();
            let access = self.byte_access(table);
            let root = finish_root(&access, &table.entry, &self.broken).await;
            let root = root.map_err(IndexError::from)?;
            if root.is_null() || root == table.root.get() {
                table.index.follow_retired();
                return Ok(());
            }
            if self.take_byte_root(table, before, root).await? {
                return Ok(());
            }
        }
    }

    /// Replaces the root `from`, through which a table is searched, by `to`. Returns false if
    /// another future has replaced it meanwhile, perhaps by a newer root.
    async fn take_byte_root(
        &self,
        table: &ByteTableState,
        from: RemoteAddr,
        to: RemoteAddr,
    ) -> Result<bool, Error> {
        let id = table.entry.record.id;
        if let Some(budget) = self.options.budget_for(table.info.options.layer)? {
            let snapshot = self.byte_snapshot(table.geometry, id, to, budget).await?;
            if table.root.get() != from {
                return Ok(false);
            }
            let keeps_parts = self.skips_check(ProtocolCheck::PagesBelongToRoot);
            let index = &table.index;
            index.replace_snapshot(snapshot, budget, keeps_parts);
        } else {
            let listing = table.listing.as_deref();
            let directory = self.byte_directory(table.geometry, id, to, listing);
            let directory = directory.await?;
            if table.root.get() != from {
                return Ok(false);
            }
            table.index.replace_directory(directory);
        }
        table.root.set(to);
        Ok(true)
    }

    /// Reads the part of the snapshot behind a root that a session with a metadata budget always
    /// holds.
    async fn byte_snapshot(
        &self,
        geometry: PageGeometry,
        table: TableId,
        root: RemoteAddr,
        budget: Budget,
    ) -> Result<SnapshotParts, Error> {
        self.share().refresh_nodes(&self.endpoint).await?;
        let head_bytes_max = budget.head_bytes_max();
        let opened = SnapshotParts::open(
            &self.endpoint,
            self.layout(),
            geometry,
            table,
            root,
            head_bytes_max,
        );
        Ok(opened.await?)
    }

    /// Checks in the catalog whether a table still exists.
    pub(crate) async fn check_live_bytes(&self, table: &ByteTableState) -> Result<(), Error> {
        let mut batch = Batch::new();
        let known = KnownSessionCheck::ask(&mut batch, self.layout(), self.owner);
        let word = batch.read(self.layout().catalog_entry(table.entry.index), 1);
        self.control(&mut batch).await?;
        known.check(&batch)?;
        if batch.words(word)[0] == live_word(table.entry.record.id) {
            return Ok(());
        }
        Err(dropped(table))
    }
}

fn dropped(table: &ByteTableState) -> Error {
    ErrorKind::TableDropped {
        name: table.info.name.clone(),
    }
    .into()
}
