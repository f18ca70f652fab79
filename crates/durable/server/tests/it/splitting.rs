//! Regions that are split while they are served.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use farleaf_client::{ClientError, Durability, PersistentTable, PersistentTableOptions, Record};
use farleaf_cluster::admin;
use farleaf_cluster::ids::RegionId;
use farleaf_cluster::record::region::Key;
use farleaf_cluster::record::{AdminReply, AdminRequestKind};
use farleaf_trial::fleet::view;

use crate::test_cluster::TestCluster;

fn region_count(test_cluster: &TestCluster, table: &PersistentTable) -> usize {
    view(&test_cluster.coordinator).regions_of(table.id()).len()
}

/// Returns the highest number of replicas ever created for a region of a table.
fn replicas_made(test_cluster: &TestCluster, table: &PersistentTable) -> u64 {
    let view = view(&test_cluster.coordinator);
    let regions = view.regions_of(table.id());
    let numbers = regions.iter().flat_map(|region| region.replicas());
    numbers.map(|replica| replica.number.0).max().expect("some")
}

fn region_of(test_cluster: &TestCluster, table: &PersistentTable, key: &[u8]) -> RegionId {
    let view = view(&test_cluster.coordinator);
    let regions = view.regions_of(table.id());
    let found = regions.iter().find(|region| region.covers(key));
    found.expect("every key is in a region").region
}

/// Requests a split, and waits until it is done.
fn split(test_cluster: &TestCluster, table: &PersistentTable, at: &[u8]) {
    let before = region_count(test_cluster, table);
    let kind = AdminRequestKind::Split {
        table: table.id(),
        region: region_of(test_cluster, table, at),
        at: Key(at.to_vec()),
    };
    let since = Instant::now();
    let admin_request =
        || admin::admin_request(&test_cluster.coordinator, kind.clone()).expect("embedded");
    let mut number = admin_request();
    let mut answer = None;
    while answer.is_none() || region_count(test_cluster, table) == before {
        if answer.is_none() {
            answer = admin::answer(&test_cluster.coordinator, number).expect("embedded");
            match &answer {
                // The region has just been split, and its primary has not reported that it
                // continues.
                Some(AdminReply::Refused(why)) if why.contains("is not served now") => {
                    (number, answer) = (admin_request(), None);
                }
                Some(AdminReply::Refused(why)) => panic!("{why}"),
                _ => {}
            }
        }
        assert!(since.elapsed() < Duration::from_secs(30), "it is not split");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Ends the load when dropped.
struct Over<'o>(&'o AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Retries an operation until it is known to be done: a stopped server may not have replied.
fn again(act: impl Fn() -> Result<(), ClientError>) {
    while let Err(error) = act() {
        assert!(error.is_outcome_unknown(), "{error}");
    }
}

/// Writes and deletes keys of its own until the load ends; returns their final values, or none if
/// they were deleted.
fn write(
    table: PersistentTable,
    writer: usize,
    is_over: &AtomicBool,
    written: &AtomicU64,
) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let durability = if writer == 0 {
        Durability::Sync
    } else {
        Durability::Memory
    };
    let table = table.with_durability(durability);
    let mut model = BTreeMap::new();
    let mut number = writer;
    while !is_over.load(Ordering::Acquire) {
        number = (number * 7919 + 3 * writer + 1) % 3000;
        let key = format!("{:04}", number / 3 * 3 + writer).into_bytes();
        let value = written.fetch_add(1, Ordering::Relaxed).to_string();
        if value.ends_with('7') {
            again(|| table.delete(&key).map(drop));
            model.insert(key.clone(), Vec::new());
        } else {
            again(|| table.put(&key, value.as_bytes()));
            model.insert(key.clone(), value.into_bytes());
        }
        let found = table.get(&key).expect("got").unwrap_or_default();
        assert_eq!(&found, &model[&key]);
    }
    model
}

/// A region is split while it is written and read. Everything acknowledged is present, before and
/// after servers end one after the other, and each new region has all of its replicas from the
/// start.
#[test]
fn regions_are_split_under_load() {
    let mut test_cluster = TestCluster::new(3);
    let cluster = test_cluster.client();
    let options = PersistentTableOptions::default();
    let table = cluster.create_table("t", &options).expect("a new table");
    test_cluster.wait_replicated(&table, 3);
    let first: Vec<(String, String)> = (0..3000_u32)
        .map(|number| (format!("{number:04}"), "first".to_owned()))
        .collect();
    table.multi_put(&first).expect("put");
    let (is_over, written) = (AtomicBool::new(false), AtomicU64::new(0));
    let models: Vec<BTreeMap<Vec<u8>, Vec<u8>>> = thread::scope(|scope| {
        let writers: Vec<_> = (0..3_usize)
            .map(|writer| {
                let (table, is_over, written) = (table.clone(), &is_over, &written);
                scope.spawn(move || write(table, writer, is_over, written))
            })
            .collect();
        // Also if the following code panics: the writers would continue forever.
        let _over = Over(&is_over);
        for at in ["1500", "0700", "2200"] {
            thread::sleep(Duration::from_millis(100));
            split(&test_cluster, &table, at.as_bytes());
        }
        thread::sleep(Duration::from_millis(100));
        is_over.store(true, Ordering::Release);
        writers
            .into_iter()
            .map(|it| it.join().expect("no panic"))
            .collect()
    });
    assert_eq!(region_count(&test_cluster, &table), 4);
    let mut expected: BTreeMap<Vec<u8>, Vec<u8>> = first
        .into_iter()
        .map(|(key, value)| (key.into_bytes(), value.into_bytes()))
        .collect();
    expected.extend(models.into_iter().flatten());
    expected.retain(|_, value| !value.is_empty());
    let check = |what: &str| {
        let found: Result<Vec<Record>, _> = table.range(b"", None).collect();
        let found: BTreeMap<_, _> = found
            .expect("scanned")
            .into_iter()
            .map(|it| (it.key, it.value))
            .collect();
        assert_eq!(found, expected, "{what}");
    };
    check("after the splits");
    test_cluster.wait_replicated(&table, 3);
    // No replica was considered broken because of reads or writes during a stop.
    assert_eq!(replicas_made(&test_cluster, &table), 3);
    for index in 0..3 {
        test_cluster.stop(index);
        check("without a server");
        test_cluster.start(index);
        test_cluster.wait_replicated(&table, 3);
    }
    check("when all have been away");
}
