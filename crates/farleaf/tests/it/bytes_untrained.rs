//! Tables of byte strings with many untrained pages, created by splits.

use std::time::{Duration, Instant};

use farleaf::{ByteTable, Cost, OperationKind, Pool, Session};

use crate::bytes::{Map, options, session};
use crate::bytes_scans::assert_scans;
use crate::{mapped_pools, mapped_retraining_pools};

/// Creates a table with one page, into which one session has then written smaller and smaller keys.
fn grown(pool: &Pool, count: u32) -> (Session, ByteTable, Map) {
    let session = session(pool);
    let table = session.create_byte_table("t", &options(512, 128));
    let table = table.expect("a table");
    let mut map = Map::new();
    let first = (0..20).map(|number| format!("k{number}").into_bytes());
    let name = |number: u32| format!("A{:07}/{}", number * 3, number % 17).into_bytes();
    for key in first.chain((0..count).map(name)) {
        assert!(!table.put(&key, &[7; 40]).expect("put"));
        map.insert(key, vec![7; 40]);
    }
    (session, table, map)
}

fn scan_cost(session: &Session, scan: impl FnOnce()) -> Cost {
    let before = session.counters(OperationKind::Scan).cost;
    scan();
    let after = session.counters(OperationKind::Scan).cost;
    Cost {
        round_trips: after.round_trips - before.round_trips,
        leaves_read: after.leaves_read - before.leaves_read,
        ..Cost::default()
    }
}

/// Promise: in either direction, a new session's scan over untrained pages takes one round trip for
/// each page, and one more for each that has replaced another. A session that knows the pages takes
/// far fewer. No page is read many times, also if the scan is read in batches.
#[test]
fn scans_of_unknown_pages_cost_a_round_trip_for_each() {
    let pool = mapped_pools(64).swap_remove(0);
    let (writing, table, map) = grown(&pool, 20_000);
    let pages = table.stats().expect("seen").pages;
    assert!(pages > 2_000);
    let count = map.len();
    for piece_count in [100, 1_000, usize::MAX] {
        let forward = |table: &ByteTable| {
            let (mut start, mut seen) = (Vec::new(), 0);
            while seen < count {
                let records = table.scan(&start, None, piece_count).expect("a scan");
                seen += records.len();
                start = records.last().expect("there are more").key.clone();
                start.push(0);
            }
            assert_eq!(seen, count);
        };
        let reverse = |table: &ByteTable| {
            let seen = table.range_reverse(b"", None).count();
            assert_eq!(seen, count);
        };
        let reader = session(&pool);
        let fresh = reader.open_byte_table("t").expect("opened");
        let cost = scan_cost(&reader, || {
            assert_eq!(fresh.range(b"", None).count(), count);
        });
        assert!(cost.round_trips < pages * 2, "{cost:?} for {pages}");
        assert!(cost.leaves_read < pages * 3, "{cost:?} for {pages}");
        let reader = session(&pool);
        let fresh = reader.open_byte_table("t").expect("opened");
        let cost = scan_cost(&reader, || reverse(&fresh));
        assert!(cost.round_trips < pages * 3, "{cost:?} for {pages}");
        assert!(cost.leaves_read < pages * 6, "{cost:?} for {pages}");
        let cost = scan_cost(&writing, || forward(&table));
        let pieces = (count / piece_count.min(count)) as u64;
        assert!(cost.round_trips < pages / 10 + 3 * pieces, "{cost:?}");
        assert!(cost.leaves_read < 3 * pages + 20 * pieces, "{cost:?}");
        let cost = scan_cost(&writing, || reverse(&table));
        assert!(cost.round_trips < pages / 5, "{cost:?} for {pages}");
        assert!(cost.leaves_read < pages * 4, "{cost:?} for {pages}");
    }
    assert_scans(&table, &map);
}

/// Promise: records that one session writes without a pause, faster than it takes new training
/// results, are trained in the end: a new session finds nearly every key with one page.
#[test]
fn tables_that_outgrow_their_training_are_trained_in_the_end() {
    for pool in mapped_retraining_pools(64) {
        let (_writing, table, map) = grown(&pool, 30_000);
        let started_at = Instant::now();
        loop {
            let reader = session(&pool);
            let fresh = reader.open_byte_table("t").expect("opened");
            for key in map.keys().step_by(100) {
                assert!(fresh.get(key).expect("got").is_some());
            }
            let trips = reader.counters(OperationKind::Get).cost.round_trips;
            if trips < map.len() as u64 / 100 * 11 / 10 {
                break;
            }
            let seen = table.stats().expect("seen");
            assert!(
                started_at.elapsed().as_secs() < 60,
                "{trips} round trips: {seen:?}"
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}
