//! Tables of byte strings that the memory node stores: every operation is a call.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use farleaf_executor::TaskSet;

use farleaf::{
    ByteSwap, ByteTable, EmbeddedFabric, Error, ErrorKind, LayerKind, OperationKind, Pool,
    PoolOptions, TableOptions,
};

use crate::bytes::{assert_agrees, loaded, session};
use crate::bytes_scans::assert_scans;

/// Bytes of the node's memory that each record takes in addition to key and value.
const RECORD_SIZE_BYTES: u64 = 160;

fn remote() -> TableOptions {
    TableOptions {
        layer: LayerKind::Rpc,
        ..TableOptions::bytes()
    }
}

/// Returns pools on all fabrics, because each polls for replies in its own way.
fn pools(size_mib: u64) -> Vec<Pool> {
    let tcp = super::pools_over([EmbeddedFabric::Tcp], size_mib, 1);
    super::pools(size_mib).into_iter().chain(tcp).collect()
}

fn pool_of(size_bytes: u64) -> Pool {
    Pool::embedded(&PoolOptions {
        size_bytes,
        ..PoolOptions::default()
    })
    .expect("an embedded pool")
}

fn value_of(size_bytes: u32, seed: u32) -> Vec<u8> {
    let byte = |place: u32| (place.wrapping_mul(7) >> 3).wrapping_add(seed) as u8;
    (0..size_bytes).map(byte).collect()
}

/// Waits until a condition holds.
fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let started_at = Instant::now();
    while !holds() {
        assert!(started_at.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Promise: tables match maps ([`assert_agrees`]) on all fabrics, with values that are sent in
/// parts.
#[test]
fn tables_agree_with_maps() {
    for (seed, pool) in (1..).zip(pools(96)) {
        assert_agrees(&pool, &remote(), seed, 2, 1_000, |table, map| {
            let stats = table.stats().expect("stats");
            assert_eq!(stats.records, map.len() as u64);
            assert!(stats.sound && stats.pages == 0, "{stats:?}");
        });
    }
}

/// Promise: a short get or put is one call, and an operation in parts counts as one.
#[test]
fn short_operations_are_one_call() {
    let pool = pool_of(32 << 20);
    let session = session(&pool);
    let table = session.create_byte_table("t", &remote()).expect("a table");
    table.put(b"key", b"value").expect("put");
    let trips = |kind: OperationKind| {
        let counters = session.counters(kind);
        (counters.operations, counters.cost.round_trips)
    };
    let (gets, puts) = (trips(OperationKind::Get), trips(OperationKind::Put));
    for _ in 0..10 {
        assert_eq!(
            table.get(b"key").expect("got").as_deref(),
            Some(&b"value"[..])
        );
        assert!(table.put(b"key", b"value").expect("put"));
    }
    assert_eq!(trips(OperationKind::Get), (gets.0 + 10, gets.1 + 10));
    assert_eq!(trips(OperationKind::Put), (puts.0 + 10, puts.1 + 10));
    // Seven parts and the put; the first 1,184 bytes and seven parts.
    let long = value_of(100_000, 0);
    table.put(b"key", &long).expect("put");
    assert!(table.get(b"key").expect("got").as_ref() == Some(&long));
    assert_eq!(trips(OperationKind::Put), (puts.0 + 11, puts.1 + 10 + 8));
    assert_eq!(trips(OperationKind::Get), (gets.0 + 11, gets.1 + 10 + 8));
}

/// Promise: a load takes effect completely or not at all, only on an empty table, with short values
/// and values in parts. Errors are the same as for other tables.
#[test]
fn loads_are_whole_or_nothing() {
    for pool in pools(64) {
        let session = session(&pool);
        let table = session.create_byte_table("t", &remote()).expect("a table");
        let mut map = loaded(2_500, 60);
        for (number, value) in map.values_mut().enumerate().step_by(125) {
            *value = value_of(13_000 + number as u32 * 10, 1);
        }
        let mut records: Vec<_> = map.clone().into_iter().collect();
        records.push((b"user0".to_vec(), b"late".to_vec()));
        let error = table.bulk_load(records, |_| {}).expect_err("it descends");
        assert!(
            error
                .to_string()
                .starts_with("record 2500 of the load has key 'user0'"),
            "{error}"
        );
        let error = table.bulk_load([(vec![1; 4097], b"")], |_| {});
        let error = error.expect_err("too long");
        assert!(
            error
                .to_string()
                .starts_with("record 0 of the load cannot be stored"),
            "{error}"
        );
        assert_eq!(table.scan(b"", None, 10).expect("empty"), []);
        let none: [(&[u8], &[u8]); 0] = [];
        table.bulk_load(none, |_| {}).expect("nothing");
        let mut told_count = 0;
        let summary = table.bulk_load(&map, |count| told_count = count);
        assert_eq!(summary.expect("a load").record_count, 2_500);
        assert_eq!(told_count, 0, "it is told every 16,384 records");
        assert_scans(&table, &map);
        let error = table
            .bulk_load([(b"a", b"1")], |_| {})
            .expect_err("no room");
        assert_eq!(
            error.to_string(),
            "a bulk load needs a table that has never held a record; this one has"
        );
        assert_eq!(table.delete_prefix(b"user").expect("removed"), 2_500);
        assert_eq!(table.range(b"", None).keys_only().count(), 0);
    }
}

/// Promise: a value of maximum size can be read, replaced, compared and taken on each fabric; a
/// larger one is rejected.
#[test]
fn the_largest_value_comes_back() {
    let fabrics = [EmbeddedFabric::Mem, EmbeddedFabric::Tcp];
    for pool in super::pools_over(fabrics, 256, 1) {
        let session = session(&pool);
        let table = session.create_byte_table("t", &remote()).expect("a table");
        let largest = value_of(64 << 20, 0);
        assert!(!table.put(b"large", &largest).expect("put"));
        assert!(table.get(b"large").expect("got").as_ref() == Some(&largest));
        let scanned = table.scan(b"", None, 10).expect("scanned");
        assert!(scanned.len() == 1 && scanned[0].value == largest);
        let keys = table.range_reverse(b"", None).keys_only();
        assert!(
            keys.map(|it| it.expect("a key").value)
                .eq([Vec::<u8>::new()])
        );
        let error = table.put(b"larger", &vec![0; (64 << 20) + 1]);
        assert_eq!(
            error.expect_err("too long").to_string(),
            "the value has 67108865 bytes; a value can have at most 67108864 bytes (64 MiB)"
        );
        let swapped = table.compare_and_swap(b"large", Some(&largest), Some(&largest[1..]));
        assert_eq!(swapped.expect("swapped"), ByteSwap::Swapped);
        let longer = [&largest[..], &[0]].concat();
        let swapped = table.compare_and_swap(b"large", Some(&longer), None);
        let differs = swapped.expect("no value is so long");
        assert!(differs == ByteSwap::Differs(Some(largest[1..].to_vec())));
        let taken = table.take(b"large").expect("taken").expect("there");
        assert!(taken == largest[1..]);
        assert_eq!(table.get(b"large").expect("got"), None);
    }
}

/// Promise: a read of a long value that other sessions replace all the time returns one complete
/// value, never parts of two.
#[test]
fn long_values_are_never_mixed() {
    const SIZE_BYTES: u32 = 200_000;
    for pool in pools(64) {
        let writer = session(&pool);
        let table = writer.create_byte_table("t", &remote()).expect("a table");
        table
            .put(b"key", &vec![0; SIZE_BYTES as usize])
            .expect("put");
        let is_one_value =
            |value: &[u8]| value.len() >= 199_000 && value.iter().all(|byte| *byte == value[0]);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let session = session(&pool);
                    let table = session.open_byte_table("t").expect("open");
                    for _ in 0..60 {
                        let value = table.get(b"key").expect("got").expect("there");
                        assert!(is_one_value(&value), "a get");
                        let scanned = table.scan(b"", None, 1).expect("scanned");
                        assert!(is_one_value(&scanned[0].value), "a scan");
                    }
                });
            }
            for round in 1..60_u8 {
                let size = SIZE_BYTES as usize - usize::from(round);
                let before = table.replace(b"key", &vec![round; size]).expect("replaced");
                let before = before.expect("there");
                assert!(is_one_value(&before) && before[0] == round - 1, "a replace");
            }
        });
    }
}

/// Promise: concurrent writers do not lose updates, whichever keys they share.
#[test]
fn writers_lose_nothing() {
    const THREAD_COUNT: u64 = 4;
    const ADDED_COUNT: u64 = 200;
    let number = |value: &[u8]| value.first_chunk().map_or(0, |it| u64::from_le_bytes(*it));
    // Some values are too long for a request, so that the comparison uses a staged value.
    let value = |number: u64| {
        let size = if number.is_multiple_of(9) { 15_000 } else { 9 };
        let mut value = vec![3; size];
        value[..8].copy_from_slice(&number.to_le_bytes());
        value
    };
    for pool in pools(64) {
        let session = session(&pool);
        let table = session.create_byte_table("t", &remote()).expect("a table");
        std::thread::scope(|scope| {
            for thread in 0..THREAD_COUNT {
                let pool = &pool;
                scope.spawn(move || {
                    let session = pool.session().expect("a session");
                    let table = session.open_byte_table("t").expect("open");
                    for added in 0..ADDED_COUNT {
                        let key = [((thread + added) % 3) as u8];
                        loop {
                            let found = table.get(&key).expect("got");
                            let next = value(found.as_deref().map_or(0, number) + 1);
                            let swap = table.compare_and_swap(&key, found.as_deref(), Some(&next));
                            if swap.expect("swapped or not") == ByteSwap::Swapped {
                                break;
                            }
                        }
                    }
                });
            }
        });
        let records = table.range(b"", None).map(|record| record.expect("one"));
        let sum: u64 = records.map(|record| number(&record.value)).sum();
        assert_eq!(sum, THREAD_COUNT * ADDED_COUNT);
    }
}

fn is_full(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NodeFull)
}

/// Promise: records that do not fit the node's memory are rejected without loss, short or in parts,
/// put or loaded. Overwriting takes no more memory, and removing frees it.
#[test]
fn a_node_without_space_says_so() {
    const SIZE_BYTES: u64 = 2 << 20;
    let pool = pool_of(SIZE_BYTES);
    let session = session(&pool);
    let table = session.create_byte_table("t", &remote()).expect("a table");
    let key = |number: u64| number.to_be_bytes();
    let value = vec![7; 1_000];
    let most = SIZE_BYTES / (8 + 1_000 + RECORD_SIZE_BYTES);
    let error = table.bulk_load((0..=most).map(|number| (key(number), &value)), |_| {});
    let error = error.expect_err("too many");
    assert!(is_full(&error), "{error}");
    let records = (0..most).map(|number| (key(number), &value));
    table
        .bulk_load(records, |_| {})
        .expect("what was sent is forgotten");
    let error = table.put(&key(most), &value).expect_err("no room");
    assert!(is_full(&error), "{error}");
    let error = table
        .put(&key(0), &value_of(100_000, 0))
        .expect_err("no room");
    assert!(is_full(&error), "{error}");
    assert_eq!(table.get(&key(0)).expect("got").as_ref(), Some(&value));
    assert!(
        table
            .put(&key(5), &[8; 1_000])
            .expect("no longer than before")
    );
    let inserted = table
        .insert(&key(5), &[9; 1_000])
        .expect("it is there already");
    assert!(matches!(
        inserted,
        farleaf::ByteInsertion::AlreadyPresent(_)
    ));
    let before = table.replace(&key(5), &[9; 1_000]).expect("replaced");
    assert_eq!(before, Some(vec![8; 1_000]));
    assert!(table.delete(&key(7)).expect("removed"));
    assert!(!table.put(&key(most), &value).expect("there is room"));
    assert_eq!(table.stats().expect("stats").records, most);
    session.drop_table("t").expect("dropped");
    let other = session.create_byte_table("t", &remote()).expect("a table");
    wait_for("a dropped table makes room", || {
        match other.put(b"large", &value_of(1 << 20, 0)) {
            Ok(_) => true,
            Err(error) => {
                assert!(is_full(&error), "{error}");
                false
            }
        }
    });
}

/// Promise: data that cancelled operations have sent, or were reading, does not use memory forever.
/// The session's next request, of another operation or the session's end, makes the node discard
/// it.
#[test]
fn dropped_operations_leave_nothing() {
    let pool = pool_of(8 << 20);
    let session = session(&pool);
    let table = session.create_byte_table("t", &remote()).expect("a table");
    let value = value_of(3 << 20, 1);
    for _ in 0..4 {
        // After half of its calls, the operation is dropped.
        drop_in_the_middle(&table, 100, async |table| {
            table.put(b"key", &value).await.expect("put");
        });
        table.put(b"other", b"short").expect("put");
        assert_eq!(
            session.last_cost().round_trips,
            1,
            "nothing is told by itself"
        );
        assert_eq!(table.get(b"key").expect("got"), None);
    }
    table.put(b"key", &value).expect("there is room");
    // A load in progress has a lower number than the dropped operations, so the node learns about
    // them separately.
    let mut put_count = 0;
    let records = (0..3_000_u32).map(|number| {
        if number > 0 && number % 1_000 == 0 {
            drop_in_the_middle(&table, 100, async |table| {
                table.put(b"key", &value).await.expect("put");
            });
            table.put(b"other", b"short").expect("put");
            put_count += 1;
        }
        (number.to_be_bytes(), [7; 100])
    });
    let loading = session.create_byte_table("loaded", &remote());
    let loading = loading.expect("a table");
    loading.bulk_load(records, |_| {}).expect("a load");
    assert_eq!(put_count, 2);
    table.put(b"key", &value).expect("there is room");
    session.drop_table("loaded").expect("dropped");
    for _ in 0..4 {
        drop_in_the_middle(&table, 100, async |table| {
            table.get(b"key").await.expect("got");
        });
        assert!(table.put(b"key", &value).expect("there is room"));
    }
    assert!(table.get(b"key").expect("got").as_ref() == Some(&value));
    let ended = crate::bytes::session(&pool);
    let other = ended.open_byte_table("t").expect("open");
    assert_eq!(other.get(b"none").expect("it has rings now"), None);
    drop_in_the_middle(&other, 100, async |table| {
        table.put(b"other", &value).await.expect("put");
    });
    let error = table
        .put(b"third", &value)
        .expect_err("no room for a third");
    assert!(is_full(&error), "{error}");
    drop((other, ended));
    wait_for("a session that ends makes room", || {
        match table.put(b"third", &value) {
            Ok(_) => true,
            Err(error) => {
                assert!(is_full(&error), "{error}");
                false
            }
        }
    });
}

/// Promise: a load into a table that is dropped meanwhile returns an error.
#[test]
fn a_load_into_a_dropped_table_is_none() {
    for pool in super::mapped_pools(32) {
        let (one, other) = (session(&pool), session(&pool));
        let table = one.create_byte_table("t", &remote()).expect("a table");
        let records = (0..5_000_u32).map(|number| {
            if number == 4_000 {
                other.drop_table("t").expect("dropped");
            }
            (number.to_be_bytes(), [7; 100])
        });
        let error = table.bulk_load(records, |_| {}).expect_err("it is dropped");
        let is_dropped = matches!(error.kind(), ErrorKind::TableDropped { .. });
        assert!(is_dropped, "{error}");
    }
}

/// Polls an operation this many times, which does not complete it, and drops it.
fn drop_in_the_middle(
    table: &ByteTable,
    poll_count: u32,
    operation: impl AsyncFnOnce(&farleaf::AsyncByteTable),
) {
    let mut tasks = TaskSet::with_capacity(1);
    let table = table.asynchronous();
    let outcome = tasks.spawn(operation(table));
    assert!(matches!(outcome, Ok(None)), "it takes several calls");
    for _ in 0..poll_count {
        assert_eq!(tasks.run_ready(|()| ()), 0, "it is in the middle");
    }
}

/// Promise: a dropped table's records are gone, sessions that have it open get an error, and a new
/// table of the same name is empty.
#[test]
fn a_dropped_table_is_forgotten() {
    for pool in pools(32) {
        let (one, other) = (session(&pool), session(&pool));
        let table = one.create_byte_table("t", &remote()).expect("a table");
        table.put(b"key", b"value").expect("put");
        let open = other.open_byte_table("t").expect("open");
        assert!(open.get(b"key").expect("got").is_some());
        one.drop_table("t").expect("dropped");
        wait_for("the drop is not reported", || match open.get(b"key") {
            Ok(_) => false,
            Err(error) => {
                assert_eq!(error.to_string(), "table 't' was dropped");
                true
            }
        });
        let table = one.create_byte_table("t", &remote()).expect("a table");
        assert_eq!(table.get(b"key").expect("got"), None);
    }
}

/// Promise: many concurrent operations of a session, more than its rings have space for, all
/// complete, with values in parts and others.
#[test]
fn many_at_once_come_to_their_ends() {
    for pool in pools(64) {
        let session = session(&pool);
        let table = session.create_byte_table("t", &remote()).expect("a table");
        let records: Vec<_> = (0..200_u32)
            .map(|number| {
                let size = if number.is_multiple_of(3) { 40_000 } else { 40 };
                (number.to_be_bytes(), value_of(size, number))
            })
            .collect();
        assert_eq!(table.multi_put(&records).expect("put"), 0);
        let mut again = records.clone();
        again.push((7_u32.to_be_bytes(), b"last".to_vec()));
        assert_eq!(table.multi_put(&again).expect("put"), 201);
        let found = table.get(&7_u32.to_be_bytes()).expect("got");
        assert_eq!(found.as_deref(), Some(&b"last"[..]), "the last one stays");
        assert!(table.put(&records[7].0, &records[7].1).expect("put"));
        let own = table.asynchronous();
        let mut tasks = TaskSet::with_capacity(200);
        let gets = records.iter().map(|(key, value)| async move {
            let found = own.get(key).await.expect("got");
            assert!(found.as_ref() == Some(value), "{key:?}");
        });
        let mut done_count = 0;
        for get in gets {
            let outcome = tasks.spawn(get);
            done_count += usize::from(matches!(outcome, Ok(Some(()))));
        }
        tasks.drain(session.completions(), |()| done_count += 1);
        assert_eq!(done_count, 200);
    }
}

/// Waker that counts its calls.
#[derive(Default)]
struct CountingWaker(AtomicU32);

impl Wake for CountingWaker {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Promise: when the maximum number of operations of a session run and are not polled, another one
/// waits without asking to be polled. It is woken when one of them is dropped, and continues.
#[test]
fn who_waits_for_others_does_not_spin() {
    let pool = pool_of(32 << 20);
    let session = session(&pool);
    let table = session.create_byte_table("t", &remote()).expect("a table");
    table.put(b"key", b"value").expect("put");
    let own = table.asynchronous();
    let mut context = Context::from_waker(Waker::noop());
    let mut stand = Vec::new();
    while stand.len() < 48 {
        let mut put = Box::pin(own.put(b"key", b"value"));
        if put.as_mut().poll(&mut context).is_pending() {
            stand.push(put);
        }
    }
    let counting_waker = Arc::<CountingWaker>::default();
    let waker = Waker::from(Arc::clone(&counting_waker));
    let mut waiting = pin!(own.get(b"key"));
    for _ in 0..100 {
        let mut context = Context::from_waker(&waker);
        assert!(waiting.as_mut().poll(&mut context).is_pending());
    }
    assert_eq!(counting_waker.0.load(Ordering::Relaxed), 0);
    stand.pop();
    assert_eq!(counting_waker.0.load(Ordering::Relaxed), 1);
    // Puts that were answered at once keep their space in the rings until earlier ones have ended.
    // Many of these fill the rings, so an operation waits until others are polled or dropped.
    drop(stand);
    let found = session.block_on(waiting).expect("got");
    assert_eq!(found.as_deref(), Some(&b"value"[..]));
}

/// Promise: typed tables work with this search layer as with others.
#[test]
fn typed_tables_are_maps_of_their_types() {
    let pool = pool_of(32 << 20);
    let session = session(&pool);
    let table = session.create_typed_table::<(String, u32), f64>("t", &remote());
    let table = table.expect("a table");
    for number in 0..100_u32 {
        let name = ["rome", "oslo"][number as usize % 2];
        table.put(&(name, number), &f64::from(number)).expect("put");
    }
    assert_eq!(table.get(&("rome", 4)).expect("got"), Some(4.0));
    let first = table.range(..).expect("a range").next().expect("one");
    assert_eq!(first.expect("got"), (("oslo".to_owned(), 1), 1.0));
    let last = table
        .range_reverse(..)
        .expect("a range")
        .next()
        .expect("one");
    assert_eq!(last.expect("got"), (("rome".to_owned(), 98), 98.0));
}

/// Promise: search layers that do not support byte strings are rejected.
#[test]
fn other_layers_are_refused() {
    let pool = pool_of(32 << 20);
    let session = session(&pool);
    for layer in LayerKind::ALL {
        let options = TableOptions { layer, ..remote() };
        let made = session.create_byte_table(layer.name(), &options);
        assert_eq!(made.is_ok(), layer.has_byte_tables());
        if let Err(error) = made {
            let text = format!("search layer is {layer}; expected 'learned', 'rf-tree'");
            assert!(error.to_string().starts_with(&text), "{error}");
        }
    }
}

/// Promise: a compare-and-swap that expects an empty value works for all sizes of key and new
/// value, including those that just fill a request.
#[test]
fn an_empty_value_is_expected_beside_any_other() {
    let pool = pool_of(32 << 20);
    let session = session(&pool);
    let table = session.create_byte_table("t", &remote());
    let table = table.expect("a table");
    for key in [&b""[..], b"key"] {
        for size_bytes in 14_200..14_360 {
            table.put(key, b"").expect("put");
            let swap = table.compare_and_swap(key, Some(b""), Some(&vec![7; size_bytes]));
            assert_eq!(swap.expect("swap"), ByteSwap::Swapped, "{size_bytes}");
        }
    }
}
