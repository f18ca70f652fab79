//! Uses a table in a pool of several nodes and checks every result while an operator drains or
//! kills nodes.
//!
//! ```text
//! cargo run --release -p farleaf --example several_nodes -- tcp:HOST:PORT RECORDS SECONDS
//! ```
//!
//! Loads RECORDS records into a table `several`, unless it exists. Then, for SECONDS, three threads
//! get the loaded records and put others between them. Every result must be right, or an error that
//! the key's node is lost. At the end, the whole table is scanned unless a node was lost.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use farleaf::{Error, ErrorKind, Pool, Table, TableOptions};

const TABLE: &str = "several";
const THREAD_COUNT: u64 = 3;

/// Results of the threads.
#[derive(Default)]
struct WorkCounts {
    get_count: AtomicU64,
    put_count: AtomicU64,
    lost_count: AtomicU64,
    wrong_count: AtomicU64,
    worst_ns: AtomicU64,
}

/// Returns a loaded key. Keys have gaps in which the threads put others.
fn key(number: u64) -> u64 {
    number * 16 + (number / 1000) * (number / 1000)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, records, seconds] = &arguments[..] else {
        eprintln!("usage: several_nodes tcp:HOST:PORT RECORDS SECONDS");
        return ExitCode::from(2);
    };
    let (Ok(records @ 1..), Ok(seconds)) = (records.parse::<u64>(), seconds.parse()) else {
        eprintln!("RECORDS and SECONDS must be numbers");
        return ExitCode::from(2);
    };
    match run(address, records, Duration::from_secs(seconds)) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(wrong_count) => {
            eprintln!("{wrong_count} results were wrong");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(address: &str, records: u64, time: Duration) -> Result<u64, Error> {
    let pool = Pool::open(address)?;
    let session = pool.session()?;
    let table = if let Ok(table) = session.open_table(TABLE) {
        table
    } else {
        let table = session.create_table(TABLE, &TableOptions::default())?;
        table.bulk_load((0..records).map(|number| (key(number), number)), |_| {})?;
        table
    };
    show(&pool)?;
    let met = WorkCounts::default();
    let until = Instant::now() + time;
    std::thread::scope(|scope| {
        let work = |thread| {
            let (pool, met) = (&pool, &met);
            scope.spawn(move || work(pool, thread, records, until, met))
        };
        let threads: Vec<_> = (0..THREAD_COUNT).map(work).collect();
        threads.into_iter().try_for_each(|thread| {
            let ended = thread.join();
            ended.expect("a thread counts what is wrong, and goes on")
        })
    })?;
    show(&pool)?;
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    println!(
        "{} gets, {} puts, {} of lost keys, {} wrong; the longest took {:?}",
        count(&met.get_count),
        count(&met.put_count),
        count(&met.lost_count),
        count(&met.wrong_count),
        Duration::from_nanos(count(&met.worst_ns))
    );
    if count(&met.lost_count) == 0 {
        check_all(&table, records, &met)?;
    }
    Ok(count(&met.wrong_count))
}

/// Checks that no loaded record is missing and that keys ascend.
fn check_all(table: &Table, records: u64, met: &WorkCounts) -> Result<(), Error> {
    let mut next = 0;
    let mut last = None;
    for record in table.range(..) {
        let (found, value) = record?;
        let is_wrong = last.is_some_and(|last| found <= last);
        last = Some(found);
        if is_wrong || next < records && found > key(next) {
            met.wrong_count.fetch_add(1, Ordering::Relaxed);
        }
        if next < records && found == key(next) && value == next {
            next += 1;
        }
    }
    println!("found {next} of {records} loaded records");
    met.wrong_count.fetch_add(records - next, Ordering::Relaxed);
    Ok(())
}

fn work(
    pool: &Pool,
    thread: u64,
    records: u64,
    until: Instant,
    met: &WorkCounts,
) -> Result<(), Error> {
    let session = pool.session()?;
    let table = session.open_table(TABLE)?;
    let mut random = thread + 1;
    while Instant::now() < until {
        random = random * 48_271 % 2_147_483_647;
        let number = random * 131 % records;
        let own = key(number) + 1 + thread;
        let started_at = Instant::now();
        let (counter, outcome) = if random.is_multiple_of(4) {
            let put = table.put(own, random);
            (
                &met.put_count,
                put.and_then(|_| Ok(table.get(own)? == Some(random))),
            )
        } else {
            let found = table.get(key(number));
            (&met.get_count, found.map(|found| found == Some(number)))
        };
        let spent = started_at.elapsed().as_nanos() as u64;
        met.worst_ns.fetch_max(spent, Ordering::Relaxed);
        let counter = match outcome {
            Ok(true) => counter,
            Ok(false) => &met.wrong_count,
            Err(error) if matches!(error.kind(), ErrorKind::NodeLost { .. }) => &met.lost_count,
            Err(error) => return Err(error),
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

fn show(pool: &Pool) -> Result<(), Error> {
    for node in pool.nodes()? {
        let (number, state) = (node.number, node.state);
        match node.used_bytes.map(|used_bytes| used_bytes >> 20) {
            Some(used_mib) => println!("node {number}: {state}, {used_mib} MiB in use"),
            None => println!("node {number}: {state}"),
        }
    }
    Ok(())
}
