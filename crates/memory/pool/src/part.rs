//! Which part of a table over several pools a table is: four words of its catalog entry.
//!
//! | word | meaning |
//! |---|---|
//! | 0 | identity of the whole table; 0: the table is no part of any |
//! | 1 | number of the part, from 0 (16), how many parts there are (16) |
//! | 2 | its smallest key |
//! | 3 | its largest key |
//!
//! They are written with the entry and never change (C2), and its checksum covers them. What the
//! parts of a table have to say together are rules O1 to O7 of `docs/partitions.md`.

/// Words of an entry that say it.
pub const PART_SIZE_WORDS: usize = 4;

/// The fewest parts that a table over several pools has.
pub const PART_COUNT_MIN: u16 = 2;

/// Which table over several pools: drawn at random when the table is made, never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionedTableId(pub u64);

/// A part of a table over several pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartRecord {
    /// Which table.
    pub table: PartitionedTableId,
    /// Which part of it, from 0, in the order of keys.
    pub number: u16,
    /// How many parts it has, two at least.
    pub count: u16,
    /// The smallest key that belongs here.
    pub low: u64,
    /// The largest one.
    pub high: u64,
}

impl PartRecord {
    /// The words that say it; zeros for a table by itself.
    pub fn encode(part: Option<&Self>) -> [u64; PART_SIZE_WORDS] {
        part.map_or([0; PART_SIZE_WORDS], |part| {
            let place = u64::from(part.number) | u64::from(part.count) << 16;
            [part.table.0, place, part.low, part.high]
        })
    }

    /// What the words say: `None` if they can mean nothing, `Some(None)` for a table by itself.
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

    /// Promise: what no table can be is refused, whatever the checksum says.
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
