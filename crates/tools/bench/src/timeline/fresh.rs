//! What gets cost a session that was not there while the table changed.

use farleaf::{Session, Table};
use serde::Serialize;

use super::TimelineConfig;
use super::course::Course;
use super::crew::Faults;
use super::interval::GetTotals;
use crate::distribution::{below, numbered_stream};
use crate::verify::Verdict;

/// Gets that it makes, at the most.
const SAMPLE_COUNT_MAX: u64 = 100_000;

/// What gets of random keys cost a session that was opened when all was done. What they say is
/// absent where nothing is left in the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct FreshSession {
    /// How many it made.
    pub gets: u64,
    /// Mean round trips of one.
    pub round_trips_per_get: Option<f64>,
    /// Share of those that one leaf answered in one round trip.
    pub one_leaf_fraction: Option<f64>,
    /// Mean bytes that one read.
    pub bytes_per_get: Option<f64>,
    /// Bytes that the session holds to find leaves.
    pub metadata_bytes: u64,
}

/// Gets random keys that must be there.
pub(super) fn measure(
    config: &TimelineConfig,
    course: &Course,
    session: &Session,
    table: &Table,
    faults: &mut Faults,
) -> FreshSession {
    // Numbers that no thread of the run has drawn.
    let mut random = numbered_stream(config.seed, config.threads);
    let present_count = config.change.key_count() - config.change.delete_count();
    let mut totals = GetTotals::default();
    for _ in 0..present_count.min(SAMPLE_COUNT_MAX) {
        let Some(index) = course.known_present(|count| below(&mut random, count)) else {
            continue;
        };
        let (key, value) = course.record(index);
        match table.get(key) {
            Ok(found) => {
                totals.add(session.last_cost());
                match found {
                    Some(found) if found == value => {}
                    Some(found) => faults.wrong_value(key, found),
                    None => faults.judge(Verdict::Missing { key }),
                }
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
