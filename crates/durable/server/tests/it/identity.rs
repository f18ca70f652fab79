//! Handles of other tables, and copies of other clusters.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use farleaf_client::ClientError;
use farleaf_cluster::admin;
use farleaf_cluster::coordinator::{Coordinator as _, Transaction};
use farleaf_cluster::ids::{ServerId, TableIncarnation};
use farleaf_cluster::record::{Record as _, TableRecord, table_key};
use farleaf_cluster::starts;
use farleaf_trial::fleet::{terms, view};
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::test_cluster::TestCluster;

/// A handle of one incarnation of a table reads and writes nothing of another one, even with the
/// same number, and returns an error. The other one's handle keeps working.
#[test]
fn a_handle_is_of_one_table() {
    let test_cluster = TestCluster::new(1);
    let table = test_cluster.table(1, false);
    table.put(b"k", b"own").expect("it is served");
    let key = table_key(table.id());
    let seen = admin::read::<TableRecord>(&test_cluster.coordinator, &key).expect("it works");
    let record = TableRecord {
        incarnation: Some(TableIncarnation::draw().expect("random bits")),
        ..seen.expect("it is there").record
    };
    let put = Transaction::new().put(key, record.encode());
    test_cluster.coordinator.transact(&put).expect("it works");
    let other = test_cluster.client().open_table("t").expect("it is there");
    assert_ne!(other.incarnation(), table.incarnation());
    let errors = [
        other.get(b"k").expect_err("it is another table's"),
        other
            .put(b"k", b"other")
            .expect_err("it is another table's"),
        other.delete(b"k").expect_err("it is another table's"),
    ];
    for error in errors {
        let error_text = error.to_string();
        assert!(
            matches!(error, ClientError::OtherTable { .. }),
            "{error_text}"
        );
        assert!(error_text.contains("nothing was written"), "{error_text}");
    }
    assert_eq!(
        table.get(b"k").expect("it is served"),
        Some(b"own".to_vec())
    );
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("made");
    for entry in fs::read_dir(from).expect("it is there") {
        let path = entry.expect("listed").path();
        let to = to.join(path.file_name().expect("a name"));
        if path.is_dir() {
            copy(&path, &to);
        } else {
            fs::copy(&path, to).expect("copied");
        }
    }
}

/// A copy of another cluster among a server's own is neither used nor removed: it is moved aside,
/// complete, and reported until an operator removes it.
#[test]
fn a_copy_of_another_cluster_is_kept_aside() {
    let mut crews = [TestCluster::new(1), TestCluster::new(1)];
    for test_cluster in &mut crews {
        let table = test_cluster.table(1, false);
        table.put(b"k", b"value").expect("it is served");
        test_cluster.stop(0);
    }
    let [own, other] = &mut crews;
    let foreign = other.directory(0).join("regions/1-1");
    copy(&foreign, &own.directory(0).join("regions/77-1"));
    own.start(0);
    let aside = own.directory(0).join("orphans/77-1");
    let since = Instant::now();
    let orphans = || {
        let view = view(&own.coordinator);
        let report = view.server_report(ServerId(1));
        report.map_or_else(Vec::new, |it| it.orphans.clone())
    };
    while orphans().is_empty() {
        assert!(
            since.elapsed() < Duration::from_secs(30),
            "it is not reported"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    let orphan = &orphans()[0];
    assert_eq!(orphan.path, aside.display().to_string());
    assert!(orphan.how.contains("belongs to cluster"), "{orphan:?}");
    for name in ["REPLICA", "data-0/log"] {
        let [before, after] = [&foreign, &aside].map(|it| fs::read(it.join(name)).ok());
        assert_eq!(before, after, "{name}");
    }
    let table = own.client().open_table("t").expect("it is there");
    let found = table.get(b"k").expect("it is served");
    assert_eq!(found, Some(b"value".to_vec()));
}

/// The thread that renews the lease never writes the state seen of the coordinator. A disk that
/// stalls in that write ends no life, and the state is written when the disk continues.
#[test]
fn a_disk_that_stalls_ends_no_lease() {
    let mut test_cluster = TestCluster::new(1);
    test_cluster.stop(0);
    starts::begin_start(&test_cluster.coordinator).expect("nobody else starts it");
    let directory = test_cluster.directory(0);
    let stalled = directory.join("SEEN.new");
    // Opening it for writing blocks until it is opened for reading.
    let made = mknodat(CWD, &stalled, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0);
    made.expect("it can be made");
    test_cluster.start(0);
    let life = || {
        view(&test_cluster.coordinator)
            .lives
            .get(&ServerId(1))
            .copied()
    };
    let wait = |what: &dyn Fn() -> bool| {
        let since = Instant::now();
        while !what() {
            assert!(since.elapsed() < Duration::from_secs(30), "it never is so");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    wait(&|| life().is_some());
    let first = life();
    std::thread::sleep(terms().time_to_live * 3);
    assert_eq!(life(), first);
    assert!(!directory.join("SEEN").exists());
    let reader = fs::File::open(&stalled).expect("somebody writes it");
    fs::remove_file(&stalled).expect("it is there");
    drop(reader);
    wait(&|| directory.join("SEEN").exists());
    assert_eq!(life(), first);
}
