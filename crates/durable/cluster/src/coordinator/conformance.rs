//! Suite that every coordinator has to pass: one function for each promise (CONTROL-1 to
//! CONTROL-4).
//!
//! The [`Harness`] sets the length of leases, since not every coordinator grants short ones.

use std::time::{Duration, Instant};

use super::{
    Compare, Coordinator, CoordinatorError, Entry, Event, KeepAlive, Revision, Transaction,
    TransactionOutcome, Watch,
};
use crate::record::CLUSTER_KEY;

/// Source of independent coordinators for the suite.
pub trait Harness: Sync {
    /// The tested coordinator.
    type Tested: Coordinator + Clone;

    /// Opens an empty coordinator.
    fn open(&self) -> Self::Tested;

    /// Makes a coordinator discard its changes until now.
    fn compact(&self, tested: &Self::Tested);

    /// Returns the shortest lease that the coordinator grants.
    fn time_to_live_min(&self) -> Duration;

    /// Returns whether each opened coordinator has its own revisions, so that cases can run in
    /// parallel.
    fn has_own_revisions(&self) -> bool {
        true
    }
}

/// Name and function of a case.
type Case<H> = (&'static str, fn(&H));

/// Runs every case on a coordinator of its own, in parallel if they have their own revisions.
///
/// # Panics
/// If a promise is not kept.
pub fn run_all<H: Harness>(harness: &H) {
    let cases: [Case<H>; 14] = [
        ("revisions", revisions),
        ("compares", compares),
        ("ranges present the cluster", ranges_present_the_cluster),
        ("a transaction is one change", a_transaction_is_one_change),
        ("nothing to do", nothing_to_do),
        ("invalid transactions", invalid_transactions),
        ("revoked leases", revoked_leases),
        ("leases end by themselves", leases_end_by_themselves),
        ("leases are kept alive", leases_are_kept_alive),
        ("keys change their leases", keys_change_their_leases),
        ("watches", watches),
        ("watches wait", watches_wait),
        ("compacted changes", compacted_changes),
        ("counters of many threads", counters_of_many_threads),
    ];
    if !harness.has_own_revisions() {
        for (name, case) in cases {
            println!("{name}");
            case(harness);
        }
        return;
    }
    std::thread::scope(|scope| {
        for (name, case) in cases {
            let builder = std::thread::Builder::new().name(name.to_owned());
            let spawned = builder.spawn_scoped(scope, move || case(harness));
            spawned.expect("a thread can be started");
        }
    });
}

fn committed(tested: &impl Coordinator, transaction: &Transaction) -> Revision {
    match tested.transact(transaction).expect("it can be asked") {
        TransactionOutcome::Committed(revision) => revision,
        other => panic!("{transaction:?} came to {other:?}"),
    }
}

fn put(tested: &impl Coordinator, key: &str, value: &[u8]) -> Revision {
    committed(tested, &Transaction::new().put(key, value.to_vec()))
}

fn refused(tested: &impl Coordinator, transaction: &Transaction) {
    let outcome = tested.transact(transaction).expect("it can be asked");
    assert_eq!(outcome, TransactionOutcome::Refused, "{transaction:?}");
}

fn get(tested: &impl Coordinator, key: &str) -> Option<Entry> {
    let entries = tested.range(key).expect("it can be asked").entries;
    entries.into_iter().find(|entry| entry.key == key)
}

fn now(tested: &impl Coordinator) -> Revision {
    tested.range("").expect("it can be asked").revision
}

/// Collects events of a watch until there are `count` changes, or for 20 seconds.
fn wait_for(watch: &mut dyn Watch, count: usize) -> Vec<Event> {
    let start = Instant::now();
    let mut events = Vec::new();
    while events.len() < count && start.elapsed() < Duration::from_secs(20) {
        events.extend(watch.next(Duration::from_millis(100)).expect("it goes on"));
    }
    events
}

/// A key stores its creation and write revisions; deleted and put again it is a new key. Ranges are
/// in order, by prefix, as of the newest revision (CONTROL-1).
fn revisions<H: Harness>(harness: &H) {
    let tested = harness.open();
    assert!(
        tested
            .range("")
            .expect("it can be asked")
            .entries
            .is_empty()
    );
    let first = put(&tested, "a/2", b"one");
    let second = put(&tested, "a/2", b"two");
    let third = put(&tested, "a/1", b"");
    put(&tested, "b", b"other");
    assert!(Revision::NEVER < first && first < second && second < third);
    let range = tested.range("a/").expect("it can be asked");
    let keys: Vec<_> = range.entries.iter().map(|it| it.key.as_str()).collect();
    assert_eq!(keys, ["a/1", "a/2"]);
    assert!(range.revision >= third);
    let entry = &range.entries[1];
    assert_eq!((entry.create_revision, entry.mod_revision), (first, second));
    assert_eq!(
        (entry.value.as_slice(), entry.lease),
        (b"two".as_slice(), None)
    );
    let gone = committed(&tested, &Transaction::new().delete("a/2"));
    assert_eq!(get(&tested, "a/2"), None);
    let again = put(&tested, "a/2", b"three");
    let entry = get(&tested, "a/2").expect("it was put");
    assert_eq!((entry.create_revision, entry.mod_revision), (again, again));
    assert!(again > gone);
}

/// Comparisons use the current state of the key, and a refused transaction changes nothing
/// (CONTROL-2).
fn compares<H: Harness>(harness: &H) {
    let tested = harness.open();
    let key = || "key".to_owned();
    let write = |compare| Transaction::new().when(compare).put("key", b"new".to_vec());
    let created = committed(&tested, &write(Compare::Created(key(), Revision::NEVER)));
    let modified = put(&tested, "key", b"old");
    let wrong = [
        Compare::Created(key(), Revision::NEVER),
        Compare::Created(key(), modified),
        Compare::Modified(key(), created),
        Compare::Modified(key(), Revision::NEVER),
        Compare::Created("other".to_owned(), created),
        Compare::Holds(key(), b"older".to_vec()),
        Compare::Holds(key(), Vec::new()),
        Compare::Holds("other".to_owned(), Vec::new()),
    ];
    let before = now(&tested);
    for compare in wrong {
        refused(&tested, &write(compare));
    }
    let half = write(Compare::Created(key(), created)).when(Compare::Modified(key(), created));
    refused(&tested, &half);
    assert_eq!(now(&tested), before);
    assert_eq!(get(&tested, "key").expect("it is there").value, b"old");
    let both = write(Compare::Created(key(), created))
        .when(Compare::Modified(key(), modified))
        .when(Compare::Holds(key(), b"old".to_vec()))
        .when(Compare::Modified("other".to_owned(), Revision::NEVER));
    committed(&tested, &both);
    assert_eq!(get(&tested, "key").expect("it is there").value, b"new");
}

/// Every range returns the cluster record of its own revision, whatever its prefix.
fn ranges_present_the_cluster<H: Harness>(harness: &H) {
    let tested = harness.open();
    put(&tested, "key", b"value");
    let presented = |prefix| {
        let snapshot = tested.range(prefix).expect("it can be read");
        let identity = snapshot.identity.into_iter();
        let values: Vec<_> = identity.map(|it| (it.key, it.value)).collect();
        values
    };
    for prefix in ["", "key", "nothing", CLUSTER_KEY] {
        assert_eq!(presented(prefix), []);
    }
    for value in [b"one", b"two"] {
        put(&tested, CLUSTER_KEY, value);
        for prefix in ["", "key", "nothing", CLUSTER_KEY] {
            assert_eq!(
                presented(prefix),
                [(CLUSTER_KEY.to_owned(), value.to_vec())]
            );
        }
    }
}

/// All writes of a transaction have one revision, and a watch returns them together (CONTROL-2,
/// CONTROL-4).
fn a_transaction_is_one_change<H: Harness>(harness: &H) {
    let tested = harness.open();
    put(&tested, "t/gone", b"x");
    let mut watch = tested.watch("t/", now(&tested)).expect("it can be watched");
    let transaction = Transaction::new()
        .put("t/a", b"1".to_vec())
        .delete("t/gone")
        .put("t/b", b"2".to_vec());
    let revision = committed(&tested, &transaction);
    let mut together = Vec::new();
    for _ in 0..200 {
        together = watch.next(Duration::from_millis(100)).expect("it goes on");
        if !together.is_empty() {
            break;
        }
    }
    assert_eq!(together.len(), 3);
    assert!(together.iter().all(|event| event.revision() == revision));
    for key in ["t/a", "t/b"] {
        let entry = get(&tested, key).expect("it was put");
        assert_eq!(
            (entry.create_revision, entry.mod_revision),
            (revision, revision)
        );
    }
}

/// A transaction without effect is committed without a new revision (CONTROL-2).
fn nothing_to_do<H: Harness>(harness: &H) {
    let tested = harness.open();
    put(&tested, "there", b"");
    let before = now(&tested);
    committed(&tested, &Transaction::new());
    committed(&tested, &Transaction::new().delete("nowhere"));
    assert_eq!(now(&tested), before);
}

/// Transactions over the common limits are refused as invalid and change nothing.
fn invalid_transactions<H: Harness>(harness: &H) {
    let tested = harness.open();
    let before = now(&tested);
    let mut large = Transaction::new();
    for number in 0..=super::TRANSACTION_PART_COUNT_MAX {
        large = large.put(format!("key/{number}"), Vec::new());
    }
    let invalid = [
        Transaction::new().put("twice", Vec::new()).delete("twice"),
        Transaction::new().put("", Vec::new()),
        Transaction::new().put("with space", Vec::new()),
        Transaction::new().delete("k".repeat(super::KEY_SIZE_BYTES_MAX + 1)),
        Transaction::new().put("large", vec![0; super::VALUE_SIZE_BYTES_MAX + 1]),
        Transaction::new()
            .put("large/1", vec![0; super::TRANSACTION_SIZE_BYTES_MAX / 2])
            .put("large/2", vec![0; super::TRANSACTION_SIZE_BYTES_MAX / 2]),
        large,
    ];
    for transaction in invalid {
        let error = tested.transact(&transaction).expect_err("it is invalid");
        assert!(matches!(error, CoordinatorError::Invalid { .. }), "{error}");
    }
    assert_eq!(now(&tested), before);
    let whole = (0..super::TRANSACTION_PART_COUNT_MAX).fold(Transaction::new(), |whole, number| {
        let key = format!("key/{number:03}");
        whole
            .when(Compare::Created(key.clone(), Revision::NEVER))
            .put(key, Vec::new())
    });
    committed(&tested, &whole);
    put(&tested, "large", &vec![7; super::VALUE_SIZE_BYTES_MAX]);
    let entries = tested.range("").expect("it can be asked").entries;
    assert_eq!(entries.len(), super::TRANSACTION_PART_COUNT_MAX + 1);
}

/// Revoking a lease deletes its keys; no key can be put with it any more, and it never comes back
/// (CONTROL-3).
fn revoked_leases<H: Harness>(harness: &H) {
    let tested = harness.open();
    let time_to_live = harness.time_to_live_min();
    let (lease, granted) = tested.grant_lease(time_to_live).expect("it can be asked");
    assert!(granted >= time_to_live);
    let both = Transaction::new()
        .put_leased("held/a", b"1".to_vec(), lease)
        .put_leased("held/b", b"2".to_vec(), lease);
    committed(&tested, &both);
    put(&tested, "free", b"3");
    assert_eq!(
        get(&tested, "held/a").expect("it was put").lease,
        Some(lease)
    );
    tested.revoke_lease(lease).expect("it can be asked");
    assert_eq!(get(&tested, "held/a"), None);
    assert_eq!(get(&tested, "held/b"), None);
    assert!(get(&tested, "free").is_some());
    let before = now(&tested);
    let late =
        Transaction::new()
            .put("free", b"4".to_vec())
            .put_leased("held/a", b"5".to_vec(), lease);
    let outcome = tested.transact(&late).expect("it can be asked");
    assert_eq!(outcome, TransactionOutcome::LeaseGone);
    assert_eq!(now(&tested), before);
    assert_eq!(
        tested.keep_alive(lease).expect("it can be asked"),
        KeepAlive::Gone
    );
    tested.revoke_lease(lease).expect("once more does nothing");
    let (next, _) = tested.grant_lease(time_to_live).expect("it can be asked");
    assert_ne!(next, lease);
}

/// A lease without keep-alive ends, not before its time, and a watch returns the deletions
/// (CONTROL-3, CONTROL-4).
fn leases_end_by_themselves<H: Harness>(harness: &H) {
    let tested = harness.open();
    let asked_at = Instant::now();
    let (lease, granted) = tested
        .grant_lease(harness.time_to_live_min())
        .expect("it can be asked");
    let put = Transaction::new().put_leased("held", b"1".to_vec(), lease);
    let revision = committed(&tested, &put);
    let mut watch = tested.watch("", revision).expect("it can be watched");
    let events = wait_for(&mut *watch, 1);
    let waited = asked_at.elapsed();
    assert!(
        matches!(&events[..], [Event::Delete(key, _)] if key == "held"),
        "{events:?}"
    );
    assert!(
        waited >= granted,
        "it ended after {waited:?} of {granted:?}"
    );
    assert_eq!(
        tested.keep_alive(lease).expect("it can be asked"),
        KeepAlive::Gone
    );
}

/// A lease that is kept alive lasts beyond its first time to live (CONTROL-3).
fn leases_are_kept_alive<H: Harness>(harness: &H) {
    let tested = harness.open();
    let start = Instant::now();
    let (lease, granted) = tested
        .grant_lease(harness.time_to_live_min())
        .expect("it can be asked");
    committed(
        &tested,
        &Transaction::new().put_leased("held", b"1".to_vec(), lease),
    );
    while start.elapsed() < granted * 2 {
        let outcome = tested.keep_alive(lease).expect("it can be asked");
        assert!(
            matches!(outcome, KeepAlive::Alive(left) if left >= granted),
            "{outcome:?}"
        );
        std::thread::sleep(granted / 8);
    }
    assert!(get(&tested, "held").is_some());
}

/// A key ends with the lease that it was put with last (CONTROL-3).
fn keys_change_their_leases<H: Harness>(harness: &H) {
    let tested = harness.open();
    let time_to_live = harness.time_to_live_min() * 10;
    let (first, _) = tested.grant_lease(time_to_live).expect("it can be asked");
    let (second, _) = tested.grant_lease(time_to_live).expect("it can be asked");
    let with = |key: &str, lease| Transaction::new().put_leased(key, Vec::new(), lease);
    committed(&tested, &with("freed", first));
    committed(&tested, &with("taken", first));
    put(&tested, "freed", b"");
    committed(&tested, &with("taken", second));
    tested.revoke_lease(first).expect("it can be asked");
    assert_eq!(get(&tested, "freed").expect("it is free").lease, None);
    assert_eq!(
        get(&tested, "taken").expect("it is the other's").lease,
        Some(second)
    );
    tested.revoke_lease(second).expect("it can be asked");
    assert_eq!(get(&tested, "taken"), None);
}

/// Each watch returns all changes of its prefix after its revision, in order, once (CONTROL-4).
fn watches<H: Harness>(harness: &H) {
    let tested = harness.open();
    let before = put(&tested, "w/a", b"0");
    let mut expected = Vec::new();
    for number in 1..=20_u8 {
        put(&tested, "other", b"");
        expected.push(put(&tested, &format!("w/{}", number % 3), &[number]));
    }
    let mut late = tested.watch("w/", before).expect("it can be watched");
    let events: Vec<_> = wait_for(&mut *late, 20)
        .iter()
        .map(Event::revision)
        .collect();
    assert_eq!(events, expected);
    let middle = expected[9];
    let mut later = tested.watch("w/", middle).expect("it can be watched");
    let gone = committed(&tested, &Transaction::new().delete("w/a"));
    let events: Vec<_> = wait_for(&mut *later, 11)
        .iter()
        .map(Event::revision)
        .collect();
    assert_eq!(events, [&expected[10..], &[gone]].concat());
    assert_eq!(wait_for(&mut *late, 1).len(), 1);
}

/// A watch waits for a change, and returns without one after the timeout (CONTROL-4).
fn watches_wait<H: Harness>(harness: &H) {
    let tested = harness.open();
    let mut watch = tested
        .watch("key", now(&tested))
        .expect("it can be watched");
    let start = Instant::now();
    let events = watch.next(Duration::from_millis(50)).expect("it goes on");
    assert!(events.is_empty() && start.elapsed() >= Duration::from_millis(40));
    let writer = tested.clone();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            put(&writer, "key", b"now");
        });
        let events = wait_for(&mut *watch, 1);
        assert!(matches!(&events[..], [Event::Put(entry)] if entry.value == b"now"));
    });
}

/// A watch from before the kept changes reports that, and never skips changes (CONTROL-4).
fn compacted_changes<H: Harness>(harness: &H) {
    let tested = harness.open();
    let before = put(&tested, "key", b"1");
    put(&tested, "key", b"2");
    put(&tested, "key", b"3");
    harness.compact(&tested);
    let mut watch = tested.watch("key", before).expect("it can be watched");
    let start = Instant::now();
    let error = loop {
        match watch.next(Duration::from_millis(100)) {
            Err(error) => break error,
            Ok(events) => assert!(events.is_empty(), "{events:?}"),
        }
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "no event was returned"
        );
    };
    assert!(
        matches!(error, CoordinatorError::Compacted { .. }),
        "{error}"
    );
    let mut watch = tested
        .watch("key", now(&tested))
        .expect("it can be watched");
    put(&tested, "key", b"4");
    assert_eq!(wait_for(&mut *watch, 1).len(), 1);
}

/// Threads that increment one key by compare and write lose no increment (CONTROL-1, CONTROL-2).
fn counters_of_many_threads<H: Harness>(harness: &H) {
    const THREAD_COUNT: u64 = 4;
    const COUNT_EACH: u64 = 25;
    let tested = harness.open();
    put(&tested, "counter", b"0");
    std::thread::scope(|scope| {
        for _ in 0..THREAD_COUNT {
            let tested = tested.clone();
            scope.spawn(move || {
                let mut left = COUNT_EACH;
                while left > 0 {
                    let entry = get(&tested, "counter").expect("it is there");
                    let text = String::from_utf8(entry.value).expect("it is a number");
                    let number: u64 = text.parse().expect("it is a number");
                    let compare = Compare::Modified("counter".to_owned(), entry.mod_revision);
                    let next = (number + 1).to_string().into_bytes();
                    let count = Transaction::new().when(compare).put("counter", next);
                    let outcome = tested.transact(&count).expect("it can be asked");
                    left -= u64::from(matches!(outcome, TransactionOutcome::Committed(_)));
                }
            });
        }
    });
    let counted = get(&tested, "counter").expect("it is there").value;
    assert_eq!(
        counted,
        (THREAD_COUNT * COUNT_EACH).to_string().into_bytes()
    );
}
