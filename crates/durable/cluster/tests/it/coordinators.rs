//! The embedded coordinator passes the suite, in memory and in a directory, and keeps committed
//! changes when power is lost.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use farleaf_base::clock::{ManualClock, SystemClock};
use farleaf_cluster::coordinator::conformance::{Harness, run_all};
use farleaf_cluster::coordinator::{
    Compare, Coordinator, CoordinatorError, Embedded, KeepAlive, Revision, Started, Transaction,
    TransactionOutcome,
};
use farleaf_cluster::record::{START_KEY, START_PREFIX};
use farleaf_lsm::storage::{
    CrashStorage, DirectoryStorage, Fault, FaultyStorage, PowerLoss, Storage,
};

struct InNodeMemory;

impl Harness for InNodeMemory {
    type Tested = Embedded;

    fn open(&self) -> Embedded {
        Embedded::default()
    }

    fn compact(&self, tested: &Embedded) {
        tested.compact();
    }

    fn time_to_live_min(&self) -> Duration {
        Duration::from_millis(200)
    }
}

struct InDirectories {
    root: tempfile::TempDir,
    next: AtomicU64,
}

impl Harness for InDirectories {
    type Tested = Embedded;

    fn open(&self) -> Embedded {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let path = self.root.path().join(number.to_string());
        std::fs::create_dir(&path).expect("a directory can be made");
        let storage = DirectoryStorage::open(path).expect("it can be opened");
        Embedded::open(Arc::new(storage), Arc::new(SystemClock)).expect("it is new")
    }

    fn compact(&self, tested: &Embedded) {
        tested.compact();
    }

    fn time_to_live_min(&self) -> Duration {
        Duration::from_millis(200)
    }
}

/// The embedded coordinator in memory keeps every promise of a coordinator.
#[test]
fn the_embedded_one_in_memory_conforms() {
    run_all(&InNodeMemory);
}

/// The embedded coordinator in a directory keeps every promise of a coordinator.
#[test]
fn the_embedded_one_in_a_directory_conforms() {
    let root = tempfile::tempdir().expect("a directory can be made");
    run_all(&InDirectories {
        root,
        next: AtomicU64::new(0),
    });
}

fn open(storage: &CrashStorage, clock: &ManualClock) -> Result<Embedded, CoordinatorError> {
    Embedded::open(Arc::new(storage.clone()), Arc::new(clock.clone()))
}

/// After a start all data are present, with their revisions. Leases have their whole time again,
/// and end after it; lease numbers continue.
#[test]
fn a_start_keeps_everything() {
    let (storage, clock) = (CrashStorage::new(1), ManualClock::new());
    let first = open(&storage, &clock).expect("it is new");
    let (lease, _) = first.grant_lease(Duration::from_secs(5)).expect("it works");
    first
        .transact(&Transaction::new().put("a", b"1".to_vec()))
        .expect("it works");
    let held = Transaction::new().put_leased("b", b"2".to_vec(), lease);
    first.transact(&held).expect("it works");
    clock.advance(Duration::from_secs(4));
    let before = first.range("").expect("it works");
    drop(first);
    let second = open(&storage, &clock).expect("it was closed");
    assert_eq!(second.range("").expect("it works"), before);
    clock.advance(Duration::from_secs(4));
    assert_eq!(second.range("").expect("it works"), before);
    let renewal = second.keep_alive(lease).expect("it works");
    assert_eq!(renewal, KeepAlive::Alive(Duration::from_secs(5)));
    let (next, _) = second
        .grant_lease(Duration::from_secs(5))
        .expect("it works");
    assert_ne!(next, lease);
    clock.advance(Duration::from_secs(5));
    assert_eq!(second.range("b").expect("it works").entries, []);
    drop(second);
    let third = open(&storage, &clock).expect("it was closed");
    assert_eq!(third.range("b").expect("it works").entries, []);
    assert_eq!(third.keep_alive(lease).expect("it works"), KeepAlive::Gone);
}

/// An open directory cannot be opened again.
#[test]
fn a_directory_that_is_open_is_refused() {
    let (storage, clock) = (CrashStorage::new(1), ManualClock::new());
    let _first = open(&storage, &clock).expect("it is new");
    let error = open(&storage, &clock).expect_err("it is open");
    assert!(matches!(error, CoordinatorError::Locked { .. }), "{error}");
}

/// Increments a key until the storage fails; returns the last committed value.
fn count_up(embedded: &Embedded, from: u64, to: u64) -> u64 {
    let mut done = from;
    for number in from + 1..=to {
        let before = embedded
            .range("n")
            .ok()
            .and_then(|it| it.entries.first().cloned());
        let modified = before.map_or(Revision::NEVER, |it| it.mod_revision);
        let count = Transaction::new()
            .when(Compare::Modified("n".to_owned(), modified))
            .put("n", number.to_string().into_bytes())
            .put(format!("of/{number}"), vec![b'x'; 3000]);
        match embedded.transact(&count) {
            Ok(TransactionOutcome::Committed(_)) => done = number,
            Ok(other) => panic!("{other:?}"),
            Err(_) => break,
        }
    }
    done
}

/// Power is lost at any operation of the storage. Everything committed is present and complete; at
/// most the one transaction in progress is present, too, and complete. The coordinator continues.
#[test]
fn a_loss_of_power_loses_nothing_committed() {
    for seed in 0..120 {
        let clock = ManualClock::new();
        let storage = CrashStorage::new(seed);
        storage.cut_power_at(5 + seed * 3);
        let committed = open(&storage, &clock).map_or(0, |it| count_up(&it, 0, 200));
        let storage = storage.lose_power(PowerLoss::Any);
        let embedded = open(&storage, &clock).expect("it is as it was");
        let entries = embedded.range("n").expect("it works").entries;
        let found = entries.first().map_or(0, |entry| {
            let text = String::from_utf8(entry.value.clone()).expect("it is a number");
            text.parse().expect("it is a number")
        });
        assert!((committed..=committed + 1).contains(&found), "seed {seed}");
        let parts = embedded.range("of/").expect("it works").entries;
        assert_eq!(parts.len() as u64, found, "seed {seed}");
        assert_eq!(count_up(&embedded, found, found + 3), found + 3);
    }
}

/// A journal with a wrong byte before its last line is damaged, and is not changed. A last line
/// that is cut off, anywhere, was never in force.
#[test]
fn damage_is_told_and_a_torn_end_is_not() {
    let clock = ManualClock::new();
    let storage = CrashStorage::new(7);
    drop(open(&storage, &clock).map(|it| count_up(&it, 0, 2)));
    let file = storage.open("COORDINATOR").expect("it is there");
    let size_bytes = file.size().expect("it works") as usize;
    let mut bytes = vec![0; size_bytes];
    file.read_at(&mut bytes, 0).expect("it works");
    let last_line = bytes[..size_bytes - 1]
        .iter()
        .rposition(|it| *it == b'\n')
        .expect("three")
        + 1;
    let copy = |bytes: &[u8]| {
        let storage = CrashStorage::new(8);
        let file = storage.create("COORDINATOR").expect("it works");
        file.write_at(bytes, 0).expect("it works");
        storage
    };
    for end in (last_line..size_bytes).step_by(97) {
        let embedded = open(&copy(&bytes[..end]), &clock).expect("a torn end is no damage");
        let entries = embedded.range("n").expect("it works").entries;
        assert_eq!(entries[0].value, b"1", "cut at {end}");
    }
    for at in (0..last_line).step_by(61) {
        let mut bytes = bytes.clone();
        bytes[at] ^= 4;
        let storage = copy(&bytes);
        let error = open(&storage, &clock).expect_err("it is damaged");
        assert!(matches!(error, CoordinatorError::Damaged { .. }), "{error}");
        let file = storage.open("COORDINATOR").expect("it is there");
        let mut after = vec![0; bytes.len()];
        file.read_at(&mut after, 0).expect("it works");
        assert!(after == bytes, "it was changed");
    }
}

/// Returns the line of a journal with this content, after a line with the checksum `before`, and
/// its own checksum.
fn journal_line(json: &str, before: u32) -> (String, u32) {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(&before.to_le_bytes());
    digest.update(json.as_bytes());
    let sum = digest.finalize() as u32;
    (format!("{sum:08x} {before:08x} {json}\n"), sum)
}

/// Fixes the format of the journal: a change needs a new version. A journal with these bytes is
/// read, and the next changes append such lines.
#[test]
fn journals_are_golden() {
    let golden = concat!(
        "ee84cf67 00000000 ",
        r#"{"version":1,"map":{"revision":1,"next_lease":1139524414029,"leases":[],"entries":[]}}"#,
        "\n51398abd ee84cf67 ",
        r#"{"grant":9000}"#,
        "\ndf0ed0fd 51398abd ",
        r#"{"write":[{"put":["a",[49],null]},{"put":["b",[50],1139524414029]}]}"#,
        "\nd606a551 df0ed0fd ",
        r#"{"write":[{"delete":"a"}]}"#,
        "\n",
    );
    let storage = CrashStorage::new(10);
    let file = storage.create("COORDINATOR").expect("it works");
    file.write_at(golden.as_bytes(), 0).expect("it works");
    let embedded = open(&storage, &ManualClock::new()).expect("it is read");
    let found = embedded.range("").expect("it works");
    assert_eq!(found.revision, Revision(3));
    let [b] = &found.entries[..] else {
        panic!("{found:?}");
    };
    let content = (b.key.as_str(), &b.value[..], b.lease.map(|it| it.0));
    assert_eq!(content, ("b", &b"2"[..], Some(1_139_524_414_029)));

    // An empty one, because a start draws new numbers of leases and writes the map again.
    let storage = CrashStorage::new(11);
    let embedded = open(&storage, &ManualClock::new()).expect("it is new");
    let (lease, _) = embedded
        .grant_lease(Duration::from_secs(9))
        .expect("it works");
    let transaction =
        Transaction::new()
            .put("a", b"1".to_vec())
            .put_leased("b", b"2".to_vec(), lease);
    embedded.transact(&transaction).expect("it works");
    let transaction = Transaction::new().delete("a");
    embedded.transact(&transaction).expect("it works");
    embedded.revoke_lease(lease).expect("it works");
    let lease = lease.0;
    let lines = [
        format!(
            r#"{{"version":1,"map":{{"revision":1,"next_lease":{lease},"leases":[],"entries":[]}}}}"#
        ),
        r#"{"grant":9000}"#.to_owned(),
        format!(r#"{{"write":[{{"put":["a",[49],null]}},{{"put":["b",[50],{lease}]}}]}}"#),
        r#"{"write":[{"delete":"a"}]}"#.to_owned(),
        format!(r#"{{"end":{lease}}}"#),
    ];
    let (mut expected, mut sum) = (String::new(), 0);
    for json in lines {
        let (line, own) = journal_line(&json, sum);
        expected.push_str(&line);
        sum = own;
    }
    let file = storage.open("COORDINATOR").expect("it is there");
    let mut bytes = vec![0; file.size().expect("it works") as usize];
    file.read_at(&mut bytes, 0).expect("it works");
    assert_eq!(String::from_utf8(bytes).expect("text"), expected);
}

/// A journal of a later version, whatever its map contains, is reported as such, not as damaged,
/// and is not changed.
#[test]
fn a_journal_of_a_later_version_is_not_damaged() {
    let json = r#"{"version":2,"shards":[]}"#;
    let (text, _) = journal_line(json, 0);
    let storage = CrashStorage::new(9);
    let file = storage.create("COORDINATOR").expect("it works");
    file.write_at(text.as_bytes(), 0).expect("it works");
    let error = open(&storage, &ManualClock::new()).expect_err("of the future");
    let error_text = error.to_string();
    assert!(
        matches!(error, CoordinatorError::Newer { version: 2, .. }),
        "{error_text}"
    );
    assert!(
        error_text.contains("a newer version has written it; use that version"),
        "{error_text}"
    );
    let mut after = vec![0; text.len()];
    let file = storage.open("COORDINATOR").expect("it is there");
    file.read_at(&mut after, 0).expect("it works");
    assert_eq!(after, text.as_bytes());
}

/// A coordinator whose disk is too full for its start reads, keeps leases alive, and changes
/// nothing. When there is space, it records the start before the first change, once.
#[test]
fn nothing_is_changed_before_the_start_is_recorded() {
    let storage = CrashStorage::new(1);
    let faulty = FaultyStorage::new(Arc::new(storage));
    let embedded = Embedded::open(Arc::new(faulty.clone()), Arc::new(SystemClock)).expect("made");
    let first = Started::begin(embedded.clone()).expect("there is after_bytes");
    let (lease, _) = first.grant_lease(Duration::from_mins(1)).expect("it works");
    let starts = || embedded.range(START_PREFIX).expect("it is read").entries;
    let before = starts();
    assert_eq!(before.len(), 1);
    faulty.set(Fault::Full { after_bytes: 0 });
    let second = Started::begin(embedded.clone()).expect("it reads");
    // The disk has space for small changes, but not for a start.
    faulty.lift_all();
    faulty.set(Fault::Full { after_bytes: 120 });
    let put = Transaction::new().put("k", b"v".to_vec());
    let refused = [
        second.transact(&put).map(drop).expect_err("transact"),
        (second.grant_lease(Duration::from_secs(1)).map(drop)).expect_err("grant"),
        second.revoke_lease(lease).expect_err("revoke"),
    ];
    assert!(
        refused.iter().all(CoordinatorError::is_out_of_space),
        "{refused:?}"
    );
    let renewal = second.keep_alive(lease).expect("it is kept");
    assert!(matches!(renewal, KeepAlive::Alive(_)));
    assert_eq!(starts(), before);
    faulty.lift_all();
    for _ in 0..2 {
        second.transact(&put).expect("there is after_bytes");
        let now = second.range("").expect("it works");
        let start = now.identity.iter().find(|it| it.key == START_KEY);
        let put = now.entries.iter().find(|it| it.key == "k").expect("put");
        assert!(start.expect("there is one").mod_revision < put.mod_revision);
        assert_eq!(starts().len(), 2);
    }
}

/// When the disk of an embedded coordinator is full, a change is refused and not done, at whatever
/// byte the space ends; reads succeed. When there is space again, changes succeed without a
/// restart. All of them are present after a restart, which may happen while the disk is full
/// (CONTROL-5).
#[test]
fn a_full_disk_is_waited_for() {
    for after_bytes in 0..150 {
        let storage = CrashStorage::new(after_bytes);
        let faulty = FaultyStorage::new(Arc::new(storage.clone()));
        let open = |storage: Arc<dyn Storage>| Embedded::open(storage, Arc::new(SystemClock));
        let coordinator = open(Arc::new(faulty.clone())).expect("made");
        let put = |coordinator: &Embedded, key: &str| {
            let transaction = Transaction::new().put(key, b"value".to_vec());
            coordinator.transact(&transaction)
        };
        put(&coordinator, "before").expect("there is after_bytes");
        faulty.set(Fault::Full { after_bytes });
        let refused = (0..5).map(|index| put(&coordinator, &format!("try-{index}")).is_err());
        let refused: Vec<bool> = refused.collect();
        assert!(refused.contains(&true), "{after_bytes}");
        let found = coordinator.range("").expect("it is read").entries.len();
        let done = refused.iter().filter(|is_refused| !**is_refused).count();
        assert_eq!(found, 1 + done, "{after_bytes}");
        let coordinator = if after_bytes % 2 == 0 {
            // A coordinator that starts on the full disk continues as well. It once ended at once.
            drop(coordinator);
            let again = open(Arc::new(faulty.clone())).expect("it goes on as it is");
            let found = again.range("").expect("it is read").entries.len();
            assert_eq!(found, 1 + done, "{after_bytes}");
            again
        } else {
            coordinator
        };
        faulty.lift_all();
        put(&coordinator, "after").expect("there is after_bytes again");
        drop(coordinator);
        let again = open(Arc::new(storage)).expect("it is whole");
        let found = again.range("").expect("it is read").entries.len();
        assert_eq!(found, 2 + done, "{after_bytes}");
    }
}

/// Displaces a directory whose journal is open; it is at `moved_path` afterwards, if it was moved.
fn displace(how: &str, path: &Path, moved_path: &Path) {
    let journal = path.join("COORDINATOR");
    let done = || -> std::io::Result<()> {
        match how {
            "removed" => std::fs::remove_file(&journal),
            "emptied" => std::fs::remove_dir_all(path).and_then(|()| std::fs::create_dir(path)),
            "moved" => std::fs::rename(path, moved_path),
            "replaced" => {
                std::fs::rename(path, moved_path)?;
                std::fs::create_dir(path)?;
                std::fs::copy(moved_path.join("COORDINATOR"), &journal).map(drop)
            }
            _ => {
                let bytes = std::fs::read(&journal)?;
                std::fs::remove_file(&journal)?;
                std::fs::write(&journal, bytes)
            }
        }
    };
    done().expect("it is there");
}

/// The open journal, or its directory, is removed, moved away or replaced by a copy. From then on
/// no change is acknowledged, and nothing is answered, even when the file is back. A restart on the
/// moved directory has everything acknowledged.
#[test]
fn a_journal_that_was_removed_or_replaced_stops_all() {
    let put = |key: &str| Transaction::new().put(key, b"v".to_vec());
    for case in ["removed", "emptied", "moved", "replaced", "rewritten"] {
        let root = tempfile::tempdir().expect("a directory can be made");
        let (path, moved_path) = (root.path().join("coordinator"), root.path().join("kept"));
        let open = || Embedded::open_directory(&path, Arc::new(SystemClock));
        let coordinator = open().expect("it is new");
        let granted = coordinator.grant_lease(Duration::from_mins(1));
        let (lease, _) = granted.expect("it works");
        coordinator.transact(&put("a")).expect("it works");
        // The journal is rewritten at times: the new file is its own, too.
        let large = Transaction::new().put("large", vec![7; 300 << 10]);
        coordinator.transact(&large).expect("it works");
        coordinator.transact(&put("b")).expect("it works");
        displace(case, &path, &moved_path);
        let error = coordinator.transact(&put("lost")).expect_err(case);
        let text = error.to_string();
        assert!(text.contains("was removed or replaced"), "{text}");
        let later = coordinator.transact(&put("later"));
        let again = [
            later.map(drop).expect_err("transact"),
            coordinator.range("").map(drop).expect_err("range"),
            (coordinator.keep_alive(lease).map(drop)).expect_err("keep alive"),
        ];
        for error in again {
            let is_told = matches!(error, CoordinatorError::Displaced(_));
            let text = error.to_string();
            assert!(
                is_told && text.contains("move that directory back"),
                "{text}"
            );
        }
        if case == "moved" {
            std::fs::rename(&moved_path, &path).expect("it is there");
            coordinator.range("").expect_err("it is not opened again");
            drop(coordinator);
            let again = open().expect("it is back");
            for key in ["a", "b"] {
                assert_eq!(again.range(key).expect("it works").entries.len(), 1);
            }
        }
    }
}

/// Reads and keep-alives are refused soon after the journal was removed, even if nothing is
/// written.
#[test]
fn a_removed_journal_is_noticed_by_reads() {
    let root = tempfile::tempdir().expect("a directory can be made");
    let clock = ManualClock::new();
    let coordinator =
        Embedded::open_directory(root.path(), Arc::new(clock.clone())).expect("it is new");
    std::fs::remove_file(root.path().join("COORDINATOR")).expect("it is there");
    clock.advance(Duration::from_millis(101));
    let error = coordinator.range("").expect_err("it is gone");
    assert!(matches!(error, CoordinatorError::Displaced(_)), "{error}");
}

/// A directory in place of the journal is reported as such, and nothing is changed.
#[test]
fn a_directory_in_place_of_the_journal_is_refused() {
    let root = tempfile::tempdir().expect("a directory can be made");
    std::fs::create_dir(root.path().join("COORDINATOR")).expect("it is not there");
    let opened = Embedded::open_directory(root.path(), Arc::new(SystemClock));
    let error_text = opened.expect_err("the file is not a journal").to_string();
    assert!(
        error_text.contains("expected a regular file, found a directory"),
        "{error_text}"
    );
    assert!(!root.path().join("COORDINATOR-NEW").exists());
}
