//! Part record of a table over several pools: four words of its catalog entry.
//!
//! | word | meaning |
//! |---|---|
//! | 0 | identity of the whole table; 0: an ordinary table |
//! | 1 | number of the part, from 0 (16), number of parts (16) |
//! | 2 | smallest key of the part |
//! | 3 | largest key of the part |
//!
//! The words are written with the entry and never change; the entry's checksum covers them. For
//! the consistency of the parts of a table see `docs/explanation/partitions.md`.

/// Number of words of a part record.
pub const PART_SIZE_WORDS: usize = 4;

/// Smallest number of parts of a table over several pools.
pub const PART_COUNT_MIN: u16 = 2;

/// Identity of a table over several pools: drawn at random when the table is created, never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionedTableId(pub u64);

/// Part of a table over several pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartRecord {
    /// Identity of the whole table.
    pub table: PartitionedTableId,
    /// Number of the part, from 0, in key order.
    pub number: u16,
    /// Number of parts of the table, at least two.
    pub count: u16,
    /// Smallest key of the part.
    pub low: u64,
    /// Largest key of the part.
    pub high: u64,
}

impl PartRecord {
    /// Encodes the record; zeros for an ordinary table.
    pub fn encode(part: Option<&Self>) -> [u64; PART_SIZE_WORDS] {
        part.map_or([0; PART_SIZE_WORDS], |part| {
            let place = u64::from(part.number) | u64::from(part.count) << 16;
            [part.table.0, place, part.low, part.high]
        })
    }

    /// Decodes the record: `None` if the words are invalid, `Some(None)` for an ordinary table.
    pub fn decode(words: &[u64]) -> Option<Option<Self>> {
        let &[table, place, low, high] = words else {
            return None;
        };
        if table == 0 {
            return Some(None);
        }
        let part = Self {
            table: PartitionedTableId(table),
            number: place as u16,
            count: (place >> 16) as u16,
            low,
            high,
        };
        let is_good = place >> 32 == 0
            && part.count >= PART_COUNT_MIN
            && part.number < part.count
            && low <= high;
        is_good.then_some(Some(part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: an impossible record is rejected even with a valid checksum.
    #[test]
    fn what_cannot_be_a_part_is_refused() {
        let words = |number: u64, count: u64, low, high| [7, number | count << 16, low, high];
        assert!(matches!(
            PartRecord::decode(&words(1, 2, 5, 5)),
            Some(Some(_))
        ));
        assert_eq!(PartRecord::decode(&[0, 9, 9, 9]), Some(None));
        for bad in [
            words(2, 2, 0, 9),
            words(0, 1, 0, 9),
            words(0, 2, 9, 8),
            words(0, 1 << 16, 0, 9),
        ] {
            assert_eq!(PartRecord::decode(&bad), None, "{bad:?}");
        }
        assert_eq!(PartRecord::decode(&[]), None);
    }
}
