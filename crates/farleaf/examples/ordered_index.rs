//! Index of events by time: a bulk load, ranges, and lookups at times without events.
//!
//! Keys are milliseconds, values are event numbers. Run it with `cargo run -p farleaf --example
//! ordered_index`.

use farleaf::{Error, Pool, Session, TableOptions};

const EVENT_COUNT: u64 = 100_000;
const START_MS: u64 = 1_700_000_000_000;
/// Events per burst; they are a second apart within a burst.
const BURST_COUNT: u64 = 50;
const STEP_MS: u64 = 1_000;
const PAUSE_MS: u64 = 3_600_000;

fn time_of(event: u64) -> u64 {
    START_MS + event * STEP_MS + event / BURST_COUNT * PAUSE_MS
}

fn main() -> Result<(), Error> {
    let pool = Pool::open("mem:")?;
    let session = pool.session()?;
    let table = session.create_table("events", &TableOptions::default())?;
    let events = (0..EVENT_COUNT).map(|event| (time_of(event), event));
    let summary = table.bulk_load(events, |_| {})?;
    assert_eq!(summary.record_count, EVENT_COUNT);
    println!(
        "loaded {} events into {} leaves under {} models",
        summary.record_count, summary.leaf_count, summary.model_count
    );

    // The event at a time, and the one just before it.
    let time = time_of(12_345);
    assert_eq!(table.get(time)?, Some(12_345));
    tell_cost(&session, "a get");
    assert_eq!(table.get(time - 1)?, None);

    // All events of one burst. The range ends at a time without an event.
    let burst = time_of(200 * BURST_COUNT)..time_of(201 * BURST_COUNT) - PAUSE_MS / 2;
    let events = table.range(burst).collect::<Result<Vec<_>, _>>()?;
    assert_eq!(events.len() as u64, BURST_COUNT);
    assert!(events.windows(2).all(|pair| pair[0].0 < pair[1].0));
    println!("burst 200 has events {} to {}", events[0].1, events[49].1);

    // The next event after a time in a pause.
    let in_pause = time_of(201 * BURST_COUNT) - 1;
    assert_eq!(table.get(in_pause)?, None);
    let next = table.scan(in_pause, 1).next().transpose()?;
    assert_eq!(next, Some((in_pause + 1, 201 * BURST_COUNT)));
    println!("the first event after the pause is {}", 201 * BURST_COUNT);

    // New events need no new training, and do not wait for one.
    table.put(in_pause, EVENT_COUNT)?;
    let next = table.scan(in_pause, 1).next().transpose()?;
    assert_eq!(next, Some((in_pause, EVENT_COUNT)));

    let mut page = Vec::new();
    table.scan_into(START_MS, 100, &mut page)?;
    assert_eq!((page.len(), page[99]), (100, (time_of(99), 99)));
    tell_cost(&session, "a scan of 100");
    println!("metadata: {} bytes", table.metadata_bytes());
    Ok(())
}

fn tell_cost(session: &Session, what: &str) {
    let cost = session.last_cost();
    println!(
        "{what}: {} round trip(s), {} bytes read",
        cost.round_trips, cost.bytes_read
    );
}
