//! Program of the README: a pool, a table, a few records. Run it with `cargo run -p farleaf
//! --example first_table`.

use farleaf::{Pool, Swap, TableOptions};

fn main() -> Result<(), farleaf::Error> {
    // "shm:NAME" and "tcp:HOST:PORT" are served by `farleaf serve`; "mem:" is private to this
    // process.
    let pool = Pool::open("mem:")?;
    let session = pool.session()?; // one per thread
    let table = session.create_table("planets", &TableOptions::default())?;

    table.put(3, 12_742)?;
    table.put(5, 139_820)?;
    assert_eq!(table.get(3)?, Some(12_742));
    assert_eq!(
        table.compare_and_swap(3, Some(12_742), Some(12_756))?,
        Swap::Swapped
    );

    for record in table.range(4..) {
        let (planet, diameter_km) = record?;
        println!("{planet}: {diameter_km} km");
    }
    table.get(3)?;
    let cost = session.last_cost();
    println!(
        "a get: {} round trip, {} bytes",
        cost.round_trips, cost.bytes_read
    );
    Ok(())
}
