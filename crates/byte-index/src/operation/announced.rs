//! Splits that were announced: how this session tells others of its own, and catches up on theirs
//! (docs/learned-layer.md, "by announcement").

use farleaf_fabric::{Batch, Endpoint, OperationKind, ReadSlot};
use farleaf_index::hint::{Announcement, Hint};
use farleaf_region::queue;
use farleaf_types::RemoteAddr;

use super::{ByteIndex, low_of};
use crate::error::ByteIndexError;

/// So many unread announcements of a model make it worth two round trips to read them.
const CATCH_UP_COUNT: u32 = 4;
/// Entries that are read along with the counter: what comes of most catching up.
const EARLY_ENTRY_COUNT: u32 = 8;
/// Announced pages that are read with one batch.
const CATCH_UP_BATCH_COUNT: usize = 64;

/// The READs of what a model announces.
pub(super) struct Asked {
    announcement: Announcement,
    counter: ReadSlot,
    /// The first entry.
    seen: u32,
    entries: Option<ReadSlot>,
}

impl Asked {
    pub(super) fn answer(self, batch: &Batch) -> Announced {
        let entries = self.entries.map(|entries| batch.words(entries).to_vec());
        Announced {
            announcement: self.announcement,
            slot_use: batch.words(self.counter)[0],
            seen: self.seen,
            entries: entries.unwrap_or_default(),
        }
    }
}

/// What a model announces.
pub(super) struct Announced {
    announcement: Announcement,
    slot_use: u64,
    /// Entries from this one on were read, too.
    seen: u32,
    entries: Vec<u64>,
}

impl<E: Endpoint> ByteIndex<'_, E> {
    /// Where a split of a page of this parent is announced.
    pub(super) fn announcement(&self, parent: u32) -> Option<Announcement> {
        let announcement = self.state.layer().announcement(parent);
        // A parent of another layer is another page there.
        announcement.filter(|_| self.is_current())
    }

    /// Adds the READs of a model's counter, and of the first entries that this session has not
    /// read.
    pub(super) fn ask(&self, batch: &mut Batch, parent: u32) -> Option<Asked> {
        let announcement = self.announcement(parent)?;
        let seen = self.state.layer().announced_seen(announcement.model);
        let unread = announcement.capacity.saturating_sub(seen);
        let count = unread.min(EARLY_ENTRY_COUNT) as usize;
        let counter = batch.read(announcement.counter, 1);
        let entry = announcement.entry(seen.into());
        let entries = (count > 0).then(|| batch.read(entry, count));
        Some(Asked {
            announcement,
            counter,
            seen,
            entries,
        })
    }

    /// Learns what others have announced, if that is worth it: one round trip for the entries that
    /// were not read along, one for every 64 pages that they name.
    pub(super) async fn catch_up(
        &self,
        batch: &mut Batch,
        announced: &Announced,
    ) -> Result<(), ByteIndexError> {
        let announcement = announced.announcement;
        let now = u32::try_from(announced.slot_use).unwrap_or(u32::MAX);
        let is_worth_it =
            |seen: u32| self.is_current() && now >= seen.saturating_add(CATCH_UP_COUNT);
        // Another operation of this session may have been here meanwhile.
        let seen = self.state.layer().announced_seen(announcement.model);
        if !is_worth_it(seen) {
            return Ok(());
        }
        self.state
            .count_hint(|counters| counters.catch_up_count += 1);
        let from = seen.min(announcement.capacity);
        let count = (now.min(announcement.capacity) - from) as usize;
        let skipped = (from - announced.seen.min(from)) as usize;
        let mut entries = announced
            .entries
            .get(skipped..)
            .unwrap_or_default()
            .to_vec();
        entries.truncate(count);
        if entries.len() < count {
            batch.clear();
            let start = u64::from(from) + entries.len() as u64;
            let read = batch.read(announcement.entry(start), count - entries.len());
            self.access.endpoint.execute(batch).await?;
            entries.extend_from_slice(batch.words(read));
        }
        for part in entries.chunks(CATCH_UP_BATCH_COUNT) {
            self.learn_announced(batch, announcement, part).await?;
        }
        if self.is_current() {
            self.state
                .layer_mut()
                .note_announced(announcement.model, now);
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
        let last_block = self.access.geometry.stride_blocks() - 1;
        let is_place = |page: &RemoteAddr| {
            let layout = self.access.layout;
            layout.chunk_of(*page).is_some()
                && page.block() + last_block < RemoteAddr::BLOCK_COUNT_MAX
                && layout.chunk_of(page.offset_blocks(last_block)).is_some()
        };
        let pages = entries.iter().map(|entry| RemoteAddr::from_word(*entry));
        let named: Vec<(RemoteAddr, u16)> = pages
            .map(|entry| (entry.place(), entry.spare()))
            .filter(|(page, _)| is_place(page))
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
        let pages = self.state.layer().directory().pages_of(announcement.model);
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
            self.enqueue(announcement).await?;
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

    /// Asks the node to retrain the model: Q1.
    #[cold]
    async fn enqueue(&self, announcement: Announcement) -> Result<(), ByteIndexError> {
        let (endpoint, layout) = (self.access.endpoint, self.access.layout);
        let mut batch = Batch::new();
        let synonym_table = announcement.synonym_table();
        let enqueued = queue::enqueue(endpoint, layout, &mut batch, synonym_table).await;
        let counters = endpoint.counters();
        counters.record(OperationKind::Control, &batch.take_cost());
        Ok(enqueued?)
    }
}
