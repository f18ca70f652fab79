//! Loops of loads and drops by processes that are killed in the middle, with concurrent readers.
//!
//! A load writes the even keys, all with one value that is unique to the load; keys inserted later
//! are odd. A reader therefore knows what a table may contain: all even keys or none, with one
//! value.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use farleaf::{Error, ErrorKind, LoadError, Pool, Session, Table, TableOptions};

use crate::check::{PoolMemory, eventually};
use crate::children::{ChildProcess, ChildRole, scene, stop_flag};
use crate::node::{Fabric, Node, NodePlan};
use crate::{BoundedRandom, STALL_MAX, kill_count, run_seconds};

/// Number of loaders; each has its own table, and all share one more.
const LOADER_COUNT: u64 = 3;
const SHARED_TABLE: &str = "shared";
/// Records of a load: more than one chunk of leaves, and several models.
const RECORD_COUNT: u64 = 20_000;
/// Records inserted after the load, so that leaves split.
const INSERT_COUNT: u64 = 500;
/// Far more than all tables take at once, far less than all loads of a run.
const POOL_SIZE_MIB: u64 = 128;

fn table_name(loader: u64) -> String {
    format!("table-{loader}")
}

/// Returns keys in clusters, so that a load trains several models.
fn even_key(index: u64) -> u64 {
    (index / 1000) << 40 | (index % 1000) * (2 + index / 1000 * 4)
}

/// Longest step of a child so far.
struct Stopwatch(Duration);

impl Stopwatch {
    fn timed<R>(&mut self, step: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let result = step();
        let took = start.elapsed();
        assert!(took < STALL_MAX, "a step took {took:?}");
        self.0 = self.0.max(took);
        result
    }
}

/// Runs [`ChildRole::Loader`].
pub(crate) fn play_loader(arguments: &[&str]) {
    let number = |index: usize| arguments[index].parse::<u64>().expect("a number");
    let stopped = stop_flag();
    let pool = Pool::open(arguments[0]).expect("the scene serves it");
    let mut loader = Loader {
        session: pool.session().expect("a session"),
        stopwatch: Stopwatch(Duration::ZERO),
        dice: BoundedRandom::new(number(2)),
        load: number(2) << 16,
        loaded_count: 0,
        full_since: None,
    };
    while !stopped.load(Ordering::Relaxed) {
        let is_shared = loader.dice.below(3) == 0;
        let own = table_name(number(1));
        loader.round(if is_shared { SHARED_TABLE } else { &own }, is_shared);
    }
    drop(loader.session);
    eprintln!("{} {}", loader.loaded_count, loader.stopwatch.0.as_nanos());
}

struct Loader {
    session: Session,
    stopwatch: Stopwatch,
    dice: BoundedRandom,
    load: u64,
    loaded_count: u64,
    /// Time since which the pool has been full.
    full_since: Option<Instant>,
}

impl Loader {
    /// Creates, loads, extends and drops a table; another loader may do the same to a shared one.
    fn round(&mut self, name: &str, is_shared: bool) {
        let options = TableOptions::default();
        let created = self
            .stopwatch
            .timed(|| self.session.create_table(name, &options));
        let table = match created {
            Ok(table) => {
                self.full_since = None;
                table
            }
            // Left by the predecessor, or created by another loader of the shared table.
            Err(error) if matches!(error.kind(), ErrorKind::TableExists { .. }) => {
                match self.session.open_table(name) {
                    Ok(table) => table,
                    Err(error) => return self.refused(error, is_shared),
                }
            }
            Err(error) => return self.refused(error, is_shared),
        };
        if let Err(error) = self
            .fill(&table)
            .and_then(|()| check_loaded(&table).map(drop))
        {
            self.refused(error, is_shared);
        }
        if self.dice.below(4) > 0 {
            let dropped = self.stopwatch.timed(|| self.session.drop_table(name));
            if let Err(error) = dropped {
                self.refused(error, is_shared);
            }
        }
    }

    /// Handles an error, or panics if it is not expected. Only its loader uses a table that is not
    /// shared. Memory of dropped tables and dead sessions is freed in the background, so the pool
    /// may be full for a while.
    fn refused(&mut self, error: Error, is_shared: bool) {
        if !matches!(error.kind(), ErrorKind::Full(_)) {
            return Refusal::from(error).assert_benign(is_shared);
        }
        let since = *self.full_since.get_or_insert_with(Instant::now);
        assert!(since.elapsed() < STALL_MAX, "for {STALL_MAX:?}: {error}");
        std::thread::sleep(Duration::from_millis(20));
    }

    fn fill(&mut self, table: &Table) -> Result<(), Error> {
        self.load += 1;
        let load = self.load;
        let records = (0..RECORD_COUNT).map(|index| (even_key(index), load));
        let loaded = self.stopwatch.timed(|| table.bulk_load(records, |_| {}));
        match loaded {
            Ok(summary) => {
                assert_eq!(summary.record_count, RECORD_COUNT);
                self.loaded_count += 1;
            }
            Err(error) => match error.kind() {
                ErrorKind::Load(LoadError::TableNotEmpty) => {}
                _ => return Err(error),
            },
        }
        let from = self.dice.below(RECORD_COUNT - INSERT_COUNT);
        for index in from..from + INSERT_COUNT {
            let key = even_key(index) + 1;
            self.stopwatch.timed(|| table.put(key, key))?;
        }
        Ok(())
    }
}

/// Expected reason why an operation failed.
#[derive(Debug)]
enum Refusal {
    TableNotFound,
    TableDropped,
    Other(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        match error.kind() {
            ErrorKind::TableNotFound { .. } => Self::TableNotFound,
            ErrorKind::TableDropped { .. } => Self::TableDropped,
            _ => Self::Other(error),
        }
    }
}

impl Refusal {
    fn assert_benign(self, is_shared: bool) {
        match self {
            Self::Other(error) => panic!("{error}"),
            refusal => assert!(is_shared, "{refusal:?}"),
        }
    }
}

/// Checks that a load appears completely or not at all. Returns whether it is there.
fn check_loaded(table: &Table) -> Result<bool, Error> {
    let mut load = None;
    let mut expected = 0;
    for record in table.range(..) {
        let (key, value) = record?;
        if key % 2 != 0 {
            assert_eq!(value, key);
            continue;
        }
        assert_eq!(key, even_key(expected), "a load has a gap");
        assert_eq!(*load.get_or_insert(value), value, "two loads in one table");
        expected += 1;
    }
    assert!(
        expected == 0 || expected == RECORD_COUNT,
        "{expected} records of a load"
    );
    Ok(expected > 0)
}

/// Runs [`ChildRole::Reader`]: reads whichever tables exist, by new handles and old ones.
pub(crate) fn play_reader(arguments: &[&str]) {
    let stopped: &AtomicBool = stop_flag();
    let pool = Pool::open(arguments[0]).expect("the scene serves it");
    let session = pool.session().expect("a session");
    let mut stopwatch = Stopwatch(Duration::ZERO);
    let mut names: Vec<String> = (0..LOADER_COUNT).map(table_name).collect();
    names.push(SHARED_TABLE.to_owned());
    let mut open: Vec<Option<Table>> = names.iter().map(|_| None).collect();
    let (mut empty_count, mut loaded_count) = (0, 0);
    while !stopped.load(Ordering::Relaxed) {
        for (name, place) in names.iter().zip(&mut open) {
            let table = match place.take() {
                Some(table) => table,
                None => match session.open_table(name) {
                    Ok(table) => table,
                    Err(error) => {
                        Refusal::from(error).assert_benign(true);
                        continue;
                    }
                },
            };
            match stopwatch.timed(|| check_loaded(&table)) {
                Ok(true) => loaded_count += 1,
                Ok(false) => empty_count += 1,
                Err(error) => {
                    Refusal::from(error).assert_benign(true);
                    continue;
                }
            }
            *place = Some(table);
        }
    }
    drop(open);
    drop(session);
    eprintln!("{empty_count} {loaded_count} {}", stopwatch.0.as_nanos());
}

fn numbers(said: &[String]) -> Vec<u64> {
    let words = said.last().expect("its tally").split_whitespace();
    words.map(|word| word.parse().expect("a number")).collect()
}

/// Promise: processes may be killed between any two steps of creating, loading and dropping tables.
/// Others continue to load and read, no load is seen in part, and all memory is freed.
#[test]
fn killed_loaders_leave_nothing_behind() {
    let name = "loads::killed_loaders_leave_nothing_behind";
    run(name, Fabric::Shm, 0);
}

/// Promise: the same holds over tcp, where a load is many frames, any number of which may have been
/// sent when the process is killed.
#[test]
fn killed_loaders_leave_nothing_behind_over_tcp() {
    let name = "loads::killed_loaders_leave_nothing_behind_over_tcp";
    run(name, Fabric::Tcp, 0);
}

/// Promise: the same holds with so many tables that sweeps take longer than a loader lives: a load
/// that a loader commits during a sweep before it dies is not taken for an unfinished one.
#[test]
fn sweeps_keep_what_is_committed_while_they_run() {
    let name = "loads::sweeps_keep_what_is_committed_while_they_run";
    run(name, Fabric::Shm, 150);
}

fn run(name: &str, fabric: Fabric, other_table_count: u64) {
    scene(name, |_| {
        let node = Node::start(NodePlan::of_size(POOL_SIZE_MIB + other_table_count));
        let address = node.pool(fabric);
        let pool = Pool::open(&address).expect("the node serves");
        make_others(&pool, other_table_count);
        let mut dice = BoundedRandom::new(2);
        let start = |loader: u64, dice: &mut BoundedRandom| {
            let seed = dice.below(1 << 32);
            ChildProcess::start(ChildRole::Loader, &format!("{address} {loader} {seed}"))
        };
        let mut loaders: Vec<ChildProcess> = (0..LOADER_COUNT)
            .map(|loader| start(loader, &mut dice))
            .collect();
        let mut reader = ChildProcess::start(ChildRole::Reader, &address);
        let mean_us = run_seconds() * 1_000_000 / kill_count().max(1);
        for _ in 0..kill_count() {
            std::thread::sleep(Duration::from_micros(
                mean_us / 4 + dice.below(mean_us * 3 / 2),
            ));
            reader.assert_silent();
            loaders.iter_mut().for_each(ChildProcess::assert_silent);
            let loader = dice.below(LOADER_COUNT);
            let successor = start(loader, &mut dice);
            std::mem::replace(&mut loaders[loader as usize], successor).kill();
        }
        std::thread::sleep(Duration::from_millis(500));
        report(name, loaders, reader);
        check_nothing_is_left(&pool);
    });
}

/// Creates tables that no process uses, but that every sweep checks.
fn make_others(pool: &Pool, count: u64) {
    let session = pool.session().expect("a session");
    for other in 0..count {
        let table = session.create_table(&format!("other-{other}"), &TableOptions::default());
        let records = (0..RECORD_COUNT).map(|index| (even_key(index), other));
        let loaded = table.expect("a table").bulk_load(records, |_| {});
        loaded.expect("a load");
    }
}

fn report(name: &str, loaders: Vec<ChildProcess>, reader: ChildProcess) {
    let mut loaded_count = 0;
    let mut stall_ns_max = 0;
    for loader in loaders {
        let tally = numbers(&loader.end());
        loaded_count += tally[0];
        stall_ns_max = stall_ns_max.max(tally[1]);
    }
    let reads = numbers(&reader.end());
    eprintln!(
        "{name}: {} kills, {loaded_count} loads by the last loaders, worst step {:?}; the reader met \
         {} empty and {} loaded tables, worst step {:?}",
        kill_count(),
        Duration::from_nanos(stall_ns_max),
        reads[0],
        reads[1],
        Duration::from_nanos(reads[2]),
    );
}

fn check_nothing_is_left(pool: &Pool) {
    let pool_memory = PoolMemory::open();
    eventually("nobody leases a chunk", || {
        pool_memory
            .chunks()
            .iter()
            .all(|chunk| chunk.owner.is_free())
    });
    assert!(!pool_memory.is_catalog_locked());
    let session = pool.session().expect("a session");
    for table in session.list_tables().expect("the catalog") {
        let open = session.open_table(&table.name).expect("a table");
        check_loaded(&open).expect("a scan");
        let stats = open.stats().expect("a survey");
        assert!(stats.sound && stats.locked_leaves == 0, "{stats:?}");
        session.drop_table(&table.name).expect("a table");
    }
    session.close().expect("a session");
    eventually("all memory comes back", || {
        let usage = pool.usage().expect("a usage");
        (usage.used_bytes, usage.table_count, usage.session_count) == (0, 0, 1)
    });
    let session = pool.session().expect("a session");
    let start = Instant::now();
    let table = session.create_table("after", &TableOptions::default());
    table.expect("a table").put(1, 1).expect("a put");
    assert!(start.elapsed() < Duration::from_secs(1));
}
