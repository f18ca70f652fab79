//! Costs of gets in a session that was opened after the table changed.

use farleaf::{Session, Table};
use serde::Serialize;

use super::TimelineConfig;
use super::change_state::ChangeState;
use super::interval::GetTotals;
use crate::distribution::{below, numbered_stream};
use crate::runner::fault_counts::FaultCounts;

/// Maximal number of its gets.
const SAMPLE_COUNT_MAX: u64 = 100_000;

/// Costs of random gets in a session that was opened at the end. The means are absent if the table
/// is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct FreshSession {
    /// Number of gets.
    pub gets: u64,
    /// Mean round trips per get.
    pub round_trips_per_get: Option<f64>,
    /// Share of gets that one leaf answered in one round trip.
    pub one_leaf_fraction: Option<f64>,
    /// Mean bytes read per get.
    pub bytes_per_get: Option<f64>,
    /// Bytes that the session holds to find leaves.
    pub metadata_bytes: u64,
}

/// Gets random keys that must exist.
pub(super) fn measure(
    config: &TimelineConfig,
    change_state: &ChangeState,
    session: &Session,
    table: &Table,
    faults: &mut FaultCounts,
) -> FreshSession {
    // Numbers that no thread of the run has drawn.
    let mut random = numbered_stream(config.seed, config.threads);
    let present_count = config.change.key_count() - config.change.delete_count();
    let mut totals = GetTotals::default();
    for _ in 0..present_count.min(SAMPLE_COUNT_MAX) {
        let Some(index) = change_state.known_present(|count| below(&mut random, count)) else {
            continue;
        };
        let (key, value) = change_state.record(index);
        match table.get(key) {
            Ok(found) => {
                totals.add(session.last_cost());
                faults.count_value(key, found, value, false);
            }
            Err(error) => faults.failed("get", key, &error),
        }
    }
    FreshSession {
        gets: totals.count,
        round_trips_per_get: totals.mean(totals.round_trips),
        one_leaf_fraction: totals.mean(totals.one_leaf_count),
        bytes_per_get: totals.mean(totals.bytes_read),
        metadata_bytes: table.metadata_bytes(),
    }
}
