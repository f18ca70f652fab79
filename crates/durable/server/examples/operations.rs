//! Throughput of a cluster of region servers in one process. Only ratios are meaningful.
//!
//! ```text
//! cargo run --release -p farleaf-server --example operations
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use farleaf_client::{ClientOptions, Cluster, Durability, PersistentTable, PersistentTableOptions};
use farleaf_cluster::admin;
use farleaf_cluster::coordinator::{Embedded, SharedCoordinator};
use farleaf_net::secret::Secret;
use farleaf_server::{RegionServer, ServerOptions};

const VALUE_SIZE_BYTES: usize = 100;
const KEY_COUNT: u64 = 100_000;
const TIME: Duration = Duration::from_secs(2);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("replicas  clients  kind          op/s   us, mean");
    for replica_count in [1, 2, 3] {
        let scratch = tempfile::tempdir()?;
        let coordinator = SharedCoordinator::new(Embedded::default(), "here");
        admin::create_cluster(&coordinator)?;
        let secret = Some(Secret::from_text("a secret of this process")?);
        let mut servers = Vec::new();
        for index in 0..replica_count {
            let mut options = ServerOptions::new(&scratch.path().join(index.to_string()));
            options.secret.clone_from(&secret);
            servers.push(RegionServer::start(coordinator.clone(), &options)?);
        }
        let options = ClientOptions {
            secret,
            ..ClientOptions::default()
        };
        let cluster = Cluster::new(coordinator, options);
        let options = PersistentTableOptions {
            replica_count,
            split_keys: Vec::new(),
        };
        let table = cluster.create_table("t", &options)?;
        let table = table.with_durability(Durability::Memory);
        // Until all replicas exist.
        table.put(b"first", b"")?;
        thread::sleep(Duration::from_secs(1));
        for client_count in [1, 8] {
            for kind in ["put", "get", "put of 100", "scan of 100"] {
                let count = run(&table, client_count, kind);
                let per_second = count as f64 / TIME.as_secs_f64();
                let mean_us = client_count as f64 * 1e6 / per_second.max(1.0);
                println!(
                    "{replica_count:8} {client_count:8}  {kind:12} {per_second:8.0} {mean_us:10.1}"
                );
            }
        }
    }
    Ok(())
}

/// Returns the number of operations that clients complete in a fixed time.
fn run(table: &PersistentTable, client_count: u64, kind: &str) -> u64 {
    let done = AtomicU64::new(0);
    let since = Instant::now();
    thread::scope(|scope| {
        for client in 0..client_count {
            let (table, done) = (table.clone(), &done);
            scope.spawn(move || {
                let value = [7; VALUE_SIZE_BYTES];
                let mut number = client;
                let mut next = || {
                    number = number.wrapping_mul(6_364_136_223_846_793_005) + 1442;
                    format!("{:08}", (number >> 33) % KEY_COUNT).into_bytes()
                };
                while since.elapsed() < TIME {
                    let key = next();
                    match kind {
                        "put" => table.put(&key, &value).expect("put"),
                        "get" => drop(table.get(&key).expect("got")),
                        "scan of 100" => drop(table.scan(&key, None, 100).expect("scanned")),
                        _ => {
                            let records: Vec<_> = (0..100).map(|_| (next(), value)).collect();
                            table.multi_put(&records).expect("put");
                        }
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    done.into_inner()
}
