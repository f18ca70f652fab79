//! Handles of coordinators that belong to one cluster, when another cluster's coordinator, an empty
//! one, or an older copy answers in its place.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farleaf_base::clock::SystemClock;
use farleaf_cluster::ClusterError;
use farleaf_cluster::coordinator::{
    Bound, Coordinator, CoordinatorError, Embedded, KeepAlive, LeaseId, Revision, SeenStart,
    Snapshot, Transaction, TransactionOutcome, Watch,
};
use farleaf_cluster::ids::{ClusterId, RegionId, ServerId, StartNonce};
use farleaf_cluster::plan::{PlanOptions, plan};
use farleaf_cluster::record::start::REFUSAL_PREFIX;
use farleaf_cluster::record::{CLUSTER_KEY, Cluster, IDS_KEY, Ids, Record as _, START_PREFIX};
use farleaf_cluster::view::View;
use farleaf_cluster::{admin, starts};

/// A coordinator that another one can replace.
#[derive(Clone, Debug)]
pub(crate) struct Switch(Arc<Mutex<Embedded>>, Arc<AtomicUsize>);

impl Switch {
    pub(crate) fn to(embedded: &Embedded) -> Self {
        Self(Arc::new(Mutex::new(embedded.clone())), Arc::default())
    }

    pub(crate) fn set(&self, embedded: &Embedded) {
        *self.0.lock().expect("one thread") = embedded.clone();
    }

    fn now(&self) -> Embedded {
        self.0.lock().expect("one thread").clone()
    }
}

impl Coordinator for Switch {
    fn range(&self, prefix: &str) -> Result<Snapshot, CoordinatorError> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.now().range(prefix)
    }

    fn transact(&self, transaction: &Transaction) -> Result<TransactionOutcome, CoordinatorError> {
        self.now().transact(transaction)
    }

    fn grant_lease(&self, time_to_live: Duration) -> Result<(LeaseId, Duration), CoordinatorError> {
        self.now().grant_lease(time_to_live)
    }

    fn keep_alive(&self, lease: LeaseId) -> Result<KeepAlive, CoordinatorError> {
        self.now().keep_alive(lease)
    }

    fn revoke_lease(&self, lease: LeaseId) -> Result<(), CoordinatorError> {
        self.now().revoke_lease(lease)
    }

    fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>, CoordinatorError> {
        self.now().watch(prefix, after)
    }
}

fn founded() -> (Embedded, ClusterId) {
    let embedded = Embedded::default();
    let cluster = admin::create_cluster(&embedded).expect("it is empty");
    starts::begin_start(&embedded).expect("nobody else starts it");
    (embedded, cluster)
}

/// Returns a coordinator with the same data, or a copy, after one more start.
fn restarted(embedded: &Embedded) -> Embedded {
    let again = embedded.copy(Arc::new(SystemClock));
    starts::begin_start(&again).expect("nobody else starts it");
    again
}

fn put(key: &str) -> Transaction {
    Transaction::new().put(key, b"value".to_vec())
}

/// Returns the errors of all calls, none of which may have an effect.
fn refusals(handle: &Bound<Switch>, lease: LeaseId) -> Vec<CoordinatorError> {
    let now = handle.inner().now();
    let before = now.range("").expect("it works").entries;
    let errors = vec![
        handle.range("").map(drop).expect_err("range"),
        handle
            .transact(&put("key"))
            .map(drop)
            .expect_err("transact"),
        (handle.grant_lease(Duration::from_secs(9)).map(drop)).expect_err("grant"),
        handle.keep_alive(lease).map(drop).expect_err("keep alive"),
        (handle.watch("", Revision(1)).map(drop)).expect_err("watch"),
    ];
    assert_eq!(now.range("").expect("it works").entries, before);
    errors
}

/// No call has an effect at a coordinator of another cluster, or of none. Each returns an error
/// with both ids, and nothing from that coordinator is believed. Back at the own one, everything
/// continues.
#[test]
fn another_cluster_is_refused_by_every_call() {
    let (own, cluster) = founded();
    let (foreign, other) = founded();
    let empty = Embedded::default();
    let at = Switch::to(&own);
    let member = Bound::to(at.clone(), cluster);
    let client = Bound::to_first_seen(at.clone());
    let (lease, _) = member.grant_lease(Duration::from_secs(9)).expect("its own");
    client.range("").expect("the first that it sees");
    for (embedded, found) in [(&foreign, other.to_string()), (&empty, "no cluster".into())] {
        at.set(embedded);
        for handle in [&member, &client] {
            for error in refusals(handle, lease) {
                let error_text = error.to_string();
                assert!(
                    matches!(error, CoordinatorError::OtherCluster { .. }),
                    "{error_text}"
                );
                assert!(
                    error_text.contains(&found) && error_text.contains(&cluster.to_string()),
                    "{error_text}"
                );
                assert!(error_text.contains("no file is deleted"), "{error_text}");
            }
        }
        at.set(&own);
        member.transact(&put("back")).expect("its own");
        let renewal = member.keep_alive(lease).expect("its own");
        assert!(matches!(renewal, KeepAlive::Alive(_)));
    }
}

/// A restart of the coordinator is accepted. An older copy of its data, started again, is refused
/// by every call, also of a member that was restarted meanwhile. This lasts until the newest data
/// are back, or an operator accepts the loss by the start's number.
#[test]
fn an_older_copy_is_refused_until_that_is_accepted() {
    let (first, cluster) = founded();
    let at = Switch::to(&first);
    let member = Bound::to(at.clone(), cluster);
    let (lease, _) = member
        .grant_lease(Duration::from_secs(9))
        .expect("it is there");
    member.transact(&put("one")).expect("it is there");
    let old = first.copy(Arc::new(SystemClock));
    member.transact(&put("two")).expect("it is there");
    let second = restarted(&first);
    at.set(&second);
    member
        .transact(&put("three"))
        .expect("a restart is no loss");
    let seen = member.seen().expect("it has seen the second start");
    let again = Bound::to(at.clone(), cluster).having_seen(Some(seen));
    again
        .range("")
        .expect("a member's restart is no loss, either");

    let rolled_back = restarted(&old);
    at.set(&rolled_back);
    let again = Bound::to(at.clone(), cluster).having_seen(Some(seen));
    for handle in [&member, &again] {
        for error in refusals(handle, lease) {
            let error_text = error.to_string();
            assert!(
                matches!(error, CoordinatorError::RolledBack { .. }),
                "{error_text}"
            );
            assert!(
                error_text.contains("its history lacks that start"),
                "{error_text}"
            );
            let command = format!("--lost-start {:032x}", seen.nonce.0);
            assert!(error_text.contains(&command), "{error_text}");
        }
    }
    let third = restarted(&second);
    at.set(&third);
    member
        .transact(&put("four"))
        .expect("the newest data are back");

    at.set(&rolled_back);
    member
        .range("")
        .expect_err("it has seen the third start by now");
    let lost = member.seen().expect("it has seen some").nonce;
    starts::accept_lost_start(&rolled_back, seen.nonce).expect("it works");
    member
        .range("")
        .expect_err("another start was accepted to be lost");
    again.range("").expect("this one has seen no later one");
    starts::accept_lost_start(&rolled_back, lost).expect("it works");
    member.transact(&put("five")).expect("it was accepted");
    at.set(&third);
    member
        .range("")
        .expect_err("what was given up is not taken back");
}

/// An older copy whose history has the seen start is recognized by the seen revisions: its next
/// start came too early, or it has not reached these revisions.
#[test]
fn an_older_copy_of_the_same_start_is_refused() {
    let (first, cluster) = founded();
    let at = Switch::to(&first);
    let member = Bound::to(at.clone(), cluster);
    member.range("").expect("it is there");
    let old = first.copy(Arc::new(SystemClock));
    for number in 0..9 {
        member
            .transact(&put(&number.to_string()))
            .expect("it is there");
    }
    at.set(&old);
    let error_text = member.range("").expect_err("it is older").to_string();
    assert!(
        error_text.contains("its current revision is lower"),
        "{error_text}"
    );
    at.set(&restarted(&old));
    let error_text = member.range("").expect_err("it is older").to_string();
    assert!(
        error_text.contains("its next start was recorded before that revision"),
        "{error_text}"
    );
}

/// An older copy of the same start, such as etcd restored from a snapshot, is refused by every call
/// and by open watches. This holds even when its revision has passed the seen one, after a restart
/// of the member, and when another start is recorded. It lasts until an operator accepts the loss,
/// also for members that have not noticed it. A second restore after that is detected again.
#[test]
fn a_restored_copy_is_refused_when_its_revision_has_caught_up() {
    let (first, cluster) = founded();
    let at = Switch::to(&first);
    let member = Bound::to(at.clone(), cluster);
    let (lease, _) = (member.grant_lease(Duration::from_secs(9))).expect("it is there");
    let old = first.copy(Arc::new(SystemClock));
    for _ in 0..9 {
        member.transact(&put("lost")).expect("it is there");
    }
    let away = Bound::to(at.clone(), cluster).having_seen(member.seen());
    let writer = Bound::to(at.clone(), cluster).having_seen(member.seen());
    at.set(&old);
    let error_text = (member.range("").expect_err("it is older")).to_string();
    assert!(
        error_text.contains("its current revision is lower"),
        "{error_text}"
    );
    let error = writer.transact(&put("key")).expect_err("it is older");
    assert!(
        matches!(error, CoordinatorError::RolledBack { .. }),
        "{error}"
    );
    for _ in 0..20 {
        old.transact(&put("another")).expect("it works");
    }
    let seen = member.seen().expect("it has seen some");
    assert!(seen.is_cut && seen.revision < old.range("").expect("it works").revision);
    let restarted = Bound::to(at.clone(), cluster).having_seen(Some(seen));
    for is_started in [false, true] {
        if is_started {
            starts::begin_start(&old).expect("nobody else starts it");
        }
        for handle in [&member, &writer, &restarted] {
            for error in refusals(handle, lease) {
                let error_text = error.to_string();
                assert!(
                    matches!(error, CoordinatorError::RolledBack { .. }),
                    "{error_text}"
                );
                assert!(
                    error_text.contains("that start at a lower revision"),
                    "{error_text}"
                );
            }
        }
    }
    let server = ServerId(3);
    let refusal = member.range("").expect_err("it is older");
    starts::note_refusal(&old, server, Some(&refusal)).expect("it works");
    starts::accept_lost_start(&old, seen.nonce).expect("a server refuses it");
    for handle in [&member, &writer, &restarted, &away] {
        handle.transact(&put("later")).expect("it was accepted");
        assert!(!handle.seen().expect("it has seen some").is_cut);
    }
    at.set(&old.copy(Arc::new(SystemClock)));
    member.transact(&put("later")).expect("it is the same");
    at.set(&old);
    member.range("").expect_err("it is older");
}

/// A watch that was opened before returns no events of refused records.
#[test]
fn a_watch_tells_nothing_of_an_older_copy() {
    let (first, cluster) = founded();
    let at = Switch::to(&first);
    let member = Bound::to(at.clone(), cluster);
    let revision = member.range("").expect("it is there").revision;
    let mut watch = member.watch("", revision).expect("it is there");
    let old = first.copy(Arc::new(SystemClock));
    member.transact(&put("key")).expect("it is there");
    at.set(&old);
    member.range("").expect_err("it is older");
    let error = watch.next(Duration::ZERO).expect_err("it is refused");
    assert!(
        matches!(error, CoordinatorError::RolledBack { .. }),
        "{error}"
    );
}

/// A new member or client takes the present start from its first reply, and reads no history of
/// starts.
#[test]
fn a_first_look_takes_one_round_trip() {
    let (own, _) = founded();
    let newest = starts::begin_start(&own).expect("nobody else starts it");
    let at = Switch::to(&own);
    let client = Bound::to_first_seen(at.clone());
    client.range("").expect("it is there");
    assert_eq!(at.1.load(Ordering::Relaxed), 1);
    let seen = client.seen().expect("it has seen one");
    let present = own.range("start").expect("it works");
    assert_eq!((seen.nonce, seen.revision), (newest, present.revision));
    let presented = present.entries.iter().find(|it| it.key == "start");
    assert_eq!(seen.first, presented.expect("it is there").mod_revision);
}

/// A member that has seen a start refuses a coordinator that names none.
#[test]
fn a_coordinator_that_names_no_start_is_refused() {
    let unstarted = Embedded::default();
    let cluster = admin::create_cluster(&unstarted).expect("it is empty");
    let first = unstarted.copy(Arc::new(SystemClock));
    starts::begin_first_start(&first).expect("nobody else starts it");
    let before = first.range("").expect("it works");
    starts::begin_first_start(&first).expect("it has one");
    assert_eq!(first.range("").expect("it works").entries, before.entries);
    let at = Switch::to(&first);
    let seen = Bound::to(at.clone(), cluster);
    seen.range("").expect("it is there");
    for _ in 0..9 {
        unstarted.transact(&put("key")).expect("it works");
    }
    let again = Bound::to(at.clone(), cluster).having_seen(seen.seen());
    at.set(&unstarted);
    let error_text = again.range("").expect_err("it is older").to_string();
    assert!(error_text.contains("lacks that start"), "{error_text}");
}

/// A member whose watch returns events after another start, which it has not seen yet, takes that
/// start, and refuses nothing. It recognizes an older copy by the revisions of its watch.
#[test]
fn a_watch_may_run_ahead_of_a_start() {
    for is_rolled_back in [false, true] {
        let (own, cluster) = founded();
        let older = own.copy(Arc::new(SystemClock));
        let at = Switch::to(&own);
        let member = Bound::to(at.clone(), cluster);
        let revision = member.range("").expect("it is there").revision;
        let mut watch = member.watch("", revision).expect("it is there");
        if !is_rolled_back {
            starts::begin_start(&own).expect("nobody else starts it");
        }
        own.transact(&put("key")).expect("it works");
        while watch
            .next(Duration::ZERO)
            .is_ok_and(|events| !events.is_empty())
        {}
        if is_rolled_back {
            at.set(&older);
        }
        let ranged = member.range("");
        assert_eq!(ranged.is_err(), is_rolled_back, "{ranged:?}");
    }
}

/// The loss of a start cannot be accepted by mistake: a server must have named it.
#[test]
fn only_a_start_that_is_refused_is_accepted_as_lost() {
    let (own, cluster) = founded();
    let at = Switch::to(&own);
    let older = own.copy(Arc::new(SystemClock));
    let member = Bound::to(at.clone(), cluster);
    own.transact(&put("key")).expect("it works");
    member.range("").expect("it is there");
    let seen = member.seen().expect("it has seen it").nonce;
    at.set(&older);
    let refused = member.range("").expect_err("it is older");
    starts::check_refused(&older, seen).expect_err("no server has said so");
    starts::note_refusal(&older, ServerId(3), Some(&refused)).expect("it works");
    starts::check_refused(&older, seen).expect("one has");
    let error = starts::check_refused(&older, StartNonce(7)).expect_err("nobody has seen that");
    assert!(matches!(error, ClusterError::StartNotLost(_)), "{error}");
}

/// The loss of a start that the history has can be accepted only while a server refuses the
/// records. Then no refusal stays, not even of a server that is gone.
#[test]
fn a_loss_is_accepted_only_of_what_is_refused() {
    let (own, _) = founded();
    let newest = starts::begin_start(&own).expect("nobody else starts it");
    let before = own.range("").expect("it works").entries;
    let error = starts::accept_lost_start(&own, newest).expect_err("it is there");
    let error_text = error.to_string();
    assert!(
        matches!(error, ClusterError::StartNotLost(_)),
        "{error_text}"
    );
    assert!(
        error_text.contains(&format!("{:032x}", newest.0)),
        "{error_text}"
    );
    assert_eq!(own.range("").expect("it works").entries, before);
    let refusal = CoordinatorError::Invalid {
        what: "why".to_owned(),
    };
    for server in 1..=250 {
        starts::note_refusal(&own, ServerId(server), Some(&refusal)).expect("it works");
    }
    let revision = own.range("").expect("it works").revision;
    starts::note_refusal(&own, ServerId(9), Some(&refusal)).expect("it works");
    assert_eq!(own.range("").expect("it works").revision, revision);
    starts::accept_lost_start(&own, newest).expect("servers refuse it");
    let left = own.range(REFUSAL_PREFIX).expect("it works").entries;
    assert_eq!(left, []);
    starts::accept_lost_start(&own, StartNonce(7)).expect("the history does not have it");
}

/// A handle that has seen the present start can accept a loss: it takes the start that this
/// records, and deletes the refusals. It once took its own record for a roll-back.
#[test]
fn a_handle_that_accepts_a_loss_goes_on() {
    let (own, _) = founded();
    let handle = Bound::to_first_seen(own.clone());
    let refusal = CoordinatorError::Invalid {
        what: "why".to_owned(),
    };
    starts::note_refusal(&own, ServerId(9), Some(&refusal)).expect("it works");
    for nonce in [7, 8] {
        starts::accept_lost_start(&handle, StartNonce(nonce))
            .expect("the history does not have it");
        let left = own.range(REFUSAL_PREFIX).expect("it works").entries;
        assert_eq!(left, []);
    }
    assert_eq!(handle.accepted_loss_count(), 0);
}

/// Tables and regions created after a loss was accepted get no numbers that the lost records may
/// have assigned. Those numbers count as never assigned, so copies of them stay.
#[test]
fn numbers_of_lost_records_are_not_given_again() {
    let (own, _) = founded();
    let first = admin::create_table(&own, "first", 1, &[]).expect("it works");
    let mut tables = vec![first.table.0];
    for loss in 0..10 {
        starts::accept_lost_start(&own, StartNonce(loss)).expect("the history does not have it");
        if loss == 0 {
            // Nothing was created in between, so it is one range.
            starts::accept_lost_start(&own, StartNonce(100)).expect("the history does not have it");
        }
        let table = admin::create_table(&own, &format!("t{loss}"), 1, &[]).expect("it works");
        tables.push(table.table.0);
    }
    let are_apart = tables.windows(2).all(|it| it[1] > it[0] + (1 << 20));
    assert!(are_apart, "{tables:?}");
    let ids = admin::read::<Ids>(&own, IDS_KEY).expect("it works");
    let ids = ids.expect("it is there").record;
    assert_eq!(ids.skipped.len(), 8);
    assert!(ids.has_assigned(RegionId(1)) && !ids.has_assigned(RegionId(2)));
    assert!(!ids.has_assigned(RegionId(1 << 20)) && !ids.has_assigned(ids.next_region));
    let last = RegionId(ids.next_region.0 - 1);
    assert!(ids.has_assigned(last) && !ids.has_assigned(RegionId(last.0 - 1)));
}

/// No table is created or dropped before a cluster of an older version is adopted, or while a
/// server refuses the records. Nothing is changed then, and the error has the remedy.
#[test]
fn no_table_changes_while_servers_do_not_follow() {
    let (own, _) = founded();
    let table = admin::create_table(&own, "t", 1, &[]).expect("it works");
    let check = |expected: &str| {
        let before = own.range("").expect("it works").entries;
        let made = admin::create_table(&own, "u", 1, &[]).map(drop);
        for done in [made, admin::drop_table(&own, table.table)] {
            let error_text = done.expect_err(expected).to_string();
            assert!(error_text.contains(expected), "{error_text}");
        }
        assert_eq!(own.range("").expect("it works").entries, before);
    };
    let refusal = CoordinatorError::Invalid {
        what: "why".to_owned(),
    };
    starts::note_refusal(&own, ServerId(9), Some(&refusal)).expect("it works");
    check("server 9 refuses");
    starts::note_refusal(&own, ServerId(9), None).expect("it works");
    let legacy = Cluster {
        version: 1,
        ..Cluster::new(ClusterId(5), None)
    };
    let put = Transaction::new().put(CLUSTER_KEY, legacy.encode());
    own.transact(&put).expect("it works");
    check("run `farleaf cluster adopt`");
    let all = own.range("").expect("it works");
    let view = View::of(all.revision, &all.entries);
    let plan = plan(&view, &PlanOptions::default());
    assert!(plan.steps.is_empty());
    let waiting = plan.waiting.first().expect("there is a region");
    assert_eq!(waiting.what, "`farleaf cluster adopt`");
}

/// A limited number of starts is kept. A member that saw one that is no longer kept finds it lost;
/// no data are lost.
#[test]
fn starts_are_kept_up_to_a_number() {
    let (own, cluster) = founded();
    let at = Switch::to(&own);
    let member = Bound::to(at.clone(), cluster);
    member.range("").expect("it is there");
    for _ in 0..1010 {
        starts::begin_start(&own).expect("nobody else starts it");
    }
    let start_entries = own.range(START_PREFIX).expect("it works").entries;
    assert_eq!(start_entries.len(), 1000);
    member
        .range("")
        .expect_err("that start is not kept any more");
}

/// Servers record in the coordinator that they refuse its records, and delete that when they no
/// longer do.
#[test]
fn refusals_are_told_in_the_records() {
    let (own, _) = founded();
    let server = ServerId(3);
    let refusals = || {
        let all = own.range("").expect("it works");
        let view = View::of(all.revision, &all.entries);
        assert!(view.damaged.is_empty(), "{:?}", view.damaged);
        let hows = view.refusals.into_values().map(|it| it.record.how);
        hows.collect::<Vec<_>>()
    };
    let error = CoordinatorError::Invalid {
        what: "why".repeat(9000),
    };
    starts::note_refusal(&own, server, Some(&error)).expect("it works");
    assert!(refusals()[0].starts_with("whywhy"));
    starts::note_refusal(&own, server, None).expect("it works");
    assert_eq!(refusals(), Vec::<String>::new());
    let seen: Option<SeenStart> = Bound::to_first_seen(Switch::to(&own)).seen();
    assert_eq!(seen, None);
}
