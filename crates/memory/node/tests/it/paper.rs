//! Retraining of `rolex` tables in place.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use farleaf_base::{OwnerWord, RemoteAddr};
use farleaf_executor::block_on;
use farleaf_fabric::mapped::MappedEndpoint;
use farleaf_fabric::{Batch, Endpoint};
use farleaf_index::snapshot::read_contents;
use farleaf_node::retrain::{RetrainPolicy, Retrainer};
use farleaf_pool::catalog::CatalogEntry;
use farleaf_pool::tally::RetrainCounters;

use crate::audit::{Usage, usage};
use crate::catalog::{TableShape, create, find};
use crate::crash::{Tables, audit_tables, contents, load_into, loaded, only_records};
use crate::cutting::Cut;
use crate::leaves::leaves;
use crate::meanwhile::Interrupted;
use crate::pool::{Client, Pool};
use crate::tables::ROLEX;

/// Policy that retrains every model with a split, all of them together.
const EAGER: RetrainPolicy = RetrainPolicy {
    leaves_per_split: 1000,
    split_count_min: 1,
    leaf_count_max: 1 << 16,
    ..LOOKING
};
/// Policy that reads all counters at every tick.
const LOOKING: RetrainPolicy = RetrainPolicy {
    look_tick_count: 0,
    ..RetrainPolicy::DEFAULT
};
/// Number of steps that is more than enough for all work.
const STEP_COUNT_MAX: u32 = 50;

/// Runs the node's retrainer until nothing is due and nothing waits.
fn settle(pool: &mut Pool, retrainer: &Retrainer) {
    let owner = pool.register();
    let maintainer = pool.maintainer(pool.endpoint(), owner);
    let stop = AtomicBool::new(false);
    for _ in 0..STEP_COUNT_MAX {
        let is_due = block_on(retrainer.tick(&maintainer, &stop), || 0).expect("nothing fails");
        if !is_due && !retrainer.has_garbage() {
            pool.fence(owner);
            return;
        }
    }
    panic!("retraining does not come to an end");
}

fn put_all(pool: &mut Pool, keys: impl IntoIterator<Item = u64>) {
    let owner = pool.register();
    let entry = find(pool, "records").expect("it is there");
    let mut client = pool.client(owner, &entry);
    for key in keys {
        client.put(key, !key).expect("there is room");
    }
    client.give_back().expect("closing succeeds");
    drop(client);
    pool.fence(owner);
}

/// Returns the table's leaves in the order of their links, and those that its models contain.
fn chain_and_trained(pool: &mut Pool) -> (Vec<RemoteAddr>, Vec<RemoteAddr>) {
    let entry = find(pool, "records").expect("it is there");
    let chain = leaves(pool, &entry).iter().map(|leaf| leaf.addr).collect();
    let owner = pool.register();
    let trained = pool.client(owner, &entry).state.trained_leaves();
    pool.fence(owner);
    (chain, trained)
}

fn model_count(pool: &mut Pool) -> u64 {
    let owner = pool.register();
    let entry = find(pool, "records").expect("it is there");
    let (_, _, _, count) = pool.client(owner, &entry).state.training();
    pool.fence(owner);
    count
}

/// Returns how many of these keys a client finds with one round trip each; all must exist.
fn one_trip_count<E: Endpoint>(client: &Client<'_, E>, keys: &[u64]) -> usize {
    let mut count = 0;
    for key in keys {
        let mut batch = Batch::new();
        let value = block_on(client.index().get(&mut batch, *key), || 0).expect("nothing fails");
        assert_eq!(value, Some(!*key), "key {key}");
        count += usize::from(batch.take_cost().round_trips == 1);
    }
    count
}

/// Returns how many of these keys a new client finds with one round trip each.
fn fresh_one_trip_count(pool: &mut Pool, keys: &[u64]) -> usize {
    let owner = pool.register();
    let entry = find(pool, "records").expect("it is there");
    let client = pool.client(owner, &entry);
    let count = one_trip_count(&client, keys);
    drop(client);
    pool.fence(owner);
    count
}

/// Returns a table that was loaded with keys, each with its own value.
fn table_of(keys: &[u64]) -> Pool {
    let mut pool = Pool::new();
    let owner = pool.register();
    create(&pool, &pool.plain, owner, "records", ROLEX).expect("a first table can be made");
    let entry = find(&pool, "records").expect("it was made");
    let records: Vec<_> = keys.iter().map(|key| (*key, !*key)).collect();
    let loaded = pool.client(owner, &entry).load(&records);
    loaded.expect("an empty table can be loaded");
    pool.fence(owner);
    pool
}

fn audited(pool: &Pool, keys: &[u64]) {
    let records = keys.iter().map(|key| (*key, !*key));
    audit_tables(pool, &only_records(records));
}

/// Promise: where keys are dense, one model becomes several. Every leaf is then in the leaf table,
/// at its old address, and a get takes one round trip.
#[test]
fn a_model_is_split_and_no_leaf_moves() {
    let mut keys: Vec<u64> = (1..=2000).map(|key| key * 1000).collect();
    let mut pool = table_of(&keys);
    let crowd: Vec<u64> = (1..3000).map(|key| 1_000_000 + key * 7).collect();
    let crowd = crowd.into_iter().filter(|key| key % 1000 != 0);
    let crowd: Vec<u64> = crowd.collect();
    put_all(&mut pool, crowd.iter().copied());
    keys.extend(&crowd);
    let (before, models_before) = (chain_and_trained(&mut pool), model_count(&mut pool));
    assert!(before.1.len() < before.0.len(), "it has synonyms");
    assert!(fresh_one_trip_count(&mut pool, &crowd) < crowd.len());

    let retrainer = Retrainer::new(LOOKING, || 0);
    settle(&mut pool, &retrainer);
    let (chain, trained) = chain_and_trained(&mut pool);
    assert_eq!(chain, before.0, "X1");
    assert_eq!(trained, chain, "X3");
    assert!(model_count(&mut pool) > models_before);
    let adopted = (before.0.len() - before.1.len()) as u64;
    let counts = retrainer.tally();
    assert_eq!((counts.adopted_count, counts.moved_count), (adopted, 0));
    assert_eq!(fresh_one_trip_count(&mut pool, &keys), keys.len());
    audited(&pool, &keys);
}

/// Promise: where the data has become regular, neighbors become one model.
#[test]
fn small_neighbours_are_joined() {
    // Dense and sparse pieces in turn; then the sparse ones are filled.
    let mut keys = Vec::new();
    let mut between = Vec::new();
    for piece in 0..20_u64 {
        let gap = 10 + 10 * (piece % 2);
        for _ in 0..100 {
            let last = keys.last().copied().unwrap_or(0);
            keys.push(last + gap);
            between.extend((gap > 10).then_some(last + gap / 2));
        }
    }
    let mut pool = table_of(&keys);
    let models_before = model_count(&mut pool);
    put_all(&mut pool, between.iter().copied());
    settle(&mut pool, &Retrainer::new(EAGER, || 0));
    let models = model_count(&mut pool);
    assert!(models * 2 < models_before, "{models} of {models_before}");
    keys.extend(between);
    assert_eq!(fresh_one_trip_count(&mut pool, &keys), keys.len());
    audited(&pool, &keys);
}

/// Promise: a table that was never loaded is retrained repeatedly, beginning with its one leaf, and
/// only the memory of the last snapshot and its tables stays in use.
#[test]
fn a_table_grows_from_empty() {
    let mut pool = loaded(ROLEX, 0);
    let retrainer = Retrainer::new(EAGER, || 0);
    let keys: Vec<u64> = (0..3000_u64)
        .map(|key| key.wrapping_mul(0x9E37_79B9_7F4A_7C15))
        .collect();
    for part in keys.chunks(150) {
        put_all(&mut pool, part.iter().copied());
        settle(&mut pool, &retrainer);
    }
    let (chain, trained) = chain_and_trained(&mut pool);
    assert_eq!(trained, chain);
    assert!(retrainer.tally().retraining_count > 10);
    assert_eq!(fresh_one_trip_count(&mut pool, &keys), keys.len());
    let Usage {
        runs, snapshots, ..
    } = usage(&pool);
    assert!((runs, snapshots) <= (0, 4), "{runs} and {snapshots}");
    audited(&pool, &keys);
}

/// Promise: when a session with the old tables splits leaves before any batch of a retraining,
/// clients find all records, soon with one round trip, and eventually the new leaves are trained.
#[test]
fn what_splits_meanwhile_is_found() {
    let keys: Vec<u64> = (1..=300).map(|key| key * 100).collect();
    let earlier: Vec<u64> = (0..60).map(|key| 5_001 + key * 3).collect();
    let later: Vec<u64> = (0..60).map(|key| 5_003 + key * 3).collect();
    let all = [&keys[..], &earlier, &later].concat();
    let mut late_count = 0;
    for at in 0.. {
        let mut pool = table_of(&keys);
        put_all(&mut pool, earlier.iter().copied());
        let (owner, node) = (pool.register(), pool.register());
        let entry = find(&pool, "records").expect("it is there");
        let old = RefCell::new(pool.client(owner, &entry));
        let endpoint = Interrupted::new(pool.endpoint(), at, || {
            let mut old = old.borrow_mut();
            for key in &later {
                old.put(*key, !*key).expect("there is room");
            }
        });
        let retrainer = Retrainer::new(EAGER, || 0);
        let maintainer = pool.maintainer(endpoint, node);
        block_on(retrainer.tick(&maintainer, &AtomicBool::new(false)), || 0)
            .expect("nothing fails");
        let is_over = maintainer.endpoint.has_not_happened();
        drop(maintainer);
        let mut old = old.into_inner();
        if is_over {
            assert!(at > 10, "a retraining has more batches than {at}");
            break;
        }
        let counts = retrainer.tally();
        late_count += counts.late_count;
        assert_eq!(one_trip_count(&old, &all), all.len(), "old tables, at {at}");
        old.refresh().expect("nothing fails");
        one_trip_count(&old, &all);
        assert_eq!(one_trip_count(&old, &all), all.len(), "new tables, at {at}");
        old.give_back().expect("closing succeeds");
        drop(old);
        pool.fence(owner);
        pool.fence(node);
        let other = pool.register();
        let entry = find(&pool, "records").expect("it is there");
        let client = pool.client(other, &entry);
        one_trip_count(&client, &all);
        assert_eq!(one_trip_count(&client, &all), all.len(), "another, at {at}");
        drop(client);
        pool.fence(other);
        settle(&mut pool, &retrainer);
        let (chain, trained) = chain_and_trained(&mut pool);
        assert_eq!(trained, chain, "X8, at {at}");
        audited(&pool, &all);
    }
    assert!(late_count > 0, "X7 had something to do");
}

/// Promise: a retrainer that dies anywhere loses nothing and leaves nothing behind.
#[test]
fn a_retrainer_may_die_anywhere() {
    let keys: Vec<u64> = (1..=64).map(|key| key * 100).collect();
    let more: Vec<u64> = (0..40).map(|key| 3_001 + key * 2).collect();
    let all = [&keys[..], &more].concat();
    let tables: Tables = only_records(all.iter().map(|key| (*key, !*key)));
    let tick = |cut: Cut| {
        let mut pool = table_of(&keys);
        put_all(&mut pool, more.iter().copied());
        let owner = pool.register();
        let endpoint = pool.cutting(cut);
        let maintainer = pool.maintainer(&endpoint, owner);
        let ticked = retrain_cut_off(&maintainer);
        pool.fence(owner);
        (pool, ticked, endpoint.cuts(120))
    };
    let (mut pool, whole, cuts) = tick(Cut::NEVER);
    assert_eq!(whole.expect("nothing stops it").retraining_count, 1);
    settle(&mut pool, &Retrainer::new(EAGER, || 0));
    let expected = usage(&pool);
    assert!(cuts.len() > 60, "{}", cuts.len());
    for cut in cuts {
        let (mut pool, _, _) = tick(cut);
        assert_eq!(contents(&mut pool), tables, "{cut:?}");
        pool.sweep();
        settle(&mut pool, &Retrainer::new(EAGER, || 0));
        assert_eq!(contents(&mut pool), tables, "{cut:?}, settled");
        audit_tables(&pool, &tables);
        assert_eq!(usage(&pool), expected, "{cut:?}");
        let (chain, trained) = chain_and_trained(&mut pool);
        assert_eq!(trained, chain, "{cut:?}");
    }
}

fn retrain_cut_off<E: Endpoint>(
    maintainer: &farleaf_node::sweep::MemoryMaintainer<E>,
) -> Option<RetrainCounters> {
    let retrainer = Retrainer::new(EAGER, || 0);
    let ticked = block_on(retrainer.tick(maintainer, &AtomicBool::new(false)), || 0);
    ticked.ok().map(|_| retrainer.tally())
}

/// Promise: a snapshot whose leaf table is corrupted is rejected with a reason.
#[test]
fn a_damaged_leaf_table_is_refused() {
    let keys: Vec<u64> = (1..=64).map(|key| key * 100).collect();
    let mut pool = table_of(&keys);
    put_all(&mut pool, (0..40).map(|key| 3_001 + key * 2));
    settle(&mut pool, &Retrainer::new(EAGER, || 0));
    let entry = find(&pool, "records").expect("it is there");
    let (chain, _) = chain_and_trained(&mut pool);
    let start = entry.root.place().word_at(0);
    let words = (0..1000).map(|word| start.offset(word));
    let mut places = words.filter(|at| pool.word(*at) == chain[2].word());
    let place = places.next().expect("the leaf table names every leaf");
    let mut batch = Batch::new();
    batch.write_word(place, chain[3].word());
    block_on(pool.plain.execute(&mut batch), || 0).expect("inside");
    let geometry = farleaf_leaf::words::LeafGeometry::new(8).expect("there are such leaves");
    let (id, root) = (entry.record.id, entry.root);
    let read = read_contents(&pool.plain, &pool.layout, geometry, id, root);
    let refused = block_on(read, || 0).expect_err("it is damaged").to_string();
    assert!(refused.contains("leaf table"), "{refused}");
}

/// Returns keys of one thread, disjoint from those of the others.
fn keys_of(thread: u64) -> Vec<u64> {
    let spread = |key: u64| (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) * 8;
    (0..4000)
        .map(|key| spread(thread * 100_000 + key) + 1 + thread)
        .collect()
}

fn insert_all(endpoint: &MappedEndpoint, pool: &SharedPool, keys: &[u64]) {
    let (layout, owner, entry) = (&pool.layout, pool.owner, &pool.entry);
    let mut client = Client::open(endpoint, layout, owner, entry).expect("the table opens");
    for (number, key) in keys.iter().enumerate() {
        client.put(*key, !*key).expect("there is room");
        if number % 500 == 499 {
            client.refresh().expect("nothing fails");
            let found = client.get(keys[number / 2]).expect("nothing fails");
            assert_eq!(found, Some(!keys[number / 2]));
        }
    }
    client.give_back().expect("closing succeeds");
}

/// Part of a pool that threads share.
struct SharedPool {
    layout: farleaf_pool::PoolLayout,
    owner: OwnerWord,
    entry: CatalogEntry,
}

/// Promise: while three sessions insert and the node retrains all the time, every key is found with
/// one round trip, and loaded leaves stay at their addresses.
#[test]
fn a_table_grows_under_several_sessions() {
    const THREAD_COUNT: u64 = 3;
    let mut pool = Pool::with_size(24 << 20);
    let shape = TableShape { slots: 16, ..ROLEX };
    load_into(&mut pool, shape, 0);
    let entry = find(&pool, "records").expect("it is there");
    let base: Vec<u64> = (0..3000).map(|key| key * 16_384 * 8).collect();
    put_all(&mut pool, base.iter().copied());
    let (first_chain, _) = chain_and_trained(&mut pool);
    let shared: Vec<SharedPool> = (0..THREAD_COUNT)
        .map(|_| SharedPool {
            layout: pool.layout.clone(),
            owner: pool.register(),
            entry: entry.clone(),
        })
        .collect();
    let node = pool.register();
    let maintainer = pool.maintainer(pool.endpoint(), node);
    let retrainer = Retrainer::new(LOOKING, || 0);
    let busy_count = AtomicUsize::new(shared.len());
    std::thread::scope(|scope| {
        for (thread, own) in (0..).zip(&shared) {
            let (endpoint, busy_count) = (pool.endpoint(), &busy_count);
            scope.spawn(move || {
                insert_all(&endpoint, own, &keys_of(thread));
                busy_count.fetch_sub(1, Ordering::Relaxed);
            });
        }
        let stop = AtomicBool::new(false);
        while busy_count.load(Ordering::Relaxed) > 0 {
            block_on(retrainer.tick(&maintainer, &stop), || 0).expect("nothing fails");
        }
    });
    for own in &shared {
        pool.fence(own.owner);
    }
    pool.fence(node);
    settle(&mut pool, &retrainer);
    assert!(retrainer.tally().retraining_count > 3);
    let all = (0..THREAD_COUNT).flat_map(keys_of);
    let mut all: Vec<u64> = all.chain(base).collect();
    all.sort_unstable();
    all.dedup();
    let count = fresh_one_trip_count(&mut pool, &all);
    assert!(count * 100 >= all.len() * 99, "{count} of {}", all.len());
    let (chain, _) = chain_and_trained(&mut pool);
    let mut stayed = chain.iter();
    assert!(
        first_chain
            .iter()
            .all(|leaf| stayed.any(|found| found == leaf)),
        "X1: all leaves are where they were, in their order"
    );
    audited(&pool, &all);
}
