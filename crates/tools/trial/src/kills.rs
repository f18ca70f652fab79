//! Primaries that are killed under load.

use std::thread;
use std::time::Duration;

use farleaf_client::PersistentTable;
use farleaf_cluster::admin;
use farleaf_cluster::record::WishKind;
use farleaf_cluster::record::region::Key;

use crate::fleet::{Fleet, wait_regions};
use crate::load::{CLIENT_COUNT, KEY_COUNT, Trial, key_of, wait_served};

/// Leases are of a second; then somebody else is to serve.
pub const AWAY_TIME_MAX: Duration = Duration::from_secs(5);
/// Clients work so long before a kill.
const WORK_TIME: Duration = Duration::from_millis(300);
/// How many processes a run with kills loses: a short run, and others.
const COUNT: (u64, &str) = (3, "FARLEAF_TEST_KILLS");

fn kill_count() -> u64 {
    let (default, name) = COUNT;
    std::env::var(name).map_or(default, |text| {
        let count = text.parse();
        count.unwrap_or_else(|error| panic!("{name} is '{text}': {error}"))
    })
}

/// Kills the server that is primary of a table's first region, `FARLEAF_TEST_KILLS` times (3),
/// under load. Each time all regions are served again in [`AWAY_TIME_MAX`], and what was done is
/// linearizable. Tells the figures.
///
/// # Panics
/// It is not so.
pub fn primaries(fleet: &mut Fleet, table: &PersistentTable, trial: Trial) {
    fleet.wait_whole(table, 3);
    let mut away = Vec::new();
    let clients = vec![table.clone(); CLIENT_COUNT];
    trial.run(&clients, || {
        for _ in 0..kill_count() {
            thread::sleep(WORK_TIME);
            let primary = fleet.primary(table).expect("the region has one");
            fleet.kill(primary);
            away.push(wait_served(table));
            fleet.start_server(primary);
            fleet.wait_whole(table, 3);
        }
    });
    away.sort();
    let (done_count, unknown_count) = (trial.done_count(), trial.unknown_count());
    eprintln!(
        "{} kills: away {:?} (median), {:?} (longest); {done_count} operations done, \
         {unknown_count} unknown",
        away.len(),
        away[away.len() / 2],
        away[away.len() - 1]
    );
    assert!(away.iter().all(|away| *away < AWAY_TIME_MAX), "{away:?}");
    assert!(done_count > 100, "{done_count}");
    trial.judge(table);
}

/// Wishes for splits under load, `FARLEAF_TEST_KILLS` times (3), and kills a server in the middle
/// of each: mostly the primary. The split was, or it was not; what was done is linearizable. Tells
/// the figures.
///
/// # Panics
/// It is not so.
pub fn splits(fleet: &mut Fleet, table: &PersistentTable, trial: Trial) {
    fleet.wait_whole(table, 3);
    let clients = vec![table.clone(); CLIENT_COUNT];
    trial.run(&clients, || {
        for round in 0..kill_count() {
            thread::sleep(WORK_TIME);
            wish_split(fleet, table, key_of(round * 7 % KEY_COUNT));
            // From before it is begun until it is done.
            thread::sleep(Duration::from_millis(round * 13 % 120));
            let killed = match fleet.primary(table) {
                Some(primary) if round % 3 < 2 => primary,
                _ => (round % 3) as usize,
            };
            fleet.kill(killed);
            wait_served(table);
            fleet.start_server(killed);
            fleet.wait_whole(table, 3);
        }
        // And one that nobody hinders.
        let before = fleet.view().regions_of(table.id()).len();
        wish_split(fleet, table, b"45-free".to_vec());
        wait_regions(&fleet.coordinator, table, |view, _| {
            view.regions_of(table.id()).len() > before
        });
        fleet.wait_whole(table, 3);
    });
    eprintln!(
        "{} regions; {} operations done, {} unknown",
        fleet.view().regions_of(table.id()).len(),
        trial.done_count(),
        trial.unknown_count()
    );
    trial.judge(table);
}

/// Wishes that the region which has a key be split there.
fn wish_split(fleet: &Fleet, table: &PersistentTable, at: Vec<u8>) {
    let view = fleet.view();
    let regions = view.regions_of(table.id());
    let found = regions.iter().find(|region| region.covers(&at));
    let kind = WishKind::Split {
        table: table.id(),
        region: found.expect("every key is in a region").region,
        at: Key(at),
    };
    admin::wish(&fleet.coordinator, kind).expect("the coordinator is there");
}
