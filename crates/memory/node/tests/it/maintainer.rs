//! Interrupts the sweep, reclamation and recovery.

use farleaf_base::OwnerWord;
use farleaf_executor::block_on;

use crate::audit::{Model, assert_reclaimed};
use crate::catalog::{TableShape, create, drop_table, find};
use crate::crash::{Case, Tables, audit_tables, contents, load_into, loaded, only_records, sample};
use crate::cutting::{Cut, CuttingEndpoint, Tear};
use crate::pool::{Client, Pool};
use crate::tables::{LEARNED, reclaim};

/// Key of a full leaf, so that an insert beside it splits the leaf.
pub(crate) const SPLIT_KEY: u64 = 3350;

/// Returns a node's memory in which a session's split of a leaf was interrupted, and the number of
/// its effects.
fn split_cut_off(cut: Cut) -> (Pool, u64) {
    let shape = TableShape {
        fill_percent: 100,
        ..LEARNED
    };
    let mut pool = loaded(shape, 64);
    let owner = pool.register();
    let endpoint = pool.cutting(cut);
    let entry = find(&pool, "records").expect("it is there");
    let client = Client::open(&endpoint, &pool.layout, owner, &entry);
    // Whether it died before its end does not matter here.
    let _ = client.expect("opening writes nothing").put(SPLIT_KEY, 5);
    pool.fence(owner);
    (pool, endpoint.effect_count())
}

/// Returns a node's memory in which a session died during a split, so many effects before its end.
/// The effects are, from the end: announcement, counter, unlock, state, value, key, state, high,
/// link, sibling.
pub(crate) fn split_cut_off_before_end(effect_count: u64) -> Pool {
    let (_, whole) = split_cut_off(Cut::NEVER);
    let cut = Cut {
        effect_count: whole - effect_count,
        tear: Tear::First,
    };
    split_cut_off(cut).0
}

fn swept_contents(mut pool: Pool) -> Tables {
    pool.sweep();
    contents(&mut pool)
}

/// Promise (LEAF-8): recovery may crash at any verb; the next session finishes it.
#[test]
fn a_recovery_that_is_cut_off_is_recovered() {
    // Before that the split writes only the sibling, which needs no recovery.
    for to_end in 0..=10 {
        let before = swept_contents(split_cut_off_before_end(to_end));
        let mut after = before.clone();
        let model = after.get_mut("records").expect("it is there");
        model.insert(3360, 6);
        let case = Case {
            setup: &|| split_cut_off_before_end(to_end),
            operation: &|pool, endpoint, owner| {
                let entry = find(pool, "records").expect("it is there");
                let client = Client::open(endpoint, &pool.layout, owner, &entry);
                let mut client = client.expect("opening writes nothing");
                usize::from(client.put(3360, 6).is_ok())
            },
            states: vec![before, after],
            near: SPLIT_KEY,
            afterwards: &|_, _| (),
            is_gradual: false,
            cut_count_max: 60,
        };
        assert!(case.run() > 3);
    }
}

/// Returns a node's memory in which a session's load of `other` was interrupted, and the number of
/// its effects.
fn load_cut_off(mut pool: Pool, cut: Cut) -> (Pool, u64) {
    let owner = pool.register();
    create(&pool, &pool.plain, owner, "other", LEARNED).expect("it can be made");
    let entry = find(&pool, "other").expect("it was made");
    let endpoint = pool.cutting(cut);
    let client = Client::open(&endpoint, &pool.layout, owner, &entry);
    let _ = client.expect("opening writes nothing").load(&sample(40));
    pool.fence(owner);
    (pool, endpoint.effect_count())
}

/// Returns a node's memory with some of everything that a sweep handles: a split whose link is
/// written, and a load with the first leaf's link, but not its state. All chunks belong to dead
/// sessions.
fn rubble() -> Pool {
    let (_, whole) = load_cut_off(split_cut_off_before_end(8), Cut::NEVER);
    // After the link come state, root and lock, and eight words for each of two chunks.
    let cut = Cut {
        effect_count: whole - 19,
        tear: Tear::First,
    };
    load_cut_off(split_cut_off_before_end(8), cut).0
}

fn sweep_case(operation: &dyn Fn(&Pool, &CuttingEndpoint, OwnerWord) -> usize) {
    let before = swept_contents(rubble());
    assert_eq!(
        before.get("other").map(Model::len),
        Some(40),
        "B4: it is finished"
    );
    let case = Case {
        setup: &rubble,
        operation,
        states: vec![before.clone(), before],
        near: SPLIT_KEY,
        afterwards: &|_, _| (),
        is_gradual: false,
        cut_count_max: 100,
    };
    assert!(case.run() > 20);
}

/// Promise: chunks that an interrupted sweep had taken over are swept by the next.
#[test]
fn a_sweep_that_is_cut_off_is_done_again() {
    sweep_case(&|pool, endpoint, owner| {
        let maintainer = pool.maintainer(endpoint, owner);
        usize::from(block_on(maintainer.sweep(), || 0).is_ok())
    });
}

/// Promise: the agent retries a failed sweep in the same session, which is still alive.
#[test]
fn a_sweep_that_failed_leaves_nothing_to_the_living_node() {
    sweep_case(&|pool, endpoint, owner| {
        let maintainer = pool.maintainer(endpoint, owner);
        let swept = block_on(maintainer.sweep(), || 0).is_ok();
        let maintainer = pool.maintainer(pool.endpoint(), owner);
        block_on(maintainer.sweep(), || 0).expect("nothing stops it now");
        let held = crate::audit::chunks(pool);
        assert!(
            held.iter().all(|chunk| chunk.owner != owner),
            "it holds chunks"
        );
        usize::from(swept)
    });
}

/// Promise: memory of a dropped table is freed although the reclaimer died.
#[test]
fn a_reclamation_that_is_cut_off_is_done_again() {
    for is_same_session in [false, true] {
        let case = Case {
            setup: &|| {
                let mut pool = loaded(LEARNED, 40);
                let owner = pool.register();
                let entry = find(&pool, "records").expect("it is there");
                drop_table(&pool, &pool.plain, owner, &entry).expect("it can be dropped");
                pool.fence(owner);
                pool
            },
            operation: &|pool, endpoint, owner| {
                let maintainer = pool.maintainer(endpoint, owner);
                let reclaimed = (0..3).all(|_| block_on(maintainer.reclaim(), || 0).is_ok());
                if is_same_session {
                    let maintainer = pool.maintainer(pool.endpoint(), owner);
                    (0..3).for_each(|_| assert!(block_on(maintainer.reclaim(), || 0).is_ok()));
                    assert_eq!(pool.catalog(), [], "the living node frees it all");
                }
                usize::from(reclaimed)
            },
            states: vec![Tables::new(), Tables::new()],
            near: 777,
            afterwards: &|pool, tables| {
                pool.sweep();
                reclaim(pool);
                assert_reclaimed(pool);
                load_into(pool, LEARNED, 40);
                *tables = only_records(sample(40));
                audit_tables(pool, tables);
            },
            is_gradual: true,
            cut_count_max: 100,
        };
        assert!(case.run() > 20);
    }
}
