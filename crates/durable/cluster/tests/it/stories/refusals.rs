//! Servers refuse the coordinator's records, because these are an older copy (ID5).

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

use super::{SimAgent, Story, terms};
use crate::bound::Switch;
use crate::sim::fleet::SimServer;
use crate::sim::host::SimHost;

/// An agent of a server that was there, and has seen this of the coordinator before.
fn agent(story: &Story, seen: SeenStart) -> SimAgent {
    let options = AgentOptions {
        terms: terms(),
        ..AgentOptions::new(story.cluster, ServerId(1), "host:1")
    };
    let host = SimHost {
        server: ServerId(1),
        fleet: story.fleet.clone(),
    };
    let bound = Bound::to(story.coordinator.clone(), story.cluster).having_seen(Some(seen));
    Agent::new(bound, Arc::new(story.clock.clone()), options, host)
}

fn is_recorded(story: &Story) -> bool {
    let found = story.coordinator.range(REFUSAL_PREFIX).expect("it works");
    found.entries.len() == 1
}

fn tick(story: &Story, agent: &mut SimAgent) {
    story.clock.advance(Duration::from_secs(3));
    let error = agent.tick(Duration::ZERO).expect_err("they are older");
    let is_told = matches!(
        error,
        ClusterError::Coordinator(CoordinatorError::RolledBack { .. })
    );
    assert!(is_told, "{error}");
}

/// Promise (ID5): while a server refuses the records, also one that is gone, the master promotes,
/// removes and moves nothing; when an operator has accepted the loss, it goes on.
#[test]
fn nothing_is_planned_while_a_server_refuses() {
    let mut story = Story::new(4);
    let table = story.table(3, &[]);
    story.settle();
    let error = CoordinatorError::Invalid {
        what: "it is older".to_owned(),
    };
    starts::note_refusal(&story.coordinator, ServerId(9), Some(&error)).expect("it works");
    let before = story.region(table);
    story.crash(before.primary.expect("it is served").server);
    assert_eq!(story.settle(), []);
    assert_eq!(story.region(table), before);
    starts::forgive(&story.coordinator, StartNonce(7)).expect("the history lacks it");
    assert_eq!(story.settle()[0], Action::Promote);
}

/// Promise (ID5): a server that still refuses the records says so again after an operator accepted
/// another loss; where it is known by a revision alone, no sooner than that is on its disk.
#[test]
fn a_refusal_is_recorded_again() {
    let story = Story::new(0);
    let start = starts::begin_start(&story.coordinator).expect("nobody else starts it");
    let present = story.coordinator.range("").expect("it works");
    let mut seen = SeenStart {
        nonce: StartNonce(5),
        first: present.revision,
        revision: Revision(1000),
        is_cut: false,
    };
    let mut lacking = agent(&story, seen);
    for _ in 0..2 {
        tick(&story, &mut lacking);
        assert!(is_recorded(&story));
        let deletion = Transaction::new().delete(refusal_key(ServerId(1)));
        story.coordinator.transact(&deletion).expect("it works");
    }
    seen.nonce = start;
    let mut behind = agent(&story, seen);
    for kept in [None, Some(seen)] {
        behind.note_kept(kept);
        tick(&story, &mut behind);
        assert!(!is_recorded(&story));
    }
    let kept = behind.seen();
    assert!(kept.is_some_and(|kept| kept.is_cut));
    behind.note_kept(kept);
    tick(&story, &mut behind);
    assert!(is_recorded(&story));
}

/// Promise (ID5): a server that refuses an older copy, which knows its lease, does not keep that
/// alive there; when the loss is accepted, it begins another life and reports, without a restart.
#[test]
fn a_server_begins_anew_when_a_loss_was_accepted() {
    let story = Story::new(0);
    starts::begin_start(&story.coordinator).expect("nobody else starts it");
    let at = Switch::to(&story.coordinator);
    let options = AgentOptions {
        terms: terms(),
        ..AgentOptions::new(story.cluster, ServerId(1), "host:1")
    };
    let host = SimHost {
        server: ServerId(1),
        fleet: story.fleet.clone(),
    };
    (story.fleet.lock().expect("one thread").servers).insert(ServerId(1), SimServer::default());
    let bound = Bound::to(at.clone(), story.cluster);
    let mut agent = Agent::new(bound, Arc::new(story.clock.clone()), options, host);
    let mut go_on = |time_ms: u64| {
        let mut last = Ok(());
        for _ in 0..time_ms / 50 {
            story.clock.advance(Duration::from_millis(50));
            last = agent.tick(Duration::ZERO);
            agent.note_kept(agent.seen());
        }
        (last, agent.life(), agent.seen())
    };
    let (ticked, first, _) = go_on(500);
    ticked.expect("it is there");
    let old = story.coordinator.copy(Arc::new(story.clock.clone()));
    for number in 0..50 {
        let put = Transaction::new().put(format!("lost/{number}"), Vec::new());
        story.coordinator.transact(&put).expect("it works");
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
    starts::forgive(&old, seen.expect("it has seen some").nonce).expect("it is refused");
    let (ticked, life, _) = go_on(2000);
    ticked.expect("the loss was accepted");
    assert!(life.is_some() && life != first && registered() == 1);
    let reports = old.range("report/").expect("it works").entries;
    assert_eq!(reports.len(), 1);
    let refusals = old.range(REFUSAL_PREFIX).expect("it works").entries;
    assert_eq!(refusals, []);
}
