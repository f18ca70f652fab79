//! Tests of clusters whose servers all end at the same moment, by a signal or killed.

use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use crate::cluster::Crew;
use crate::pool::lines;

/// Loads records whose keys begin with a number that no earlier load used. Returns all lines of the
/// file.
fn load(crew: &Crew, round: usize) -> String {
    let records = (0..300).map(|number| format!("{round}-{number:03}\tv{number}"));
    let records = lines(records);
    crew.place.file("records", &records);
    crew.run(&["load", "records", "-t", "t"]);
    records
}

fn crew_with_a_table() -> Crew {
    let crew = Crew::new(3);
    crew.run(&[
        "table",
        "create",
        "t",
        "--engine",
        "lsm",
        "--split-at",
        "2",
        "--split-at",
        "4",
    ]);
    crew.wait_whole();
    crew
}

/// Promise: SIGHUP, SIGINT and SIGTERM, sent to all servers at the same moment, right after records
/// were acknowledged, lose none of them. Each server logs that it stopped.
#[test]
fn servers_that_stop_together_lose_nothing() {
    let mut crew = crew_with_a_table();
    let mut records = String::new();
    for (round, signal) in [Signal::HUP, Signal::INT, Signal::TERM].iter().enumerate() {
        records += &load(&crew, round);
        crew.servers.iter().for_each(|it| it.signal(Signal::USR1));
        crew.servers.iter().for_each(|it| it.signal(*signal));
        for server in &mut crew.servers {
            let (status, log) = server.end();
            assert_eq!(status, Some(0), "{signal:?}: {log}");
            assert!(log.contains("stopped address="), "{signal:?}: {log}");
            assert!(
                !log.contains("cannot write the latest data"),
                "{signal:?}: {log}"
            );
        }
        crew.restart_all(&[1, 2, 3]);
        assert!(crew.run(&["dump", "-t", "t"]) == records, "{signal:?}");
    }
}

/// Promise: records acknowledged with `memory` 250 ms before the processes of all servers are
/// killed at the same moment survive a restart, in any order of the servers.
#[test]
fn servers_that_are_killed_together_lose_nothing_older() {
    let mut crew = crew_with_a_table();
    let mut records = String::new();
    let orders = [
        [1, 2, 3],
        [3, 2, 1],
        [2, 1, 3],
        [2, 3, 1],
        [1, 3, 2],
        [3, 1, 2],
    ];
    for (round, order) in orders.iter().enumerate() {
        records += &load(&crew, round);
        thread::sleep(Duration::from_millis(250));
        crew.servers.iter().for_each(|it| it.signal(Signal::KILL));
        for server in &mut crew.servers {
            assert_eq!(server.end().0, None);
        }
        crew.restart_all(order);
        assert!(crew.run(&["dump", "-t", "t"]) == records, "{order:?}");
        // Otherwise some members are not in sync when the next loss happens.
        crew.wait_whole();
    }
}
