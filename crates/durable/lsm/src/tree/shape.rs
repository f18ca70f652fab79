//! What the manifest keeps of a tree, and whether it can be one's.

use serde::{Deserialize, Serialize};

use crate::place::BlockNumber;
use crate::tree::format::HEIGHT_MAX;
use crate::tree::leaf::ENTRY_COUNT_MAX;

/// Blocks of a tree, side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockRange {
    /// The first one.
    pub first: BlockNumber,
    /// How many.
    pub count: u32,
}

impl BlockRange {
    /// The number behind the last one; wide enough for any.
    const fn end(self) -> u64 {
        self.first.0 as u64 + self.count as u64
    }
}

/// What must be known of a tree to read it: what the manifest keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TreeShape {
    /// The block from which all keys are found: the last one.
    pub root: BlockNumber,
    /// Levels of inner blocks: 0 if the root is a leaf.
    pub height: u8,
    /// Entries, deletes among them: one or more.
    pub entry_count: u64,
    /// Blocks of all kinds: segments of 512, the last one in part.
    pub block_count: u32,
    /// The blocks of its filter (LT4).
    pub filter: BlockRange,
    /// The blocks of its references (LT5).
    pub references: BlockRange,
}

impl TreeShape {
    /// Whether a builder can have told this (LT1): the blocks are within the tree and in the order
    /// in which they are written, and the entries fit its leaves. So what is made room for because
    /// of it is no more than the tree is large.
    ///
    /// # Errors
    /// It cannot be, and why.
    pub fn check(&self) -> Result<(), &'static str> {
        let block_count = u64::from(self.block_count);
        if u64::from(self.root.0) + 1 != block_count {
            return Err("its root is not its last block");
        }
        if self.height > HEIGHT_MAX {
            return Err("it is higher than trees can be");
        }
        if self.filter.count == 0 || self.references.count == 0 {
            return Err("it has no filter or no references");
        }
        let behind = self.references.end();
        if self.filter.end() != u64::from(self.references.first.0) || behind >= block_count {
            return Err("its filter and references do not lie where they belong");
        }
        // The last leaf, and what leads to it, come last.
        if behind + u64::from(self.height) + 1 > block_count {
            return Err("it has not as many blocks as it is high");
        }
        let leaf_count_max = u64::from(self.filter.first.0) + (block_count - behind);
        if self.entry_count == 0 || self.entry_count > leaf_count_max * ENTRY_COUNT_MAX as u64 {
            return Err("it has no entries, or more than fit its leaves");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: u32, count: u32) -> BlockRange {
        let first = BlockNumber(first);
        BlockRange { first, count }
    }

    fn shape() -> TreeShape {
        TreeShape {
            root: BlockNumber(13),
            height: 1,
            entry_count: 1000,
            block_count: 14,
            filter: range(10, 1),
            references: range(11, 1),
        }
    }

    /// Promise: a shape that no builder tells is refused, whatever its numbers are, and none is too
    /// large to be looked at.
    #[test]
    fn shapes_are_those_of_trees() {
        assert_eq!(shape().check(), Ok(()));
        let entry_count_max = 12 * ENTRY_COUNT_MAX as u64;
        let full = TreeShape {
            entry_count: entry_count_max,
            ..shape()
        };
        assert_eq!(full.check(), Ok(()));
        let others: [fn(&mut TreeShape); 14] = [
            |it| it.root.0 = 12,
            |it| it.root.0 = u32::MAX,
            |it| it.height = 2,
            |it| it.height = 200,
            |it| it.entry_count = 0,
            |it| it.entry_count = 12 * ENTRY_COUNT_MAX as u64 + 1,
            |it| it.entry_count = u64::MAX,
            |it| it.block_count = 0,
            |it| it.filter.count = 0,
            |it| it.filter.count = u32::MAX,
            |it| it.filter.first.0 = u32::MAX,
            |it| it.references.count = 0,
            |it| it.references.count = 2,
            |it| it.references.first.0 = u32::MAX,
        ];
        for (index, change) in others.iter().enumerate() {
            let mut other = shape();
            change(&mut other);
            assert!(other.check().is_err(), "{index}: {other:?}");
        }
    }
}
