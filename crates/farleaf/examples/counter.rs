//! Several threads advance one counter with compare-and-swap, and no increment is lost.
//!
//! A session belongs to one thread, so each thread opens its own. Run it with `cargo run -p farleaf
//! --example counter`.

use std::thread::{self, ScopedJoinHandle};

use farleaf::{Error, Pool, Swap, Table, TableOptions};

const COUNTER_KEY: u64 = 7;
const THREAD_COUNT: u64 = 4;
const INCREMENT_COUNT: u64 = 1_000;

fn main() -> Result<(), Error> {
    let pool = Pool::open("mem:")?;
    let session = pool.session()?;
    let table = session.create_table("counters", &TableOptions::default())?;
    table.put(COUNTER_KEY, 0)?;

    let retry_count = thread::scope(|scope| {
        let work = || {
            let session = pool.session()?;
            let table = session.open_table("counters")?;
            let retries = (0..INCREMENT_COUNT).map(|_| increment(&table));
            retries.sum::<Result<u64, Error>>()
        };
        let threads: Vec<_> = (0..THREAD_COUNT).map(|_| scope.spawn(work)).collect();
        let ended = threads.into_iter().map(ScopedJoinHandle::join);
        ended
            .map(|ended| ended.expect("no thread panics"))
            .sum::<Result<u64, Error>>()
    })?;

    let value = table.get(COUNTER_KEY)?;
    assert_eq!(value, Some(THREAD_COUNT * INCREMENT_COUNT));
    println!("{THREAD_COUNT} threads, {INCREMENT_COUNT} increments each");
    println!("counter: {}", value.unwrap_or_default());
    println!("swaps retried because they found another value: {retry_count}");
    Ok(())
}

/// Adds one to the counter, and returns how often another thread changed it first.
fn increment(table: &Table) -> Result<u64, Error> {
    let mut expected = table.get(COUNTER_KEY)?;
    let mut retry_count = 0;
    loop {
        let new = expected.unwrap_or(0) + 1;
        match table.compare_and_swap(COUNTER_KEY, expected, Some(new))? {
            Swap::Swapped => return Ok(retry_count),
            Swap::Differs(found) => expected = found,
        }
        retry_count += 1;
    }
}
