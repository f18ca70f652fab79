//! Value blocks that a change writes, and those that it unlinks.

use farleaf_base::{NodeId, RemoteAddr};
use farleaf_fabric::{Batch, Endpoint, ProtocolCheck};
use farleaf_leaf::blobs::{BlockError, Content, FatPointer, Role, SizeClass, SpaceNeed};
use farleaf_leaf::strings::Reference;
use farleaf_pool::members::MemberState;

use super::ByteIndex;
use crate::strings::error::ByteIndexError;

/// Minimum size, in bytes, of strings that are written before the page is locked: writes under the
/// lock make others wait.
const AHEAD_SIZE_BYTES_MIN: usize = 16 << 10;

/// Value block that a change has taken, which nothing refers to yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct TakenBlock {
    pub(super) pointer: FatPointer,
    pub(super) reference: Reference,
    /// Whether the block is written already; otherwise its WRITE goes into the change's batch.
    pub(super) is_written: bool,
}

impl TakenBlock {
    pub(super) fn new(pointer: FatPointer, string: &[u8], is_written: bool) -> Self {
        let place = RemoteAddr::from_word(pointer.word());
        Self {
            pointer,
            reference: Reference::of(place, string),
            is_written,
        }
    }
}

/// Result of taking a piece for a string.
#[derive(Clone, Copy, Debug)]
pub(super) enum TakeResult {
    TakenBlock(TakenBlock),
    /// There is no free piece of this size: the lock must be released, and more pieces leased.
    Lease(SizeClass),
}

impl TakeResult {
    /// Returns the block that was taken.
    pub(super) fn taken(self) -> Option<TakenBlock> {
        match self {
            Self::TakenBlock(taken) => Some(taken),
            Self::Lease(_) => None,
        }
    }
}

/// Returns whether a string is written before its page is locked.
pub(super) fn is_ahead(content: &Content<'_>) -> bool {
    match content.space_need() {
        SpaceNeed::Piece(_) => content.string().len() >= AHEAD_SIZE_BYTES_MIN,
        SpaceNeed::Chunks(_) => true,
    }
}

/// Returns the size class of a string that is written under the lock.
pub(super) fn class_of(content: &Content<'_>) -> SizeClass {
    match content.space_need() {
        SpaceNeed::Piece(class) => class,
        SpaceNeed::Chunks(_) => unreachable!("what takes chunks is written ahead"),
    }
}

impl<E: Endpoint> ByteIndex<'_, E> {
    /// Returns the content of a block for a string and its locator.
    ///
    /// # Errors
    /// One of them is too long.
    pub(super) fn content<'s>(
        role: Role,
        locator: &'s [u8],
        string: &'s [u8],
    ) -> Result<Content<'s>, ByteIndexError> {
        Content::new(role, locator, string).map_err(|error| BlockError::from(error).into())
    }

    /// Takes a piece for a string on a node, to be written with the change's batch.
    pub(super) fn take(&self, node: NodeId, content: &Content<'_>) -> TakeResult {
        let class = class_of(content);
        match self.state.blocks.take(node, class) {
            Some(pointer) => {
                TakeResult::TakenBlock(TakenBlock::new(pointer, content.string(), false))
            }
            None => TakeResult::Lease(class),
        }
    }

    /// Writes a string before its page is locked, on the page's node, or on another one if that is
    /// full.
    ///
    /// # Errors
    /// All nodes are full, or the fabric failed.
    pub(super) async fn write_ahead(
        &self,
        batch: &mut Batch,
        node: NodeId,
        content: &Content<'_>,
    ) -> Result<TakenBlock, ByteIndexError> {
        let blocks = self.blocks();
        let mut full = None;
        for place in core::iter::once(node).chain(self.other_nodes(node)) {
            let store = &self.state.blocks;
            match store.write_ahead(&blocks, batch, place, content).await {
                Ok(pointer) => return Ok(TakenBlock::new(pointer, content.string(), true)),
                Err(error) if error.is_full() => {
                    full.get_or_insert(error);
                }
                // Treat the lost node as full; its blocks have no owner any more.
                Err(error) if place != node && error.lost_node() == Some(place) => {
                    store.forget(place);
                }
                // FABRIC-5: a chunk claimed there may be this session's.
                Err(error) => return Err(error.into()),
            }
        }
        let full = full.expect("the page's node was full, or nobody would have gone on");
        Err(full.into())
    }

    /// Returns the nodes that accept new chunks, except one.
    pub(super) fn other_nodes(&self, node: NodeId) -> Vec<NodeId> {
        let members = self.access.layout.members();
        let all = (0..=u8::MAX).map(NodeId);
        all.filter(|other| *other != node && members.state(*other) == Some(MemberState::Active))
            .collect()
    }

    /// Posts the WRITE of a block that was taken and is not written yet.
    pub(super) fn post_taken(&self, batch: &mut Batch, taken: TakenBlock, content: &Content<'_>) {
        if !taken.is_written {
            self.blocks().post_write(batch, taken.pointer, content);
        }
    }

    /// Posts the owner words that must be written into blocks before they are unlinked. Those on
    /// other nodes than the page's are written and awaited at once.
    ///
    /// # Errors
    /// The page refers to an address that cannot be that of a block, or the fabric failed.
    pub(super) async fn post_unlinks(
        &self,
        batch: &mut Batch,
        addr: RemoteAddr,
        released: &[Reference],
    ) -> Result<Vec<FatPointer>, ByteIndexError> {
        let pointers: Option<Vec<FatPointer>> = released
            .iter()
            .map(|reference| FatPointer::from_word(reference.pointer.word()))
            .collect();
        let pointers = pointers.ok_or_else(|| self.damaged(addr))?;
        let blocks = self.blocks();
        let mut elsewhere = Batch::new();
        for pointer in &pointers {
            if pointer.place().node() == addr.node() {
                blocks.post_unlink(batch, *pointer)?;
            } else {
                blocks.post_unlink(&mut elsewhere, *pointer)?;
            }
        }
        if !elsewhere.is_empty() {
            let executed = self.access.endpoint.execute(&mut elsewhere).await;
            *batch.cost_mut() += elsewhere.take_cost();
            executed?;
        }
        Ok(pointers)
    }

    /// Records the blocks that a committed change has unlinked.
    pub(super) fn retire_blocks(&self, pointers: Vec<FatPointer>) {
        let is_forgotten = self.skips_check(ProtocolCheck::UnlinkedBlockIsRetired);
        for pointer in pointers.into_iter().filter(|_| !is_forgotten) {
            self.state.blocks.retire(pointer);
        }
    }
}
