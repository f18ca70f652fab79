//! Value blocks that a change writes, and those that it unlinks (BV1, BV3, BV4).

use farleaf_block::{BlockError, Content, FatPointer, Role, Room, SizeClass};
use farleaf_fabric::{Batch, Endpoint, ProtocolCheck};
use farleaf_page::Reference;
use farleaf_region::members::MemberState;
use farleaf_types::{NodeId, RemoteAddr};

use super::ByteIndex;
use crate::error::ByteIndexError;

/// Strings of so many bytes or more are written before the page is locked: what is written under
/// the lock keeps others waiting.
const AHEAD_SIZE_BYTES_MIN: usize = 16 << 10;

/// A value block that a change has taken, to which nothing refers yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    pub(super) pointer: FatPointer,
    pub(super) reference: Reference,
    /// Whether it is written already; else its WRITE goes into the change's batch.
    pub(super) is_written: bool,
}

impl Taken {
    pub(super) fn new(pointer: FatPointer, string: &[u8], is_written: bool) -> Self {
        let place = RemoteAddr::from_word(pointer.word());
        Self {
            pointer,
            reference: Reference::of(place, string),
            is_written,
        }
    }
}

/// Whether a piece for a string could be taken: an outcome, not an error.
#[derive(Clone, Copy, Debug)]
pub(super) enum Take {
    Taken(Taken),
    /// There is none of this size: the lock has to be given back, and more leased.
    Lease(SizeClass),
}

impl Take {
    /// What was taken.
    pub(super) fn taken(self) -> Option<Taken> {
        match self {
            Self::Taken(taken) => Some(taken),
            Self::Lease(_) => None,
        }
    }
}

/// Whether a string is written before its page is locked.
pub(super) fn is_ahead(content: &Content<'_>) -> bool {
    match content.room() {
        Room::Piece(_) => content.string().len() >= AHEAD_SIZE_BYTES_MIN,
        Room::Chunks(_) => true,
    }
}

/// The class of a string that is written under the lock.
pub(super) fn class_of(content: &Content<'_>) -> SizeClass {
    match content.room() {
        Room::Piece(class) => class,
        Room::Chunks(_) => unreachable!("what takes chunks is written ahead"),
    }
}

impl<E: Endpoint> ByteIndex<'_, E> {
    /// What a string and its locator make of a block.
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

    /// A piece for a string on a node, to be written with the change's batch.
    pub(super) fn take(&self, node: NodeId, content: &Content<'_>) -> Take {
        let class = class_of(content);
        match self.state.blocks.take(node, class) {
            Some(pointer) => Take::Taken(Taken::new(pointer, content.string(), false)),
            None => Take::Lease(class),
        }
    }

    /// BV1: writes a string before its page is locked, on its page's node, or, if there is no room,
    /// on another one.
    ///
    /// # Errors
    /// There is no room anywhere; or the fabric failed.
    pub(super) async fn write_ahead(
        &self,
        batch: &mut Batch,
        node: NodeId,
        content: &Content<'_>,
    ) -> Result<Taken, ByteIndexError> {
        let blocks = self.blocks();
        let mut full = None;
        for place in core::iter::once(node).chain(self.other_nodes(node)) {
            let store = &self.state.blocks;
            match store.write_ahead(&blocks, batch, place, content).await {
                Ok(pointer) => return Ok(Taken::new(pointer, content.string(), true)),
                Err(error) if error.is_full() => {
                    full.get_or_insert(error);
                }
                // U4: as if it were full, and nobody's any more.
                Err(error) if place != node && error.lost_node() == Some(place) => {
                    store.forget(place);
                }
                // F5: what was claimed there may be this session's.
                Err(error) => return Err(error.into()),
            }
        }
        let full = full.expect("the page's node was full, or nobody would have gone on");
        Err(full.into())
    }

    /// The nodes that take new chunks, but for one.
    pub(super) fn other_nodes(&self, node: NodeId) -> Vec<NodeId> {
        let members = self.access.layout.members();
        let all = (0..=u8::MAX).map(NodeId);
        all.filter(|other| *other != node && members.state(*other) == Some(MemberState::Active))
            .collect()
    }

    /// Posts the WRITE of a block that was taken and is not written yet.
    pub(super) fn post_taken(&self, batch: &mut Batch, taken: Taken, content: &Content<'_>) {
        if !taken.is_written {
            self.blocks().post_write(batch, taken.pointer, content);
        }
    }

    /// BV3: posts what has to be written into blocks before they are unlinked. Those on other nodes
    /// than the page's are written at once, and awaited.
    ///
    /// # Errors
    /// The page refers to where no block can be; or the fabric failed.
    pub(super) async fn post_unlinks(
        &self,
        batch: &mut Batch,
        (addr, released): (RemoteAddr, &[Reference]),
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

    /// BV4: notes blocks that a committed change has unlinked.
    pub(super) fn retire_blocks(&self, pointers: Vec<FatPointer>) {
        let is_forgotten = self.leaves_out(ProtocolCheck::UnlinkedBlockIsRetired);
        for pointer in pointers.into_iter().filter(|_| !is_forgotten) {
            self.state.blocks.retire(pointer);
        }
    }
}
