//! Creates and drops tables with the same verbs as the library's sessions. The library itself works
//! on mapped memory only, and cannot be interrupted.

use farleaf_base::{OwnerWord, RemoteAddr, TableId};
use farleaf_executor::block_on;
use farleaf_fabric::{Batch, Endpoint};
use farleaf_index::LayerKind;
use farleaf_index::load::{LoadPlan, create_table};
use farleaf_leaf::words::{LeafAccess, LeafGeometry};
use farleaf_pool::PoolLayout;
use farleaf_pool::catalog::{
    CatalogEntry, TABLE_COUNT_MAX, TableKind, TableRecord, dropped_word, live_word,
};
use farleaf_pool::session;

use crate::pool::{Outcome, Pool};

/// Properties in which tables of these tests differ.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableShape {
    pub(crate) kind: LayerKind,
    pub(crate) slots: u64,
    pub(crate) fill_percent: u8,
}

/// Runs work while it holds the catalog's lock.
fn with_catalog_lock<E: Endpoint>(
    endpoint: &E,
    layout: &PoolLayout,
    owner: OwnerWord,
    work: impl FnOnce() -> Outcome,
) -> Outcome {
    let mut batch = Batch::new();
    let mut expected = OwnerWord::FREE;
    for attempt in 0.. {
        assert!(attempt < 3, "the catalog lock is held by {expected}");
        batch.clear();
        let swap = batch.compare_swap(layout.catalog_lock(), expected.word(), owner.word());
        block_on(endpoint.execute(&mut batch), || 0)?;
        let previous = OwnerWord::from_word(batch.previous(swap));
        if previous == expected {
            break;
        }
        let (life, incarnation) = session::life_of(layout, previous).expect("a session");
        batch.clear();
        let read = batch.read(life, 1);
        block_on(endpoint.execute(&mut batch), || 0)?;
        assert!(session::is_fenced(incarnation, batch.words(read)[0]));
        expected = previous;
    }
    let result = work();
    batch.clear();
    batch.write_word(layout.catalog_lock(), OwnerWord::FREE.word());
    block_on(endpoint.execute(&mut batch), || 0)?;
    result
}

/// Creates a table.
pub(crate) fn create<E: Endpoint>(
    pool: &Pool,
    endpoint: &E,
    owner: OwnerWord,
    name: &str,
    shape: TableShape,
) -> Outcome {
    let layout = &pool.layout;
    with_catalog_lock(endpoint, layout, owner, || {
        let taken = pool.catalog();
        let index =
            (0..TABLE_COUNT_MAX).find(|index| taken.iter().all(|entry| entry.index != *index));
        let index = index.expect("there is room");
        let mut batch = Batch::new();
        let slot = batch.fetch_add(layout.table_num(), 1);
        block_on(endpoint.execute(&mut batch), || 0)?;
        let id = TableId(batch.previous(slot) as u32 + 1);
        let access = LeafAccess {
            endpoint,
            layout,
            geometry: LeafGeometry::new(shape.slots)?,
            table: id,
            owner,
        };
        let plan = LoadPlan {
            kind: shape.kind,
            fill_percent: shape.fill_percent,
            epsilon_keys: 16.0,
            entry_count_max: 61,
        };
        let table = block_on(create_table(&access, &plan), || 0)?;
        let record = TableRecord {
            id,
            name: name.to_owned(),
            kind: TableKind::Words {
                slots: access.geometry.slots(),
            },
            search_layer: shape.kind.number(),
            fill_percent: shape.fill_percent,
            epsilon_milli: 16_000,
            first_leaf: table.first_leaf,
            part: None,
        };
        let place = layout.catalog_entry(index);
        batch.clear();
        batch.write(place.offset(1), &record.encode_body(table.root));
        batch.write_word(place, live_word(id));
        block_on(endpoint.execute(&mut batch), || 0)?;
        Ok(block_on(table.give_back(&access, true), || 0)?)
    })
}

/// Drops a table.
pub(crate) fn drop_table<E: Endpoint>(
    pool: &Pool,
    endpoint: &E,
    owner: OwnerWord,
    entry: &CatalogEntry,
) -> Outcome {
    with_catalog_lock(endpoint, &pool.layout, owner, || {
        let mut batch = Batch::new();
        let place = pool.layout.catalog_entry(entry.index);
        batch.write_word(place, dropped_word(entry.record.id));
        Ok(block_on(endpoint.execute(&mut batch), || 0)?)
    })
}

/// Returns the live table with this name.
pub(crate) fn find(pool: &Pool, name: &str) -> Option<CatalogEntry> {
    let is_live = |entry: &CatalogEntry| {
        entry.state == farleaf_pool::catalog::EntryState::Live && entry.record.name == name
    };
    let found = pool.catalog().into_iter().find(is_live);
    assert!(
        found
            .as_ref()
            .is_none_or(|entry| entry.root != RemoteAddr::NULL)
    );
    found
}
