//! What an operation does before it begins: P1, and if something has changed, P4 and B4.

use std::rc::Rc;

use farleaf_fabric::{Batch, Endpoint, OperationKind, ProtocolCheck};
use farleaf_index::load::finish_root;
use farleaf_index::tree::node::Entry;
use farleaf_index::{Index, IndexError};
use farleaf_region::catalog::{live_word, root_addr};
use farleaf_region::members::MemberState;
use farleaf_types::SequenceNumber;

use super::base::{DroppedTable, SessionCore, TableState};
use super::catalog::Known;
use crate::async_table::Rare;
use crate::begin::{Begun, BegunBriefly};
use crate::host::Host;
use crate::{Error, ErrorKind};

impl<H: Host> SessionCore<H> {
    /// Begins an operation on a table. `None`: something has changed, and
    /// [`begin_slowly`](Self::begin_slowly) sees to it.
    #[expect(clippy::inline_always, reason = "what it returns would go by memory")]
    #[inline(always)]
    pub(crate) fn begin_at_once(&self, table: &TableState) -> Option<Begun<'_>> {
        let (begun, behind) = self.unfinished.begin();
        let is_ready = behind.is_none() && !self.has_news.get();
        (is_ready && !table.is_apart.get() && !self.is_broken()).then_some(begun)
    }

    /// [`begin_at_once`](Self::begin_at_once) for an operation that ends, or is kept, before
    /// anything else of the session runs.
    #[inline]
    pub(crate) fn begin_briefly(&self, table: &TableState) -> Option<BegunBriefly<'_>> {
        if table.is_read_apart.get() || self.is_broken() || self.has_news.get() {
            return None;
        }
        self.unfinished.begin_briefly()
    }

    /// Begins an operation on a table, whatever has changed.
    #[cold]
    pub(crate) fn begin_slowly<'a>(&'a self, table: &'a TableState) -> Rare<'a, Begun<'a>> {
        Box::pin(async {
            let begun = self.begin().await?;
            if table.dropped.get() {
                return Err(dropped(table));
            }
            Ok(begun)
        })
    }

    /// Begins an operation that is not on a table: P1, and P4 if the session is behind.
    pub(crate) async fn begin(&self) -> Result<Begun<'_>, Error> {
        if self.is_broken() {
            // Others recover what it holds as soon as it counts as fenced; which it may only when
            // nothing of it is under way (F6).
            if self.unfinished.is_idle() {
                self.shut().await?;
            }
            return Err(ErrorKind::SessionBroken.into());
        }
        let (begun, behind) = self.unfinished.begin();
        self.take_news().await?;
        let Some(sequence) = behind else {
            return Ok(begun);
        };
        loop {
            let opened_count = self.opened_count.get();
            self.look_for_dropped(sequence).await?;
            // A table that was opened meanwhile has not been looked at.
            if self.opened_count.get() == opened_count {
                return Ok(self.unfinished.follow(begun, sequence));
            }
        }
    }

    /// P4.
    pub(super) async fn look_for_dropped(&self, sequence: SequenceNumber) -> Result<(), Error> {
        self.look_for_dropped_bytes(sequence).await?;
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
        // C6: a node that has restarted has dropped nothing, it is empty.
        let known = Known::ask(&mut batch, self.layout(), self.owner);
        self.control(&mut batch).await?;
        known.check(&batch)?;
        let is_followed = !self.endpoint.leaves_out(ProtocolCheck::RootsAreFollowed);
        for (table, word, root) in words {
            let id = table.entry.record.id;
            let root = batch.words(root)[0];
            let is_dropped = batch.words(word)[0] != live_word(id)
                && !self.endpoint.leaves_out(ProtocolCheck::DropsAreFollowed);
            if is_dropped && !table.dropped.replace(true) {
                table.is_apart.set(true);
                table.is_read_apart.set(true);
                self.tables.borrow_mut().remove(&id);
                self.share().forget(id);
                self.dropped_tables.borrow_mut().push(DroppedTable {
                    table: Rc::clone(table),
                    followed_to: sequence,
                });
                self.has_news.set(true);
                self.give_back_lease(table).await?;
            } else if !is_dropped && root != table.root.get().word() && is_followed {
                self.refresh(table).await?;
            }
            self.leave_closed_nodes(table).await?;
        }
        Ok(())
    }

    /// Sees to what operations have set the session's flag for.
    async fn take_news(&self) -> Result<(), Error> {
        if !self.has_news.get() {
            return Ok(());
        }
        // What is left over sets it again.
        self.has_news.set(false);
        self.forget_dropped().await?;
        self.forget_dropped_bytes().await?;
        if !self.dropped_tables.borrow().is_empty() {
            self.has_news.set(true);
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

    /// I3: lists leaves of a table's tree that operations have found unlisted.
    async fn list_leaves(&self, table: &TableState, leaves: &[Entry]) -> Result<(), Error> {
        let mut batch = Batch::new();
        let index = Index::new(self.access(table), &table.index);
        let listed = index.list_unlisted(&mut batch, leaves).await;
        let counters = self.endpoint.counters();
        counters.record(OperationKind::Control, &batch.take_cost());
        Ok(listed?)
    }

    /// Takes a newer cache of a table's tree, if its index wants one; reads it, unless another
    /// session of the process is about to. What the tree lacks of what was met is listed.
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

    /// Gives back what operations that began before a drop have leased since, once the last of them
    /// has ended: until then the table's memory cannot become free.
    async fn forget_dropped(&self) -> Result<(), Error> {
        if self.dropped_tables.borrow().is_empty() || self.unfinished.has_older() {
            return Ok(());
        }
        let followed = self.unfinished.followed();
        let dropped = self.dropped_tables.take().into_iter();
        let (over, waiting): (Vec<_>, Vec<_>) =
            dropped.partition(|dropped| dropped.followed_to <= followed);
        if !waiting.is_empty() {
            self.has_news.set(true);
        }
        self.dropped_tables.replace(waiting);
        for dropped in over {
            self.give_back_lease(&dropped.table).await?;
        }
        Ok(())
    }

    /// U5: gives back what it leases on nodes that are to be left.
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

    /// If it is cut off, or fails, chunks are owned that no lease knows of.
    async fn give_back_lease(&self, table: &TableState) -> Result<(), Error> {
        let leases = table.index.take_leases();
        self.chunk_owner_count.update(|count| count + 1);
        for mut lease in leases {
            lease.give_back(&self.access(table)).await?;
        }
        self.chunk_owner_count.update(|count| count - 1);
        Ok(())
    }

    /// Asks the catalog whether a table is still there, for operations that are worth a round trip:
    /// a drop shows there before its number has been drawn.
    pub(crate) async fn check_live(&self, table: &TableState) -> Result<(), Error> {
        let mut batch = Batch::new();
        let known = Known::ask(&mut batch, self.layout(), self.owner);
        let word = batch.read(self.layout().catalog_entry(table.entry.index), 1);
        self.control(&mut batch).await?;
        known.check(&batch)?;
        if batch.words(word)[0] == live_word(table.entry.record.id) {
            return Ok(());
        }
        Err(dropped(table))
    }

    /// Takes the newest root, and finishes it if its loader did not (B4).
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
            if self.take_root(table, (before, root)).await? {
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
