//! Replicas that move, under load.

use std::time::{Duration, Instant};

use farleaf_client::PersistentTable;
use farleaf_cluster::admin;
use farleaf_cluster::ids::ServerId;
use farleaf_cluster::record::{Phase, WishAnswer, WishKind};
use farleaf_trial::fleet::{view, wait_regions};
use farleaf_trial::load::CLIENT_COUNT;
use farleaf_trial::{Course, Trial};

use crate::crew::Crew;

/// Promise (CP20): a server that is drained under load has nothing any more, and gets something
/// again when it is not drained any more; what was seen is linearizable. (A write that took effect
/// and was not acknowledged when its primary stopped has an unknown outcome.)
#[test]
fn servers_are_drained() {
    let crew = Crew::new(4);
    let table = crew.table(3, true);
    let trial = Trial::new(Course::Served);
    trial.run(&vec![table.clone(); CLIENT_COUNT], || {
        for index in 0..2 {
            let server = ServerId(index + 1);
            trial.wait_done(50);
            admin::set_drain(&crew.coordinator, server, true).expect("embedded");
            wait_regions(&crew.coordinator, &table, |_, region| {
                region.replicas().all(|it| it.server != server)
            });
            crew.wait_whole(&table, 3);
            admin::set_drain(&crew.coordinator, server, false).expect("embedded");
        }
        trial.wait_done(50);
    });
    trial.judge(&table);
}

fn wait_answer(crew: &Crew, number: admin::WishNumber) -> WishAnswer {
    let since = Instant::now();
    loop {
        let answer = admin::answer(&crew.coordinator, number).expect("embedded");
        if let Some(answer) = answer {
            return answer;
        }
        assert!(since.elapsed() < Duration::from_secs(30), "no answer");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Moves the primary of a table's first region to another server.
fn move_primary(crew: &Crew, table: &PersistentTable, to_spare: bool) {
    let view = view(&crew.coordinator);
    let region = view.regions_of(table.id())[0].clone();
    let from = region.primary.expect("it has one").server;
    let others = (1..=4).map(ServerId).filter(|it| *it != from);
    let mut others = others.filter(|it| region.replica_on(*it).is_none() == to_spare);
    let to = others.next().expect("there are four servers");
    let kind = WishKind::Move {
        table: table.id(),
        region: region.region,
        from,
        to,
    };
    let since = Instant::now();
    loop {
        let number = admin::wish(&crew.coordinator, kind.clone()).expect("embedded");
        match wait_answer(crew, number) {
            WishAnswer::Begun => break,
            // The primary of the move before opens still.
            WishAnswer::Refused(how) => assert_eq!(how, "nobody serves the region now"),
        }
        assert!(
            since.elapsed() < Duration::from_secs(30),
            "it does not open"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    wait_regions(&crew.coordinator, table, |_, seen| {
        let is_there = seen.primary.is_some_and(|it| it.server == to);
        seen.region != region.region || (is_there && seen.phase == Phase::Steady)
    });
}

/// Promise (CP15): primaries move by wish under load, to a backup and to a server that has nothing
/// of the region yet; what was seen is linearizable.
#[test]
fn primaries_are_moved() {
    let crew = Crew::new(4);
    let table = crew.table(3, true);
    let trial = Trial::new(Course::Served);
    trial.run(&vec![table.clone(); CLIENT_COUNT], || {
        for round in 0..4 {
            trial.wait_done(50);
            crew.wait_whole(&table, 3);
            move_primary(&crew, &table, round % 2 == 0);
        }
        trial.wait_done(50);
    });
    trial.judge(&table);
}
