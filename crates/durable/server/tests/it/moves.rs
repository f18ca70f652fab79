//! Replicas that move, under load.

use std::time::{Duration, Instant};

use farleaf_client::PersistentTable;
use farleaf_cluster::admin;
use farleaf_cluster::ids::ServerId;
use farleaf_cluster::record::{AdminReply, AdminRequestKind, Phase};
use farleaf_trial::fleet::{view, wait_regions};
use farleaf_trial::load::CLIENT_COUNT;
use farleaf_trial::{AllowedErrors, Trial};

use crate::test_cluster::TestCluster;

/// A server that is drained under load has no replicas any more, and gets some when the drain ends.
/// The history is linearizable. (A write that took effect, but was not acknowledged when its
/// primary stopped, has an unknown outcome.) (CONTROL-20)
#[test]
fn servers_are_drained() {
    let test_cluster = TestCluster::new(4);
    let table = test_cluster.table(3, true);
    let trial = Trial::new(AllowedErrors::Served);
    trial.run(&vec![table.clone(); CLIENT_COUNT], || {
        for index in 0..2 {
            let server = ServerId(index + 1);
            trial.wait_done(50);
            admin::set_drain(&test_cluster.coordinator, server, true).expect("embedded");
            wait_regions(&test_cluster.coordinator, &table, |_, region| {
                region.replicas().all(|it| it.server != server)
            });
            test_cluster.wait_replicated(&table, 3);
            admin::set_drain(&test_cluster.coordinator, server, false).expect("embedded");
        }
        trial.wait_done(50);
    });
    trial.check_history(&table);
}

fn wait_answer(test_cluster: &TestCluster, number: admin::AdminRequestNumber) -> AdminReply {
    let since = Instant::now();
    loop {
        let answer = admin::answer(&test_cluster.coordinator, number).expect("embedded");
        if let Some(answer) = answer {
            return answer;
        }
        assert!(since.elapsed() < Duration::from_secs(30), "no answer");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Moves the primary of a table's first region to another server.
fn move_primary(test_cluster: &TestCluster, table: &PersistentTable, to_spare: bool) {
    let view = view(&test_cluster.coordinator);
    let region = view.regions_of(table.id())[0].clone();
    let from = region.primary.expect("it has one").server;
    let others = (1..=4).map(ServerId).filter(|it| *it != from);
    let mut others = others.filter(|it| region.replica_on(*it).is_none() == to_spare);
    let to = others.next().expect("there are four servers");
    let kind = AdminRequestKind::Move {
        table: table.id(),
        region: region.region,
        from,
        to,
    };
    let since = Instant::now();
    loop {
        let number =
            admin::admin_request(&test_cluster.coordinator, kind.clone()).expect("embedded");
        match wait_answer(test_cluster, number) {
            AdminReply::Begun => break,
            // The primary of the previous move is still opening.
            AdminReply::Refused(how) => assert!(how.contains("is not served now"), "{how}"),
        }
        assert!(
            since.elapsed() < Duration::from_secs(30),
            "it does not open"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    wait_regions(&test_cluster.coordinator, table, |_, seen| {
        let is_there = seen.primary.is_some_and(|it| it.server == to);
        seen.region != region.region || (is_there && seen.phase == Phase::Steady)
    });
}

/// Primaries move on request under load, to a backup and to a server without a replica of the
/// region; the history is linearizable (CONTROL-15).
#[test]
fn primaries_are_moved() {
    let test_cluster = TestCluster::new(4);
    let table = test_cluster.table(3, true);
    let trial = Trial::new(AllowedErrors::Served);
    trial.run(&vec![table.clone(); CLIENT_COUNT], || {
        for round in 0..4 {
            trial.wait_done(50);
            test_cluster.wait_replicated(&table, 3);
            move_primary(&test_cluster, &table, round % 2 == 0);
        }
        trial.wait_done(50);
    });
    trial.check_history(&table);
}
