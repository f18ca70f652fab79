//! Trials that kill servers under load.

use std::thread;
use std::time::Duration;

use farleaf_client::PersistentTable;
use farleaf_cluster::admin;
use farleaf_cluster::record::AdminRequestKind;
use farleaf_cluster::record::region::Key;

use crate::fleet::{ProcessCluster, wait_regions};
use crate::load::{CLIENT_COUNT, KEY_COUNT, Trial, key_of, wait_served};

/// Longest time until all regions are served again after a kill. Leases take one second.
pub const AWAY_TIME_MAX: Duration = Duration::from_secs(5);
/// Time for which clients work before a kill.
const WORK_TIME: Duration = Duration::from_millis(300);
/// Number of kills in a short run, and the environment variable that changes it.
const COUNT: (u64, &str) = (3, "FARLEAF_TEST_KILLS");

fn kill_count() -> u64 {
    let (default, name) = COUNT;
    std::env::var(name).map_or(default, |text| {
        let count = text.parse();
        count.unwrap_or_else(|error| panic!("invalid value '{text}' of {name}: {error}"))
    })
}

/// Kills the server that is primary of a table's first region, `FARLEAF_TEST_KILLS` times (3),
/// under load. Each time all regions are served again within [`AWAY_TIME_MAX`], and the history is
/// linearizable. Prints the times.
///
/// # Panics
/// If a promise is broken.
pub fn primaries(fleet: &mut ProcessCluster, table: &PersistentTable, trial: Trial) {
    fleet.wait_replicated(table, 3);
    let mut away = Vec::new();
    let clients = vec![table.clone(); CLIENT_COUNT];
    trial.run(&clients, || {
        for _ in 0..kill_count() {
            thread::sleep(WORK_TIME);
            let primary = fleet.primary(table).expect("the region has one");
            fleet.kill(primary);
            away.push(wait_served(table));
            fleet.start_server(primary);
            fleet.wait_replicated(table, 3);
        }
    });
    away.sort();
    let (done_count, unknown_count) = (trial.done_count(), trial.unknown_count());
    eprintln!(
        "{} kills: unavailable for {:?} (median), {:?} (longest); {done_count} operations \
         completed, {unknown_count} with unknown outcome",
        away.len(),
        away[away.len() / 2],
        away[away.len() - 1]
    );
    assert!(away.iter().all(|away| *away < AWAY_TIME_MAX), "{away:?}");
    assert!(done_count > 100, "{done_count}");
    trial.check_history(table);
}

/// Requests splits under load, `FARLEAF_TEST_KILLS` times (3), and kills a server, usually the
/// primary, during each. The split takes place or not, and the history is linearizable. Prints the
/// times.
///
/// # Panics
/// If a promise is broken.
pub fn splits(fleet: &mut ProcessCluster, table: &PersistentTable, trial: Trial) {
    fleet.wait_replicated(table, 3);
    let clients = vec![table.clone(); CLIENT_COUNT];
    trial.run(&clients, || {
        for round in 0..kill_count() {
            thread::sleep(WORK_TIME);
            request_split(fleet, table, key_of(round * 7 % KEY_COUNT));
            // From before the split begins until it has ended.
            thread::sleep(Duration::from_millis(round * 13 % 120));
            let killed = match fleet.primary(table) {
                Some(primary) if round % 3 < 2 => primary,
                _ => (round % 3) as usize,
            };
            fleet.kill(killed);
            wait_served(table);
            fleet.start_server(killed);
            fleet.wait_replicated(table, 3);
        }
        // Then a split without a kill.
        let before = fleet.view().regions_of(table.id()).len();
        request_split(fleet, table, b"45-free".to_vec());
        wait_regions(&fleet.coordinator, table, |view, _| {
            view.regions_of(table.id()).len() > before
        });
        fleet.wait_replicated(table, 3);
    });
    eprintln!(
        "{} regions; {} operations completed, {} with unknown outcome",
        fleet.view().regions_of(table.id()).len(),
        trial.done_count(),
        trial.unknown_count()
    );
    trial.check_history(table);
}

/// Requests that the region of a key is split there.
fn request_split(fleet: &ProcessCluster, table: &PersistentTable, at: Vec<u8>) {
    let view = fleet.view();
    let regions = view.regions_of(table.id());
    let found = regions.iter().find(|region| region.covers(&at));
    let kind = AdminRequestKind::Split {
        table: table.id(),
        region: found.expect("every key is in a region").region,
        at: Key(at),
    };
    admin::admin_request(&fleet.coordinator, kind).expect("the coordinator is there");
}
