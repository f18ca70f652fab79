//! Load of a persistent table by many threads.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use farleaf::persistent::{ClientError, PersistentTable};

use super::super::gate::{Place, run_threads};
use super::super::string_codec::StringCodec;
use super::super::{BenchError, ProgressSink};
use crate::dataset::KeySet;
use crate::verify::loaded_value;
use crate::workload::WorkloadLetter;

/// Limits of a batch of records: their number, and their total size in bytes.
const BATCH_COUNT_MAX: usize = 128;
const BATCH_SIZE_BYTES_MAX: f64 = 1_048_576.0;

/// State that the threads of a load share.
struct Load<'a> {
    table: &'a PersistentTable,
    string_codec: &'a StringCodec,
    keys: &'a KeySet,
    batch_count: NonZeroUsize,
    /// First record that no thread has taken yet.
    next: AtomicU64,
    done_count: AtomicU64,
    has_failed: AtomicBool,
}

/// Puts all records to load, by this many threads. Returns the duration.
///
/// # Errors
/// The cluster failed, or a thread cannot be started. Some records may have been put.
pub(super) fn load(
    table: &PersistentTable,
    string_codec: &StringCodec,
    keys: &KeySet,
    workload: WorkloadLetter,
    thread_count: usize,
    progress: &dyn ProgressSink,
) -> Result<Duration, BenchError> {
    let load = Load {
        table,
        string_codec,
        keys,
        batch_count: batch_count(string_codec),
        next: AtomicU64::new(0),
        done_count: AtomicU64::new(0),
        has_failed: AtomicBool::new(false),
    };
    let since = Instant::now();
    let report = || progress.advance(load.done_count.load(Ordering::Relaxed));
    let work = |_, _place: Place<'_>| load.work().map_err(BenchError::store(workload, "loading"));
    run_threads(thread_count, "load", work, report)?;
    Ok(since.elapsed())
}

/// Returns the number of records per batch.
fn batch_count(string_codec: &StringCodec) -> NonZeroUsize {
    let strings = &string_codec.strings;
    let record_bytes = strings.value_size_bytes_mean() + strings.key_size_bytes() as f64;
    #[expect(clippy::cast_sign_loss, reason = "sizes are positive")]
    let fitting = (BATCH_SIZE_BYTES_MAX / record_bytes) as usize;
    NonZeroUsize::new(fitting.min(BATCH_COUNT_MAX)).unwrap_or(NonZeroUsize::MIN)
}

impl Load<'_> {
    /// Puts batches on one thread until none is left, or a thread has failed.
    fn work(&self) -> Result<(), ClientError> {
        let batch_count = self.batch_count.get() as u64;
        let mut records = vec![(Vec::new(), Vec::new()); self.batch_count.get()];
        while !self.has_failed.load(Ordering::Relaxed) {
            let first = self.next.fetch_add(batch_count, Ordering::Relaxed);
            let count = self.keys.record_count().saturating_sub(first);
            let count = count.min(batch_count) as usize;
            if count == 0 {
                break;
            }
            for (index, (key, value)) in (first..).zip(&mut records[..count]) {
                let number = self.keys.key(index);
                self.string_codec.key(number, key);
                self.string_codec
                    .strings
                    .value(number, loaded_value(number), value);
            }
            if let Err(error) = self.table.multi_put(&records[..count]) {
                self.has_failed.store(true, Ordering::Relaxed);
                return Err(error);
            }
            self.done_count.fetch_add(count as u64, Ordering::Relaxed);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::Dataset;
    use crate::runner::Strings;

    /// Promise: many small records form a batch, and a large one its own.
    #[test]
    fn batches_have_their_size() {
        let keys = KeySet::generate(&Dataset::Sequential, 1, 0, 1).expect("keys");
        let count = |value_size: &str| {
            let strings = Strings {
                value_size: value_size.parse().expect("a size"),
                ..Strings::default()
            };
            batch_count(&StringCodec::new(strings, &keys)).get()
        };
        assert_eq!(count("SD"), BATCH_COUNT_MAX);
        assert_eq!(count("100000"), 10);
        assert_eq!(count("67108864"), 1);
    }
}
