//! Memory that a run needs.

use super::TimelineConfig;
use crate::runner::size::{available_bytes, pool_size_bytes};
use crate::runner::{BenchError, RunConfig};

/// Bytes of this process per loaded key: keys are sorted before they are loaded.
const PROCESS_BYTES_PER_LOADED_KEY: u64 = 8;

/// Returns the size of a pool in which no put is refused. An upper estimate: leaves are half full,
/// as after splits; deleted space is never reused; and there is space for a copy of every leaf,
/// since retraining moves them.
pub(super) fn pool_bytes(config: &TimelineConfig) -> u64 {
    let key_count = config.change.key_count();
    let table = RunConfig {
        records: key_count,
        layer: config.layer,
        threads: config.threads,
        slots: config.slots,
        fill_percent: config.fill_percent.min(50),
        epsilon_keys: config.epsilon_keys,
        ..RunConfig::default()
    };
    let copy_count = key_count.div_ceil(config.slots / 2);
    pool_size_bytes(&table, copy_count)
}

/// Checks that the host has memory for a run.
///
/// # Errors
/// [`BenchError::TooManyKeys`]. A host that does not report its memory is trusted.
pub(super) fn check_memory(config: &TimelineConfig) -> Result<(), BenchError> {
    let Some(available_bytes) = available_bytes() else {
        return Ok(());
    };
    let change = config.change;
    let pool_bytes = config.size_bytes.unwrap_or_else(|| pool_bytes(config));
    let process_bytes = (change
        .load_count()
        .saturating_mul(PROCESS_BYTES_PER_LOADED_KEY))
    .saturating_add(change.write_count() / 4);
    let needed_bytes = pool_bytes.saturating_add(process_bytes);
    if needed_bytes <= available_bytes {
        return Ok(());
    }
    Err(BenchError::TooManyKeys {
        key_count: change.key_count(),
        needed_bytes,
        available_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::RECORD_COUNT_MAX;
    use crate::timeline::{Change, KeyOrder};

    /// Promise: there is space for every key in half-full leaves, and for a copy of these. More
    /// memory than any host has is refused before it is allocated.
    #[test]
    fn there_is_space_for_everything() {
        let growth = |to| TimelineConfig {
            change: Change::Growth {
                order: KeyOrder::Uniform,
                from: 0,
                to,
            },
            ..TimelineConfig::default()
        };
        let size = pool_bytes(&growth(8_000_000));
        // 2 million leaves of 192 bytes, twice, plus a quarter.
        assert!((960_000_000..1_200_000_000).contains(&size), "{size}");
        check_memory(&growth(1_000)).expect("a small run");
        let error = check_memory(&growth(RECORD_COUNT_MAX)).expect_err("as much as there can be");
        assert!(matches!(error, BenchError::TooManyKeys { .. }), "{error}");
    }
}
