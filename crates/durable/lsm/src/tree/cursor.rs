//! Goes through the entries of a tree in the order of their keys, in both directions.

use std::sync::Arc;

use crate::error::LsmError;
use crate::head::{KeySource, KnownKey};
use crate::place::{BLOCK_SIZE_BYTES, BlockNumber, LogPosition, SEGMENT_SIZE_BLOCKS};
use crate::tree::format::{Block, damaged};
use crate::tree::inner::Inner;
use crate::tree::leaf::Leaf;
use crate::tree::merge::EntrySource;
use crate::tree::{Entry, References, Tree};

/// How a cursor reads leaves behind the first one, when it goes forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadAhead {
    /// So many blocks at a time at the most: it begins with one and doubles, so that a short scan
    /// reads little that it does not need.
    pub block_count_max: u32,
    /// Leaves are kept in the cache.
    pub fills_cache: bool,
}

impl ReadAhead {
    /// For scans: up to 32 KiB at a time, and what was read is kept.
    pub const SCAN: Self = Self {
        block_count_max: 8,
        fills_cache: true,
    };
    /// For merges, which read all of a tree that is about to go: up to 256 KiB at a time, and
    /// nothing is kept.
    pub const MERGE: Self = Self {
        block_count_max: 64,
        fills_cache: false,
    };
}

/// A place in a tree: on an entry, or nowhere. At first it is nowhere.
///
/// From entry to entry nothing is read; from leaf to leaf, one block (forward, one read for several
/// of them). A cursor keeps a block for each level, and what it has read ahead.
///
/// After an error it is nowhere.
#[derive(Debug)]
pub struct TreeCursor {
    tree: Arc<Tree>,
    read_ahead: ReadAhead,
    /// From the root to right above the leaf: the blocks, and which child of each it is in.
    path: Vec<(Arc<Block>, usize)>,
    leaf: Option<OpenLeaf>,
    ahead: Ahead,
    /// What is known of the current key: the leaf's prefix and the head.
    key: Vec<u8>,
    /// The rest of the current entry: merges ask for it many times.
    current: Current,
}

#[derive(Clone, Copy, Debug, Default)]
struct Current {
    hash: u64,
    position: LogPosition,
    is_delete: bool,
    goes_on: bool,
}

#[derive(Debug)]
struct OpenLeaf {
    number: BlockNumber,
    block: Arc<Block>,
    index: usize,
}

/// Blocks that were read ahead.
#[derive(Debug)]
struct Ahead {
    first: BlockNumber,
    bytes: Vec<u8>,
    /// How many to read the next time.
    next_count: u32,
}

impl Ahead {
    fn block(&self, number: BlockNumber) -> Option<&[u8; BLOCK_SIZE_BYTES]> {
        let index = number.0.checked_sub(self.first.0)?;
        let (blocks, _) = self.bytes.as_chunks::<BLOCK_SIZE_BYTES>();
        blocks.get(index as usize)
    }
}

impl TreeCursor {
    /// A cursor that is nowhere. Reads nothing.
    pub fn new(tree: Arc<Tree>, read_ahead: ReadAhead) -> Self {
        Self {
            tree,
            read_ahead,
            path: Vec::new(),
            leaf: None,
            ahead: Ahead {
                first: BlockNumber(0),
                bytes: Vec::new(),
                next_count: 1,
            },
            key: Vec::new(),
            current: Current::default(),
        }
    }

    /// The entry that it is on.
    pub fn entry(&self) -> Option<Entry<'_>> {
        self.leaf.as_ref()?;
        let current = self.current;
        Some(Entry {
            key: KnownKey {
                bytes: &self.key,
                goes_on: current.goes_on,
            },
            hash: current.hash,
            position: current.position,
            is_delete: current.is_delete,
        })
    }

    /// Goes to the first entry. Reads a block for each level.
    ///
    /// # Errors
    /// [`LsmError::DamagedTree`], and those of the source.
    pub fn seek_first(&mut self) -> Result<(), LsmError> {
        self.descend(|_| Ok(0))?;
        self.settle(0);
        Ok(())
    }

    /// Goes to the last entry. Reads a block for each level.
    ///
    /// # Errors
    /// [`LsmError::DamagedTree`], and those of the source.
    pub fn seek_last(&mut self) -> Result<(), LsmError> {
        self.descend(|inner| Ok(inner.count() - 1))?;
        self.settle_last();
        Ok(())
    }

    /// Goes to the first entry whose key is not less than this one, or nowhere if there is none.
    /// Reads a block for each level, sometimes one more, and keys from the log where what is known
    /// of them does not tell: a few for one that goes on behind its head.
    ///
    /// # Errors
    /// [`LsmError::DamagedTree`], and those of the source and the log.
    pub fn seek(&mut self, key: &[u8], keys: &dyn KeySource) -> Result<(), LsmError> {
        let (index, _) = self.locate(key, keys)?;
        if self.settle(index) {
            return Ok(());
        }
        self.next_leaf()
    }

    /// Goes to the last entry whose key is not greater than this one, or nowhere if there is none.
    /// Costs as [`Self::seek`] does.
    ///
    /// # Errors
    /// [`LsmError::DamagedTree`], and those of the source and the log.
    pub fn seek_back(&mut self, key: &[u8], keys: &dyn KeySource) -> Result<(), LsmError> {
        match self.locate(key, keys)? {
            (index, true) => self.settle(index),
            (0, false) => return self.previous_leaf(),
            (index, false) => self.settle(index - 1),
        };
        Ok(())
    }

    /// Goes to the next entry, or from the last one to nowhere. From nowhere it goes nowhere.
    ///
    /// # Errors
    /// [`LsmError::DamagedTree`], and those of the source.
    pub fn advance(&mut self) -> Result<(), LsmError> {
        let Some(open) = &self.leaf else {
            return Ok(());
        };
        if self.settle(open.index + 1) {
            return Ok(());
        }
        self.next_leaf()
    }

    /// Goes to the entry before, or from the first one to nowhere. From nowhere it goes nowhere.
    ///
    /// # Errors
    /// [`LsmError::DamagedTree`], and those of the source.
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

    /// Opens the leaf where a key belongs; where it belongs there, and whether it is there.
    fn locate(&mut self, key: &[u8], keys: &dyn KeySource) -> Result<(usize, bool), LsmError> {
        self.descend(|inner| inner.search(key, keys))?;
        let open = self.leaf.take().expect("it has descended to one");
        let found = Leaf::of(&open.block).lower_bound(key, keys)?;
        self.leaf = Some(open);
        Ok(found)
    }

    /// Goes to an entry of the open leaf, if it has it.
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
        self.current = Current {
            hash: leaf.hash(index),
            position: pointer.position,
            is_delete: pointer.is_delete,
            goes_on: pointer.goes_on,
        };
        true
    }

    /// Goes to the last entry of the open leaf.
    fn settle_last(&mut self) {
        let open = self.leaf.as_ref().expect("a leaf is open");
        let index = Leaf::of(&open.block).count() - 1;
        self.settle(index);
    }

    /// Opens a leaf from the root on; which child it takes, it is told.
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
                return Err(damaged(self.tree.id(), number, "it is a leaf out of order"));
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
            // As above: so no walk is longer than the tree, whatever its blocks say.
            if number >= before {
                return Err(damaged(self.tree.id(), number, "it is a leaf out of order"));
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

    /// Leaves the open leaf, and turns the path to the one beside it: the numbers of both, or
    /// `None` at the end of the tree.
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

    /// Opens a leaf that is reached going forward.
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
        let bytes = bytes.ok_or_else(|| damaged(tree.id(), number, "the tree does not have it"))?;
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

/// All entries of a tree, ascending, with the sizes of their records: what a merge takes.
#[derive(Debug)]
pub struct TreeEntries {
    cursor: TreeCursor,
    references: References,
}

impl TreeEntries {
    /// From the first entry on. Reads the references and a block for each level.
    ///
    /// # Errors
    /// [`LsmError::DamagedTree`], and those of the source.
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
