//! The check at the end: every key that must be there is there, and nothing else.

use farleaf::Table;

use super::TimelineSink;
use super::course::{Course, Presence};
use super::crew::Faults;
use super::keys::value_of;
use crate::verify::Verdict;

/// Records of one scan.
const PART_RECORD_COUNT: usize = 2_048;
/// Parts between two reports of progress.
const PARTS_PER_REPORT: u64 = 32;

/// Reads all of the table and counts every key that is missing, wrong or too many. To be called
/// when no operation is under way. A bit for each index, some 20 ns a record.
pub(super) fn audit(
    course: &Course,
    key_count: u64,
    table: &Table,
    faults: &mut Faults,
    sink: &dyn TimelineSink,
) {
    let mut seen = vec![0_u64; key_count.div_ceil(64) as usize];
    let mut entries = Vec::with_capacity(PART_RECORD_COUNT);
    let (mut from, mut record_count) = (0, 0);
    for part in 1_u64.. {
        if let Err(error) = table.scan_into(from, PART_RECORD_COUNT, &mut entries) {
            let stopped = "the check of all records stopped at key";
            return faults.wrong(format_args!("{stopped} {from}: {error}"));
        }
        check_part(course, from, &entries, &mut seen, faults);
        record_count += entries.len() as u64;
        if part % PARTS_PER_REPORT == 0 {
            sink.advance(record_count);
        }
        let next = entries.last().and_then(|(key, _)| key.checked_add(1));
        // An answer that does not lead on has been counted as wrong.
        match next.filter(|next| *next > from && entries.len() >= PART_RECORD_COUNT) {
            Some(next) => from = next,
            None => break,
        }
    }
    check_all_seen(course, key_count, &seen, faults);
}

/// Every record of a scan is one that may be there, with its value, above the one before.
fn check_part(
    course: &Course,
    from: u64,
    entries: &[(u64, u64)],
    seen: &mut [u64],
    faults: &mut Faults,
) {
    let mut lowest = Some(from);
    for (key, value) in entries.iter().copied() {
        if lowest.is_none_or(|lowest| key < lowest) {
            faults.wrong(format_args!(
                "a scan from key {from} has key {key} too late"
            ));
        }
        lowest = key.checked_add(1);
        match course.keys.index_of(key) {
            None => faults.wrong(format_args!("key {key} is there and was never put")),
            Some(index) => {
                if course.presence(index) == Presence::Absent {
                    faults.wrong(format_args!("key {key} is there and must not be"));
                }
                if value != value_of(key) {
                    faults.wrong_value(key, value);
                }
                seen[(index / 64) as usize] |= 1 << (index % 64);
            }
        }
    }
}

fn check_all_seen(course: &Course, key_count: u64, seen: &[u64], faults: &mut Faults) {
    for index in 0..key_count {
        let is_seen = seen[(index / 64) as usize] >> (index % 64) & 1 == 1;
        if !is_seen && course.presence(index) == Presence::Present {
            let key = course.keys.key(index);
            faults.judge(Verdict::Missing { key });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::{Change, TimelineConfig};

    const COUNT: u64 = 100;

    /// Errors and missing keys of a table that should have indexes 10 to 99.
    fn counted(change: impl FnOnce(&mut Vec<(u64, u64)>)) -> (u64, u64) {
        let course = Course::new(&TimelineConfig {
            change: Change::Shrink {
                from: COUNT,
                delete_percent: 10,
            },
            ..TimelineConfig::default()
        });
        while let Some(delete) = course.take_delete() {
            course.acknowledge(delete);
        }
        let mut entries: Vec<(u64, u64)> = (10..COUNT).map(|index| course.record(index)).collect();
        entries.sort_unstable();
        change(&mut entries);
        let (mut seen, mut faults) = ([0; 2], Faults::default());
        check_part(&course, 0, &entries, &mut seen, &mut faults);
        check_all_seen(&course, COUNT, &seen, &mut faults);
        assert_eq!(faults.refused, 0);
        (faults.errors(), faults.missing())
    }

    /// Promise: a table as it must be has no faults; every key that is missing, has come back, was
    /// never put, is out of order or has another's value is counted.
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
            let course = Course::new(&TimelineConfig {
                change: Change::Shrink {
                    from: COUNT,
                    delete_percent: 10,
                },
                ..TimelineConfig::default()
            });
            entries.push(course.record(3));
            entries.sort_unstable();
        };
        assert_eq!(counted(back), (1, 0));
    }
}
