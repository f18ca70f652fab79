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
use farleaf_cluster::record::start::{REFUSAL_PREFIX, refusal_key};
use farleaf_cluster::starts;

use super::{SimAgent, Story, terms};
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
