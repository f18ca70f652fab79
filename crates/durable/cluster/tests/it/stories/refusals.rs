//! Servers refuse the coordinator's records, because they are an older copy.

use std::sync::Arc;
use std::time::Duration;

use farleaf_cluster::ClusterError;
use farleaf_cluster::agent::{Agent, AgentOptions};
use farleaf_cluster::coordinator::{
    Bound, Coordinator as _, CoordinatorError, Revision, SeenStart, Transaction,
};
use farleaf_cluster::ids::{ServerId, StartNonce};
use farleaf_cluster::plan::Action;
use farleaf_cluster::record::server_key;
use farleaf_cluster::record::start::{REFUSAL_PREFIX, refusal_key};
use farleaf_cluster::starts;

use super::{Scenario, SimAgent, terms};
use crate::bound::Switch;
use crate::sim::host::SimHost;
use crate::sim::sim_servers::SimServer;

/// Creates the agent of a known server that has seen this state of the coordinator.
fn agent(scenario: &Scenario, seen: SeenStart) -> SimAgent {
    let options = AgentOptions {
        terms: terms(),
        ..AgentOptions::new(scenario.cluster, ServerId(1), "host:1")
    };
    let host = SimHost {
        server: ServerId(1),
        sim_servers: scenario.sim_servers.clone(),
    };
    let bound = Bound::to(scenario.coordinator.clone(), scenario.cluster).having_seen(Some(seen));
    Agent::new(bound, Arc::new(scenario.clock.clone()), options, host)
}

fn is_recorded(scenario: &Scenario) -> bool {
    let found = scenario
        .coordinator
        .range(REFUSAL_PREFIX)
        .expect("it works");
    found.entries.len() == 1
}

fn tick(scenario: &Scenario, agent: &mut SimAgent) {
    scenario.clock.advance(Duration::from_secs(3));
    let error = agent.tick(Duration::ZERO).expect_err("they are older");
    let is_told = matches!(
        error,
        ClusterError::Coordinator(CoordinatorError::RolledBack { .. })
    );
    assert!(is_told, "{error}");
}

/// While a server refuses the records, even one that is gone, the master promotes, removes and
/// moves nothing. It continues when an operator has accepted the loss.
#[test]
fn nothing_is_planned_while_a_server_refuses() {
    let mut scenario = Scenario::new(4);
    let table = scenario.table(3, &[]);
    scenario.settle();
    let error = CoordinatorError::Invalid {
        what: "it is older".to_owned(),
    };
    starts::note_refusal(&scenario.coordinator, ServerId(9), Some(&error)).expect("it works");
    let before = scenario.region(table);
    scenario.crash(before.primary.expect("it is served").server);
    assert_eq!(scenario.settle(), []);
    assert_eq!(scenario.region(table), before);
    starts::accept_lost_start(&scenario.coordinator, StartNonce(7)).expect("the history lacks it");
    assert_eq!(scenario.settle()[0], Action::Promote);
}

/// A server that still refuses the records after an operator accepted another loss records that
/// again. If only a revision proves the loss, it does so only after that revision is on its disk.
#[test]
fn a_refusal_is_recorded_again() {
    let scenario = Scenario::new(0);
    let start = starts::begin_start(&scenario.coordinator).expect("nobody else starts it");
    let present = scenario.coordinator.range("").expect("it works");
    let mut seen = SeenStart {
        nonce: StartNonce(5),
        first: present.revision,
        revision: Revision(1000),
        is_cut: false,
    };
    let mut lacking = agent(&scenario, seen);
    for _ in 0..2 {
        tick(&scenario, &mut lacking);
        assert!(is_recorded(&scenario));
        let deletion = Transaction::new().delete(refusal_key(ServerId(1)));
        scenario.coordinator.transact(&deletion).expect("it works");
    }
    seen.nonce = start;
    let mut behind = agent(&scenario, seen);
    for recorded_start in [None, Some(seen)] {
        behind.note_recorded_start(recorded_start);
        tick(&scenario, &mut behind);
        assert!(!is_recorded(&scenario));
    }
    let seen_start = behind.seen();
    assert!(seen_start.is_some_and(|it| it.is_cut));
    behind.note_recorded_start(seen_start);
    tick(&scenario, &mut behind);
    assert!(is_recorded(&scenario));
}

/// A server that refuses an older copy does not keep its lease alive there, even if the copy has
/// the lease. When the loss is accepted, it begins another life and reports, without a restart.
#[test]
fn a_server_begins_anew_when_a_loss_was_accepted() {
    let scenario = Scenario::new(0);
    starts::begin_start(&scenario.coordinator).expect("nobody else starts it");
    let at = Switch::to(&scenario.coordinator);
    let options = AgentOptions {
        terms: terms(),
        ..AgentOptions::new(scenario.cluster, ServerId(1), "host:1")
    };
    let host = SimHost {
        server: ServerId(1),
        sim_servers: scenario.sim_servers.clone(),
    };
    (scenario.sim_servers.lock().expect("one thread").servers)
        .insert(ServerId(1), SimServer::default());
    let bound = Bound::to(at.clone(), scenario.cluster);
    let mut agent = Agent::new(bound, Arc::new(scenario.clock.clone()), options, host);
    let mut go_on = |time_ms: u64| {
        let mut last = Ok(());
        for _ in 0..time_ms / 50 {
            scenario.clock.advance(Duration::from_millis(50));
            last = agent.tick(Duration::ZERO);
            agent.note_recorded_start(agent.seen());
        }
        (last, agent.life(), agent.seen())
    };
    let (ticked, first, _) = go_on(500);
    ticked.expect("it is there");
    let old = scenario.coordinator.copy(Arc::new(scenario.clock.clone()));
    for number in 0..50 {
        let put = Transaction::new().put(format!("lost/{number}"), Vec::new());
        scenario.coordinator.transact(&put).expect("it works");
    }
    let (ticked, ..) = go_on(500);
    ticked.expect("it is there");
    starts::begin_start(&old).expect("nobody else starts it");
    at.set(&old);
    let (_, life, seen) = go_on(5000);
    let key = server_key(ServerId(1));
    let registered = || old.range(&key).expect("it works").entries.len();
    assert_eq!((life, registered()), (first, 0));
    let refused = old.range(REFUSAL_PREFIX).expect("it works").entries.len();
    assert_eq!(refused, 1);
    starts::accept_lost_start(&old, seen.expect("it has seen some").nonce).expect("it is refused");
    let (ticked, life, _) = go_on(2000);
    ticked.expect("the loss was accepted");
    assert!(life.is_some() && life != first && registered() == 1);
    let reports = old.range("report/").expect("it works").entries;
    assert_eq!(reports.len(), 1);
    let refusals = old.range(REFUSAL_PREFIX).expect("it works").entries;
    assert_eq!(refusals, []);
}
