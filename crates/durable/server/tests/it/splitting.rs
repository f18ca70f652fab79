//! Regions that are split while they are served.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use farleaf_client::{ClientError, Durability, PersistentTable, PersistentTableOptions, Record};
use farleaf_cluster::admin;
use farleaf_cluster::ids::RegionId;
use farleaf_cluster::record::region::Key;
use farleaf_cluster::record::{WishAnswer, WishKind};
use farleaf_trial::fleet::view;

use crate::crew::Crew;

fn region_count(crew: &Crew, table: &PersistentTable) -> usize {
    view(&crew.coordinator).regions_of(table.id()).len()
}

/// The most replicas that a region of a table has ever had made.
fn replicas_made(crew: &Crew, table: &PersistentTable) -> u64 {
    let view = view(&crew.coordinator);
    let regions = view.regions_of(table.id());
    let numbers = regions.iter().flat_map(|region| region.replicas());
    numbers.map(|replica| replica.number.0).max().expect("some")
}

fn region_of(crew: &Crew, table: &PersistentTable, key: &[u8]) -> RegionId {
    let view = view(&crew.coordinator);
    let regions = view.regions_of(table.id());
    let found = regions.iter().find(|region| region.covers(key));
    found.expect("every key is in a region").region
}

/// Wishes for a split, and waits until it is done.
fn split(crew: &Crew, table: &PersistentTable, at: &[u8]) {
    let before = region_count(crew, table);
    let kind = WishKind::Split {
        table: table.id(),
        region: region_of(crew, table, at),
        at: Key(at.to_vec()),
    };
    let since = Instant::now();
    let wish = || admin::wish(&crew.coordinator, kind.clone()).expect("embedded");
    let mut number = wish();
    let mut answer = None;
    while answer.is_none() || region_count(crew, table) == before {
        if answer.is_none() {
            answer = admin::answer(&crew.coordinator, number).expect("embedded");
            match &answer {
                // It has just been split, and its primary has not told that it goes on.
                Some(WishAnswer::Refused(why)) if why.contains("nobody serves") => {
                    (number, answer) = (wish(), None);
                }
                Some(WishAnswer::Refused(why)) => panic!("{why}"),
                _ => {}
            }
        }
        assert!(since.elapsed() < Duration::from_secs(30), "it is not split");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Ends the course when it is dropped.
struct Over<'o>(&'o AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Does it until it is known to be done: a server that is stopped may not have told.
fn again(act: impl Fn() -> Result<(), ClientError>) {
    while let Err(error) = act() {
        assert!(error.is_outcome_unknown(), "{error}");
    }
}

/// Writes and deletes keys that nobody else does, until the course is over; what they have then, or
/// nothing if they were deleted.
fn write(
    table: PersistentTable,
    writer: usize,
    (is_over, written): (&AtomicBool, &AtomicU64),
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

/// Promise: a region is split while it is written and read. Everything that was acknowledged is
/// there, before and after servers end one after the other, and each new region
/// has all of its replicas from its first moment on.
#[test]
fn regions_are_split_under_load() {
    let mut crew = Crew::new(3);
    let cluster = crew.client();
    let options = PersistentTableOptions::default();
    let table = cluster.create_table("t", &options).expect("a new table");
    crew.wait_whole(&table, 3);
    let first: Vec<(String, String)> = (0..3000_u32)
        .map(|number| (format!("{number:04}"), "first".to_owned()))
        .collect();
    table.multi_put(&first).expect("put");
    let (is_over, written) = (AtomicBool::new(false), AtomicU64::new(0));
    let models: Vec<BTreeMap<Vec<u8>, Vec<u8>>> = thread::scope(|scope| {
        let writers: Vec<_> = (0..3_usize)
            .map(|writer| {
                let (table, is_over, written) = (table.clone(), &is_over, &written);
                scope.spawn(move || write(table, writer, (is_over, written)))
            })
            .collect();
        // Also if what follows panics: the writers would go on for ever.
        let _over = Over(&is_over);
        for at in ["1500", "0700", "2200"] {
            thread::sleep(Duration::from_millis(100));
            split(&crew, &table, at.as_bytes());
        }
        thread::sleep(Duration::from_millis(100));
        is_over.store(true, Ordering::Release);
        writers
            .into_iter()
            .map(|it| it.join().expect("no panic"))
            .collect()
    });
    assert_eq!(region_count(&crew, &table), 4);
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
    crew.wait_whole(&table, 3);
    // Nobody has been taken for broken, because of what was read or written in a stop.
    assert_eq!(replicas_made(&crew, &table), 3);
    for index in 0..3 {
        crew.stop(index);
        check("without a server");
        crew.start(index);
        crew.wait_whole(&table, 3);
    }
    check("when all have been away");
}
