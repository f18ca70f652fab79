//! Splits that were announced: how this session tells others of its own, and catches up on theirs
//! (docs/learned-layer.md, "by announcement").

use farleaf_fabric::{Batch, Endpoint};
use farleaf_index::announced::{Announced, Asked, enqueue};
use farleaf_index::hint::{Announcement, Hint};
use farleaf_types::RemoteAddr;

use super::{ByteIndex, low_of};
use crate::directory::can_be_page;
use crate::error::ByteIndexError;

/// Announced pages that are read with one batch.
const CATCH_UP_BATCH_COUNT: usize = 64;

impl<E: Endpoint> ByteIndex<'_, E> {
    /// Where a split of a page of this parent is announced.
    pub(super) fn announcement(&self, parent: u32) -> Option<Announcement> {
        let announcement = self.state.layer().announcement(parent);
        // A parent of another layer is another page there.
        announcement.filter(|_| self.is_current())
    }

    /// Adds the READs of what the model of this parent announces.
    pub(super) fn ask(&self, batch: &mut Batch, parent: u32) -> Option<(Announcement, Asked)> {
        // Only who holds all models catches up.
        if !self.state.layer().is_whole() {
            return None;
        }
        let announcement = self.announcement(parent)?;
        let seen = self.state.layer().announced_seen(announcement.model);
        Some((announcement, Asked::post(batch, &announcement, seen)))
    }

    /// Learns what others have announced, if that is worth it: one round trip for the entries that
    /// were not read along, one for every 64 pages that they name.
    pub(super) async fn catch_up(
        &self,
        batch: &mut Batch,
        (announcement, announced): (Announcement, Announced),
    ) -> Result<(), ByteIndexError> {
        // Another operation of this session may have been here meanwhile.
        let seen = self.state.layer().announced_seen(announcement.model);
        if !self.is_current() || !announced.is_much(seen) {
            return Ok(());
        }
        self.state
            .count_hint(|counters| counters.catch_up_count += 1);
        let unread = announced.unread(self.access.endpoint, batch, (&announcement, seen));
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

    /// Reads pages that entries name. What these say is only a hint: one that names no place of the
    /// pool is passed over, and so is a page that is torn, retired, or begins with a long string.
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

    /// Writes the entries that tell other clients of new pages, from a slot on that the counter has
    /// told. If this never happens, they find them by links.
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

    /// Counts and announces pages of which no batch of theirs has counted any: those that have
    /// replaced one (BP6), and those whose model's counter lies on another node. Two round trips.
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
