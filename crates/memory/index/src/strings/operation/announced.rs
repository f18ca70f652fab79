//! Announcements of splits: how this session announces its own, and catches up on those of others
//! (docs/explanation/learned-layer.md, "by announcement").

use crate::announced::{AnnouncementReads, AnnouncementWords, enqueue};
use crate::hint::{Announcement, Hint};
use farleaf_base::RemoteAddr;
use farleaf_fabric::{Batch, Endpoint};

use super::{ByteIndex, low_of};
use crate::strings::directory::can_be_page;
use crate::strings::error::ByteIndexError;

/// Number of announced pages read per batch.
const CATCH_UP_BATCH_COUNT: usize = 64;

impl<E: Endpoint> ByteIndex<'_, E> {
    /// Returns where a split of a page of this parent is announced.
    pub(super) fn announcement(&self, parent: u32) -> Option<Announcement> {
        let announcement = self.state.layer().announcement(parent);
        // In another layer, the same parent number names another page.
        announcement.filter(|_| self.is_current())
    }

    /// Adds the READs of the announcements of this parent's model.
    pub(super) fn ask(
        &self,
        batch: &mut Batch,
        parent: u32,
    ) -> Option<(Announcement, AnnouncementReads)> {
        // Only sessions that hold all models catch up.
        if !self.state.layer().is_whole() {
            return None;
        }
        let announcement = self.announcement(parent)?;
        let seen = self.state.layer().announced_seen(announcement.model);
        Some((
            announcement,
            AnnouncementReads::post(batch, &announcement, seen),
        ))
    }

    /// Reads the announcements of others if there are enough. Costs one round trip for the entries
    /// that were not read along, and one for every 64 pages that they name.
    pub(super) async fn catch_up(
        &self,
        batch: &mut Batch,
        announcement: Announcement,
        announced: AnnouncementWords,
    ) -> Result<(), ByteIndexError> {
        // Another operation of this session may have done this in the meantime.
        let seen = self.state.layer().announced_seen(announcement.model);
        if !self.is_current() || !announced.is_worth_catching_up(seen) {
            return Ok(());
        }
        self.state
            .count_hint(|counters| counters.catch_up_count += 1);
        let unread = announced.unread(self.access.endpoint, batch, &announcement, seen);
        let entries = unread.await?;
        for part in entries.chunks(CATCH_UP_BATCH_COUNT) {
            self.learn_announced(batch, announcement, part).await?;
        }
        if self.is_current() {
            self.state
                .layer_mut()
                .note_announced(announcement.model, announced.count());
        }
        Ok(())
    }

    /// Reads pages that entries name. Entries are only hints. Skips an address outside the pool,
    /// and a page that is torn, retired, or begins with a long string.
    async fn learn_announced(
        &self,
        batch: &mut Batch,
        announcement: Announcement,
        entries: &[u64],
    ) -> Result<(), ByteIndexError> {
        let (layout, geometry) = (self.access.layout, self.access.geometry);
        let pages = entries.iter().map(|entry| RemoteAddr::from_word(*entry));
        let named: Vec<(RemoteAddr, u16)> = pages
            .map(|entry| (entry.place(), entry.spare()))
            .filter(|(page, _)| can_be_page(layout, geometry, *page))
            .collect();
        batch.clear();
        let reads = named.into_iter();
        let reads = reads.map(|(page, parent)| (page, parent, self.post_page(batch, page)));
        let reads: Vec<_> = reads.collect();
        if reads.is_empty() {
            return Ok(());
        }
        self.access.endpoint.execute(batch).await?;
        if !self.is_current() {
            return Ok(());
        }
        let pages = {
            let layer = self.state.layer();
            let Some(directory) = layer.directory() else {
                return Ok(());
            };
            directory.pages_of(announcement.model)
        };
        for (addr, parent_in_model, read) in reads {
            let image = self.image(batch, read);
            let parent = pages.start + u32::from(parent_in_model);
            let is_intact = self.access.is_intact(image.words(), addr);
            if !is_intact || image.is_retired() || !pages.contains(&parent) {
                continue;
            }
            if let Some(low) = low_of(image) {
                self.learn(&low, Hint { addr, parent });
            }
        }
        Ok(())
    }

    /// Writes the entries that announce new pages to other clients, beginning at the slot that the
    /// counter returned. If this never happens, clients find the pages by links.
    pub(super) async fn announce(
        &self,
        batch: &mut Batch,
        announcement: Announcement,
        slot: u64,
        pages: &[RemoteAddr],
    ) -> Result<(), ByteIndexError> {
        batch.clear();
        let slots = (slot..u64::from(announcement.capacity)).zip(pages);
        for (slot, page) in slots {
            let entry = page.with_spare(announcement.parent_in_model);
            batch.write_word(announcement.entry(slot), entry.word());
        }
        if !batch.is_empty() {
            self.access.endpoint.execute(batch).await?;
        }
        let end = slot + pages.len() as u64;
        if (slot + 1..=end).contains(&announcement.due_split_count) {
            enqueue(self.access.endpoint, self.access.layout, &announcement).await?;
        }
        Ok(())
    }

    /// Counts and announces pages that were not counted in the batches that linked to them:
    /// replacements of a page, and pages whose model's counter lies on another node. Costs two
    /// round trips.
    pub(super) async fn count_and_announce(
        &self,
        batch: &mut Batch,
        parent: u32,
        pages: &[RemoteAddr],
    ) -> Result<(), ByteIndexError> {
        let Some(announcement) = self.announcement(parent) else {
            return Ok(());
        };
        batch.clear();
        let counted = batch.fetch_add(announcement.counter, pages.len() as u64);
        self.access.endpoint.execute(batch).await?;
        let slot = batch.previous(counted);
        self.announce(batch, announcement, slot, pages).await
    }
}
