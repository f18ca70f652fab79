//! Retraining of `learned` tables, whose leaves are moved, and the retraining queue.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use farleaf_base::OwnerWord;
use farleaf_executor::block_on;
use farleaf_fabric::{Batch, Endpoint};
use farleaf_node::retrain::{RetrainPolicy, Retrainer};
use farleaf_node::sweep::MemoryMaintainer;
use farleaf_pool::catalog::pending_root_addr;
use farleaf_pool::queue::unwritten_count;
use farleaf_pool::tally::RetrainCounters;

use crate::audit::usage;
use crate::catalog::find;
use crate::crash::{Tables, audit_tables, contents, loaded, only_records, sample};
use crate::cutting::{Cut, Tear};
use crate::pool::{Client, Pool};
use crate::tables::LEARNED;

/// Policy that retrains every model with a split, all of them together, and reads counters at every
/// tick.
const EAGER: RetrainPolicy = RetrainPolicy {
    leaves_per_split: 1000,
    split_count_min: 1,
    leaf_count_max: 1 << 16,
    look_tick_count: 0,
    ..RetrainPolicy::DEFAULT
};
/// Number of steps that is more than enough for all work.
const STEP_COUNT_MAX: u32 = 50;
const RECORD_COUNT: u64 = 64;

/// Returns keys in the middle of the table, enough for several splits of one model.
fn more() -> impl Iterator<Item = u64> {
    (0..40).map(|key| 3_001 + key * 2)
}

fn records() -> Tables {
    let sample = sample(RECORD_COUNT).into_iter();
    only_records(sample.chain(more().map(|key| (key, !key))))
}

/// Puts the keys until one fails.
fn put_more<E: Endpoint>(pool: &Pool, endpoint: &E, owner: OwnerWord) {
    let entry = find(pool, "records").expect("it is there");
    let Ok(mut client) = Client::open(endpoint, &pool.layout, owner, &entry) else {
        return;
    };
    for key in more() {
        if client.put(key, !key).is_err() {
            return;
        }
    }
    // Fails if the client was interrupted.
    let _ = client.give_back();
}

fn grown() -> Pool {
    let mut pool = loaded(LEARNED, RECORD_COUNT);
    let owner = pool.register();
    put_more(&pool, &pool.plain, owner);
    pool.fence(owner);
    pool
}

fn tick<E: Endpoint>(retrainer: &Retrainer, maintainer: &MemoryMaintainer<E>) -> bool {
    let stop = AtomicBool::new(false);
    block_on(retrainer.tick(maintainer, &stop), || 0).expect("nothing fails")
}

/// Runs a retrainer until nothing is due and nothing waits.
fn settle(pool: &mut Pool) {
    let owner = pool.register();
    let maintainer = pool.maintainer(pool.endpoint(), owner);
    let retrainer = Retrainer::new(EAGER, || 0);
    for _ in 0..STEP_COUNT_MAX {
        if !tick(&retrainer, &maintainer) && !retrainer.has_garbage() {
            pool.fence(owner);
            return;
        }
    }
    panic!("retraining does not come to an end");
}

/// Interrupted retraining: the statistics without the interruption, the number of effects, and the
/// places at which it can be interrupted.
struct Retrained {
    pool: Pool,
    counts: Option<RetrainCounters>,
    effect_count: u64,
    cuts: Vec<Cut>,
}

fn retrain_until(cut: Cut) -> Retrained {
    retrain_in(grown(), cut)
}

fn retrain_in(mut pool: Pool, cut: Cut) -> Retrained {
    let owner = pool.register();
    let maintainer = pool.maintainer(pool.cutting(cut), owner);
    let retrainer = Retrainer::new(EAGER, || 0);
    let ticked = block_on(retrainer.tick(&maintainer, &AtomicBool::new(false)), || 0);
    pool.fence(owner);
    Retrained {
        pool,
        counts: ticked.ok().map(|_| retrainer.tally()),
        effect_count: maintainer.endpoint.effect_count(),
        cuts: maintainer.endpoint.cuts(150),
    }
}

/// Promise: a retrainer that dies anywhere, even in the middle of a WRITE, loses nothing. The next
/// client finds every record before any sweep. The next retrainer commits what was moved, retrains
/// the rest, and leaves nothing behind.
#[test]
fn a_retrainer_may_die_anywhere() {
    let tables = records();
    let mut whole = retrain_until(Cut::NEVER);
    let counts = whole.counts.expect("nothing stops it");
    assert!(counts.moved_count > 10, "{counts:?}");
    settle(&mut whole.pool);
    let expected = usage(&whole.pool);
    assert!(whole.cuts.len() > 200, "{}", whole.cuts.len());
    for cut in whole.cuts {
        let mut pool = retrain_until(cut).pool;
        assert_eq!(contents(&mut pool), tables, "{cut:?}");
        pool.sweep();
        assert_eq!(contents(&mut pool), tables, "{cut:?}, swept");
        settle(&mut pool);
        assert_eq!(contents(&mut pool), tables, "{cut:?}, settled");
        audit_tables(&pool, &tables);
        let used = usage(&pool);
        assert!(
            used.runs <= expected.runs + 1 && used.snapshots <= expected.snapshots + 1,
            "{cut:?}: {used:?} where {expected:?} was expected"
        );
    }
}

/// Returns a table in which a load was interrupted just after it had written its pending root, and
/// which was used since.
fn grown_past_a_dead_load() -> Pool {
    /// Number of effects of the load until then, determined once: it is the same for each pool.
    static NAMED_AT: AtomicU64 = AtomicU64::new(1);
    for effect_count in NAMED_AT.load(Ordering::Relaxed).. {
        let mut pool = loaded(LEARNED, 0);
        let entry = find(&pool, "records").expect("it is there");
        let owner = pool.register();
        let tear = Tear::First;
        let endpoint = pool.cutting(Cut { effect_count, tear });
        let client = Client::open(&endpoint, &pool.layout, owner, &entry);
        let loaded = client.expect("opening writes nothing").load(&sample(100));
        assert!(loaded.is_err(), "it was over before it named its root");
        pool.fence(owner);
        if pool.word(pending_root_addr(&pool.layout, entry.index)) == 0 {
            continue;
        }
        NAMED_AT.store(effect_count, Ordering::Relaxed);
        pool.sweep();
        let owner = pool.register();
        let mut client = pool.client(owner, &entry);
        for (key, value) in sample(RECORD_COUNT) {
            client.put(key, value).expect("there is room");
        }
        client.give_back().expect("closing succeeds");
        drop(client);
        put_more(&pool, &pool.plain, owner);
        pool.fence(owner);
        return pool;
    }
    unreachable!("a load names its root at some time")
}

/// Promise: a pending root of a dead load is cleared before the first leaf is retired. Otherwise a
/// session that finds that leaf would try to finish the load, and search in freed memory.
#[test]
fn a_dead_loads_root_is_not_taken_up() {
    let tables = records();
    let retrain_until = |cut: Cut| retrain_in(grown_past_a_dead_load(), cut);
    let pool = grown_past_a_dead_load();
    let entry = find(&pool, "records").expect("it is there");
    let pending = pending_root_addr(&pool.layout, entry.index);
    assert_ne!(pool.word(pending), 0, "it is still there");
    let whole = retrain_until(Cut::NEVER);
    assert!(whole.counts.is_some(), "nothing stops it");
    for cut in whole.cuts {
        let mut pool = retrain_until(cut).pool;
        // Sessions that have the table open follow retired leaves before any sweep.
        assert_eq!(contents(&mut pool), tables, "{cut:?}");
        pool.sweep();
        settle(&mut pool);
        assert_eq!(contents(&mut pool), tables, "{cut:?}, settled");
        audit_tables(&pool, &tables);
    }
}

/// Promise: the retrainer that adopts a run may die, too. A retraining is interrupted early, in the
/// middle and late, each adoption is interrupted at every place, and another retrainer adopts.
#[test]
fn who_adopts_a_run_may_die_anywhere() {
    let tables = records();
    let effect_count = retrain_until(Cut::NEVER).effect_count;
    let mut cut_count = 0;
    for quarter in 1..=3 {
        let first = Cut {
            effect_count: effect_count * quarter / 4,
            tear: Tear::First,
        };
        let adopt_until = |cut: Cut| {
            let mut pool = retrain_until(first).pool;
            let owner = pool.register();
            let maintainer = pool.maintainer(pool.cutting(cut), owner);
            let swept = block_on(maintainer.sweep(), || 0).ok();
            pool.fence(owner);
            (pool, swept, maintainer.endpoint.cuts(60))
        };
        let (_, swept, cuts) = adopt_until(Cut::NEVER);
        let swept = swept.expect("nothing stops it");
        assert!(swept.chunk_count > 0, "there is a run: {swept:?}");
        for cut in cuts {
            let (mut pool, _, _) = adopt_until(cut);
            assert_eq!(contents(&mut pool), tables, "{first:?}, then {cut:?}");
            pool.sweep();
            settle(&mut pool);
            assert_eq!(contents(&mut pool), tables, "{first:?}, then {cut:?}");
            audit_tables(&pool, &tables);
            cut_count += 1;
        }
    }
    assert!(cut_count > 200, "{cut_count}");
}

/// Number of ticks between two of the node's own looks at all counters.
const SELDOM: u32 = 10;

/// Runs ticks of a node, with a client that puts records after the first one and is interrupted.
/// Returns the number of the first tick that retrains, and the statistics.
fn ticks_until_retrained(cut: Cut) -> (Pool, u32, RetrainCounters) {
    let mut pool = loaded(LEARNED, RECORD_COUNT);
    let (node, owner) = (pool.register(), pool.register());
    let maintainer = pool.maintainer(pool.endpoint(), node);
    let policy = RetrainPolicy {
        look_tick_count: SELDOM,
        ..RetrainPolicy::DEFAULT
    };
    let retrainer = Retrainer::new(policy, || 0);
    tick(&retrainer, &maintainer);
    assert_eq!(retrainer.tally(), RetrainCounters::default());
    put_more(&pool, &pool.cutting(cut), owner);
    pool.fence(owner);
    pool.sweep();
    let mut tick_count = 0;
    while retrainer.tally().retraining_count == 0 {
        tick(&retrainer, &maintainer);
        tick_count += 1;
        assert!(tick_count < 100, "nothing is retrained");
    }
    pool.fence(node);
    (pool, tick_count, retrainer.tally())
}

/// Returns how many tickets were drawn when a client that puts records is interrupted.
fn ticket_count(effect_count: u64) -> u64 {
    let mut pool = loaded(LEARNED, RECORD_COUNT);
    let owner = pool.register();
    let tear = Tear::First;
    let endpoint = pool.cutting(Cut { effect_count, tear });
    put_more(&pool, &endpoint, owner);
    pool.word(pool.layout.queue_tail())
}

/// Promise: a client that dies between drawing its ticket and writing the queue entry loses only
/// the entry. Its insert is there, and the model is retrained at the node's next own look. With one
/// more verb, the model is retrained at once.
#[test]
fn a_lost_entry_of_the_queue_only_delays() {
    // The first effect after which there is a ticket.
    let (mut from, mut to) = (0, 10_000);
    while from < to {
        let middle = u64::midpoint(from, to);
        match ticket_count(middle) {
            0 => from = middle + 1,
            _ => to = middle,
        }
    }
    let cut = |effect_count| Cut {
        effect_count,
        tear: Tear::First,
    };
    let (mut pool, tick_count, counts) = ticks_until_retrained(cut(from));
    let mut batch = Batch::new();
    let unwritten = unwritten_count(&pool.plain, &pool.layout, &mut batch);
    assert_eq!(block_on(unwritten, || 0).expect("nothing fails"), 1);
    assert_eq!(tick_count, SELDOM + 1, "Q5");
    assert_eq!((counts.queued_count, counts.found_count), (0, 1));
    let found = contents(&mut pool);
    pool.sweep();
    settle(&mut pool);
    audit_tables(&pool, &found);
    let put_count = found["records"].len() as u64 - RECORD_COUNT;
    assert!(put_count > 10, "Q1: {put_count}");

    let (mut pool, tick_count, counts) = ticks_until_retrained(cut(from + 1));
    assert_eq!(tick_count, 1);
    assert_eq!((counts.queued_count, counts.found_count), (1, 0));
    assert_eq!(contents(&mut pool), found, "the put was over");
}
