//! Reading a tree: one key, its references, and single blocks through the cache.

use std::fmt;
use std::sync::Arc;

use crate::cache::BlockCache;
use crate::error::LsmError;
use crate::head::KeySource;
use crate::place::{BLOCK_SIZE_BYTES, BlockNumber, LogPosition, TreeId};
use crate::tree::format::{Block, HEIGHT_MAX, Kind, damaged};
use crate::tree::inner::Inner;
use crate::tree::leaf::Leaf;
use crate::tree::references::References;
use crate::tree::{BlockSource, TreeShape, filter};

/// Result of a get in a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Position of the record.
    pub position: LogPosition,
    /// Whether the record is a delete.
    pub is_delete: bool,
    /// Whether the entry certainly has the key. If not, hash and head match, and the caller must
    /// read the record. If its key differs, the tree does not have the key.
    pub is_certain: bool,
}

/// Finished tree.
pub struct Tree {
    id: TreeId,
    shape: TreeShape,
    source: Arc<dyn BlockSource>,
    cache: Arc<BlockCache>,
}

impl fmt::Debug for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tree {} {:?}", self.id.0, self.shape)
    }
}

impl Tree {
    /// Creates a tree from its shape. Reads nothing.
    pub fn new(
        id: TreeId,
        shape: TreeShape,
        source: Arc<dyn BlockSource>,
        cache: Arc<BlockCache>,
    ) -> Self {
        Self {
            id,
            shape,
            source,
            cache,
        }
    }

    /// Returns the id of the tree.
    pub const fn id(&self) -> TreeId {
        self.id
    }

    /// Returns the shape of the tree.
    pub const fn shape(&self) -> TreeShape {
        self.shape
    }

    /// Finds a key, given its hash ([`key_hash`](crate::tree::key_hash)).
    ///
    /// If the tree does not have the key, this costs one block (of the filter) for 99 % of keys.
    /// Otherwise it costs the height of the tree and two more. The log is read only if the key
    /// begins like a separator of more than 256 bytes, or several entries have its hash and head.
    ///
    /// # Errors
    /// [`LsmError::CorruptTree`], and errors of the source and the log.
    pub fn get(
        &self,
        key: &[u8],
        hash: u64,
        keys: &dyn KeySource,
    ) -> Result<Option<Candidate>, LsmError> {
        let number = filter::block_of(hash, self.shape.filter);
        let block = self.block(number)?;
        self.expect(&block, number, Kind::Filter, 0)?;
        if !filter::may_have(&block, hash) {
            return Ok(None);
        }
        let (mut number, mut height) = (self.shape.root, self.shape.height);
        let mut block = self.node(number, height)?;
        while height > 0 {
            let inner = Inner::of(&block);
            number = inner.child(inner.search(key, keys)?);
            height -= 1;
            block = self.node(number, height)?;
        }
        find_in(Leaf::of(&block), key, hash, keys)
    }

    /// Reads the log segments to which the tree refers; costs as many blocks as the shape says.
    ///
    /// # Errors
    /// [`LsmError::CorruptTree`], and errors of the source.
    pub fn references(&self) -> Result<References, LsmError> {
        let mut references = References::default();
        let range = self.shape.references;
        for index in 0..range.count {
            let number = BlockNumber(range.first.0.saturating_add(index));
            // These blocks are read once, when the tree is opened or merged, so they are not
            // cached.
            let block = self.read(number)?;
            self.expect(&block, number, Kind::References, 0)?;
            let read = references.read(&block);
            read.map_err(|how| damaged(self.id, number, how))?;
        }
        Ok(references)
    }

    /// Returns an inner block or a leaf through the cache; the height tells which one it is.
    pub(super) fn node(&self, number: BlockNumber, height: u8) -> Result<Arc<Block>, LsmError> {
        let block = self.block(number)?;
        self.expect_node(&block, number, height)?;
        Ok(block)
    }

    /// Checks that a block is what its parent, or the shape, says.
    pub(super) fn expect_node(
        &self,
        block: &Block,
        number: BlockNumber,
        height: u8,
    ) -> Result<(), LsmError> {
        let kind = match height {
            0 => Kind::Leaf,
            1..=HEIGHT_MAX => Kind::Inner,
            _ => return Err(damaged(self.id, number, "its height exceeds the maximum")),
        };
        self.expect(block, number, kind, height)
    }

    fn expect(
        &self,
        block: &Block,
        number: BlockNumber,
        kind: Kind,
        height: u8,
    ) -> Result<(), LsmError> {
        let header = block.header();
        if header.kind == kind && header.height == height {
            return Ok(());
        }
        Err(damaged(self.id, number, "unexpected kind of block"))
    }

    fn block(&self, number: BlockNumber) -> Result<Arc<Block>, LsmError> {
        if let Some(block) = self.cache.get(self.id, number) {
            return Ok(block);
        }
        let block = Arc::new(self.read(number)?);
        self.cache.insert(self.id, number, &block);
        Ok(block)
    }

    fn read(&self, number: BlockNumber) -> Result<Block, LsmError> {
        let mut bytes = Box::new([0; BLOCK_SIZE_BYTES]);
        self.read_many(number, bytes.as_mut_slice())?;
        Block::open(bytes, self.id, number)
    }

    /// Fills a buffer with blocks of one segment, past the cache and unverified.
    pub(super) fn read_many(&self, first: BlockNumber, to: &mut [u8]) -> Result<(), LsmError> {
        let count = (to.len() / BLOCK_SIZE_BYTES) as u64;
        if u64::from(first.0) + count > u64::from(self.shape.block_count) {
            return Err(damaged(
                self.id,
                first,
                "the block number is past the end of the tree",
            ));
        }
        self.source.read(first, to)
    }

    pub(super) fn cache(&self) -> &BlockCache {
        &self.cache
    }
}

/// Finds the entry of a key in the only leaf that can have it.
fn find_in(
    leaf: Leaf<'_>,
    key: &[u8],
    hash: u64,
    keys: &dyn KeySource,
) -> Result<Option<Candidate>, LsmError> {
    let mut matches = leaf.matches(key, hash);
    let Some(first) = matches.next() else {
        return Ok(None);
    };
    let candidate = |pointer: crate::tree::pointer::Pointer, is_certain| Candidate {
        position: pointer.position,
        is_delete: pointer.is_delete,
        is_certain,
    };
    let Some(second) = matches.next() else {
        return Ok(Some(candidate(first.pointer, first.is_certain)));
    };
    // The caller could verify one candidate, but not several.
    let mut whole = Vec::new();
    for found in [first, second].into_iter().chain(matches) {
        if !found.is_certain {
            whole.clear();
            keys.append_key(found.pointer.position, &mut whole)?;
            if whole != key {
                continue;
            }
        }
        return Ok(Some(candidate(found.pointer, true)));
    }
    Ok(None)
}
