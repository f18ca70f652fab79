//! The sweep, reclamation and recovery themselves cut off.

use farleaf_executor::block_on;
use farleaf_types::OwnerWord;

use crate::audit::{Model, assert_reclaimed};
use crate::catalog::{Shape, create, drop_table, find};
use crate::crash::{Case, Tables, audit_tables, contents, load_into, loaded, only_records, sample};
use crate::cutting::{Cut, CuttingEndpoint, Tear};
use crate::pool::{Client, Pool};
use crate::tables::{LEARNED, reclaim};

/// A full leaf's key, so that an insert beside it splits.
pub(crate) const SPLIT_KEY: u64 = 3350;

/// A region in which a session has split a leaf until it was cut off, and how many effects it had.
fn split_cut_off(cut: Cut) -> (Pool, u64) {
    let shape = Shape {
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

/// A region in which a session has died while it split a leaf, so many effects before its end. They
/// are, from the end: announcement, counter, unlock, state, value, key, state, high, link, sibling.
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

/// D8: recovery may crash at any verb; the next who comes finishes it.
#[test]
fn a_recovery_that_is_cut_off_is_recovered() {
    // Before that the split writes nothing but the sibling, which nobody has to recover.
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

/// A region in which a session has loaded `other` until it was cut off, and how many effects it
/// had.
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

/// A region with something of everything that a sweep sweeps: a split whose link is written, and a
/// load with the first leaf's link, but not its state; with all chunks in the names of the dead.
fn rubble() -> Pool {
    let (_, whole) = load_cut_off(split_cut_off_before_end(8), Cut::NEVER);
    // Behind the link come state, root and lock, and eight words for each of two chunks.
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

/// W2: what a sweep that died had taken over is swept by the next.
#[test]
fn a_sweep_that_is_cut_off_is_done_again() {
    sweep_case(&|pool, endpoint, owner| {
        let keeper = pool.keeper(endpoint, owner);
        usize::from(block_on(keeper.sweep(), || 0).is_ok())
    });
}

/// The agent tries a sweep that failed again, in the name of the same session, which still lives.
#[test]
fn a_sweep_that_failed_leaves_nothing_to_the_living_node() {
    sweep_case(&|pool, endpoint, owner| {
        let keeper = pool.keeper(endpoint, owner);
        let swept = block_on(keeper.sweep(), || 0).is_ok();
        let keeper = pool.keeper(pool.endpoint(), owner);
        block_on(keeper.sweep(), || 0).expect("nothing stops it now");
        let held = crate::audit::chunks(pool);
        assert!(
            held.iter().all(|chunk| chunk.owner != owner),
            "it holds chunks"
        );
        usize::from(swept)
    });
}

/// G2, G3: memory of a dropped table becomes free although the reclaimer died.
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
                let keeper = pool.keeper(endpoint, owner);
                let reclaimed = (0..3).all(|_| block_on(keeper.reclaim(), || 0).is_ok());
                if is_same_session {
                    let keeper = pool.keeper(pool.endpoint(), owner);
                    (0..3).for_each(|_| assert!(block_on(keeper.reclaim(), || 0).is_ok()));
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
