//! Announcements of splits in a model's synonym leaf table: reading them, and requesting
//! retraining.

use farleaf_fabric::{Batch, BatchError, CountedBatch, Endpoint, OperationKind, ReadSlot};
use farleaf_pool::{PoolLayout, queue};

use crate::hint::Announcement;

/// Number of unread announcements of a model from which reading them is worth two round trips.
const CATCH_UP_COUNT: u32 = 4;

/// Number of entries read along with a model's counter, which saves a round trip of their own.
const EARLY_ENTRY_COUNT: u32 = 8;

/// Posted READs of a model's announcements.
#[derive(Clone, Copy, Debug)]
pub struct AnnouncementReads {
    counter: ReadSlot,
    /// Number of the first entry read.
    read_count: u32,
    entries: Option<ReadSlot>,
}

impl AnnouncementReads {
    /// Posts the READs of a model's counter, and of the first entries from `read_count` on, which
    /// the session has not read yet. Costs two verbs, up to 72 bytes.
    pub fn post(batch: &mut Batch, announcement: &Announcement, read_count: u32) -> Self {
        let unread = announcement.capacity.saturating_sub(read_count);
        let count = unread.min(EARLY_ENTRY_COUNT) as usize;
        let counter = batch.read(announcement.counter, 1);
        let entry = announcement.entry(read_count.into());
        Self {
            counter,
            read_count,
            entries: (count > 0).then(|| batch.read(entry, count)),
        }
    }

    /// Returns the words read.
    pub fn answer(self, batch: &Batch) -> AnnouncementWords {
        let entries = self.entries.map(|entries| batch.words(entries).to_vec());
        AnnouncementWords {
            slot_use: batch.words(self.counter)[0],
            read_count: self.read_count,
            entries: entries.unwrap_or_default(),
        }
    }
}

/// Words read from a model's synonym leaf table.
#[derive(Clone, Debug, Default)]
pub struct AnnouncementWords {
    slot_use: u64,
    /// Number of the first entry in `entries`.
    read_count: u32,
    entries: Vec<u64>,
}

impl AnnouncementWords {
    /// Returns the announcements when only the counter was read.
    pub fn counted(slot_use: u64) -> Self {
        Self {
            slot_use,
            ..Self::default()
        }
    }

    /// Returns whether a session that has read `read_count` announcements should catch up.
    pub fn is_worth_catching_up(&self, read_count: u32) -> bool {
        self.slot_use >= u64::from(read_count.saturating_add(CATCH_UP_COUNT))
    }

    /// Returns the number of announcements counted.
    pub fn count(&self) -> u32 {
        u32::try_from(self.slot_use).unwrap_or(u32::MAX)
    }

    /// Returns the entries that the table has space for and that a session which has read
    /// `read_count` announcements lacks. Costs no round trip if the entries were read along with
    /// the counter, else one. An entry that the counter includes may still be zero: its session may
    /// not have written it yet, or may have died.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn unread<E: Endpoint>(
        &self,
        endpoint: &E,
        batch: &mut Batch,
        announcement: &Announcement,
        read_count: u32,
    ) -> Result<Vec<u64>, BatchError> {
        let known = read_count.min(announcement.capacity);
        let count = self.count().min(announcement.capacity);
        let count = count.saturating_sub(known) as usize;
        let early = (known == self.read_count).then(|| self.entries.get(..count));
        if let Some(early) = early.flatten() {
            return Ok(early.to_vec());
        }
        if count == 0 {
            return Ok(Vec::new());
        }
        batch.clear();
        let read = batch.read(announcement.entry(known.into()), count);
        endpoint.execute(batch).await?;
        Ok(batch.words(read).to_vec())
    }
}

/// Asks the memory node to retrain a model, by an entry in the queue.
///
/// # Errors
/// The fabric failed.
#[cold]
pub async fn enqueue<E: Endpoint>(
    endpoint: &E,
    layout: &PoolLayout,
    announcement: &Announcement,
) -> Result<(), BatchError> {
    let mut batch = CountedBatch::new(endpoint, OperationKind::Control);
    queue::enqueue(endpoint, layout, &mut batch, announcement.synonym_table()).await
}
