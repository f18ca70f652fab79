//! Checks the listing of a table's pages.

use farleaf_base::RemoteAddr;
use farleaf_executor::block_on;
use farleaf_fabric::BatchError;
use farleaf_index::strings::rf_tree::{ListedPage, counts, listing_of};
use farleaf_index::strings::snapshot::read_directory;
use farleaf_leaf::strings::{PageImage, Value};
use farleaf_pool::catalog::{CatalogEntry, EntryState};

use super::TableCheck;

impl TableCheck<'_> {
    /// Checks that every listed page that counts belongs to the table, retired or not.
    pub(super) fn check_listing(
        &mut self,
        entry: &CatalogEntry,
        entries: &[CatalogEntry],
    ) -> Result<(), BatchError> {
        let id = listing_of(self.table);
        let is_live = |it: &&CatalogEntry| it.record.id == id && it.state == EntryState::Live;
        let listing = entries.iter().find(is_live);
        let judged = listing.and_then(|it| Some((it, TableCheck::of(self.keeper, it)?)));
        let Some((listing, mut judge)) = judged else {
            self.report_violation("listing", "a live table has no listing of its pages");
            return Ok(());
        };
        let layout = &self.keeper.layout;
        let root = read_directory(
            &self.keeper.endpoint,
            layout,
            self.geometry,
            self.table,
            entry.root,
        );
        let generation = match block_on(root, || 0) {
            Ok(directory) => directory.generation(),
            Err(error) => {
                self.report_violation("listing", format!("cannot read the root: {error}"));
                return Ok(());
            }
        };
        let pages = judge.walk(listing)?.pages;
        self.found.append(&mut judge.found);
        for page in pages {
            for addr in judge.listed_in(page, generation)? {
                self.check_listed(addr)?;
            }
        }
        Ok(())
    }

    /// Returns the pages that the records of a valid page of a listing name.
    fn listed_in(&self, page: RemoteAddr, generation: u16) -> Result<Vec<RemoteAddr>, BatchError> {
        let words = self.read(self.geometry.state(page), self.geometry.image_size_words())?;
        let image = PageImage::new(self.geometry, &words);
        let values = image.slots().iter().map(|slot| image.value(slot));
        let entries = values.filter_map(|value| match value {
            Value::Inline(value) => ListedPage::decode(value),
            Value::Outside(_) => None,
        });
        let counting = entries.filter(|(_, of)| counts(*of, generation));
        Ok(counting.map(|(addr, _)| addr).collect())
    }

    fn check_listed(&mut self, addr: RemoteAddr) -> Result<(), BatchError> {
        let words = self.read(self.geometry.state(addr), self.geometry.image_size_words())?;
        let image = PageImage::new(self.geometry, &words);
        if !image.is_intact(addr, self.table) {
            self.report_violation(
                "listing",
                format!("{addr} is listed but is not a valid page"),
            );
        }
        Ok(())
    }
}
