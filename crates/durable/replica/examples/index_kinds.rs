//! Work of a backup that receives trees, and of one that builds them: the same updates of the same
//! records, over memory of this process, on files.
//!
//! `cargo run --release -p farleaf-replica --example index_kinds [RECORDS [WRITES]]`

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use farleaf_base::{NodeId, WordAddr};
use farleaf_fabric::mapped::{MappedEndpoint, MappedMemory};
use farleaf_lsm::engine::WorkDone;
use farleaf_lsm::follow::IndexKind;
use farleaf_lsm::storage::DirectoryStorage;
use farleaf_lsm::{Durability, Engine, EngineOptions};
use farleaf_replica::{
    Backup, BackupConnections, BackupCounts, BackupId, BackupOptions, Epoch, Layout, Primary,
    PrimaryWorkDone, ReplicationOptions,
};

const VALUE_SIZE_BYTES: usize = 100;

/// Cost of one kind of index.
struct Cost {
    time: Duration,
    network_log_size_bytes: u64,
    network_index_size_bytes: u64,
    backup: BackupCounts,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |otherwise: u64| -> Result<u64, Box<dyn Error>> {
        Ok(match arguments.next() {
            Some(text) => text.parse()?,
            None => otherwise,
        })
    };
    let (record_count, write_count) = (number(500_000)?, number(2_000_000)?);
    println!("{write_count} writes of {VALUE_SIZE_BYTES} bytes to {record_count} keys, one backup");
    let sent = run(IndexKind::Sent, record_count, write_count)?;
    let built = run(IndexKind::Built, record_count, write_count)?;
    println!("{:<44}{:>14}{:>14}", "", "sent", "built");
    let row = |name: &str, of: &dyn Fn(&Cost) -> String| {
        println!("{name:<44}{:>14}{:>14}", of(&sent), of(&built));
    };
    let mebibytes = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let seconds = |time_ns: u64| format!("{:.2} s", time_ns as f64 / 1e9);
    row("time", &|it| format!("{:.2} s", it.time.as_secs_f64()));
    row("network, log", &|it| mebibytes(it.network_log_size_bytes));
    row("network, trees", &|it| {
        mebibytes(it.network_index_size_bytes)
    });
    row("backup: flushes", &|it| {
        it.backup.work.flush_count.to_string()
    });
    row("backup: merges", &|it| {
        it.backup.work.merge_count.to_string()
    });
    row("backup: log written", &|it| {
        mebibytes(it.backup.work.log.written)
    });
    row("backup: log read", &|it| mebibytes(it.backup.work.log.read));
    row("backup: trees written", &|it| {
        mebibytes(it.backup.work.trees.written)
    });
    row("backup: trees read", &|it| {
        mebibytes(it.backup.work.trees.read)
    });
    row("backup: time with the log", &|it| {
        seconds(it.backup.log_time_ns)
    });
    row("backup: part of it for inserts into L0", &|it| {
        seconds(it.backup.feed_time_ns)
    });
    row("backup: time with received trees, edits", &|it| {
        seconds(it.backup.request_time_ns)
    });
    row("backup: time with flushes and merges", &|it| {
        seconds(it.backup.maintain_time_ns)
    });
    Ok(())
}

fn run(index: IndexKind, record_count: u64, write_count: u64) -> Result<Cost, Box<dyn Error>> {
    let directories = [tempfile::tempdir()?, tempfile::tempdir()?];
    let engine_options = EngineOptions {
        l0_entry_count_max: 50_000,
        ..EngineOptions::new()
    };
    let storage = |at: usize| DirectoryStorage::open(directories[at].path()).map(Arc::new);
    let layout = Layout::new(WordAddr::new(NodeId(0), 0), 4).ok_or("two buffers are the least")?;
    let memory = Arc::new(MappedMemory::anonymous(layout.word_count() * 8)?);
    let endpoint = || MappedEndpoint::new(Arc::clone(&memory));
    let options = BackupOptions {
        engine: engine_options.clone(),
        ..BackupOptions::default()
    };
    let mut backup = Backup::new(endpoint(), layout, Epoch(1), storage(1)?, options)?;
    let engine = Engine::open(storage(0)?, engine_options)?;
    let options = ReplicationOptions {
        index,
        ..ReplicationOptions::new()
    };
    let primary = Primary::new(engine, Epoch(1), options);
    let (is_written, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    let (time, backup) = thread::scope(|scope| {
        let server = scope.spawn(|| {
            loop {
                // Pending work is finished when nothing more arrives.
                let was_over = is_over.load(Ordering::Acquire);
                match backup.serve() {
                    Ok(true) => {}
                    Ok(false) if was_over => return backup,
                    Ok(false) => thread::sleep(Duration::from_micros(50)),
                    Err(error) => panic!("{error}"),
                }
            }
        });
        let connections = BackupConnections {
            log: endpoint(),
            index: endpoint(),
            layout,
        };
        primary
            .add_backup(BackupId(1), connections)
            .expect("filled");
        let worker = scope.spawn(|| {
            loop {
                let was_over = is_written.load(Ordering::Acquire);
                let worked = primary.maintain().expect("background work");
                if worked == PrimaryWorkDone::Engine(WorkDone::Nothing) {
                    if was_over {
                        return;
                    }
                    thread::sleep(Duration::from_millis(1));
                }
            }
        });
        let time = write(&primary, record_count, write_count);
        is_written.store(true, Ordering::Release);
        worker.join().expect("no panic");
        // Until then the backup gets requests.
        is_over.store(true, Ordering::Release);
        (time, server.join().expect("no panic"))
    });
    let status = &primary.status().backups[0];
    Ok(Cost {
        time,
        network_log_size_bytes: status.log_size_bytes,
        network_index_size_bytes: status.index_size_bytes,
        backup: backup.counts(),
    })
}

/// Puts keys in an order in which neighbors are far apart.
fn write(primary: &Primary<MappedEndpoint>, record_count: u64, write_count: u64) -> Duration {
    let start = Instant::now();
    let mut value = [0; VALUE_SIZE_BYTES];
    for number in 0..write_count {
        let key = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) % record_count;
        value[..8].copy_from_slice(&number.to_le_bytes());
        let put = primary.put(&key.to_be_bytes(), &value, Durability::Memory);
        put.expect("acknowledged");
    }
    start.elapsed()
}
