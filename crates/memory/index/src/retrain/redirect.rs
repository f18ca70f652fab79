//! R4: links to what was retired.

use core::cell::Cell;
use std::rc::Rc;

use farleaf_fabric::{Batch, Endpoint, ProtocolCheck};
use farleaf_leaf::{Critical, LeafAccess, Look};
use farleaf_region::catalog::CatalogEntry;
use farleaf_types::RemoteAddr;

use super::mover::Made;
use super::{Retraining, count};
use crate::{Index, IndexError, IndexState, Layer, LayerKind};

/// Searches by the snapshot that is in force, past what is retired. Copies that: one serves many
/// searches.
pub(super) fn searcher<E: Endpoint>(work: &Retraining<'_, E>) -> IndexState {
    let directory = work.contents.clone().into_directory(work.access.geometry);
    let layer = Layer::new(LayerKind::Learned, directory.into());
    let state = IndexState::new(layer, Rc::default());
    state.follow_retired();
    state
}

/// Links the leaf to the left of the first new one, and the table's first leaf, to that. A leaf to
/// the left that is lost with its node (U4) links to nothing any more.
pub(super) async fn redirect<E: Endpoint>(
    work: &Retraining<'_, E>,
    first: &Made,
) -> Result<(), IndexError> {
    let mut batch = Batch::new();
    let redirected = if let Some(key) = first.low.checked_sub(1) {
        redirect_left(work, &mut batch, key, first).await
    } else {
        let of = (work.entry, work.broken);
        redirect_first(&work.access, &mut batch, of, first.addr).await
    };
    count(work, &mut batch);
    match redirected {
        Err(error) if error.lost_node().is_some() => Ok(()),
        redirected => redirected,
    }
}

async fn redirect_left<E: Endpoint>(
    work: &Retraining<'_, E>,
    batch: &mut Batch,
    key: u64,
    first: &Made,
) -> Result<(), IndexError> {
    let access = &work.access;
    if access
        .endpoint
        .leaves_out(ProtocolCheck::LinksAreRedirected)
    {
        return Ok(());
    }
    let state = searcher(work);
    let index = Index::new(*access, &state);
    loop {
        let addr = index.leaf_of(batch, key).await?;
        // It may have been split since it was found.
        let look = link_at(access, batch, (addr, key), first.addr, work.broken).await?;
        if look == Look::Here {
            return Ok(());
        }
    }
}

/// Links a leaf to `to`, under its lock, if it covers a key: how it looks for that key.
pub(super) async fn link_at<E: Endpoint>(
    access: &LeafAccess<'_, E>,
    batch: &mut Batch,
    (addr, key): (RemoteAddr, u64),
    to: RemoteAddr,
    broken: &Cell<bool>,
) -> Result<Look, IndexError> {
    let mut leaf = access.blank();
    let lock = access.lock(batch, addr, None, &mut leaf, broken);
    lock.await?;
    let critical = Critical::enter(broken);
    let look = access.look_intact(leaf.image(), key);
    batch.clear();
    let change = access.change(addr);
    if look == Look::Here && leaf.image().link() != to {
        change.relink(batch, &mut leaf, to);
    } else {
        change.unlock(batch);
    }
    let executed = access.endpoint.execute(batch).await;
    if let Err(error) = executed {
        if error.lost_node() == Some(addr.node()) {
            critical.passed();
        }
        return Err(error.into());
    }
    critical.passed();
    Ok(look)
}

/// The table's first leaf keeps its address for ever (B4); once retired, it leads to the leaf at
/// the low end.
pub(super) async fn redirect_first<E: Endpoint>(
    access: &LeafAccess<'_, E>,
    batch: &mut Batch,
    (entry, broken): (&CatalogEntry, &Cell<bool>),
    first: RemoteAddr,
) -> Result<(), IndexError> {
    let addr = entry.record.first_leaf;
    let mut leaf = access.blank();
    let lock = access.lock(batch, addr, None, &mut leaf, broken);
    lock.await?;
    let critical = Critical::enter(broken);
    batch.clear();
    let change = access.change(addr);
    if leaf.image().is_retired() && leaf.image().link().place() != first {
        change.relink(batch, &mut leaf, first);
    } else {
        change.unlock(batch);
    }
    access.endpoint.execute(batch).await?;
    critical.passed();
    Ok(())
}
