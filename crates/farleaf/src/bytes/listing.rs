//! Tables of byte strings with search layer `rf-tree`: the listing of their pages, and the cache of
//! it that the sessions of a process share (BT1 to BT5 of `farleaf_byte_index::rf_tree`).

use std::rc::Rc;
use std::sync::Arc;

use farleaf_byte_index::operation::{Change, Condition, RecordBuffer, ScanCursor};
use farleaf_byte_index::rf_tree::{CacheBuilder, ListedPage, counts};
use farleaf_byte_index::snapshot::read_directory;
use farleaf_byte_index::{ByteDirectory, ByteIndex, ByteLoadError};
use farleaf_fabric::{OperationKind, ProtocolCheck};
use farleaf_page::PageGeometry;
use farleaf_region::catalog::CatalogEntry;
use farleaf_types::{RemoteAddr, TableId};

use super::{AsyncByteTable, ByteTableState};
use crate::begin::Begun;
use crate::host::Host;
use crate::session::SessionCore;
use crate::{Error, ErrorKind};

/// Entries that are read with one batch.
const READ_COUNT: usize = 4096;

impl<H: Host> SessionCore<H> {
    /// The listing of a table that was found by an operation that has `begun`.
    pub(super) async fn open_listing(
        self: &Rc<Self>,
        table: &CatalogEntry,
        begun: &Begun<'_>,
    ) -> Result<Rc<ByteTableState>, Error> {
        let entry = self.find_listing(table).await?;
        let listing = Box::pin(self.open_bytes(entry, begun)).await?;
        Ok(listing.state)
    }

    /// What leads to the pages of a table behind a root: its models, or the cache of its listing.
    /// The caller has begun.
    pub(super) async fn byte_directory(
        &self,
        geometry: PageGeometry,
        root: (TableId, RemoteAddr),
        listing: Option<&ByteTableState>,
    ) -> Result<Arc<ByteDirectory>, Error> {
        let read = async || self.read_byte_directory(geometry, root, listing).await;
        let share = self.share();
        share.byte_directory(&self.endpoint, root, read).await
    }

    async fn read_byte_directory(
        &self,
        geometry: PageGeometry,
        (table, root): (TableId, RemoteAddr),
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
                tracing::warn!(%table, "too few pages of a table are listed");
                Ok(trained)
            }
            // U4: what a load has told of the table is still there, and leads to what is left.
            Err(error) if matches!(error.kind(), ErrorKind::NodeLost { .. }) => {
                tracing::warn!(%table, %error, "what lists the pages of a table is lost");
                Ok(trained)
            }
            Err(error) => Err(error),
        }
    }

    /// BT4. An operation must have begun: nothing begins here, as this may be a part of how one
    /// does.
    async fn read_listing(
        &self,
        listing: &ByteTableState,
        trained: &ByteDirectory,
    ) -> Result<Option<ByteDirectory>, Error> {
        let mut cache = CacheBuilder::new(self.layout(), trained);
        if self.leaves_out(ProtocolCheck::ListedLoadHasCommitted) {
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

    /// A newer cache than `old`, if there is one by now or it could be read; `None`: another
    /// session is about to read one, or there is another root.
    async fn newer_byte_cache(
        &self,
        table: &ByteTableState,
        listing: &ByteTableState,
        old: &Arc<ByteDirectory>,
    ) -> Result<Option<Arc<ByteDirectory>>, Error> {
        let _begun = self.begin_bytes(table).await?;
        let root = (table.entry.record.id, table.root.get());
        let read = async || {
            self.read_byte_directory(table.geometry, root, Some(listing))
                .await
        };
        let newer = self
            .share()
            .newer_byte_directory(&self.endpoint, root, old, read);
        let newer = newer.await?;
        Ok(newer.filter(|_| table.root.get() == root.1))
    }
}

impl<H: Host> AsyncByteTable<H> {
    /// Sees to what operations leave to be done for the listing (BT3, BT4). They are done: whatever
    /// becomes of this, they do not fail by it, and pages that are not listed are found by links.
    pub(super) async fn do_chores(&self, listing: &Rc<ByteTableState>) {
        // Whoever asks for it wants the cost of the operation.
        let cost = self.session.last_cost.get();
        let listing = Self::new(Rc::clone(&self.session), Rc::clone(listing));
        if let Err(error) = self.list_and_renew(&listing).await {
            let table = &self.state.info.name;
            tracing::warn!(table, %error, "pages are not listed");
            self.state.index.note_not_renewed();
        }
        self.session.last_cost.set(cost);
    }

    async fn list_and_renew(&self, listing: &Self) -> Result<(), Error> {
        for page in self.state.index.take_made() {
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

    /// BT3: lists a page unless something that counts is listed there by now.
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

    /// BT3; what stood there, if that was asked for.
    async fn list(&self, page: &ListedPage, change: Change<'_>) -> Result<Option<Vec<u8>>, Error> {
        if !page.can_be_listed() {
            return Ok(None);
        }
        let changed = self.modify(OperationKind::Control, &page.low, change);
        Ok(changed.await?.previous)
    }

    /// BT2: lists all pages of a load of another table, this one being its listing.
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
            // A load that has failed was here before, or one that goes on beside this one. It may
            // be that which commits, so nothing of it is removed.
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

/// What a load says where its pages could not be listed.
pub(super) fn not_listed(error: Error) -> ByteLoadError {
    ByteLoadError::Listing(Box::new(error))
}

/// The failure behind a load of a table whose pages could not be listed.
pub(super) fn of_listing(error: ByteLoadError, table: &str) -> Error {
    match error {
        ByteLoadError::Listing(error) => match error.downcast::<Error>() {
            // It is dropped with its table.
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
