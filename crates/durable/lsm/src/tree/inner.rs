//! Inner blocks: children, and the separators between them.
//!
//! After the header, an inner block has one slot of 8 bytes for each child, from left to right. The
//! separators follow in the same order, without gaps:
//!
//! | bytes of a slot | contents |
//! |---|---|
//! | 0 to 3 | block number of the child |
//! | 4, 5 | offset of its separator in the block |
//! | 6, 7 | size of the separator in bytes (15 bits), and whether it is incomplete (1 bit) |
//!
//! An incomplete separator is followed by the position of a record (8 bytes), whose key is the
//! whole separator. The first child's separator is empty.

use std::cmp::Ordering;

use crate::error::LsmError;
use crate::head::{KeySource, KnownKey};
use crate::place::{BLOCK_SIZE_BYTES, BlockNumber, LogPosition};
use crate::tree::format::{
    BODY_SIZE_BYTES, Block, HEADER_SIZE_BYTES, Header, Kind, u16_at, u32_at, u64_at,
};
use crate::tree::separator::{SEPARATOR_SIZE_BYTES_MAX, Separator};

const SLOT_SIZE_BYTES: usize = 8;
const RECORD_SIZE_BYTES: usize = 8;
const RECORD_BIT: u16 = 1 << 15;

/// Minimum number of children in an inner block that has no space for another one.
pub(super) const CHILD_COUNT_MIN: usize =
    BODY_SIZE_BYTES / (SLOT_SIZE_BYTES + SEPARATOR_SIZE_BYTES_MAX + RECORD_SIZE_BYTES);

const _: () = assert!(CHILD_COUNT_MIN == 14);

/// Checks that a block with this header is a valid inner block. Its children ascend and have lower
/// numbers than the block, so no path is endless.
pub(super) fn check(
    bytes: &[u8; BLOCK_SIZE_BYTES],
    header: Header,
    number: BlockNumber,
) -> Result<(), &'static str> {
    let count = header.count as usize;
    let mut end = HEADER_SIZE_BYTES + count * SLOT_SIZE_BYTES;
    if count == 0 || end != header.place as usize || end > BLOCK_SIZE_BYTES {
        return Err("the number of its children is invalid");
    }
    let mut before = None;
    for index in 0..count {
        let slot = slot(bytes, index);
        if before.is_some_and(|it| it >= slot.child) || slot.child >= number {
            return Err("its children are not in ascending order, or not before it");
        }
        before = Some(slot.child);
        if slot.start != end || slot.size_bytes > SEPARATOR_SIZE_BYTES_MAX {
            return Err("its separators are not contiguous, or too long");
        }
        end = slot.end();
        if end > BLOCK_SIZE_BYTES {
            return Err("its separators exceed the block");
        }
    }
    Ok(())
}

#[derive(Clone, Copy)]
struct Slot {
    child: BlockNumber,
    start: usize,
    size_bytes: usize,
    has_record: bool,
}

impl Slot {
    const fn end(self) -> usize {
        let record = if self.has_record {
            RECORD_SIZE_BYTES
        } else {
            0
        };
        self.start + self.size_bytes + record
    }
}

fn slot(bytes: &[u8; BLOCK_SIZE_BYTES], index: usize) -> Slot {
    let at = HEADER_SIZE_BYTES + index * SLOT_SIZE_BYTES;
    let size = u16_at(bytes, at + 6);
    Slot {
        child: BlockNumber(u32_at(bytes, at)),
        start: u16_at(bytes, at + 4) as usize,
        size_bytes: (size & !RECORD_BIT) as usize,
        has_record: size & RECORD_BIT != 0,
    }
}

/// Block read as an inner block.
#[derive(Clone, Copy)]
pub(super) struct Inner<'b> {
    bytes: &'b [u8; BLOCK_SIZE_BYTES],
    count: usize,
}

impl<'b> Inner<'b> {
    /// Reads a block that is an inner block.
    pub(super) fn of(block: &'b Block) -> Self {
        let header = block.header();
        assert!(header.kind == Kind::Inner, "who loads it has looked");
        Self {
            bytes: block.bytes(),
            count: header.count as usize,
        }
    }

    /// Returns the number of children, at least one.
    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// Returns the child at an index.
    pub(super) fn child(&self, index: usize) -> BlockNumber {
        assert!(index < self.count);
        slot(self.bytes, index).child
    }

    /// Returns the separator to the left of a child, and the record with its whole key.
    fn separator(&self, index: usize) -> (KnownKey<'b>, LogPosition) {
        let slot = slot(self.bytes, index);
        let end = slot.start + slot.size_bytes;
        let known = KnownKey {
            bytes: &self.bytes[slot.start..end],
            continues: slot.has_record,
        };
        let record = if slot.has_record {
            u64_at(self.bytes, end)
        } else {
            0
        };
        (known, LogPosition(record))
    }

    /// Returns the index of the child whose range contains a key. Reads keys from the log if the
    /// key begins with the first 256 bytes of longer separators: four keys for 14 such separators.
    pub(super) fn search(&self, key: &[u8], keys: &dyn KeySource) -> Result<usize, LsmError> {
        let (mut low, mut high) = (0, self.count - 1);
        let mut whole = Vec::new();
        // The separator of `low` is not greater than the key; those from `high` on are.
        while low < high {
            let middle = (low + high).div_ceil(2);
            let (separator, position) = self.separator(middle);
            let order = if let Some(order) = separator.compare(KnownKey::whole(key)) {
                order
            } else {
                whole.clear();
                keys.append_key(position, &mut whole)?;
                whole.as_slice().cmp(key)
            };
            match order {
                Ordering::Less | Ordering::Equal => low = middle,
                Ordering::Greater => high = middle - 1,
            }
        }
        Ok(low)
    }
}

/// Inner block that is being filled.
#[derive(Default)]
pub(super) struct InnerBuilder {
    slots: Vec<Slot>,
    separators: Vec<u8>,
    /// Separator to the left of the first child; it goes to the parent.
    first: Separator,
}

impl InnerBuilder {
    /// Returns true if another child fits.
    pub(super) fn fits_entry(&self, separator: &Separator) -> bool {
        let record = separator.record.map_or(0, |_| RECORD_SIZE_BYTES);
        let separators = self.separators.len() + separator.bytes.len() + record;
        (self.slots.len() + 1) * SLOT_SIZE_BYTES + separators <= BODY_SIZE_BYTES
    }

    /// Adds a child that fits, with the separator to its left.
    pub(super) fn add(&mut self, child: BlockNumber, separator: Separator) {
        let inside = if self.slots.is_empty() {
            self.first = separator;
            Separator::default()
        } else {
            separator
        };
        self.slots.push(Slot {
            child,
            start: self.separators.len(),
            size_bytes: inside.bytes.len(),
            has_record: inside.record.is_some(),
        });
        self.separators.extend_from_slice(&inside.bytes);
        if let Some(position) = inside.record {
            self.separators.extend_from_slice(&position.0.to_le_bytes());
        }
    }

    /// Writes the collected children into a zeroed block and starts over; returns the header, and
    /// the separator to the left of the block.
    pub(super) fn write(
        &mut self,
        block: &mut [u8; BLOCK_SIZE_BYTES],
        height: u8,
    ) -> (Header, Separator) {
        let begin = HEADER_SIZE_BYTES + self.slots.len() * SLOT_SIZE_BYTES;
        let slots = block[HEADER_SIZE_BYTES..begin].chunks_exact_mut(SLOT_SIZE_BYTES);
        for (to, slot) in slots.zip(&self.slots) {
            let record = if slot.has_record { RECORD_BIT } else { 0 };
            to[..4].copy_from_slice(&slot.child.0.to_le_bytes());
            to[4..6].copy_from_slice(&((begin + slot.start) as u16).to_le_bytes());
            to[6..].copy_from_slice(&(slot.size_bytes as u16 | record).to_le_bytes());
        }
        block[begin..begin + self.separators.len()].copy_from_slice(&self.separators);
        let header = Header {
            kind: Kind::Inner,
            height,
            count: self.slots.len() as u16,
            place: begin as u16,
            head_size_bytes: 0,
        };
        self.slots.clear();
        self.separators.clear();
        (header, std::mem::take(&mut self.first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::TreeId;
    use crate::tree::format::{seal, stamp};
    use crate::tree::tests::MemoryLog;

    const TREE: TreeId = TreeId(1);
    const NUMBER: BlockNumber = BlockNumber(99);

    fn bytes(log: &MemoryLog) -> [u8; BLOCK_SIZE_BYTES] {
        let mut builder = InnerBuilder::default();
        let long = [b'x'; 300];
        let separator = |bytes: &[u8], record| Separator {
            bytes: bytes.to_vec(),
            record,
        };
        builder.add(BlockNumber(3), separator(b"left", None));
        builder.add(BlockNumber(4), separator(b"m", None));
        builder.add(
            BlockNumber(6),
            separator(&long[..256], Some(log.put(&long))),
        );
        let mut bytes = [0; BLOCK_SIZE_BYTES];
        let (header, first) = builder.write(&mut bytes, 1);
        assert_eq!(first, separator(b"left", None));
        seal(&mut bytes, header, TREE, NUMBER);
        bytes
    }

    /// Promise (format): an inner block has exactly these bytes.
    #[test]
    fn an_inner_block_has_these_bytes() {
        let bytes = bytes(&MemoryLog::default());
        assert_eq!(bytes[4..10], [2, 1, 3, 0, 56, 0]);
        assert_eq!(bytes[32..40], [3, 0, 0, 0, 56, 0, 0, 0]);
        assert_eq!(bytes[40..48], [4, 0, 0, 0, 56, 0, 1, 0]);
        assert_eq!(bytes[48..56], [6, 0, 0, 0, 57, 0, 0, 0x81]);
        assert_eq!(&bytes[56..59], b"mxx");
        assert_eq!(u64_at(&bytes, 57 + 256), MemoryLog::FIRST.0);
        assert!(bytes[57 + 264..].iter().all(|it| *it == 0));
        assert_eq!(u32_at(&bytes, 0), 0x7438_8a88);
    }

    /// Promise: a block with offsets outside of it, or with children that are not below it, is
    /// refused.
    #[test]
    fn what_leads_elsewhere_is_refused() {
        let refused = |at: usize, byte| {
            let mut bytes = bytes(&MemoryLog::default());
            bytes[at] = byte;
            stamp(&mut bytes, TREE, NUMBER);
            Block::open_copy(&bytes, TREE, NUMBER).is_err()
        };
        let damages = [
            ("more children than fit", 7, 2),
            ("no children", 6, 0),
            ("separators that begin elsewhere", 8, 57),
            ("a child twice", 40, 3),
            ("the block itself", 48, 99),
            ("one behind it", 48, 100),
            ("a separator that leaves a gap", 44, 57),
            ("one that overlaps the next", 46, 2),
            ("one of more than 256 bytes", 54, 1),
        ];
        for (what, at, byte) in damages {
            assert!(refused(at, byte), "{what}");
        }
        assert!(
            !refused(46, 1) && !refused(48, 98),
            "as it was, or as it could be"
        );

        let mut bytes = [0; BLOCK_SIZE_BYTES];
        let mut builder = InnerBuilder::default();
        for child in 0..90 {
            let separator = Separator {
                bytes: vec![child as u8; 36],
                record: None,
            };
            assert!(builder.fits_entry(&separator));
            builder.add(BlockNumber(child), separator);
        }
        let (header, _) = builder.write(&mut bytes, 1);
        seal(&mut bytes, header, TREE, NUMBER);
        assert!(Block::open_copy(&bytes, TREE, NUMBER).is_ok());
        bytes[HEADER_SIZE_BYTES + 89 * SLOT_SIZE_BYTES + 6] = 255;
        seal(&mut bytes, header, TREE, NUMBER);
        assert!(
            Block::open_copy(&bytes, TREE, NUMBER).is_err(),
            "the last one leads out"
        );
    }

    /// Promise: a key belongs to the last child whose separator is not greater. The log is read
    /// only if the key begins like a longer separator.
    #[test]
    fn a_key_is_under_one_child() {
        let log = MemoryLog::default();
        let block = Block::open_copy(&bytes(&log), TREE, NUMBER).unwrap();
        let under = |key: &[u8]| Inner::of(&block).search(key, &log).unwrap();
        assert_eq!(
            [under(b""), under(b"lz"), under(b"m"), under(b"n")],
            [0, 0, 1, 1]
        );
        assert_eq!([under(&[b'x'; 256]), under(b"y")], [1, 2]);
        assert_eq!(log.read_count(), 0);
        assert_eq!([under(&[b'x'; 299]), under(&[b'x'; 300])], [1, 2]);
        assert_eq!(log.read_count(), 2);
    }
}
