//! How a load appears at once (rules B2 to B4).

use core::cell::Cell;

use farleaf_fabric::{Batch, Endpoint, OperationKind};
use farleaf_leaf::format::link_of;
use farleaf_leaf::{Critical, LeafAccess, LeafError, LeafFormat};
use farleaf_region::PoolLayout;
use farleaf_region::catalog::{self, CatalogEntry};
use farleaf_types::{RemoteAddr, WordAddr};

use crate::LoadError;

/// B2's condition: nobody has written a record, and nobody has split or replaced the first leaf.
fn may_be_replaced<F: LeafFormat>(format: F, leaf: &F::Buffer) -> bool {
    let image = F::words(leaf);
    let link = link_of(image);
    !link.is_retired() && link.is_null() && format.is_empty(image)
}

/// Whether a load would find the table empty now; the commit asks again, under the lock.
///
/// # Errors
/// The first leaf is damaged, or the fabric failed.
pub async fn is_untouched<E: Endpoint, F: LeafFormat>(
    access: &LeafAccess<'_, E, F>,
    batch: &mut Batch,
    entry: &CatalogEntry,
    broken: &Cell<bool>,
) -> Result<bool, LeafError> {
    let first_leaf = entry.record.first_leaf;
    let leaf = access.read_intact(batch, first_leaf, broken).await?;
    Ok(may_be_replaced(access.geometry, &leaf))
}

/// A number for the load that no load at the same time has: 1 to 65535.
///
/// # Errors
/// The fabric failed.
pub async fn draw_generation<E: Endpoint, F>(
    access: &LeafAccess<'_, E, F>,
    batch: &mut Batch,
) -> Result<u16, LeafError> {
    loop {
        batch.clear();
        let slot = batch.fetch_add(access.layout.table_num(), 1);
        access.endpoint.execute(batch).await?;
        let generation = batch.previous(slot).wrapping_add(1) as u16;
        if generation != 0 {
            return Ok(generation);
        }
    }
}

/// B2 and B3. `compacted`: the word of a new tree's head which says that it replaces a compacted
/// one; it is set if the root has changed since the entry's was read (K5).
///
/// # Errors
/// The table is not empty, or was dropped; or the fabric failed.
pub async fn commit<E: Endpoint, F: LeafFormat>(
    access: &LeafAccess<'_, E, F>,
    entry: &CatalogEntry,
    first_new_leaf: RemoteAddr,
    (root, compacted): (RemoteAddr, Option<WordAddr>),
    broken: &Cell<bool>,
) -> Result<(), LoadError> {
    let mut batch = Batch::new();
    let first_leaf = entry.record.first_leaf;
    let mut leaf = access.blank();
    access
        .lock(&mut batch, first_leaf, None, &mut leaf, broken)
        .await?;
    let critical = Critical::enter(broken);
    let untouched = may_be_replaced(access.geometry, &leaf);
    // R1: under this lock nobody else swaps the root of a table that is empty.
    let root_addr = catalog::root_addr(access.layout, entry.index);
    batch.clear();
    let read = batch.read(root_addr, 1);
    access.endpoint.execute(&mut batch).await?;
    let before = batch.words(read)[0];
    batch.clear();
    if let Some(compacted) = compacted.filter(|_| untouched && before != entry.root.word()) {
        batch.write_word(compacted, 1);
    }
    let is_there = before != 0;
    if untouched && is_there {
        install_root(&mut batch, access.layout, entry, root);
        access.post_retire(&mut batch, first_leaf, &mut leaf, first_new_leaf);
        batch.compare_swap(root_addr, before, root.word());
    } else {
        access.post_unlock(&mut batch, first_leaf);
    }
    access.endpoint.execute(&mut batch).await?;
    critical.passed();
    access
        .endpoint
        .counters()
        .record(OperationKind::Control, &batch.take_cost());
    match (untouched, is_there) {
        (true, true) => Ok(()),
        // C5.
        (true, false) => {
            let table = access.table;
            Err(LeafError::TableDropped { table }.into())
        }
        (false, _) => Err(LoadError::TableNotEmpty),
    }
}

/// B3's first verb: names the root that is about to be installed.
fn install_root(batch: &mut Batch, layout: &PoolLayout, entry: &CatalogEntry, root: RemoteAddr) {
    batch.write_word(catalog::pending_root_addr(layout, entry.index), root.word());
}

/// B4: if the first leaf is retired and the root is older than the pending one, swaps the root.
/// Returns the root that is in force; null when the table was dropped. A few round
/// trips; called when a retired leaf was met. `broken` is as for [`LeafAccess::lock`].
///
/// # Errors
/// The first leaf is damaged, or the fabric failed.
pub async fn finish_root<E: Endpoint, F: LeafFormat>(
    access: &LeafAccess<'_, E, F>,
    entry: &CatalogEntry,
    broken: &Cell<bool>,
) -> Result<RemoteAddr, LeafError> {
    let mut batch = Batch::new();
    let leaf = access
        .read_intact(&mut batch, entry.record.first_leaf, broken)
        .await?;
    // Read after the first leaf: if that is retired, the pending root is the one of B3. And the
    // pending root after the root: who has seen the root of a retraining must not see a pending one
    // from before it (R1), which one batch could bring (F3).
    batch.clear();
    let root_addr = catalog::root_addr(access.layout, entry.index);
    let root = batch.read(root_addr, 1);
    access.endpoint.execute(&mut batch).await?;
    let root = batch.words(root)[0];
    batch.clear();
    let pending = batch.read(catalog::pending_root_addr(access.layout, entry.index), 1);
    access.endpoint.execute(&mut batch).await?;
    let pending = batch.words(pending)[0];
    if root == 0 {
        // C5: only a dropped table has none, and must not get one again. Whoever works on it still
        // goes on with what it has, until it notices.
        let counters = access.endpoint.counters();
        counters.record(OperationKind::Control, &batch.take_cost());
        return Ok(RemoteAddr::NULL);
    }
    let unfinished = link_of(F::words(&leaf)).is_retired() && pending != 0 && pending != root;
    if unfinished {
        batch.clear();
        batch.compare_swap(root_addr, root, pending);
        match access.endpoint.execute(&mut batch).await {
            // F7: who may only read leaves that to others, and searches by it all the same.
            Err(error) if !error.is_forbidden() => return Err(error.into()),
            _ => {}
        }
    }
    access
        .endpoint
        .counters()
        .record(OperationKind::Control, &batch.take_cost());
    Ok(RemoteAddr::from_word(if unfinished {
        pending
    } else {
        root
    }))
}
