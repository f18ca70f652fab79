//! Commit of a load, which makes all of it visible at once.

use core::cell::Cell;

use farleaf_base::{RemoteAddr, WordAddr};
use farleaf_fabric::{Batch, Endpoint, OperationKind};
use farleaf_leaf::words::format::link_of;
use farleaf_leaf::words::{Critical, LeafAccess, LeafError, LeafFormat};
use farleaf_pool::PoolLayout;
use farleaf_pool::catalog::{self, CatalogEntry};

use crate::LoadError;

/// Returns whether a load may replace the first leaf: it has no records, and was not split or
/// replaced.
fn may_be_replaced<F: LeafFormat>(format: F, leaf: &F::Buffer) -> bool {
    let image = F::words(leaf);
    let link = link_of(image);
    !link.is_retired() && link.is_null() && format.is_empty(image)
}

/// Returns whether the table seems to be empty; the commit checks again, under the lock.
///
/// # Errors
/// The first leaf is corrupted, or the fabric failed.
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

/// Draws a number from 1 to 65535 that no concurrent load has.
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

/// Commits a load if the table is empty. `compacted`: address of the word of a new tree's head that
/// says that the tree replaces a compacted one. It is set if the root has changed since the entry
/// was read.
///
/// # Errors
/// The table is not empty, or was dropped; or the fabric failed.
pub async fn commit<E: Endpoint, F: LeafFormat>(
    access: &LeafAccess<'_, E, F>,
    entry: &CatalogEntry,
    first_new_leaf: RemoteAddr,
    root: RemoteAddr,
    compacted: Option<WordAddr>,
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
    // Under this lock no other session swaps the root of an empty table.
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
        // A dropped table has no root.
        (true, false) => {
            let table = access.table;
            Err(LeafError::TableDropped { table }.into())
        }
        (false, _) => Err(LoadError::TableNotEmpty),
    }
}

/// Posts the first verb of the commit: it names the root that is about to be installed.
fn install_root(batch: &mut Batch, layout: &PoolLayout, entry: &CatalogEntry, root: RemoteAddr) {
    batch.write_word(catalog::pending_root_addr(layout, entry.index), root.word());
}

/// Finishes a load's commit: if the first leaf is retired and the root is older than the pending
/// one, swaps the root. Returns the root in force; null if the table was dropped. Called when a
/// retired leaf was met. Costs a few round trips. `broken` is as for [`LeafAccess::lock`].
///
/// # Errors
/// The first leaf is corrupted, or the fabric failed.
pub async fn finish_root<E: Endpoint, F: LeafFormat>(
    access: &LeafAccess<'_, E, F>,
    entry: &CatalogEntry,
    broken: &Cell<bool>,
) -> Result<RemoteAddr, LeafError> {
    let mut batch = Batch::new();
    let leaf = access
        .read_intact(&mut batch, entry.record.first_leaf, broken)
        .await?;
    // The order of these reads matters. The pending root is read after the first leaf: if that is
    // retired, the pending root is the commit's. The pending root is also read after the root: a
    // session that has seen a retraining's root must not see an older pending root. One batch could
    // return both (FABRIC-3).
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
        // Only a dropped table has no root, and must not get one again. Sessions that still use it
        // continue with what they have until they notice.
        let counters = access.endpoint.counters();
        counters.record(OperationKind::Control, &batch.take_cost());
        return Ok(RemoteAddr::NULL);
    }
    let unfinished = link_of(F::words(&leaf)).is_retired() && pending != 0 && pending != root;
    if unfinished {
        batch.clear();
        batch.compare_swap(root_addr, root, pending);
        match access.endpoint.execute(&mut batch).await {
            // A session that may only read leaves the swap to others, and uses the root anyway
            // (FABRIC-7).
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
