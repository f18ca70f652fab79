//! Directories that belong to another server or cluster, or are damaged.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use farleaf_client::{ClientError, ClientOptions, Cluster, Durability, PersistentTable};
use farleaf_server::RegionServer;
use farleaf_trial::fleet::secret;

use crate::test_cluster::TestCluster;

const RECORD_COUNT: u64 = 60;

fn key_of(number: u64) -> Vec<u8> {
    format!("{number:02}").into_bytes()
}

fn load(table: &PersistentTable) {
    for number in 0..RECORD_COUNT {
        table.put(&key_of(number), &key_of(number)).expect("put");
    }
}

fn check(table: &PersistentTable) {
    for number in 0..RECORD_COUNT {
        let found = table.get(&key_of(number)).expect("it is served");
        assert_eq!(found, Some(key_of(number)));
    }
}

/// Returns all files of a directory, with their contents.
fn contents(path: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(path).expect("it is there") {
        let path = entry.expect("listed").path();
        if path.is_dir() {
            found.extend(contents(&path));
        } else {
            let bytes = fs::read(&path).expect("it can be read");
            found.insert(path, bytes);
        }
    }
    found
}

/// A directory that another server has open, or that belongs to another server or cluster, is
/// refused with the remedy, and nothing in it is changed.
#[test]
fn directories_of_others_are_refused() {
    let mut test_cluster = TestCluster::new(1);
    let table = test_cluster.table(1, false);
    load(&table);
    let open = RegionServer::start(test_cluster.coordinator.clone(), &test_cluster.options(0));
    let error = open.expect_err("it is open").to_string();
    assert!(error.contains("stop that server first"), "{error}");
    check(&table);
    test_cluster.stop(0);
    let before = contents(&test_cluster.directory(0));
    let mut as_another = test_cluster.options(0);
    as_another.number = Some(9);
    let error = RegionServer::start(test_cluster.coordinator.clone(), &as_another);
    let error = error.expect_err("it is server 1's").to_string();
    assert!(error.contains("omit the number"), "{error}");
    let other = TestCluster::new(0);
    let error = RegionServer::start(other.coordinator.clone(), &test_cluster.options(0));
    let error = error.expect_err("it is another cluster's").to_string();
    assert!(error.contains("cluster"), "{error}");
    assert_eq!(contents(&test_cluster.directory(0)), before);
    test_cluster.start(0);
    check(&table);
}

/// Returns a replica's file with this prefix, of a stopped server.
fn file_of(test_cluster: &TestCluster, index: usize, prefix: &str) -> PathBuf {
    let files = contents(&test_cluster.directory(index).join("regions")).into_keys();
    let mut files = files.filter(|path| {
        let name = path.file_name().and_then(|it| it.to_str());
        name.is_some_and(|name| name.starts_with(prefix))
    });
    files.next().expect("it has one")
}

/// Damages a replica's directory while its server is stopped.
type Harm = fn(&TestCluster, usize);

fn corrupt_manifest(test_cluster: &TestCluster, index: usize) {
    let file = file_of(test_cluster, index, "MANIFEST-");
    let mut bytes = fs::read(&file).expect("there");
    let middle = bytes.len() / 3;
    bytes[middle] ^= 0x40;
    fs::write(file, bytes).expect("written");
}

fn lose_data(test_cluster: &TestCluster, index: usize) {
    let data = file_of(test_cluster, index, "MANIFEST-");
    let data = data.parent().expect("a directory");
    fs::rename(data, data.with_file_name("elsewhere")).expect("moved");
}

fn note_of_the_future(test_cluster: &TestCluster, index: usize) {
    let note = file_of(test_cluster, index, "REPLICA");
    fs::write(note, r#"{"version":9,"copies":[]}"#).expect("written");
}

const HARMS: [Harm; 3] = [corrupt_manifest, lose_data, note_of_the_future];

/// A damaged copy supplies no data. With three replicas the others serve, the server is filled
/// again, and the damaged files are still on its disk (CONTROL-18).
#[test]
fn damaged_copies_are_replaced() {
    for harm in HARMS {
        let mut test_cluster = TestCluster::new(3);
        let table = test_cluster
            .table(3, false)
            .with_durability(Durability::Sync);
        load(&table);
        let primary = test_cluster.primary(&table);
        test_cluster.stop(primary);
        harm(&test_cluster, primary);
        let harmed = contents(&test_cluster.directory(primary).join("regions"));
        check(&table);
        test_cluster.start(primary);
        check(&table);
        test_cluster.wait_replicated(&table, 3);
        let after = contents(&test_cluster.directory(primary).join("regions"));
        for (path, bytes) in harmed {
            assert_eq!(after.get(&path), Some(&bytes), "{}", path.display());
        }
        check(&table);
    }
}

/// If it is the only copy, the region is not served from an empty one. When the files are put back,
/// everything is present again (CONTROL-18).
#[test]
fn the_only_copy_is_not_made_up() {
    for harm in HARMS {
        let mut test_cluster = TestCluster::new(1);
        let table = test_cluster.table(1, false);
        load(&table);
        test_cluster.stop(0);
        let regions = test_cluster.directory(0).join("regions");
        let before = contents(&regions);
        harm(&test_cluster, 0);
        test_cluster.start(0);
        let options = ClientOptions {
            secret: Some(secret()),
            patience: std::time::Duration::from_millis(1500),
            ..ClientOptions::default()
        };
        let hasty = Cluster::new(test_cluster.coordinator.clone(), options);
        let hasty = hasty.open_table("t").expect("it is there");
        let answer = hasty.get(&key_of(1));
        assert!(
            matches!(answer, Err(ClientError::NotServed { .. })),
            "{answer:?}"
        );
        test_cluster.stop(0);
        for (path, bytes) in before {
            fs::create_dir_all(path.parent().expect("a directory")).expect("made");
            fs::write(path, bytes).expect("written");
        }
        test_cluster.start(0);
        check(&table);
    }
}
