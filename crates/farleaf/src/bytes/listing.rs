//! Listings of tables of byte strings with search layer `rf-tree`, and the caches of listings that
//! the sessions of a process share (see `farleaf_index::strings::rf_tree`).

use std::rc::Rc;
use std::sync::Arc;

use farleaf_base::{RemoteAddr, TableId};
use farleaf_fabric::{OperationKind, ProtocolCheck};
use farleaf_index::strings::operation::{Change, Condition, RecordBuffer, ScanCursor};
use farleaf_index::strings::rf_tree::{CacheBuilder, ListedPage, counts};
use farleaf_index::strings::snapshot::read_directory;
use farleaf_index::strings::{ByteDirectory, ByteIndex, ByteLoadError};
use farleaf_leaf::strings::PageGeometry;
use farleaf_pool::catalog::CatalogEntry;

use super::{AsyncByteTable, ByteTableState};
use crate::begin::OperationGuard;
use crate::host::SessionHost;
use crate::session::SessionCore;
use crate::{Error, ErrorKind};

/// Entries that one batch reads.
const READ_COUNT: usize = 4096;

impl<H: SessionHost> SessionCore<H> {
    /// Opens the listing of a table that the operation `guard` has found.
    pub(super) async fn open_listing(
        self: &Rc<Self>,
        table: &CatalogEntry,
        guard: &OperationGuard<'_>,
    ) -> Result<Rc<ByteTableState>, Error> {
        let entry = self.find_listing(table).await?;
        let listing = Box::pin(self.open_bytes(entry, guard)).await?;
        Ok(listing.state)
    }

    /// Returns the search structure of the pages behind a root: the models, or the cache of the
    /// table's listing. The caller must have begun an operation.
    pub(super) async fn byte_directory(
        &self,
        geometry: PageGeometry,
        table: TableId,
        root: RemoteAddr,
        listing: Option<&ByteTableState>,
    ) -> Result<Arc<ByteDirectory>, Error> {
        let read = async || {
            self.read_byte_directory(geometry, table, root, listing)
                .await
        };
        let share = self.share();
        share
            .byte_directory(&self.endpoint, table, root, read)
            .await
    }

    async fn read_byte_directory(
        &self,
        geometry: PageGeometry,
        table: TableId,
        root: RemoteAddr,
        listing: Option<&ByteTableState>,
    ) -> Result<ByteDirectory, Error> {
        let (endpoint, layout) = (&self.endpoint, self.layout());
        let trained = read_directory(endpoint, layout, geometry, table, root).await?;
        let Some(listing) = listing else {
            return Ok(trained);
        };
        match self.read_listing(listing, &trained).await {
            Ok(Some(cache)) => Ok(cache),
            Ok(None) => {
                tracing::warn!(%table, "the listing of a table's pages is incomplete");
                Ok(trained)
            }
            // The lost node had some of the listing. The pages that the last load reported are
            // still known and lead to the remaining ones.
            Err(error) if matches!(error.kind(), ErrorKind::NodeLost { .. }) => {
                tracing::warn!(%table, %error, "the listing of a table's pages is partly lost");
                Ok(trained)
            }
            Err(error) => Err(error),
        }
    }

    /// Reads a listing. An operation must have begun; none begins here, because this may run while
    /// one begins.
    async fn read_listing(
        &self,
        listing: &ByteTableState,
        trained: &ByteDirectory,
    ) -> Result<Option<ByteDirectory>, Error> {
        let mut cache = CacheBuilder::new(self.layout(), trained);
        if self.skips_check(ProtocolCheck::ListedLoadHasCommitted) {
            cache = cache.trusting_all();
        }
        let mut cursor = ScanCursor::new(b"", None);
        let mut entries = RecordBuffer::new();
        while !cursor.is_finished() {
            entries.clear();
            let index = ByteIndex::new(self.byte_access(listing), &listing.index);
            let mut batch = self.take_batch();
            let read = index.scan(&mut batch, &mut cursor, READ_COUNT, &mut entries);
            let read = read.await;
            self.finish(OperationKind::Control, batch);
            match read {
                Ok(()) => {}
                Err(error) if error.is_outdated() => {
                    Box::pin(self.refresh_bytes(listing)).await?;
                }
                Err(error) => return Err(error.into()),
            }
            for (low, page) in entries.iter() {
                cache.push(low, page);
            }
        }
        Ok(cache.finish())
    }

    /// Returns a newer cache than `old` if one exists or could be read; `None` if another session
    /// is reading one, or the root has changed.
    async fn newer_byte_cache(
        &self,
        table: &ByteTableState,
        listing: &ByteTableState,
        old: &Arc<ByteDirectory>,
    ) -> Result<Option<Arc<ByteDirectory>>, Error> {
        let _guard = self.begin_bytes(table).await?;
        let (id, root) = (table.entry.record.id, table.root.get());
        let read = async || {
            self.read_byte_directory(table.geometry, id, root, Some(listing))
                .await
        };
        let newer = self
            .share()
            .newer_byte_directory(&self.endpoint, id, root, old, read);
        let newer = newer.await?;
        Ok(newer.filter(|_| table.root.get() == root))
    }
}

impl<H: SessionHost> AsyncByteTable<H> {
    /// Does the work on the listing that operations have left. Those operations have ended, and an
    /// error here does not make them fail: unlisted pages are found by links.
    pub(super) async fn update_listing(&self, listing: &Rc<ByteTableState>) {
        // Callers ask for the cost of the operation, not of this work.
        let cost = self.session.last_cost.get();
        let listing = Self::new(Rc::clone(&self.session), Rc::clone(listing));
        if let Err(error) = self.list_and_renew(&listing).await {
            let table = &self.state.info.name;
            tracing::warn!(table, %error, "cannot update the listing of a table's pages");
            self.state.index.note_not_renewed();
        }
        self.session.last_cost.set(cost);
    }

    async fn list_and_renew(&self, listing: &Self) -> Result<(), Error> {
        for page in self.state.index.take_new_pages() {
            let value = page.value(0);
            listing.list(&page, Change::put(&value)).await?;
        }
        let Some(old) = self.state.index.wants_newer() else {
            return Ok(());
        };
        let newer = self
            .session
            .newer_byte_cache(&self.state, &listing.state, &old);
        let Some(newer) = newer.await? else {
            return Ok(());
        };
        let generation = newer.generation();
        for page in self.state.index.renew_cache(newer) {
            listing.list_missing(&page, generation).await?;
        }
        Ok(())
    }

    /// Lists a page unless a page of the current root is listed there already.
    async fn list_missing(&self, page: &ListedPage, of_root: u16) -> Result<(), Error> {
        let value = page.value(0);
        let change = Change::put(&value).when(Condition::IfAbsent);
        let Some(found) = self.list(page, change.telling_previous()).await? else {
            return Ok(());
        };
        if ListedPage::decode(&found).is_some_and(|(_, generation)| counts(generation, of_root)) {
            return Ok(());
        }
        let change = Change::put(&value).when(Condition::IfEqual(Some(&found)));
        self.list(page, change).await?;
        Ok(())
    }

    /// Writes an entry of the listing, and returns the previous one on request.
    async fn list(&self, page: &ListedPage, change: Change<'_>) -> Result<Option<Vec<u8>>, Error> {
        if !page.can_be_listed() {
            return Ok(None);
        }
        let changed = self.modify(OperationKind::Control, &page.low, change);
        Ok(changed.await?.previous)
    }

    /// Lists all pages of a load of another table, in this table, which is its listing.
    pub(super) async fn list_load(
        &self,
        generation: u16,
        pages: Vec<ListedPage>,
    ) -> Result<(), Error> {
        let entries: Vec<_> = pages
            .iter()
            .filter(|page| page.can_be_listed())
            .map(|page| (&*page.low, page.value(generation)))
            .collect();
        let loaded = self.bulk_load(entries.iter().copied(), |_| {});
        match loaded.await {
            Ok(_) => Ok(()),
            // A load that failed earlier, or a concurrent one. It may be the one that commits, so
            // none of its entries are removed.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::ByteLoad(ByteLoadError::TableNotEmpty)
                ) =>
            {
                self.multi_put(&entries).await.map(drop)
            }
            Err(error) => Err(error),
        }
    }
}

/// Returns a load's error if its pages could not be listed.
pub(super) fn not_listed(error: Error) -> ByteLoadError {
    ByteLoadError::Listing(Box::new(error))
}

/// Returns the cause of a failed load whose pages could not be listed.
pub(super) fn of_listing(error: ByteLoadError, table: &str) -> Error {
    match error {
        ByteLoadError::Listing(error) => match error.downcast::<Error>() {
            // A listing is dropped together with its table.
            Ok(error) if matches!(error.kind(), ErrorKind::TableDropped { .. }) => {
                let name = table.to_owned();
                ErrorKind::TableDropped { name }.into()
            }
            Ok(error) => *error,
            Err(other) => ErrorKind::ByteLoad(ByteLoadError::Listing(other)).into(),
        },
        other => other.into(),
    }
}
