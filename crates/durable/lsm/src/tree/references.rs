//! References: number of entries and bytes that a tree has in each log segment.
//!
//! After the header, a block has rows of 24 bytes in ascending order of log segments. A row has
//! three 64-bit numbers: the segment, the number of entries whose records begin in it, and the
//! bytes of those records.

use std::collections::BTreeMap;

use farleaf_base::limits::{KEY_SIZE_BYTES_MAX, VALUE_SIZE_BYTES_MAX};

use crate::error::LsmError;
use crate::place::{
    BLOCK_SIZE_BYTES, BlockNumber, LogNumber, LogPosition, SEGMENT_SIZE_BYTES, TreeId,
};
use crate::tree::format::{BODY_SIZE_BYTES, Block, HEADER_SIZE_BYTES, Header, Kind, seal, u64_at};

const ROW_SIZE_BYTES: usize = 24;
const ROW_COUNT_MAX: usize = BODY_SIZE_BYTES / ROW_SIZE_BYTES;
/// Number of bytes in a log segment behind its header.
const LOG_BODY_SIZE_BYTES: u64 = SEGMENT_SIZE_BYTES - 32;
/// Upper bound for the size of a record in bytes. Rows with larger records are invalid, so a row
/// cannot name half of the log.
const RECORD_SIZE_BYTES_MAX: u64 = 1 << 27;

const _: () = assert!(VALUE_SIZE_BYTES_MAX + KEY_SIZE_BYTES_MAX + 12 <= 1 << 27);

/// Entries of a tree in one log segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reference {
    /// Number of entries whose records begin in the segment.
    pub entry_count: u64,
    /// Bytes of the records that begin in the segment. A record that continues in the next segments
    /// exceeds the segment's size.
    pub size_bytes: u64,
}

/// Entries and bytes that a tree has in each log segment.
///
/// Sizes are sums of those passed to the builder. Trees do not store sizes of single records, so a
/// tree made from trees adds the mean record size of each segment. Such sums are estimates if a
/// segment has records of different sizes, some of which are gone. A record larger than a segment
/// is the only one that begins in its segment, so its size is exact. Entry counts are always exact.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct References {
    rows: BTreeMap<LogNumber, Reference>,
}

impl References {
    /// Counts one more entry.
    pub(super) fn add(&mut self, position: LogPosition, record_size_bytes: u64) {
        assert!(
            record_size_bytes <= RECORD_SIZE_BYTES_MAX,
            "no value is that large"
        );
        let row = self.rows.entry(position.number()).or_default();
        row.entry_count = row.entry_count.saturating_add(1);
        row.size_bytes = row.size_bytes.saturating_add(record_size_bytes);
    }

    /// Returns the log segments in which the tree's records begin, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (LogNumber, Reference)> {
        self.rows.iter().map(|(number, row)| (*number, *row))
    }

    /// Returns the first log segment, at or behind this one, in which records of the tree begin.
    pub(crate) fn next_from(&self, number: LogNumber) -> Option<LogNumber> {
        self.rows.range(number..).next().map(|(number, _)| *number)
    }

    /// Returns the log segments that the tree needs, ascending and without duplicates: those in
    /// which its records begin or continue.
    pub fn needed(&self) -> impl Iterator<Item = LogNumber> {
        let mut next = 0;
        self.iter().flat_map(move |(number, row)| {
            // A record that continues in other segments is the only one that begins in its own.
            let count = match row.entry_count {
                1 => row.size_bytes.div_ceil(LOG_BODY_SIZE_BYTES).max(1),
                _ => 1,
            };
            let first = number.0.max(next);
            next = number.0.saturating_add(count).max(next);
            (first..next).map(LogNumber)
        })
    }

    /// Returns the mean size of the tree's records that begin in a position's segment, in bytes; 0
    /// if there are none.
    pub fn record_size_bytes(&self, position: LogPosition) -> u64 {
        let Some(row) = self.rows.get(&position.number()) else {
            return 0;
        };
        let count = row.entry_count.max(1);
        row.size_bytes.saturating_add(count / 2) / count
    }

    /// Returns the number of blocks for the rows.
    pub(super) fn block_count(&self) -> u32 {
        self.rows.len().div_ceil(ROW_COUNT_MAX) as u32
    }

    /// Seals and writes the blocks, numbered from this one on.
    pub(super) fn write(
        &self,
        tree: TreeId,
        first: BlockNumber,
        mut to: impl FnMut(&[u8; BLOCK_SIZE_BYTES]) -> Result<(), LsmError>,
    ) -> Result<(), LsmError> {
        let mut rows = self.iter();
        for number in first.0..first.0 + self.block_count() {
            let mut block = [0; BLOCK_SIZE_BYTES];
            let slots = block[HEADER_SIZE_BYTES..].chunks_exact_mut(ROW_SIZE_BYTES);
            let mut count = 0;
            for (slot, (number, row)) in slots.zip(&mut rows) {
                slot[..8].copy_from_slice(&number.0.to_le_bytes());
                slot[8..16].copy_from_slice(&row.entry_count.to_le_bytes());
                slot[16..].copy_from_slice(&row.size_bytes.to_le_bytes());
                count += 1;
            }
            let header = Header {
                kind: Kind::References,
                height: 0,
                count,
                place: 0,
                head_size_bytes: 0,
            };
            seal(&mut block, header, tree, BlockNumber(number));
            to(&block)?;
        }
        Ok(())
    }

    /// Adds the rows of one block.
    pub(super) fn read(&mut self, block: &Block) -> Result<(), &'static str> {
        let header = block.header();
        assert!(header.kind == Kind::References, "who loads it has looked");
        for index in 0..header.count as usize {
            let at = HEADER_SIZE_BYTES + index * ROW_SIZE_BYTES;
            let number = LogNumber(u64_at(block.bytes(), at));
            let row = Reference {
                entry_count: u64_at(block.bytes(), at + 8),
                size_bytes: u64_at(block.bytes(), at + 16),
            };
            let ascends = self
                .rows
                .last_key_value()
                .is_none_or(|(last, _)| *last < number);
            let is_plausible =
                row.size_bytes <= row.entry_count.saturating_mul(RECORD_SIZE_BYTES_MAX);
            if !ascends || number > LogPosition::MAX.number() || !is_plausible {
                return Err("an entry of its references is invalid");
            }
            self.rows.insert(number, row);
        }
        Ok(())
    }
}

/// Checks that a block with this header is a valid block of references.
pub(super) fn check(header: Header) -> Result<(), &'static str> {
    match header.count as usize {
        1..=ROW_COUNT_MAX => Ok(()),
        _ => Err("invalid number of references"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::format::u32_at;

    const TREE: TreeId = TreeId(1);

    fn reread(references: &References) -> References {
        let mut number = 5..;
        let mut read = References::default();
        let to = |block: &[u8; BLOCK_SIZE_BYTES]| {
            let block = Block::open_copy(block, TREE, BlockNumber(number.next().unwrap()))?;
            read.read(&block).unwrap();
            Ok(())
        };
        references.write(TREE, BlockNumber(5), to).unwrap();
        assert_eq!(number.start - 5, references.block_count());
        read
    }

    /// Promise: rows are added up, and survive writing and reading, in one block and in many.
    #[test]
    fn references_are_read_as_written() {
        for segment_count in [1, 169, 170, 1000] {
            let mut references = References::default();
            for number in 0..segment_count * 3 {
                let start = LogNumber(number / 3 * 2).start();
                references.add(start.plus(number * 40), 100 + number % 3);
            }
            let read = reread(&references);
            assert_eq!(read, references);
            assert_eq!(read.iter().count() as u64, segment_count);
            let row = Reference {
                entry_count: 3,
                size_bytes: 303,
            };
            assert!(read.iter().all(|(_, it)| it == row));
            assert_eq!(read.record_size_bytes(LogPosition(77)), 101);
            assert_eq!(read.record_size_bytes(LogNumber(1).start()), 0);
            assert_eq!(read.needed().count() as u64, segment_count);
        }
    }

    /// Promise: a record larger than a segment needs all its segments, and no segment is returned
    /// twice.
    #[test]
    fn a_long_record_needs_all_its_segments() {
        let mut references = References::default();
        references.add(LogNumber(1).start().plus(40), 100);
        references.add(LogNumber(1).start().plus(140), SEGMENT_SIZE_BYTES);
        references.add(LogNumber(2).start().plus(32), 3 * LOG_BODY_SIZE_BYTES);
        references.add(LogNumber(5).start().plus(32), 3 * LOG_BODY_SIZE_BYTES + 1);
        references.add(LogNumber(9).start().plus(32), LOG_BODY_SIZE_BYTES);
        let needed: Vec<u64> = references.needed().map(|it| it.0).collect();
        assert_eq!(needed, [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    }

    /// Promise (format): rows have exactly these bytes, and invalid rows are refused.
    #[test]
    fn references_have_these_bytes() {
        let mut references = References::default();
        references.add(LogNumber(3).start(), 99);
        let mut bytes = [0; BLOCK_SIZE_BYTES];
        let to = |block: &[u8; BLOCK_SIZE_BYTES]| {
            bytes = *block;
            Ok(())
        };
        references.write(TREE, BlockNumber(5), to).unwrap();
        assert_eq!(bytes[4..10], [4, 0, 1, 0, 0, 0]);
        assert_eq!([32, 40, 48].map(|at| u64_at(&bytes, at)), [3, 1, 99]);
        assert_eq!(u32_at(&bytes, 0), 0x7f34_f527);

        let header = Header {
            kind: Kind::References,
            height: 0,
            count: 1,
            place: 0,
            head_size_bytes: 0,
        };
        for (at, byte) in [(37, 1), (44, 0xff), (55, 0xff)] {
            let mut other = bytes;
            other[at] = byte;
            seal(&mut other, header, TREE, BlockNumber(5));
            let block = Block::open_copy(&other, TREE, BlockNumber(5)).unwrap();
            let is_read = References::default().read(&block).is_ok();
            assert_eq!(
                is_read,
                at == 44,
                "more entries than bytes are odd, and no harm"
            );
        }
    }
}
