//! Cursors: iterating over the entries of a tree in key order, in both directions.

use std::sync::Arc;

use crate::error::LsmError;
use crate::head::{KeySource, KnownKey};
use crate::place::{BLOCK_SIZE_BYTES, BlockNumber, LogPosition, SEGMENT_SIZE_BLOCKS};
use crate::tree::format::{Block, damaged};
use crate::tree::inner::Inner;
use crate::tree::leaf::Leaf;
use crate::tree::merge::EntrySource;
use crate::tree::{Entry, References, Tree};

/// Settings for how a cursor reads leaves when it moves forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadAhead {
    /// Maximum number of blocks per read. The cursor begins with one and doubles, so that a short
    /// scan reads few useless blocks.
    pub block_count_max: u32,
    /// Whether leaves are kept in the cache.
    pub fills_cache: bool,
}

impl ReadAhead {
    /// Setting for scans: up to 32 KiB per read, kept in the cache.
    pub const SCAN: Self = Self {
        block_count_max: 8,
        fills_cache: true,
    };
    /// Setting for merges, which read a whole tree that is then removed: up to 256 KiB per read,
    /// not kept.
    pub const MERGE: Self = Self {
        block_count_max: 64,
        fills_cache: false,
    };
}

/// Position in a tree: on an entry, or nowhere. A new cursor is nowhere.
///
/// A step to an entry in the same leaf reads nothing, and one to another leaf reads one block
/// (forward, one read for several). A cursor holds one block per level, and the blocks that it has
/// read ahead.
///
/// After an error, the cursor is nowhere.
#[derive(Debug)]
pub struct TreeCursor {
    tree: Arc<Tree>,
    read_ahead: ReadAhead,
    /// Blocks from the root to the level above the leaf, and the child index in each.
    path: Vec<(Arc<Block>, usize)>,
    leaf: Option<OpenLeaf>,
    ahead: ReadAheadBlocks,
    /// Known part of the current key: the leaf's prefix and the head.
    key: Vec<u8>,
    /// Rest of the current entry, cached because merges request it often.
    current: CurrentEntry,
}

#[derive(Clone, Copy, Debug, Default)]
struct CurrentEntry {
    hash: u64,
    position: LogPosition,
    is_delete: bool,
    continues: bool,
}

#[derive(Debug)]
struct OpenLeaf {
    number: BlockNumber,
    block: Arc<Block>,
    index: usize,
}

/// Blocks that were read ahead.
#[derive(Debug)]
struct ReadAheadBlocks {
    first: BlockNumber,
    bytes: Vec<u8>,
    /// Number of blocks in the next read.
    next_count: u32,
}

impl ReadAheadBlocks {
    fn block(&self, number: BlockNumber) -> Option<&[u8; BLOCK_SIZE_BYTES]> {
        let index = number.0.checked_sub(self.first.0)?;
        let (blocks, _) = self.bytes.as_chunks::<BLOCK_SIZE_BYTES>();
        blocks.get(index as usize)
    }
}

impl TreeCursor {
    /// Creates a cursor that is nowhere. Reads nothing.
    pub fn new(tree: Arc<Tree>, read_ahead: ReadAhead) -> Self {
        Self {
            tree,
            read_ahead,
            path: Vec::new(),
            leaf: None,
            ahead: ReadAheadBlocks {
                first: BlockNumber(0),
                bytes: Vec::new(),
                next_count: 1,
            },
            key: Vec::new(),
            current: CurrentEntry::default(),
        }
    }

    /// Returns the current entry.
    pub fn entry(&self) -> Option<Entry<'_>> {
        self.leaf.as_ref()?;
        let current = self.current;
        Some(Entry {
            key: KnownKey {
                bytes: &self.key,
                continues: current.continues,
            },
            hash: current.hash,
            position: current.position,
            is_delete: current.is_delete,
        })
    }

    /// Moves to the first entry. Reads one block per level.
    ///
    /// # Errors
    /// [`LsmError::CorruptTree`], and errors of the source.
    pub fn seek_first(&mut self) -> Result<(), LsmError> {
        self.descend(|_| Ok(0))?;
        self.settle(0);
        Ok(())
    }

    /// Moves to the last entry. Reads one block per level.
    ///
    /// # Errors
    /// [`LsmError::CorruptTree`], and errors of the source.
    pub fn seek_last(&mut self) -> Result<(), LsmError> {
        self.descend(|inner| Ok(inner.count() - 1))?;
        self.settle_last();
        Ok(())
    }

    /// Moves to the first entry whose key is not less than this one, or nowhere if there is none.
    ///
    /// Reads one block per level, sometimes one more. Reads keys from the log if their known parts
    /// do not decide: a few, if the key continues behind its head.
    ///
    /// # Errors
    /// [`LsmError::CorruptTree`], and errors of the source and the log.
    pub fn seek(&mut self, key: &[u8], keys: &dyn KeySource) -> Result<(), LsmError> {
        let (index, _) = self.locate(key, keys)?;
        if self.settle(index) {
            return Ok(());
        }
        self.next_leaf()
    }

    /// Moves to the last entry whose key is not greater than this one, or nowhere if there is none.
    /// Costs as much as [`Self::seek`].
    ///
    /// # Errors
    /// [`LsmError::CorruptTree`], and errors of the source and the log.
    pub fn seek_back(&mut self, key: &[u8], keys: &dyn KeySource) -> Result<(), LsmError> {
        match self.locate(key, keys)? {
            (index, true) => self.settle(index),
            (0, false) => return self.previous_leaf(),
            (index, false) => self.settle(index - 1),
        };
        Ok(())
    }

    /// Moves to the next entry, or from the last one to nowhere. From nowhere, it stays there.
    ///
    /// # Errors
    /// [`LsmError::CorruptTree`], and errors of the source.
    pub fn advance(&mut self) -> Result<(), LsmError> {
        let Some(open) = &self.leaf else {
            return Ok(());
        };
        if self.settle(open.index + 1) {
            return Ok(());
        }
        self.next_leaf()
    }

    /// Moves to the previous entry, or from the first one to nowhere. From nowhere, it stays there.
    ///
    /// # Errors
    /// [`LsmError::CorruptTree`], and errors of the source.
    pub fn retreat(&mut self) -> Result<(), LsmError> {
        let Some(open) = &self.leaf else {
            return Ok(());
        };
        match open.index.checked_sub(1) {
            Some(index) => {
                self.settle(index);
                Ok(())
            }
            None => self.previous_leaf(),
        }
    }

    /// Opens the leaf for a key; returns the key's index there, and whether the key is present.
    fn locate(&mut self, key: &[u8], keys: &dyn KeySource) -> Result<(usize, bool), LsmError> {
        self.descend(|inner| inner.search(key, keys))?;
        let open = self.leaf.take().expect("it has descended to one");
        let found = Leaf::of(&open.block).lower_bound(key, keys)?;
        self.leaf = Some(open);
        Ok(found)
    }

    /// Moves to an entry of the open leaf; returns false if the leaf does not have it.
    fn settle(&mut self, index: usize) -> bool {
        let open = self.leaf.as_mut().expect("a leaf is open");
        let leaf = Leaf::of(&open.block);
        if index >= leaf.count() {
            return false;
        }
        open.index = index;
        self.key.clear();
        self.key.extend_from_slice(leaf.prefix());
        self.key.extend_from_slice(leaf.head(index).bytes);
        let pointer = leaf.pointer(index);
        self.current = CurrentEntry {
            hash: leaf.hash(index),
            position: pointer.position,
            is_delete: pointer.is_delete,
            continues: pointer.continues,
        };
        true
    }

    /// Moves to the last entry of the open leaf.
    fn settle_last(&mut self) {
        let open = self.leaf.as_ref().expect("a leaf is open");
        let index = Leaf::of(&open.block).count() - 1;
        self.settle(index);
    }

    /// Opens a leaf, starting at the root; a function chooses the child of each inner block.
    fn descend(
        &mut self,
        mut child: impl FnMut(&Inner<'_>) -> Result<usize, LsmError>,
    ) -> Result<(), LsmError> {
        self.leaf = None;
        self.path.clear();
        self.ahead.next_count = 1;
        let shape = self.tree.shape();
        let mut number = shape.root;
        for height in (1..=shape.height).rev() {
            let block = self.tree.node(number, height)?;
            let inner = Inner::of(&block);
            let index = child(&inner)?;
            number = inner.child(index);
            self.path.push((block, index));
        }
        self.leaf = Some(OpenLeaf {
            number,
            block: self.tree.node(number, 0)?,
            index: 0,
        });
        Ok(())
    }

    fn next_leaf(&mut self) -> Result<(), LsmError> {
        if let Some((before, number)) = self.turn(true)? {
            if number <= before {
                return Err(damaged(self.tree.id(), number, "the leaf is out of order"));
            }
            let block = self.leaf_ahead(number)?;
            self.leaf = Some(OpenLeaf {
                number,
                block,
                index: 0,
            });
            self.settle(0);
        }
        Ok(())
    }

    fn previous_leaf(&mut self) -> Result<(), LsmError> {
        if let Some((before, number)) = self.turn(false)? {
            // As in `next_leaf`, this bounds the number of steps by the tree's size, whatever its
            // blocks say.
            if number >= before {
                return Err(damaged(self.tree.id(), number, "the leaf is out of order"));
            }
            let block = self.tree.node(number, 0)?;
            self.leaf = Some(OpenLeaf {
                number,
                block,
                index: 0,
            });
            self.settle_last();
        }
        Ok(())
    }

    /// Closes the open leaf, and moves the path to the adjacent one. Returns the numbers of both,
    /// or `None` at the end of the tree.
    fn turn(&mut self, is_forward: bool) -> Result<Option<(BlockNumber, BlockNumber)>, LsmError> {
        let Some(open) = self.leaf.take() else {
            return Ok(None);
        };
        while let Some((block, index)) = self.path.last_mut() {
            let inner = Inner::of(block);
            let beside = if is_forward {
                Some(*index + 1).filter(|it| *it < inner.count())
            } else {
                index.checked_sub(1)
            };
            let Some(beside) = beside else {
                self.path.pop();
                continue;
            };
            *index = beside;
            let mut number = inner.child(beside);
            let height = self.tree.shape().height - self.path.len() as u8;
            for height in (1..=height).rev() {
                let block = self.tree.node(number, height)?;
                let inner = Inner::of(&block);
                let index = if is_forward { 0 } else { inner.count() - 1 };
                number = inner.child(index);
                self.path.push((block, index));
            }
            return Ok(Some((open.number, number)));
        }
        Ok(None)
    }

    /// Opens the next leaf of a forward move.
    fn leaf_ahead(&mut self, number: BlockNumber) -> Result<Arc<Block>, LsmError> {
        let tree = Arc::clone(&self.tree);
        if self.read_ahead.fills_cache
            && let Some(block) = tree.cache().get(tree.id(), number)
        {
            tree.expect_node(&block, number, 0)?;
            return Ok(block);
        }
        if self.ahead.block(number).is_none() {
            self.read_from(number)?;
        }
        let bytes = self.ahead.block(number);
        let bytes = bytes.ok_or_else(|| damaged(tree.id(), number, "the block is missing"))?;
        let block = Arc::new(Block::open_copy(bytes, tree.id(), number)?);
        tree.expect_node(&block, number, 0)?;
        if self.read_ahead.fills_cache {
            tree.cache().insert(tree.id(), number, &block);
        }
        Ok(block)
    }

    fn read_from(&mut self, number: BlockNumber) -> Result<(), LsmError> {
        let in_segment = SEGMENT_SIZE_BLOCKS - number.0 % SEGMENT_SIZE_BLOCKS;
        let in_tree = self.tree.shape().block_count.saturating_sub(number.0);
        let wanted = self
            .ahead
            .next_count
            .min(self.read_ahead.block_count_max.max(1));
        self.ahead.next_count = wanted.saturating_mul(2);
        let count = wanted.min(in_segment).min(in_tree);
        self.ahead.first = number;
        self.ahead
            .bytes
            .resize(count as usize * BLOCK_SIZE_BYTES, 0);
        let read = self.tree.read_many(number, &mut self.ahead.bytes);
        if read.is_err() {
            self.ahead.bytes.clear();
        }
        read
    }
}

/// Entries of a whole tree in ascending order, with the sizes of their records: the input of a
/// merge.
#[derive(Debug)]
pub struct TreeEntries {
    cursor: TreeCursor,
    references: References,
}

impl TreeEntries {
    /// Creates the source, positioned on the first entry. Reads the references and one block per
    /// level.
    ///
    /// # Errors
    /// [`LsmError::CorruptTree`], and errors of the source.
    pub fn new(tree: Arc<Tree>) -> Result<Self, LsmError> {
        let references = tree.references()?;
        let mut cursor = TreeCursor::new(tree, ReadAhead::MERGE);
        cursor.seek_first()?;
        Ok(Self { cursor, references })
    }
}

impl EntrySource for TreeEntries {
    fn entry(&self) -> Option<Entry<'_>> {
        self.cursor.entry()
    }

    fn record_size_bytes(&self) -> u64 {
        self.entry()
            .map_or(0, |it| self.references.record_size_bytes(it.position))
    }

    fn advance(&mut self) -> Result<(), LsmError> {
        self.cursor.advance()
    }
}
