//! Final check: every expected key exists, and no other.

use farleaf::Table;

use super::change_state::{ChangeState, Presence};
use super::keys::value_of;
use crate::runner::ProgressSink;
use crate::runner::fault_counts::FaultCounts;
use crate::verify::Verdict;

/// Records of one scan.
const PART_RECORD_COUNT: usize = 2_048;
/// Parts between two progress reports.
const PARTS_PER_REPORT: u64 = 32;

/// Reads the whole table and counts every key that is missing, wrong or superfluous. No operation
/// may be in flight. Needs a bit per index, and some 20 ns per record.
pub(super) fn audit(
    change_state: &ChangeState,
    key_count: u64,
    table: &Table,
    faults: &mut FaultCounts,
    sink: &dyn ProgressSink,
) {
    let mut seen = vec![0_u64; key_count.div_ceil(64) as usize];
    let mut entries = Vec::with_capacity(PART_RECORD_COUNT);
    let (mut from, mut record_count) = (0, 0);
    for part in 1_u64.. {
        if let Err(error) = table.scan_into(from, PART_RECORD_COUNT, &mut entries) {
            let stopped = "final check of all records stopped at key";
            return faults.wrong(format_args!("{stopped} {from}: {error}"));
        }
        check_part(change_state, from, &entries, &mut seen, faults);
        record_count += entries.len() as u64;
        if part % PARTS_PER_REPORT == 0 {
            sink.advance(record_count);
        }
        let next = entries.last().and_then(|(key, _)| key.checked_add(1));
        // An answer after which the scan cannot continue has been counted as wrong.
        match next.filter(|next| *next > from && entries.len() >= PART_RECORD_COUNT) {
            Some(next) => from = next,
            None => break,
        }
    }
    check_all_seen(change_state, key_count, &seen, faults);
}

/// Checks that every record of a scan may exist, has its value, and is above the previous one.
fn check_part(
    change_state: &ChangeState,
    from: u64,
    entries: &[(u64, u64)],
    seen: &mut [u64],
    faults: &mut FaultCounts,
) {
    let mut lowest = Some(from);
    for (key, value) in entries.iter().copied() {
        if lowest.is_none_or(|lowest| key < lowest) {
            faults.wrong(format_args!(
                "scan from key {from} returned key {key} out of order"
            ));
        }
        lowest = key.checked_add(1);
        match change_state.keys.index_of(key) {
            None => faults.wrong(format_args!("key {key} exists but was never put")),
            Some(index) => {
                if change_state.presence(index) == Presence::Absent {
                    faults.wrong(format_args!(
                        "key {key} exists but was deleted or not yet put"
                    ));
                }
                if value != value_of(key) {
                    faults.wrong_value(key, value);
                }
                seen[(index / 64) as usize] |= 1 << (index % 64);
            }
        }
    }
}

fn check_all_seen(
    change_state: &ChangeState,
    key_count: u64,
    seen: &[u64],
    faults: &mut FaultCounts,
) {
    for index in 0..key_count {
        let is_seen = seen[(index / 64) as usize] >> (index % 64) & 1 == 1;
        if !is_seen && change_state.presence(index) == Presence::Present {
            let key = change_state.keys.key(index);
            faults.count_verdict(Verdict::Missing { key });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::{Change, TimelineConfig};

    const COUNT: u64 = 100;

    /// Returns the errors and missing keys of a changed table that should have indexes 10 to 99.
    fn counted(change: impl FnOnce(&mut Vec<(u64, u64)>)) -> (u64, u64) {
        let change_state = ChangeState::new(&TimelineConfig {
            change: Change::Shrink {
                from: COUNT,
                delete_percent: 10,
            },
            ..TimelineConfig::default()
        });
        while let Some(delete) = change_state.take_delete() {
            change_state.acknowledge(delete);
        }
        let mut entries: Vec<(u64, u64)> = (10..COUNT)
            .map(|index| change_state.record(index))
            .collect();
        entries.sort_unstable();
        change(&mut entries);
        let (mut seen, mut faults) = ([0; 2], FaultCounts::default());
        check_part(&change_state, 0, &entries, &mut seen, &mut faults);
        check_all_seen(&change_state, COUNT, &seen, &mut faults);
        assert_eq!(faults.refused, 0);
        (faults.errors, faults.missing)
    }

    /// Promise: a correct table has no faults. Every key that is missing, has come back, was never
    /// put, is out of order or has another's value is counted.
    #[test]
    fn every_fault_is_counted() {
        assert_eq!(counted(|_| ()), (0, 0));
        assert_eq!(counted(|entries| entries.truncate(60)), (0, 30));
        assert_eq!(counted(Vec::clear), (0, 90));
        assert_eq!(counted(|entries| entries[5].1 = 7), (1, 0));
        assert_eq!(counted(|entries| entries[5] = entries[4]), (1, 1));
        assert_eq!(counted(|entries| entries.swap(4, 5)), (1, 0));
        assert_eq!(counted(|entries| entries.push((u64::MAX, 0))), (1, 0));
        let back = |entries: &mut Vec<(u64, u64)>| {
            let change_state = ChangeState::new(&TimelineConfig {
                change: Change::Shrink {
                    from: COUNT,
                    delete_percent: 10,
                },
                ..TimelineConfig::default()
            });
            entries.push(change_state.record(3));
            entries.sort_unstable();
        };
        assert_eq!(counted(back), (1, 0));
    }
}
