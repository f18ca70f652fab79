//! Shape: description of a tree in the manifest, and its check.

use serde::{Deserialize, Serialize};

use crate::place::BlockNumber;
use crate::tree::format::HEIGHT_MAX;
use crate::tree::leaf::ENTRY_COUNT_MAX;

/// Consecutive blocks of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockRange {
    /// First block.
    pub first: BlockNumber,
    /// Number of blocks.
    pub count: u32,
}

impl BlockRange {
    /// Returns the number behind the last block; 64 bits hold any.
    const fn end(self) -> u64 {
        self.first.0 as u64 + self.count as u64
    }
}

/// Description that is needed to read a tree; the manifest stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TreeShape {
    /// Root of the tree: its last block.
    pub root: BlockNumber,
    /// Number of inner levels: 0 if the root is a leaf.
    pub height: u8,
    /// Number of entries including deletes, at least one.
    pub entry_count: u64,
    /// Number of blocks of all kinds. They fill segments of 512, except the last one.
    pub block_count: u32,
    /// Blocks of the filter.
    pub filter: BlockRange,
    /// Blocks of the references.
    pub references: BlockRange,
}

impl TreeShape {
    /// Checks that a builder can have made this shape. The blocks are within the tree and in the
    /// order of writing, and the entries fit its leaves. So memory allocated for the shape is
    /// bounded by the tree's size.
    ///
    /// # Errors
    /// Returns the reason why no builder makes this shape.
    pub fn check(&self) -> Result<(), &'static str> {
        let block_count = u64::from(self.block_count);
        if u64::from(self.root.0) + 1 != block_count {
            return Err("its root is not its last block");
        }
        if self.height > HEIGHT_MAX {
            return Err("its height exceeds the maximum");
        }
        if self.filter.count == 0 || self.references.count == 0 {
            return Err("its filter or references are missing");
        }
        let behind = self.references.end();
        if self.filter.end() != u64::from(self.references.first.0) || behind >= block_count {
            return Err("its filter or references are misplaced");
        }
        // The last leaf and the inner blocks above it are last.
        if behind + u64::from(self.height) + 1 > block_count {
            return Err("it has fewer blocks than levels");
        }
        let leaf_count_max = u64::from(self.filter.first.0) + (block_count - behind);
        if self.entry_count == 0 || self.entry_count > leaf_count_max * ENTRY_COUNT_MAX as u64 {
            return Err("it has no entries, or more than its leaves can hold");
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

    /// Promise: a shape that no builder makes is refused, whatever its numbers are.
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
