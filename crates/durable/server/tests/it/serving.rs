//! Tables that are served, and continue when servers end.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farleaf_client::{Durability, Insertion, PersistentTableOptions, Record, Swap};

use crate::test_cluster::TestCluster;

fn options(replica_count: usize, split_keys: &[&[u8]]) -> PersistentTableOptions {
    PersistentTableOptions {
        replica_count,
        split_keys: split_keys.iter().map(|key| key.to_vec()).collect(),
    }
}

/// One server is enough, and every operation does what it should, over several regions.
#[test]
fn operations_do_what_they_say() {
    let test_cluster = TestCluster::new(1);
    let cluster = test_cluster.client();
    let made = cluster.create_table("planets", &options(1, &[b"m", b"t"]));
    let table = made.expect("a new table");
    assert_eq!(table.durability(), Durability::Sync);
    table.put(b"mars", b"4").expect("put");
    table.put(b"earth", b"3").expect("put");
    table.put(b"uranus", b"7").expect("put");
    assert_eq!(table.get(b"mars").expect("got"), Some(b"4".to_vec()));
    assert_eq!(table.get(b"pluto").expect("got"), None);
    let got = table.multi_get(&[&b"uranus"[..], b"none", b"earth"]);
    assert_eq!(
        got.expect("got"),
        [Some(b"7".to_vec()), None, Some(b"3".to_vec())]
    );
    let inserted = table.insert(b"mars", b"5").expect("inserted");
    assert_eq!(inserted, Insertion::AlreadyPresent(b"4".to_vec()));
    assert_eq!(
        table.insert(b"venus", b"2").expect("inserted"),
        Insertion::Inserted
    );
    assert!(table.update(b"venus", b"two").expect("updated"));
    assert!(!table.update(b"pluto", b"9").expect("updated"));
    let differs = table.compare_and_swap(b"venus", Some(b"2"), Some(b"ii"));
    assert_eq!(
        differs.expect("asked"),
        Swap::Differs(Some(b"two".to_vec()))
    );
    let swapped = table.compare_and_swap(b"venus", Some(b"two"), None);
    assert_eq!(swapped.expect("asked"), Swap::Swapped);
    assert_eq!(
        table.replace(b"earth", b"III").expect("replaced"),
        Some(b"3".to_vec())
    );
    assert!(table.delete(b"uranus").expect("deleted"));
    assert!(!table.delete(b"uranus").expect("deleted"));
    assert_eq!(table.take(b"mars").expect("taken"), Some(b"4".to_vec()));
    let records: Result<Vec<Record>, _> = table.range(b"", None).collect();
    let earth = Record {
        key: b"earth".to_vec(),
        value: b"III".to_vec(),
    };
    assert_eq!(records.expect("scanned"), [earth]);
    let again = cluster.create_table("planets", &options(1, &[]));
    assert!(again.is_err(), "its name is taken");
    cluster.drop_table("planets").expect("dropped");
    assert!(cluster.open_table("planets").is_err());
}

/// Scans in both directions see all regions, in order, whatever the bounds and limits.
#[test]
fn scans_go_over_regions() {
    let test_cluster = TestCluster::new(1);
    let cluster = test_cluster.client();
    let table = cluster.create_table("t", &options(1, &[b"300", b"301", b"700"]));
    let table = table.expect("a new table");
    let records: Vec<(String, String)> = (0..1000_u32)
        .map(|number| (format!("{number:03}"), format!("v{number}")))
        .collect();
    table.multi_put(&records).expect("put");
    let model: BTreeMap<Vec<u8>, Vec<u8>> = records
        .into_iter()
        .map(|(key, value)| (key.into_bytes(), value.into_bytes()))
        .collect();
    let pair = |record: Record| (record.key, record.value);
    for (start, end) in [
        ("", None),
        ("2", Some("5")),
        ("300", Some("301")),
        ("9", Some("1")),
    ] {
        let (start, end) = (start.as_bytes(), end.map(str::as_bytes));
        let expected: Vec<_> = model
            .iter()
            .filter(|(key, _)| {
                key.as_slice() >= start && end.is_none_or(|end| key.as_slice() < end)
            })
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        let found: Result<Vec<_>, _> = table.range(start, end).map(|it| it.map(pair)).collect();
        assert_eq!(found.expect("scanned"), expected);
        let found = table.range_reverse(start, end).map(|it| it.map(pair));
        let mut found: Vec<_> = found.collect::<Result<_, _>>().expect("scanned");
        found.reverse();
        assert_eq!(found, expected);
        let some = table.scan(start, end, 7).expect("scanned");
        let few: Vec<_> = expected.iter().take(7).cloned().collect();
        assert_eq!(some.into_iter().map(pair).collect::<Vec<_>>(), few);
    }
    let keys = table.prefix(b"12").keys_only();
    let keys: Vec<Record> = keys.collect::<Result<_, _>>().expect("scanned");
    assert!(keys.len() == 10 && keys.iter().all(|it| it.value.is_empty()));
    assert_eq!(
        table.delete_range(b"250", Some(b"750")).expect("deleted"),
        500
    );
    assert_eq!(table.delete_prefix(b"").expect("deleted"), 500);
    assert!(table.scan(b"", None, 9).expect("scanned").is_empty());
}

/// Three servers have each record. When one shuts down, the others continue with all data, and when
/// it is back, all have everything again.
#[test]
fn servers_end_and_come_back() {
    let mut test_cluster = TestCluster::new(3);
    let cluster = test_cluster.client();
    let table = cluster.create_table("t", &options(3, &[b"k2", b"k5"]));
    let table = table.expect("a new table");
    let mut model = BTreeMap::new();
    for round in 0..4_usize {
        test_cluster.wait_replicated(&table, 3);
        for number in 0..40_usize {
            let (key, value) = (format!("k{number}"), format!("{round}-{number}"));
            table.put(key.as_bytes(), value.as_bytes()).expect("put");
            model.insert(key.into_bytes(), value.into_bytes());
        }
        let index = round % 3;
        test_cluster.stop(index);
        for number in 40..60_usize {
            let (key, value) = (format!("k{number}"), format!("{round}-{number}"));
            table.put(key.as_bytes(), value.as_bytes()).expect("put");
            model.insert(key.into_bytes(), value.into_bytes());
        }
        let found: Result<Vec<Record>, _> = table.range(b"", None).collect();
        let found: BTreeMap<_, _> = found
            .expect("scanned")
            .into_iter()
            .map(|it| (it.key, it.value))
            .collect();
        assert_eq!(found, model, "round {round}");
        test_cluster.start(index);
    }
    test_cluster.wait_replicated(&table, 3);
}

/// A table without further writes keeps its backups, whatever the durability of the last write: a
/// sync leaves a mark in the log for which no thread waits.
#[test]
fn an_idle_table_keeps_its_backups() {
    let patience = Duration::from_millis(700);
    let test_cluster = TestCluster::with(3, move |_, options| options.link_patience = patience);
    let table = test_cluster
        .table(3, false)
        .with_durability(Durability::Sync);
    table.put(b"key", b"value").expect("put");
    test_cluster.wait_replicated(&table, 3);
    let record =
        || farleaf_trial::fleet::view(&test_cluster.coordinator).regions_of(table.id())[0].clone();
    let before = record();
    for _ in 0..3 {
        table.put(b"key", b"value").expect("put");
        std::thread::sleep(3 * patience);
        assert_eq!(record(), before);
    }
}

fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("bound")
}

/// If a server listens at the former address of another one, a primary that knew the former one
/// there does not use the wrong server forever.
#[test]
fn servers_exchange_addresses() {
    let addresses = Arc::new(Mutex::new([0, 1, 2].map(|_| free_address())));
    let of_servers = Arc::clone(&addresses);
    let mut test_cluster = TestCluster::with(3, move |index, options| {
        options.address = of_servers.lock().expect("no panic")[index];
    });
    let table = test_cluster.table(3, false);
    let primary = test_cluster.primary(&table);
    let [one, other] = [1, 2].map(|step| (primary + step) % 3);
    test_cluster.stop(one);
    test_cluster.stop(other);
    table.put(b"key", b"value").expect("put");
    addresses.lock().expect("no panic").swap(one, other);
    test_cluster.start(one);
    test_cluster.start(other);
    test_cluster.wait_replicated(&table, 3);
    assert_eq!(table.get(b"key").expect("got"), Some(b"value".to_vec()));
}
