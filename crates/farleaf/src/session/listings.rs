//! Entries of the catalog that list the pages of others (BT5 of `farleaf_byte_index::rf_tree`).

use farleaf_byte_index::rf_tree::listing_of;
use farleaf_fabric::Batch;
use farleaf_region::catalog::{CatalogEntry, EntryState, dropped_word};
use farleaf_types::TableId;

use super::base::SessionCore;
use crate::host::Host;
use crate::options::TableOptions;
use crate::{Error, ErrorKind};

/// How names begin that nobody can give (BT5): no name has control characters.
const LISTING_MARK: char = '\u{1}';

impl<H: Host> SessionCore<H> {
    /// BT5: what lists the pages of a table.
    ///
    /// # Errors
    /// [`ErrorKind::TableDropped`]: it is dropped, as its table is; never of a table that this
    /// session has just made.
    pub(crate) async fn find_listing(&self, table: &CatalogEntry) -> Result<CatalogEntry, Error> {
        let made = {
            let mut made = self.made_listings.borrow_mut();
            let place = made.iter().position(|entry| lists(entry, table.record.id));
            place.map(|place| made.swap_remove(place))
        };
        if let Some(made) = made {
            return Ok(made);
        }
        let entries = self.entries().await?.into_iter();
        // One that is dropped has no root any more, as soon as nobody has to know it (G3).
        let mut live = entries.filter(|entry| entry.state == EntryState::Live);
        let of_table = live.find(|entry| lists(entry, table.record.id));
        of_table.ok_or_else(|| {
            // It is dropped with its table.
            let name = table.record.name.clone();
            ErrorKind::TableDropped { name }.into()
        })
    }

    /// Makes what is to list the pages of a table, which does not have its entry yet.
    pub(super) async fn write_listing(&self, index: u64, table: TableId) -> Result<(), Error> {
        let options = TableOptions::bytes();
        let place = (index, listing_of(table));
        let name = listing_name(table);
        let entry = self.write_entry(place, &name, (&options, None)).await?;
        // Whoever opens the table that it has made has it in hand, whoever drops that meanwhile.
        self.made_listings.borrow_mut().push(entry);
        Ok(())
    }

    /// BT5: drops what lists the pages of tables that are not there (any more); whether there was
    /// any. The session has the catalog's lock.
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

/// BT5: a name that nobody can give.
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
