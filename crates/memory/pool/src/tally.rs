//! What retraining has done in a region since it was made, for whoever wants to see it.
//!
//! | word | counts |
//! |---|---|
//! | 0 | retrainings that were committed |
//! | 1 | leaves moved |
//! | 2 | leaves that they became |
//! | 3 | models trained |
//! | 4 | nanoseconds spent on these retrainings |
//! | 5 | nanoseconds of the longest |
//! | 6 | bytes that are free again |
//! | 7 | round trips of the longest step |
//! | 8 | models found by the queue |
//! | 9 | models found by the node's own look |
//! | 10 | synonym leaves that became trained ones where they were (`rolex`) |
//! | 11 | leaves announced in old tables meanwhile, and then in new ones |
//! | 12 | records of the leaves that were retrained |
//! | 13 | times that a table was to be retrained, and there was no room |
//!
//! The node alone writes them, one word after the other: each only grows, and each is right by
//! itself.

use farleaf_fabric::{Batch, BatchError, Endpoint};

use crate::layout::RegionLayout;

/// Words of the tally.
pub const TALLY_SIZE_WORDS: usize = 14;
/// Blocks that are kept for it.
pub(crate) const TALLY_SIZE_BLOCKS: u64 = 2;
const _: () =
    assert!(TALLY_SIZE_WORDS as u64 <= TALLY_SIZE_BLOCKS * farleaf_types::BLOCK_SIZE_WORDS);

/// The tally of a region's retrainings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetrainTally {
    /// Retrainings that were committed.
    pub retraining_count: u64,
    /// Leaves that they moved.
    pub moved_count: u64,
    /// Leaves that these became.
    pub made_count: u64,
    /// Models that were trained.
    pub model_count: u64,
    /// Time of all of them, in nanoseconds.
    pub time_ns: u64,
    /// Time of the longest, in nanoseconds.
    pub time_ns_max: u64,
    /// Bytes that are free again after their grace period.
    pub reclaimed_bytes: u64,
    /// The longest that one step held its locks, in round trips of the node.
    pub step_round_trips_max: u64,
    /// Models that were retrained because a client put them into the queue.
    pub queued_count: u64,
    /// Models that were retrained because the node found them by itself.
    pub found_count: u64,
    /// Synonym leaves that became trained leaves where they were (`rolex`).
    pub adopted_count: u64,
    /// Leaves that were announced in old synonym leaf tables, and then in new ones; of tables of
    /// byte strings, pages that became underfull, too (BR5).
    pub late_count: u64,
    /// Records of the leaves that were retrained, moved or not.
    pub record_count: u64,
    /// Times that a table was to be retrained, and there was no room for it.
    pub no_room_count: u64,
}

impl RetrainTally {
    /// The words.
    pub fn encode(&self) -> [u64; TALLY_SIZE_WORDS] {
        [
            self.retraining_count,
            self.moved_count,
            self.made_count,
            self.model_count,
            self.time_ns,
            self.time_ns_max,
            self.reclaimed_bytes,
            self.step_round_trips_max,
            self.queued_count,
            self.found_count,
            self.adopted_count,
            self.late_count,
            self.record_count,
            self.no_room_count,
        ]
    }

    /// Reads the words: any are a tally.
    pub fn decode(words: &[u64; TALLY_SIZE_WORDS]) -> Self {
        Self {
            retraining_count: words[0],
            moved_count: words[1],
            made_count: words[2],
            model_count: words[3],
            time_ns: words[4],
            time_ns_max: words[5],
            reclaimed_bytes: words[6],
            step_round_trips_max: words[7],
            queued_count: words[8],
            found_count: words[9],
            adopted_count: words[10],
            late_count: words[11],
            record_count: words[12],
            no_room_count: words[13],
        }
    }
}

/// Reads a region's tally, and how many models wait in its queue. One round trip, 128 bytes.
///
/// # Errors
/// The fabric failed.
pub async fn read_tally<E: Endpoint>(
    endpoint: &E,
    layout: &RegionLayout,
    batch: &mut Batch,
) -> Result<(RetrainTally, u64), BatchError> {
    batch.clear();
    let words = batch.read(layout.tally(), TALLY_SIZE_WORDS);
    let head = batch.read(layout.queue_head(), 1);
    let tail = batch.read(layout.queue_tail(), 1);
    endpoint.execute(batch).await?;
    let mut tally = [0; TALLY_SIZE_WORDS];
    tally.copy_from_slice(batch.words(words));
    let waiting = batch.words(tail)[0].saturating_sub(batch.words(head)[0]);
    Ok((RetrainTally::decode(&tally), waiting))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_golden() {
        let words = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14];
        let tally = RetrainTally::decode(&words);
        assert_eq!(tally.encode(), words);
        assert_eq!((tally.retraining_count, tally.found_count), (1, 10));
        assert_eq!((tally.time_ns_max, tally.reclaimed_bytes), (6, 7));
        assert_eq!((tally.late_count, tally.record_count), (12, 13));
        assert_eq!(tally.no_room_count, 14);
    }
}
