//! Steps of a retrainer that moves leaves, by the rules of [`farleaf_leaf::words::moving`].

use core::cell::Cell;

use farleaf_base::RemoteAddr;
use farleaf_fabric::{Batch, Endpoint, ProtocolCheck};
use farleaf_leaf::words::moving::MoveSource;
use farleaf_leaf::words::{Critical, LeafAccess, LeafBuffer};

use crate::IndexError;

/// Locks the left neighbor of a locked leaf too, if its lock is free. It must still be the neighbor
/// and on the same node, and both must fit into one leaf.
pub(super) async fn lock_left<E: Endpoint>(
    access: &LeafAccess<'_, E>,
    batch: &mut Batch,
    left: RemoteAddr,
    right: &MoveSource,
    merged_count_max: usize,
    broken: &Cell<bool>,
) -> Result<Option<MoveSource>, IndexError> {
    if left.node() != right.addr.node() {
        return Ok(None);
    }
    let mut leaf = access.blank();
    if access
        .endpoint
        .skips_check(ProtocolCheck::MergedLeavesAreLocked)
    {
        leaf = access.read_intact(batch, left, broken).await?;
    } else if !access.lock_if_free(batch, left, &mut leaf, broken).await? {
        return Ok(None);
    }
    let image = leaf.image();
    let record_count = image.record_count() + right.leaf.image().record_count();
    let is_neighbour = !image.is_retired() && image.link() == right.addr;
    if is_neighbour && record_count <= merged_count_max {
        return Ok(Some(MoveSource { addr: left, leaf }));
    }
    access.unlock(batch, left, broken).await?;
    Ok(None)
}

/// Moves the sources into a new leaf at `place` that links to `link`, after the verbs already in
/// the batch. Afterwards nothing is locked.
///
/// # Errors
/// A node was lost; or the fabric failed, and the sources may stay locked.
pub(super) async fn take_over<E: Endpoint>(
    access: &LeafAccess<'_, E>,
    batch: &mut Batch,
    place: RemoteAddr,
    link: RemoteAddr,
    sources: &mut [MoveSource],
    critical: Critical<'_>,
) -> Result<LeafBuffer, IndexError> {
    let made = post_and_execute(access, batch, place, link, sources).await;
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

/// Posts a step as one batch, or as separate, awaited batches if it involves several nodes.
async fn post_and_execute<E: Endpoint>(
    access: &LeafAccess<'_, E>,
    batch: &mut Batch,
    place: RemoteAddr,
    link: RemoteAddr,
    sources: &mut [MoveSource],
) -> Result<LeafBuffer, IndexError> {
    let change = access.change(place);
    let is_at_once = access
        .endpoint
        .skips_check(ProtocolCheck::MovedIsCompleteElsewhere);
    if sources[0].addr.node() == place.node() || is_at_once {
        let made = change.take_over(batch, access.owner, sources, link);
        access.endpoint.execute(batch).await?;
        return Ok(made);
    }
    // The verbs already in the batch go to the main node, and must be executed before the sources
    // are retired.
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

/// Handles the loss of a node during a step. If the new leaf was on it, nothing leads there yet, or
/// the sources are retired and unlocked. If the sources were on it, nothing will ever lead to the
/// new leaf. Locks on the other node are released without a change.
async fn give_up<E: Endpoint>(
    access: &LeafAccess<'_, E>,
    batch: &mut Batch,
    place: RemoteAddr,
    sources: &[MoveSource],
) -> Result<(), IndexError> {
    let (locked, owner) = (sources.iter().map(|source| source.addr), access.owner);
    for leaf in locked.chain([place]) {
        batch.clear();
        // Only if the lock is still held: another session may own it by now.
        batch.compare_swap(access.geometry.lock(leaf), owner.word(), 0);
        match access.endpoint.execute(batch).await {
            Err(error) if error.lost_node() == Some(leaf.node()) => {}
            given_back => given_back?,
        }
    }
    Ok(())
}
