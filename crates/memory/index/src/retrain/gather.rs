//! Collecting the leaves of some models in the order of their links.

use farleaf_base::RemoteAddr;
use farleaf_fabric::{Batch, Endpoint, ProtocolCheck};
use farleaf_leaf::words::{Contradiction, LeafError};
use farleaf_pool::members::MemberState;

use super::{Retraining, Stretch};
use crate::IndexError;

/// Upper bound of the leaves of a table: by far more than a node's memory of 2^40 blocks of 64
/// bytes can have.
const LEAF_COUNT_MAX: usize = 1 << 32;

/// Leaves still to be moved, taken from the right: trained ones, which are adjacent model by model,
/// and their siblings that were met.
#[derive(Debug)]
pub(super) struct PendingLeaves {
    /// First leaf and number of leaves of each model; the last ones come next.
    pieces: Vec<(RemoteAddr, u32)>,
    stride_blocks: u64,
    /// Siblings to the right of all these, left to right.
    siblings: Vec<RemoteAddr>,
}

impl PendingLeaves {
    /// Returns the trained leaves of a stretch, and the leaf after them and their siblings: the
    /// first leaf of the next model, or null.
    pub(super) fn new<E: Endpoint>(
        work: &Retraining<'_, E>,
        stretch: &Stretch,
    ) -> (Self, RemoteAddr) {
        let all = &work.contents.models;
        let stride_blocks = work.access.geometry.stride_blocks();
        let models = all[stretch.models.clone()].iter();
        let pieces: Vec<_> = models.map(|model| (model.base, model.leaf_count)).collect();
        let next = all.get(stretch.models.end);
        let pending = Self {
            pieces,
            stride_blocks,
            siblings: Vec::new(),
        };
        (pending, next.map_or(RemoteAddr::NULL, |model| model.base))
    }

    /// Returns the number of leaves, as far as is known.
    pub(super) fn count(&self) -> u64 {
        let trained: u64 = self.pieces.iter().map(|(_, count)| u64::from(*count)).sum();
        trained + self.siblings.len() as u64
    }

    /// Returns the leftmost leaf.
    pub(super) fn first(&self) -> Option<RemoteAddr> {
        let trained = self.pieces.first().map(|(base, _)| *base);
        trained.or_else(|| self.siblings.first().copied())
    }

    /// Returns the rightmost leaf.
    pub(super) fn last(&self) -> Option<RemoteAddr> {
        let trained = || {
            let (base, count) = self.pieces.last()?;
            Some(base.offset_blocks(u64::from(count - 1) * self.stride_blocks))
        };
        self.siblings.last().copied().or_else(trained)
    }

    /// Takes the rightmost leaf.
    pub(super) fn pop(&mut self) -> Option<RemoteAddr> {
        let last = self.last()?;
        if self.siblings.pop().is_none()
            && let Some((_, count)) = self.pieces.last_mut()
        {
            *count -= 1;
            if *count == 0 {
                self.pieces.pop();
            }
        }
        Some(last)
    }

    /// Puts back `last`, which was taken, and its siblings to the right.
    pub(super) fn put_back(&mut self, last: RemoteAddr, siblings: &[RemoteAddr]) {
        self.siblings.push(last);
        self.siblings.extend_from_slice(siblings);
    }
}

/// Some leaves, each linked to the next.
#[derive(Debug)]
pub(super) struct LeafChain {
    /// Leaves, left to right.
    pub(super) leaves: Vec<RemoteAddr>,
    /// Place where the chain ends early, because the next leaf is lost.
    pub(super) cut: Option<LostLeafGap>,
}

/// Place of a lost leaf in a chain.
#[derive(Clone, Copy, Debug)]
pub(super) struct LostLeafGap {
    /// Link of the leaf before the lost one.
    pub(super) link: RemoteAddr,
    /// Link that the leaf before the lost one must get when it moves; null for its current link.
    pub(super) instead: RemoteAddr,
}

/// Follows links from `first` to `end`, which is not part of the chain. Stops early at a lost leaf,
/// or at one that was moved to a lost node. Costs one round trip per leaf.
pub(super) async fn chain<E: Endpoint>(
    work: &Retraining<'_, E>,
    batch: &mut Batch,
    first: RemoteAddr,
    end: RemoteAddr,
) -> Result<LeafChain, IndexError> {
    let access = &work.access;
    let passes = !access.endpoint.skips_check(ProtocolCheck::LostLeafIsPassed);
    let mut leaves = Vec::new();
    let mut addr = first;
    while addr != end {
        let leaf = match access.read_intact(batch, addr, work.broken).await {
            Err(error) if passes && error.lost_node() == Some(addr.node()) => {
                let (link, instead) = (addr, RemoteAddr::NULL);
                let cut = Some(LostLeafGap { link, instead });
                return Ok(LeafChain { leaves, cut });
            }
            leaf => leaf?,
        };
        let image = leaf.image();
        if image.is_retired() && passes && is_lost(work, image.link()) {
            let (link, instead) = (addr, image.link().place());
            let cut = Some(LostLeafGap { link, instead });
            return Ok(LeafChain { leaves, cut });
        }
        // Only this retrainer retires leaves, and the links of the others lead to the end.
        if image.is_retired() {
            return Err(contradiction(
                work,
                addr,
                Contradiction::RetiredWithoutRetraining,
            ));
        }
        let is_astray = image.link().is_null() && !end.is_null();
        if is_astray || leaves.len() >= LEAF_COUNT_MAX {
            return Err(contradiction(
                work,
                addr,
                Contradiction::LinkToInvalidAddress,
            ));
        }
        leaves.push(addr);
        addr = image.link().place();
    }
    Ok(LeafChain { leaves, cut: None })
}

/// Returns whether a leaf is on a lost node.
pub(super) fn is_lost<E>(work: &Retraining<'_, E>, leaf: RemoteAddr) -> bool {
    let members = work.access.layout.members();
    members.state(leaf.node()) == Some(MemberState::Lost)
}

pub(super) fn contradiction<E: Endpoint>(
    work: &Retraining<'_, E>,
    addr: RemoteAddr,
    what: Contradiction,
) -> IndexError {
    let error: LeafError = work.access.contradiction(addr, what);
    error.into()
}
