//! What is to be moved: the leaves of some models, in the order of their links.

use core::ops::Range;

use farleaf_fabric::{Batch, Endpoint};
use farleaf_leaf::{Contradiction, LeafError};
use farleaf_types::RemoteAddr;

use super::Retraining;
use crate::IndexError;

/// More leaves than a region of 2^40 blocks of 64 bytes holds in one table, by far.
const LEAF_COUNT_MAX: usize = 1 << 32;

/// A leaf as it was read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gathered {
    pub(super) addr: RemoteAddr,
    pub(super) record_count: usize,
}

/// The leaves of a range of models.
#[derive(Debug)]
pub(super) struct Leaves {
    /// Left to right.
    pub(super) leaves: Vec<Gathered>,
    /// Where the last one links to: the first leaf of the next model, or null.
    pub(super) next: RemoteAddr,
}

/// Walks from the models' first leaf to the next model's. One round trip per leaf.
pub(super) async fn gather<E: Endpoint>(
    work: &Retraining<'_, E>,
    batch: &mut Batch,
    models: &Range<usize>,
) -> Result<Leaves, IndexError> {
    let all = &work.contents.models;
    let first = all[models.start].base;
    let next = all
        .get(models.end)
        .map_or(RemoteAddr::NULL, |model| model.base);
    let leaves = chain(work, batch, first, next).await?;
    Ok(Leaves { leaves, next })
}

/// The leaves from one to another, by their links; the second is not among them.
pub(super) async fn chain<E: Endpoint>(
    work: &Retraining<'_, E>,
    batch: &mut Batch,
    first: RemoteAddr,
    end: RemoteAddr,
) -> Result<Vec<Gathered>, IndexError> {
    let access = &work.access;
    let mut leaves = Vec::new();
    let mut addr = first;
    while addr != end {
        let leaf = access.read_intact(batch, addr, work.broken).await?;
        let image = leaf.image();
        // R1: nobody else retires leaves; and the links of the others lead to the end.
        if image.is_retired() {
            return Err(contradiction(work, addr, Contradiction::RetiredByNobody));
        }
        let is_astray = image.link().is_null() && !end.is_null();
        if is_astray || leaves.len() >= LEAF_COUNT_MAX {
            return Err(contradiction(work, addr, Contradiction::LinkToNowhere));
        }
        leaves.push(Gathered {
            addr,
            record_count: image.record_count(),
        });
        addr = image.link().place();
    }
    Ok(leaves)
}

pub(super) fn contradiction<E: Endpoint>(
    work: &Retraining<'_, E>,
    addr: RemoteAddr,
    what: Contradiction,
) -> IndexError {
    let error: LeafError = work.access.contradiction(addr, what);
    error.into()
}
