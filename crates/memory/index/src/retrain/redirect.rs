//! Replacing links to retired leaves.

use core::cell::Cell;
use std::rc::Rc;

use farleaf_base::RemoteAddr;
use farleaf_fabric::{Batch, Endpoint, ProtocolCheck};
use farleaf_leaf::words::{Critical, LeafAccess, LeafCheck};
use farleaf_pool::catalog::CatalogEntry;

use super::mover::NewLeaf;
use super::{Retraining, count};
use crate::{Index, IndexError, IndexState, Layer, LayerKind};

/// Returns the state of a search by the snapshot in force, past retired leaves. It copies the
/// snapshot, so one state serves many searches.
pub(super) fn searcher<E: Endpoint>(work: &Retraining<'_, E>) -> IndexState {
    let directory = work.contents.clone().into_directory(work.access.geometry);
    let layer = Layer::new(LayerKind::Learned, directory.into());
    let state = IndexState::new(layer, Rc::default());
    state.follow_retired();
    state
}

/// Links the leaf to the left of the first new one, and the table's first leaf, to the first new
/// one. A left leaf that is lost with its node needs no link.
pub(super) async fn redirect<E: Endpoint>(
    work: &Retraining<'_, E>,
    first: &NewLeaf,
) -> Result<(), IndexError> {
    let mut batch = Batch::new();
    let redirected = if let Some(key) = first.low.checked_sub(1) {
        redirect_left(work, &mut batch, key, first).await
    } else {
        redirect_first(
            &work.access,
            &mut batch,
            work.entry,
            work.broken,
            first.addr,
        )
        .await
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
    first: &NewLeaf,
) -> Result<(), IndexError> {
    let access = &work.access;
    if access
        .endpoint
        .skips_check(ProtocolCheck::LinksAreRedirected)
    {
        return Ok(());
    }
    let state = searcher(work);
    let index = Index::new(*access, &state);
    loop {
        let addr = index.leaf_of(batch, key).await?;
        // The leaf may have been split since it was found.
        let look = link_at(access, batch, addr, key, first.addr, work.broken).await?;
        if look == LeafCheck::Here {
            return Ok(());
        }
    }
}

/// Links a leaf to `to`, under its lock, if it covers a key. Returns the result of looking for that
/// key.
pub(super) async fn link_at<E: Endpoint>(
    access: &LeafAccess<'_, E>,
    batch: &mut Batch,
    addr: RemoteAddr,
    key: u64,
    to: RemoteAddr,
    broken: &Cell<bool>,
) -> Result<LeafCheck, IndexError> {
    let mut leaf = access.blank();
    let lock = access.lock(batch, addr, None, &mut leaf, broken);
    lock.await?;
    let critical = Critical::enter(broken);
    let look = access.check_intact(leaf.image(), key);
    batch.clear();
    let change = access.change(addr);
    if look == LeafCheck::Here && leaf.image().link() != to {
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

/// Redirects the table's first leaf, which keeps its address forever: once retired, it leads to the
/// leaf at the low end.
pub(super) async fn redirect_first<E: Endpoint>(
    access: &LeafAccess<'_, E>,
    batch: &mut Batch,
    entry: &CatalogEntry,
    broken: &Cell<bool>,
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
