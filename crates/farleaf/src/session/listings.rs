//! Listings: catalog entries of tables that list the pages of other tables (see
//! `farleaf_index::strings::rf_tree`).

use farleaf_base::TableId;
use farleaf_fabric::Batch;
use farleaf_index::strings::rf_tree::listing_of;
use farleaf_pool::catalog::{CatalogEntry, EntryState, dropped_word};

use super::base::SessionCore;
use crate::host::SessionHost;
use crate::options::TableOptions;
use crate::{Error, ErrorKind};

/// First character of listings' names. Users cannot use it, because table names have no control
/// characters.
const LISTING_MARK: char = '\u{1}';

impl<H: SessionHost> SessionCore<H> {
    /// Returns the listing of a table.
    ///
    /// # Errors
    /// [`ErrorKind::TableDropped`]: the listing was dropped with its table. This never happens for
    /// a table that this session has just created.
    pub(crate) async fn find_listing(&self, table: &CatalogEntry) -> Result<CatalogEntry, Error> {
        let new = {
            let mut listings = self.new_listings.borrow_mut();
            let place = listings
                .iter()
                .position(|entry| lists(entry, table.record.id));
            place.map(|place| listings.swap_remove(place))
        };
        if let Some(new) = new {
            return Ok(new);
        }
        let entries = self.entries().await?.into_iter();
        // A dropped entry loses its root as soon as no session can need it.
        let mut live = entries.filter(|entry| entry.state == EntryState::Live);
        let of_table = live.find(|entry| lists(entry, table.record.id));
        of_table.ok_or_else(|| {
            // A listing is dropped together with its table.
            let name = table.record.name.clone();
            ErrorKind::TableDropped { name }.into()
        })
    }

    /// Creates the listing of a table that does not have its own entry yet.
    pub(super) async fn write_listing(&self, index: u64, table: TableId) -> Result<(), Error> {
        let options = TableOptions::bytes();
        let name = listing_name(table);
        let entry = self
            .write_entry(index, listing_of(table), &name, &options, None)
            .await?;
        // Kept here so that opening the new table finds its listing even if another client drops it
        // meanwhile.
        self.new_listings.borrow_mut().push(entry);
        Ok(())
    }

    /// Drops listings whose tables do not exist, and returns whether there were any. The caller
    /// must hold the catalog's lock.
    pub(super) async fn drop_orphans(&self, entries: &[CatalogEntry]) -> Result<bool, Error> {
        let live = entries
            .iter()
            .filter(|entry| entry.state == EntryState::Live);
        let is_there = |listing: &CatalogEntry| {
            let mut tables = live.clone().map(|entry| entry.record.id);
            tables.any(|id| lists(listing, id))
        };
        let mut batch = Batch::new();
        for orphan in live
            .clone()
            .filter(|entry| is_listing(entry) && !is_there(entry))
        {
            let place = self.layout().catalog_entry(orphan.index);
            batch.write_word(place, dropped_word(orphan.record.id));
        }
        let has_orphans = !batch.is_empty();
        if has_orphans {
            self.control(&mut batch).await?;
        }
        Ok(has_orphans)
    }
}

/// Returns the name of a listing, which users cannot use.
fn listing_name(table: TableId) -> String {
    format!("{LISTING_MARK}pages of table {}", table.0)
}

pub(super) fn is_listing(entry: &CatalogEntry) -> bool {
    entry.record.name.starts_with(LISTING_MARK)
}

pub(super) fn lists(entry: &CatalogEntry, table: TableId) -> bool {
    is_listing(entry) && entry.record.id == listing_of(table)
}

#[cfg(test)]
mod tests;
