//! Steps before an operation begins: its note and, if something has changed, the checks for dropped
//! tables, new roots and newer caches.

use std::rc::Rc;

use farleaf_base::SequenceNumber;
use farleaf_fabric::{Batch, Endpoint, OperationKind, ProtocolCheck};
use farleaf_index::load::finish_root;
use farleaf_index::tree::node::ChildEntry;
use farleaf_index::{Index, IndexError};
use farleaf_pool::catalog::{live_word, root_addr};
use farleaf_pool::members::MemberState;

use super::base::{DroppedTable, SessionCore, TableState};
use super::catalog::KnownSessionCheck;
use crate::async_table::SlowPathFuture;
use crate::begin::{BriefOperationGuard, OperationGuard};
use crate::host::SessionHost;
use crate::{Error, ErrorKind};

impl<H: SessionHost> SessionCore<H> {
    /// Begins an operation on a table. `None`: something has changed, and the caller uses
    /// [`begin_on_slow_path`](Self::begin_on_slow_path).
    #[expect(clippy::inline_always, reason = "what it returns would go by memory")]
    #[inline(always)]
    pub(crate) fn begin_at_once(&self, table: &TableState) -> Option<OperationGuard<'_>> {
        let (guard, behind) = self.unfinished.begin();
        let is_ready = behind.is_none() && !self.has_pending_work.get();
        (is_ready && !table.needs_slow_path.get() && !self.is_broken()).then_some(guard)
    }

    /// Begins an operation like [`begin_at_once`](Self::begin_at_once) if it ends, or is kept,
    /// before anything else of the session runs.
    #[inline]
    pub(crate) fn begin_briefly(&self, table: &TableState) -> Option<BriefOperationGuard<'_>> {
        if table.reads_need_slow_path.get() || self.is_broken() || self.has_pending_work.get() {
            return None;
        }
        self.unfinished.begin_briefly()
    }

    /// Begins an operation on a table, whatever has changed.
    #[cold]
    pub(crate) fn begin_on_slow_path<'a>(
        &'a self,
        table: &'a TableState,
    ) -> SlowPathFuture<'a, OperationGuard<'a>> {
        Box::pin(async {
            let guard = self.begin().await?;
            if table.dropped.get() {
                return Err(dropped(table));
            }
            Ok(guard)
        })
    }

    /// Begins an operation that is not on a table: notes it, and catches up if the session is
    /// behind.
    pub(crate) async fn begin(&self) -> Result<OperationGuard<'_>, Error> {
        if self.is_broken() {
            // Others recover what the session holds once it counts as fenced, which requires that
            // it has no unfinished operation (FABRIC-6).
            if self.unfinished.is_idle() {
                self.shut_down().await?;
            }
            return Err(ErrorKind::SessionBroken.into());
        }
        let (guard, behind) = self.unfinished.begin();
        self.do_pending_work().await?;
        let Some(sequence) = behind else {
            return Ok(guard);
        };
        loop {
            let opened_count = self.opened_count.get();
            self.find_dropped(sequence).await?;
            // A table that was opened meanwhile has not been checked.
            if self.opened_count.get() == opened_count {
                return Ok(self.unfinished.follow(guard, sequence));
            }
        }
    }

    /// Checks which open tables were dropped or have new roots, and returns memory leased for
    /// dropped ones.
    pub(super) async fn find_dropped(&self, sequence: SequenceNumber) -> Result<(), Error> {
        self.find_dropped_byte_tables(sequence).await?;
        let tables: Vec<Rc<TableState>> = self.tables.borrow().values().cloned().collect();
        if tables.is_empty() {
            return Ok(());
        }
        let mut batch = Batch::new();
        let words: Vec<_> = tables
            .iter()
            .map(|table| {
                let (layout, index) = (self.layout(), table.entry.index);
                let word = batch.read(layout.catalog_entry(index), 1);
                (table, word, batch.read(root_addr(layout, index), 1))
            })
            .collect();
        // A node that has restarted is empty, which does not mean that its tables were dropped.
        let known = KnownSessionCheck::ask(&mut batch, self.layout(), self.owner);
        self.control(&mut batch).await?;
        known.check(&batch)?;
        let is_followed = !self.endpoint.skips_check(ProtocolCheck::RootsAreFollowed);
        for (table, word, root) in words {
            let id = table.entry.record.id;
            let root = batch.words(root)[0];
            let is_dropped = batch.words(word)[0] != live_word(id)
                && !self.endpoint.skips_check(ProtocolCheck::DropsAreFollowed);
            if is_dropped && !table.dropped.replace(true) {
                table.needs_slow_path.set(true);
                table.reads_need_slow_path.set(true);
                self.tables.borrow_mut().remove(&id);
                self.share().forget(id);
                self.dropped_tables.borrow_mut().push(DroppedTable {
                    table: Rc::clone(table),
                    caught_up_to: sequence,
                });
                self.has_pending_work.set(true);
                self.return_lease(table).await?;
            } else if !is_dropped && root != table.root.get().word() && is_followed {
                self.refresh(table).await?;
            }
            self.leave_closed_nodes(table).await?;
        }
        Ok(())
    }

    /// Does the work for which operations have set the session's flag.
    async fn do_pending_work(&self) -> Result<(), Error> {
        if !self.has_pending_work.get() {
            return Ok(());
        }
        // Set again below if work is left.
        self.has_pending_work.set(false);
        self.forget_dropped().await?;
        self.forget_dropped_bytes().await?;
        if !self.dropped_tables.borrow().is_empty() {
            self.has_pending_work.set(true);
        }
        let tables: Vec<Rc<TableState>> = self.tables.borrow().values().cloned().collect();
        for table in tables {
            self.renew_cache(&table).await?;
            if let Some(leaf) = table.index.take_due_listing() {
                self.list_leaves(&table, &[leaf]).await?;
            }
        }
        Ok(())
    }

    /// Lists leaves in a table's tree that operations have found unlisted.
    async fn list_leaves(&self, table: &TableState, leaves: &[ChildEntry]) -> Result<(), Error> {
        let mut batch = Batch::new();
        let index = Index::new(self.access(table), &table.index);
        let listed = index.list_unlisted(&mut batch, leaves).await;
        let counters = self.endpoint.counters();
        counters.record(OperationKind::Control, &batch.take_cost());
        Ok(listed?)
    }

    /// Replaces a table's tree cache if its index needs a newer one, unless another session of the
    /// process is reading one. Lists leaves that operations have met and the new tree lacks.
    async fn renew_cache(&self, table: &TableState) -> Result<(), Error> {
        let Some(old) = table.index.wants_newer() else {
            return Ok(());
        };
        let (root, id) = (table.root.get(), table.entry.record.id);
        let tree = self.tree_access(table.geometry, id);
        let newer = self.share().newer_tree_cache(tree, root, &old).await?;
        let Some(newer) = newer.filter(|_| table.root.get() == root) else {
            return Ok(());
        };
        let unlisted = table.index.renew_cache(newer);
        self.list_leaves(table, &unlisted).await
    }

    /// Returns memory that operations which began before a drop have leased since, once the last of
    /// them has ended. Until then the table's memory cannot become free.
    async fn forget_dropped(&self) -> Result<(), Error> {
        if self.dropped_tables.borrow().is_empty() || self.unfinished.has_older() {
            return Ok(());
        }
        let followed = self.unfinished.followed();
        let dropped = self.dropped_tables.take().into_iter();
        let (over, waiting): (Vec<_>, Vec<_>) =
            dropped.partition(|dropped| dropped.caught_up_to <= followed);
        if !waiting.is_empty() {
            self.has_pending_work.set(true);
        }
        self.dropped_tables.replace(waiting);
        for dropped in over {
            self.return_lease(&dropped.table).await?;
        }
        Ok(())
    }

    /// Returns memory that the session leases on nodes that are draining or lost.
    async fn leave_closed_nodes(&self, table: &TableState) -> Result<(), Error> {
        let members = self.layout().members();
        let is_open = |node| members.state(node) == Some(MemberState::Active);
        for mut lease in table.index.take_leases_but(is_open) {
            self.chunk_owner_count.update(|count| count + 1);
            lease.give_back(&self.access(table)).await?;
            self.chunk_owner_count.update(|count| count - 1);
        }
        Ok(())
    }

    /// Returns a table's leased memory. If this is cancelled or fails, the session owns chunks that
    /// are not part of a lease.
    async fn return_lease(&self, table: &TableState) -> Result<(), Error> {
        let leases = table.index.take_leases();
        self.chunk_owner_count.update(|count| count + 1);
        for mut lease in leases {
            lease.give_back(&self.access(table)).await?;
        }
        self.chunk_owner_count.update(|count| count - 1);
        Ok(())
    }

    /// Checks in the catalog whether a table still exists, for operations that are worth a round
    /// trip: the catalog shows a drop before its sequence number is drawn.
    pub(crate) async fn check_live(&self, table: &TableState) -> Result<(), Error> {
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

    /// Takes the newest root, and completes its load if the loader did not.
    pub(crate) async fn refresh(&self, table: &TableState) -> Result<(), Error> {
        loop {
            let before = table.root.get();
            let access = self.access(table);
            let root = finish_root(&access, &table.entry, &self.broken).await;
            let root = root.map_err(IndexError::from)?;
            if root.is_null() || root == table.root.get() {
                table.index.follow_retired();
                return Ok(());
            }
            if self.take_root(table, before, root).await? {
                return Ok(());
            }
        }
    }
}

fn dropped(table: &TableState) -> Error {
    ErrorKind::TableDropped {
        name: table.info.name.clone(),
    }
    .into()
}
