//! M1, M2 and M4: what a step of whoever moves leaves is made of.

use core::cell::Cell;

use farleaf_fabric::{Batch, Endpoint, ProtocolCheck};
use farleaf_leaf::moving::Source;
use farleaf_leaf::{Critical, LeafAccess, LeafBuffer};
use farleaf_types::RemoteAddr;

use crate::IndexError;

/// M1: locks the left neighbour of a locked leaf, too, if that is what it is, both are on one node
/// (M4), both fit into one leaf, and nobody holds it.
pub(super) async fn lock_left<E: Endpoint>(
    access: &LeafAccess<'_, E>,
    batch: &mut Batch,
    (left, right): (RemoteAddr, &Source),
    merged_count_max: usize,
    broken: &Cell<bool>,
) -> Result<Option<Source>, IndexError> {
    if left.node() != right.addr.node() {
        return Ok(None);
    }
    let mut leaf = access.blank();
    if access
        .endpoint
        .leaves_out(ProtocolCheck::MergedLeavesAreLocked)
    {
        leaf = access.read_intact(batch, left, broken).await?;
    } else if !access.lock_if_free(batch, left, &mut leaf, broken).await? {
        return Ok(None);
    }
    let image = leaf.image();
    let record_count = image.record_count() + right.leaf.image().record_count();
    let is_neighbour = !image.is_retired() && image.link() == right.addr;
    if is_neighbour && record_count <= merged_count_max {
        return Ok(Some(Source { addr: left, leaf }));
    }
    access.unlock(batch, left, broken).await?;
    Ok(None)
}

/// Moves the sources into a new leaf at `place` that links to `link`, after what the batch holds
/// already. Nothing is locked afterwards.
///
/// # Errors
/// A node was lost (U4); or the fabric failed, and the sources may be locked for ever.
pub(super) async fn take_over<E: Endpoint>(
    access: &LeafAccess<'_, E>,
    batch: &mut Batch,
    (place, link): (RemoteAddr, RemoteAddr),
    sources: &mut [Source],
    critical: Critical<'_>,
) -> Result<LeafBuffer, IndexError> {
    let made = post_and_execute(access, batch, (place, link), sources).await;
    if let Err(error) = &made
        && error.lost_node().is_some()
    {
        let left = give_up(access, batch, place, sources).await;
        critical.passed();
        left?;
        return made;
    }
    let made = made?;
    critical.passed();
    Ok(made)
}

/// M2; between nodes, M4.
async fn post_and_execute<E: Endpoint>(
    access: &LeafAccess<'_, E>,
    batch: &mut Batch,
    (place, link): (RemoteAddr, RemoteAddr),
    sources: &mut [Source],
) -> Result<LeafBuffer, IndexError> {
    let change = access.change(place);
    let is_at_once = access
        .endpoint
        .leaves_out(ProtocolCheck::MovedIsWholeElsewhere);
    if sources[0].addr.node() == place.node() || is_at_once {
        let made = change.take_over(batch, access.owner, sources, link);
        access.endpoint.execute(batch).await?;
        return Ok(made);
    }
    // What the batch holds already is about the home node, and has to come before the sources are
    // retired.
    let made = change.write_moved(batch, access.owner, sources, link);
    access.endpoint.execute(batch).await?;
    batch.clear();
    change.retire_sources(batch, sources);
    access.endpoint.execute(batch).await?;
    batch.clear();
    change.unlock(batch);
    access.endpoint.execute(batch).await?;
    Ok(made)
}

/// U4: a node was lost in the middle of a step. If it is the new leaf's, nothing leads there yet,
/// or the sources are retired and unlocked; if it is the sources', nothing ever will. What is
/// locked on the other one is given back as it is.
async fn give_up<E: Endpoint>(
    access: &LeafAccess<'_, E>,
    batch: &mut Batch,
    place: RemoteAddr,
    sources: &[Source],
) -> Result<(), IndexError> {
    let (locked, owner) = (sources.iter().map(|source| source.addr), access.owner);
    for leaf in locked.chain([place]) {
        batch.clear();
        // Only where it is still held: it may be another's since.
        batch.compare_swap(access.geometry.lock(leaf), owner.word(), 0);
        match access.endpoint.execute(batch).await {
            Err(error) if error.lost_node() == Some(leaf.node()) => {}
            given_back => given_back?,
        }
    }
    Ok(())
}
