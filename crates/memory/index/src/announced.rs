//! Splits that a model's synonym leaf table announces: read along the way, and what they make due.

use farleaf_fabric::{Batch, BatchError, CountedBatch, Endpoint, OperationKind, ReadSlot};
use farleaf_region::{PoolLayout, queue};

use crate::hint::Announcement;

/// So many unread announcements of a model make it worth two round trips to read them.
const CATCH_UP_COUNT: u32 = 4;

/// Entries that are read along with a model's counter, so that they need no round trip of their
/// own.
const EARLY_ENTRY_COUNT: u32 = 8;

/// READs of what a model announces.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    counter: ReadSlot,
    /// The first entry.
    seen: u32,
    entries: Option<ReadSlot>,
}

impl Asked {
    /// Adds the READs of a model's counter, and of the first entries that a session which has seen
    /// so many has not: two verbs, up to 72 bytes.
    pub fn post(batch: &mut Batch, announcement: &Announcement, seen: u32) -> Self {
        let unread = announcement.capacity.saturating_sub(seen);
        let count = unread.min(EARLY_ENTRY_COUNT) as usize;
        let counter = batch.read(announcement.counter, 1);
        let entry = announcement.entry(seen.into());
        Self {
            counter,
            seen,
            entries: (count > 0).then(|| batch.read(entry, count)),
        }
    }

    /// What was read.
    pub fn answer(self, batch: &Batch) -> Announced {
        let entries = self.entries.map(|entries| batch.words(entries).to_vec());
        Announced {
            slot_use: batch.words(self.counter)[0],
            seen: self.seen,
            entries: entries.unwrap_or_default(),
        }
    }
}

/// What a model's synonym leaf table was read to say.
#[derive(Clone, Debug, Default)]
pub struct Announced {
    slot_use: u64,
    /// Entries from this one on were read, too.
    seen: u32,
    entries: Vec<u64>,
}

impl Announced {
    /// The counter alone.
    pub fn counted(slot_use: u64) -> Self {
        Self {
            slot_use,
            ..Self::default()
        }
    }

    /// Whether so much is new to a session which has seen so many that it is worth catching up.
    pub fn is_much(&self, seen: u32) -> bool {
        self.slot_use >= u64::from(seen.saturating_add(CATCH_UP_COUNT))
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        u32::try_from(self.slot_use).unwrap_or(u32::MAX)
    }

    /// The entries that a session which has seen so many has not, as far as there was room for
    /// them. No round trip if they were read along with the counter: then some that it counts may
    /// not have been there yet, as some may never be. Else one.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn unread<E: Endpoint>(
        &self,
        endpoint: &E,
        batch: &mut Batch,
        (announcement, seen): (&Announcement, u32),
    ) -> Result<Vec<u64>, BatchError> {
        let known = seen.min(announcement.capacity);
        let count = self.count().min(announcement.capacity);
        let count = count.saturating_sub(known) as usize;
        let early = (known == self.seen).then(|| self.entries.get(..count));
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

/// Asks the node to retrain a model: Q1.
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
