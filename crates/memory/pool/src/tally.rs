//! Counters of retraining in a node's memory since it was created, for monitoring.
//!
//! | word | counts |
//! |---|---|
//! | 0 | committed retrainings |
//! | 1 | leaves moved |
//! | 2 | leaves that replaced them |
//! | 3 | models trained |
//! | 4 | nanoseconds spent on these retrainings |
//! | 5 | nanoseconds of the longest |
//! | 6 | bytes that are free again |
//! | 7 | round trips of the longest step |
//! | 8 | models found by the queue |
//! | 9 | models found by the node's periodic check |
//! | 10 | synonym leaves that became trained ones in place (`rolex`) |
//! | 11 | leaves announced in old tables meanwhile, and then in new ones |
//! | 12 | records of the retrained leaves |
//! | 13 | retrainings that did not start for lack of space |
//!
//! Only the node writes them, one word after the other. Each counter only grows, and is correct by
//! itself.

use farleaf_fabric::{Batch, BatchError, Endpoint};

use crate::layout::NodeLayout;

/// Number of words of the counters.
pub const RETRAIN_COUNTERS_SIZE_WORDS: usize = 14;
/// Number of blocks reserved for the counters.
pub(crate) const RETRAIN_COUNTERS_SIZE_BLOCKS: u64 = 2;
const _: () = assert!(
    RETRAIN_COUNTERS_SIZE_WORDS as u64
        <= RETRAIN_COUNTERS_SIZE_BLOCKS * farleaf_base::BLOCK_SIZE_WORDS
);

/// Counters of the retrainings in a node's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetrainCounters {
    /// Number of committed retrainings.
    pub retraining_count: u64,
    /// Number of leaves that they moved.
    pub moved_count: u64,
    /// Number of leaves that replaced those.
    pub made_count: u64,
    /// Number of models trained.
    pub model_count: u64,
    /// Total time of the retrainings in nanoseconds.
    pub time_ns: u64,
    /// Time of the longest retraining in nanoseconds.
    pub time_ns_max: u64,
    /// Bytes that are free again after their grace period.
    pub reclaimed_bytes: u64,
    /// Longest time for which a step held its locks, in round trips of the node.
    pub step_round_trips_max: u64,
    /// Number of models retrained because a client queued them.
    pub queued_count: u64,
    /// Number of models retrained because the node's periodic check found them.
    pub found_count: u64,
    /// Number of synonym leaves that became trained leaves in place (`rolex`).
    pub adopted_count: u64,
    /// Number of leaves announced in old synonym leaf tables and then in new ones. For tables of
    /// byte strings, includes pages that became underfull.
    pub late_count: u64,
    /// Number of records in the retrained leaves, moved or not.
    pub record_count: u64,
    /// Number of retrainings that did not start for lack of space.
    pub no_space_count: u64,
}

impl RetrainCounters {
    /// Encodes the counters.
    pub fn encode(&self) -> [u64; RETRAIN_COUNTERS_SIZE_WORDS] {
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
            self.no_space_count,
        ]
    }

    /// Decodes the counters; any words are valid.
    pub fn decode(words: &[u64; RETRAIN_COUNTERS_SIZE_WORDS]) -> Self {
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
            no_space_count: words[13],
        }
    }
}

/// Reads the counters of a node's memory, and the number of models in its queue. One round trip,
/// 128 bytes.
///
/// # Errors
/// The fabric failed.
pub async fn read_retrain_counters<E: Endpoint>(
    endpoint: &E,
    layout: &NodeLayout,
    batch: &mut Batch,
) -> Result<(RetrainCounters, u64), BatchError> {
    batch.clear();
    let words = batch.read(layout.tally(), RETRAIN_COUNTERS_SIZE_WORDS);
    let head = batch.read(layout.queue_head(), 1);
    let tail = batch.read(layout.queue_tail(), 1);
    endpoint.execute(batch).await?;
    let mut tally = [0; RETRAIN_COUNTERS_SIZE_WORDS];
    tally.copy_from_slice(batch.words(words));
    let waiting = batch.words(tail)[0].saturating_sub(batch.words(head)[0]);
    Ok((RetrainCounters::decode(&tally), waiting))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_golden() {
        let words = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14];
        let tally = RetrainCounters::decode(&words);
        assert_eq!(tally.encode(), words);
        assert_eq!((tally.retraining_count, tally.found_count), (1, 10));
        assert_eq!((tally.time_ns_max, tally.reclaimed_bytes), (6, 7));
        assert_eq!((tally.late_count, tally.record_count), (12, 13));
        assert_eq!(tally.no_space_count, 14);
    }
}
