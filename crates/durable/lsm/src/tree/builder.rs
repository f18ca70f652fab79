//! Writing a tree from left to right.

use std::cmp::Ordering;
use std::fmt;

use crate::error::LsmError;
use crate::head::KeySource;
use crate::place::{BLOCK_SIZE_BYTES, BlockNumber, SEGMENT_SIZE_BYTES, TreeId};
use crate::tree::filter::FilterBuilder;
use crate::tree::format::{HEIGHT_MAX, Header, damaged, seal};
use crate::tree::inner::InnerBuilder;
use crate::tree::leaf_builder::LeafBuilder;
use crate::tree::references::References;
use crate::tree::separator::{self, Neighbour, Separator};
use crate::tree::{BlockRange, BlockSink, Entry, TreeShape};

/// Builder that writes a tree from entries in ascending order of keys.
///
/// Each leaf is written when it is full, and each inner block behind the last of its children. The
/// filter, the references, the last leaf, and the inner blocks above it follow at the end, the root
/// last. Equal entries make equal bytes.
///
/// A builder uses memory for a segment of 2 MiB, and 1.25 bytes per expected entry.
pub struct TreeBuilder<S> {
    id: TreeId,
    output: BlockOutput<S>,
    leaf: LeafBuilder,
    /// Separator between the previous leaf and the one being filled.
    leaf_separator: Separator,
    /// Inner blocks being filled, from the level above the leaves to the root.
    levels: Vec<InnerBuilder>,
    filter: FilterBuilder,
    /// Written blocks of the filter, after the last entry was added.
    written_filter: Option<BlockRange>,
    references: References,
    entry_count: u64,
    /// Set when an entry could not be added completely.
    has_failed: bool,
}

impl<S> fmt::Debug for TreeBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "builder of tree {} with {} entries",
            self.id.0, self.entry_count
        )
    }
}

impl<S: BlockSink> TreeBuilder<S> {
    /// Creates a builder for a tree with this id, and with at most this many entries. With more
    /// entries, the filter lets more absent keys pass.
    pub fn new(id: TreeId, entry_count_max: u64, sink: S) -> Self {
        Self {
            id,
            output: BlockOutput::new(id, sink),
            leaf: LeafBuilder::default(),
            leaf_separator: Separator::default(),
            levels: Vec::new(),
            filter: FilterBuilder::new(entry_count_max),
            written_filter: None,
            references: References::default(),
            entry_count: 0,
            has_failed: false,
        }
    }

    /// Adds the next entry, with the size of its record in bytes (at most 128 MiB) for the
    /// references.
    ///
    /// Two keys are read from the log if the entry begins a leaf and its known key part equals the
    /// previous one. This applies to known parts of less than 256 bytes.
    ///
    /// # Errors
    /// [`LsmError::CorruptTree`] of this tree if entries do not ascend: then one of the merged
    /// trees is corrupted. Errors of the sink and the log. The builder is unusable after any of
    /// them.
    pub fn add(
        &mut self,
        entry: Entry<'_>,
        record_size_bytes: u64,
        keys: &dyn KeySource,
    ) -> Result<(), LsmError> {
        assert!(
            self.written_filter.is_none(),
            "the filter lacks what comes behind it"
        );
        // Reset when the function completes.
        self.has_failed = true;
        if let Some((last, position)) = self.leaf.last() {
            if matches!(
                last.compare(entry.key),
                Some(Ordering::Equal | Ordering::Greater)
            ) {
                return Err(self.not_ascending());
            }
            if !self.leaf.fits_entry(entry.key) {
                let left = Neighbour {
                    key: last,
                    position,
                };
                let right = Neighbour {
                    key: entry.key,
                    position: entry.position,
                };
                let between = separator::between(left, right, keys)?;
                let separator = between.ok_or_else(|| self.not_ascending())?;
                let leaf = self.close_leaf()?;
                let before = std::mem::replace(&mut self.leaf_separator, separator);
                self.add_child(0, leaf, before)?;
            }
        }
        self.leaf.add(entry);
        self.filter.add(entry.hash);
        self.references.add(entry.position, record_size_bytes);
        self.entry_count += 1;
        self.has_failed = false;
        Ok(())
    }

    /// Writes the rest of the tree. Returns `None` if it has no entry: there are no empty trees,
    /// and nothing was written.
    ///
    /// # Errors
    /// Errors of the sink.
    pub fn finish(mut self) -> Result<Option<TreeShape>, LsmError> {
        assert!(!self.has_failed, "a tree that lacks an entry is none");
        self.write_filter(u32::MAX)?;
        let Some(filter) = self.written_filter else {
            return Ok(None);
        };
        let references = BlockRange {
            first: self.output.next_number(),
            count: self.references.block_count(),
        };
        let output = &mut self.output;
        let write = |block: &[u8; BLOCK_SIZE_BYTES]| output.push_sealed(block);
        self.references.write(self.id, references.first, write)?;

        let mut root = self.close_leaf()?;
        let mut separator = std::mem::take(&mut self.leaf_separator);
        let mut height = 0;
        while height < self.levels.len() {
            self.add_child(height, root, separator)?;
            (root, separator) = self.close_inner(height)?;
            height += 1;
        }
        self.output.flush()?;
        Ok(Some(TreeShape {
            root,
            height: height as u8,
            entry_count: self.entry_count,
            block_count: self.output.next_number().0,
            filter,
            references,
        }))
    }

    /// Writes at most this many blocks of the filter; the last entry must have been added. Returns
    /// true if all are written, or there is no entry. [`Self::finish`] writes those that are
    /// missing.
    ///
    /// # Errors
    /// Errors of the sink; the builder is unusable afterwards.
    pub fn write_filter(&mut self, block_count_max: u32) -> Result<bool, LsmError> {
        assert!(!self.has_failed, "a tree that lacks an entry is none");
        if self.leaf.is_empty() {
            return Ok(true);
        }
        let (first, count) = (self.output.next_number(), 0);
        let written = self
            .written_filter
            .get_or_insert(BlockRange { first, count });
        let (block_count, start) = (self.filter.block_count(), written.count);
        let end = block_count.min(start.saturating_add(block_count_max));
        self.has_failed = true;
        let output = &mut self.output;
        let push = |block: &[u8; BLOCK_SIZE_BYTES]| output.push_sealed(block);
        self.filter
            .write(self.id, written.first, start..end, push)?;
        self.has_failed = false;
        written.count = end;
        Ok(end == block_count)
    }

    fn close_leaf(&mut self) -> Result<BlockNumber, LsmError> {
        let mut block = [0; BLOCK_SIZE_BYTES];
        let header = self.leaf.write(&mut block);
        self.output.push(&mut block, header)
    }

    fn close_inner(&mut self, level: usize) -> Result<(BlockNumber, Separator), LsmError> {
        let mut block = [0; BLOCK_SIZE_BYTES];
        let (header, first) = self.levels[level].write(&mut block, level as u8 + 1);
        Ok((self.output.push(&mut block, header)?, first))
    }

    /// Adds a finished block to the inner block above it, and closes full inner blocks.
    fn add_child(
        &mut self,
        mut level: usize,
        mut child: BlockNumber,
        mut separator: Separator,
    ) -> Result<(), LsmError> {
        loop {
            assert!(level < HEIGHT_MAX as usize, "no tree has so many blocks");
            if level == self.levels.len() {
                self.levels.push(InnerBuilder::default());
            }
            if self.levels[level].fits_entry(&separator) {
                self.levels[level].add(child, separator);
                return Ok(());
            }
            let closed = self.close_inner(level)?;
            self.levels[level].add(child, separator);
            (child, separator) = closed;
            level += 1;
        }
    }

    fn not_ascending(&self) -> LsmError {
        let how = "its source entries are not in ascending order";
        damaged(self.id, self.output.next_number(), how)
    }
}

/// Buffer that passes blocks to the sink, a segment at a time.
struct BlockOutput<S> {
    id: TreeId,
    sink: S,
    waiting: Vec<u8>,
    /// Number of the next block.
    number: u32,
}

impl<S: BlockSink> BlockOutput<S> {
    const fn new(id: TreeId, sink: S) -> Self {
        Self {
            id,
            sink,
            waiting: Vec::new(),
            number: 0,
        }
    }

    const fn next_number(&self) -> BlockNumber {
        BlockNumber(self.number)
    }

    fn push(
        &mut self,
        block: &mut [u8; BLOCK_SIZE_BYTES],
        header: Header,
    ) -> Result<BlockNumber, LsmError> {
        let number = self.next_number();
        seal(block, header, self.id, number);
        self.push_sealed(block)?;
        Ok(number)
    }

    fn push_sealed(&mut self, block: &[u8; BLOCK_SIZE_BYTES]) -> Result<(), LsmError> {
        self.waiting.extend_from_slice(block);
        self.number = self
            .number
            .checked_add(1)
            .expect("a tree has less than 16 TiB");
        if self.waiting.len() as u64 == SEGMENT_SIZE_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), LsmError> {
        if !self.waiting.is_empty() {
            self.sink.append(&mut self.waiting)?;
            self.waiting.clear();
        }
        Ok(())
    }
}
