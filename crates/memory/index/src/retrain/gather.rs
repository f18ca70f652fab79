//! What is to be moved: the leaves of some models, in the order of their links.

use farleaf_fabric::{Batch, Endpoint, ProtocolCheck};
use farleaf_leaf::{Contradiction, LeafError};
use farleaf_region::members::MemberState;
use farleaf_types::RemoteAddr;

use super::{Retraining, Stretch};
use crate::IndexError;

/// More leaves than a region of 2^40 blocks of 64 bytes holds in one table, by far.
const LEAF_COUNT_MAX: usize = 1 << 32;

/// Leaves that are still to be moved, taken from the right: trained ones, which lie side by side
/// model by model, and siblings of theirs that were met.
#[derive(Debug)]
pub(super) struct Pending {
    /// First leaf, and how many from there on, of each model; the last ones are next.
    pieces: Vec<(RemoteAddr, u32)>,
    stride_blocks: u64,
    /// Siblings right of all these, left to right.
    siblings: Vec<RemoteAddr>,
}

impl Pending {
    /// The trained leaves of a stretch, and where the last one's siblings end: the first leaf of
    /// the next model, or null.
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

    /// How many leaves these are, as far as is known.
    pub(super) fn count(&self) -> u64 {
        let trained: u64 = self.pieces.iter().map(|(_, count)| u64::from(*count)).sum();
        trained + self.siblings.len() as u64
    }

    /// The left-most.
    pub(super) fn first(&self) -> Option<RemoteAddr> {
        let trained = self.pieces.first().map(|(base, _)| *base);
        trained.or_else(|| self.siblings.first().copied())
    }

    /// The right-most.
    pub(super) fn last(&self) -> Option<RemoteAddr> {
        let trained = || {
            let (base, count) = self.pieces.last()?;
            Some(base.offset_blocks(u64::from(count - 1) * self.stride_blocks))
        };
        self.siblings.last().copied().or_else(trained)
    }

    /// Takes the right-most.
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

    /// R3: `last`, which was taken, is the right-most but for these.
    pub(super) fn put_back(&mut self, last: RemoteAddr, siblings: &[RemoteAddr]) {
        self.siblings.push(last);
        self.siblings.extend_from_slice(siblings);
    }
}

/// A chain of leaves, each linked to the next.
#[derive(Debug)]
pub(super) struct Chain {
    /// The leaves, left to right.
    pub(super) leaves: Vec<RemoteAddr>,
    /// Where the chain ends early, because what follows is lost (R9).
    pub(super) cut: Option<Cut>,
}

/// The place of a lost leaf in a chain (R9).
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    /// What the leaf before it links to.
    pub(super) link: RemoteAddr,
    /// What the leaf before it has to link to when it moves; null: the same as now.
    pub(super) instead: RemoteAddr,
}

/// Follows links from `first` to `end`, which is not part of the chain. Stops early at a lost leaf,
/// or at one that was moved to a lost node. One round trip for each leaf.
pub(super) async fn chain<E: Endpoint>(
    work: &Retraining<'_, E>,
    batch: &mut Batch,
    first: RemoteAddr,
    end: RemoteAddr,
) -> Result<Chain, IndexError> {
    let access = &work.access;
    let passes = !access.endpoint.leaves_out(ProtocolCheck::LostLeafIsPassed);
    let mut leaves = Vec::new();
    let mut addr = first;
    while addr != end {
        let leaf = match access.read_intact(batch, addr, work.broken).await {
            Err(error) if passes && error.lost_node() == Some(addr.node()) => {
                let (link, instead) = (addr, RemoteAddr::NULL);
                let cut = Some(Cut { link, instead });
                return Ok(Chain { leaves, cut });
            }
            leaf => leaf?,
        };
        let image = leaf.image();
        if image.is_retired() && passes && is_lost(work, image.link()) {
            let (link, instead) = (addr, image.link().place());
            let cut = Some(Cut { link, instead });
            return Ok(Chain { leaves, cut });
        }
        // R1: nobody else retires leaves; and the links of the others lead to the end.
        if image.is_retired() {
            return Err(contradiction(work, addr, Contradiction::RetiredByNobody));
        }
        let is_astray = image.link().is_null() && !end.is_null();
        if is_astray || leaves.len() >= LEAF_COUNT_MAX {
            return Err(contradiction(work, addr, Contradiction::LinkToNowhere));
        }
        leaves.push(addr);
        addr = image.link().place();
    }
    Ok(Chain { leaves, cut: None })
}

/// Whether a leaf is on a lost node (U4).
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
