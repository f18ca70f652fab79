//! Bloom filters over the hashes in a tree.
//!
//! Each block is a separate Bloom filter for an equal range of hashes. The upper bits of a hash
//! choose its block, and seven numbers computed from all its bits choose its bits there. An absent
//! hash passes with a probability of 0.9 %, whatever the tree's size is. An absent key that has the
//! hash of one of n entries also passes; that probability, n / 2^48, is negligible.

use std::ops::Range;

use crate::error::LsmError;
use crate::place::{BLOCK_SIZE_BYTES, BlockNumber, TreeId};
use crate::tree::BlockRange;
use crate::tree::format::{BODY_SIZE_BYTES, Block, HEADER_SIZE_BYTES, Header, Kind, seal};
use crate::tree::hash::{HASH_BITS, mix};

const BITS_PER_ENTRY: usize = 10;
/// Number of bits that an entry sets: 10 times the logarithm of 2, rounded, lets the fewest absent
/// keys pass.
const PROBE_COUNT: u16 = 7;
/// Maximum number of bits that a filter may set per entry.
const PROBE_COUNT_MAX: u16 = 32;
const BIT_COUNT: u64 = BODY_SIZE_BYTES as u64 * 8;
/// Number of entries per block for which a filter is built.
const ENTRY_COUNT_PER_BLOCK: u64 = BIT_COUNT / BITS_PER_ENTRY as u64;

/// Checks that a block with this header is a valid filter block.
pub(super) fn check(header: Header) -> Result<(), &'static str> {
    match header.count {
        1..=PROBE_COUNT_MAX => Ok(()),
        _ => Err("invalid number of probes in a filter"),
    }
}

/// Returns the index of the filter block for a hash.
fn block_index(hash: u64, block_count: u32) -> u32 {
    (u128::from(hash) * u128::from(block_count) >> HASH_BITS) as u32
}

/// Returns the bits of a hash in its block, from the first bit of the body.
fn bits(hash: u64, probe_count: u16) -> impl Iterator<Item = usize> {
    let word = mix(mix(hash));
    let (first, step) = (word as u32, (word >> 32) as u32 | 1);
    (0..u32::from(probe_count)).map(move |probe| {
        let number = first.wrapping_add(probe.wrapping_mul(step));
        (u64::from(number) * BIT_COUNT >> 32) as usize
    })
}

/// Returns the filter block for a hash.
pub(super) fn block_of(hash: u64, filter: BlockRange) -> BlockNumber {
    let index = block_index(hash, filter.count);
    BlockNumber(filter.first.0.saturating_add(index))
}

/// Returns false if the tree does not have a hash, given the block from [`block_of`].
pub(super) fn may_have(block: &Block, hash: u64) -> bool {
    let header = block.header();
    assert!(header.kind == Kind::Filter, "who loads it has looked");
    let body = &block.bytes()[HEADER_SIZE_BYTES..];
    bits(hash, header.count).all(|bit| body[bit / 8] >> (bit % 8) & 1 == 1)
}

/// Filter that is being built: 1.25 bytes of memory per expected entry.
pub(super) struct FilterBuilder {
    blocks: Vec<[u8; BLOCK_SIZE_BYTES]>,
}

impl FilterBuilder {
    /// Creates a filter for a tree with at most this many entries; with more, more absent keys
    /// pass.
    pub(super) fn new(entry_count_max: u64) -> Self {
        let block_count = entry_count_max.div_ceil(ENTRY_COUNT_PER_BLOCK).max(1);
        Self {
            blocks: vec![[0; BLOCK_SIZE_BYTES]; block_count as usize],
        }
    }

    /// Adds a hash.
    pub(super) fn add(&mut self, hash: u64) {
        let index = block_index(hash, self.blocks.len() as u32);
        let body = &mut self.blocks[index as usize][HEADER_SIZE_BYTES..];
        for bit in bits(hash, PROBE_COUNT) {
            body[bit / 8] |= 1 << (bit % 8);
        }
    }

    /// Returns the number of blocks.
    pub(super) fn block_count(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// Seals and writes some of its blocks; `first` is the number of the filter's first block.
    pub(super) fn write(
        &mut self,
        tree: TreeId,
        first: BlockNumber,
        range: Range<u32>,
        mut to: impl FnMut(&[u8; BLOCK_SIZE_BYTES]) -> Result<(), LsmError>,
    ) -> Result<(), LsmError> {
        let header = Header {
            kind: Kind::Filter,
            height: 0,
            count: PROBE_COUNT,
            place: 0,
            head_size_bytes: 0,
        };
        let places = range.start as usize..range.end as usize;
        for (index, block) in range.zip(&mut self.blocks[places]) {
            seal(block, header, tree, BlockNumber(first.0 + index));
            to(block)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::format::u32_at;
    use crate::tree::key_hash;

    const TREE: TreeId = TreeId(1);

    fn blocks(hashes: &[u64], entry_count_max: u64) -> Vec<[u8; BLOCK_SIZE_BYTES]> {
        let mut builder = FilterBuilder::new(entry_count_max);
        for hash in hashes {
            builder.add(*hash);
        }
        let mut blocks = Vec::new();
        let push = |block: &[u8; BLOCK_SIZE_BYTES]| {
            blocks.push(*block);
            Ok(())
        };
        let all = 0..builder.block_count();
        let written = builder.write(TREE, BlockNumber(0), all, push);
        written.unwrap();
        blocks
    }

    /// Promise: all hashes that were added pass, and at most 1.2 % of others, with one block and
    /// many.
    #[test]
    fn few_pass_that_are_not_there() {
        for count in [1_000_u64, 3_251, 50_000] {
            let hash_of = |it: u64| key_hash(format!("user{it:020}").as_bytes());
            let hashes: Vec<u64> = (0..count).map(hash_of).collect();
            let blocks = blocks(&hashes, count);
            let filter = BlockRange {
                first: BlockNumber(0),
                count: blocks.len() as u32,
            };
            assert_eq!(u64::from(filter.count), count.div_ceil(3_251));
            let opened: Vec<Block> = (0..)
                .zip(&blocks)
                .map(|(number, it)| Block::open_copy(it, TREE, BlockNumber(number)).unwrap())
                .collect();
            let passes = |hash| may_have(&opened[block_of(hash, filter).0 as usize], hash);
            assert!(hashes.iter().all(|it| passes(*it)));
            let others = (count..count + 100_000).map(hash_of);
            let passed = others.filter(|it| passes(*it)).count();
            assert!(passed <= 1_200, "{passed} of 100,000 beside {count}");
        }
    }

    /// Promise (format): a filter has exactly these bits.
    #[test]
    fn a_filter_has_these_bytes() {
        let blocks = blocks(&[0, 0x1234_5678_9abc], 2);
        assert_eq!(blocks[0][4..10], [3, 0, 7, 0, 0, 0]);
        let count: u32 = blocks[0][32..].iter().map(|it| it.count_ones()).sum();
        assert_eq!(count, 14);
        assert_eq!(u32_at(&blocks[0], 0), 0xcddc_f78a);
    }
}
