//! Two processes that share one table; one of them is killed in the middle of its work.
//!
//! The parent creates a pool in shared memory under its own name and starts itself again as a
//! child. The child opens the pool by its address, writes, reports what it wrote, and continues to
//! write until it is killed. All reported records are there, and locks that the child held do not
//! block the parent. Run it with `cargo run -p farleaf --example shared_table`.

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use farleaf::{EmbeddedFabric, Pool, PoolOptions, Table, TableOptions};

const RECORD_COUNT: u64 = 1_000;

fn main() -> Result<(), Box<dyn Error>> {
    match std::env::args().nth(1) {
        Some(address) => child(&address),
        None => parent(),
    }
}

fn parent() -> Result<(), Box<dyn Error>> {
    let pool = Pool::embedded(&PoolOptions {
        fabric: EmbeddedFabric::Shm { name: None },
        size_bytes: 16 << 20,
        ..PoolOptions::default()
    })?;
    let session = pool.session()?;
    let table = session.create_table("shared", &TableOptions::default())?;
    table.put(0, 1)?;

    let mut child = Command::new(std::env::current_exe()?)
        .arg(&pool.info().address)
        .stdout(Stdio::piped())
        .spawn()?;
    let output = child.stdout.take().ok_or("the child has no output")?;
    let said = BufReader::new(output).lines().next();
    // Kill the child whatever it reported.
    child.kill()?;
    child.wait()?;
    let said = said.ok_or("the child ended too early")??;
    assert_eq!(said, format!("child: wrote {RECORD_COUNT} records"));
    println!("{said}");
    println!("parent: the child was killed while it wrote");

    assert_eq!(table.get(0)?, Some(2), "the child's first write");
    let found = table
        .range(1..=RECORD_COUNT)
        .collect::<Result<Vec<_>, _>>()?;
    assert!(
        found
            .iter()
            .copied()
            .eq((1..=RECORD_COUNT).map(|key| (key, key * key)))
    );
    println!("parent: found all {} of them", found.len());
    overwrite(&table, 3)?;
    assert!(table.stats()?.sound);
    println!("parent: every record can be written");
    Ok(())
}

/// Overwrites every key, recovering any locks that the dead child has left.
fn overwrite(table: &Table, value: u64) -> Result<(), farleaf::Error> {
    (0..=RECORD_COUNT).try_for_each(|key| table.put(key, value).map(drop))?;
    let records = table
        .range(..=RECORD_COUNT)
        .collect::<Result<Vec<_>, _>>()?;
    assert_eq!(records.len() as u64, RECORD_COUNT + 1);
    assert!(records.iter().all(|(_, found)| *found == value));
    Ok(())
}

fn child(address: &str) -> Result<(), Box<dyn Error>> {
    let pool = Pool::open(address)?;
    let session = pool.session()?;
    let table = session.open_table("shared")?;
    assert_eq!(table.put(0, 2)?, Some(1), "the parent's record");
    for key in 1..=RECORD_COUNT {
        table.insert(key, key * key)?;
    }
    println!("child: wrote {RECORD_COUNT} records");
    // Runs until the process is killed. These keys are beyond those that the parent reads, but may
    // be in the same leaves.
    for round in 0_u64.. {
        table.put(RECORD_COUNT + 1 + round % RECORD_COUNT, round)?;
    }
    Ok(())
}
