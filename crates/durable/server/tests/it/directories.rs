//! Directories that are another's, or not as they were written.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use farleaf_client::{ClientError, ClientOptions, Cluster, Durability, PersistentTable};
use farleaf_server::RegionServer;
use farleaf_trial::fleet::secret;

use crate::crew::Crew;

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

/// All files of a directory, with what is in them.
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

/// Promise: a directory that another server has open, that is another server's or another
/// cluster's, is refused with what to do, and nothing in it is changed.
#[test]
fn directories_of_others_are_refused() {
    let mut crew = Crew::new(1);
    let table = crew.table(1, false);
    load(&table);
    let open = RegionServer::start(crew.coordinator.clone(), &crew.options(0));
    let error = open.expect_err("it is open").to_string();
    assert!(error.contains("stop that one first"), "{error}");
    check(&table);
    crew.stop(0);
    let before = contents(&crew.directory(0));
    let mut as_another = crew.options(0);
    as_another.number = Some(9);
    let error = RegionServer::start(crew.coordinator.clone(), &as_another);
    let error = error.expect_err("it is server 1's").to_string();
    assert!(error.contains("leave the number out"), "{error}");
    let other = Crew::new(0);
    let error = RegionServer::start(other.coordinator.clone(), &crew.options(0));
    let error = error.expect_err("it is another cluster's").to_string();
    assert!(error.contains("cluster"), "{error}");
    assert_eq!(contents(&crew.directory(0)), before);
    crew.start(0);
    check(&table);
}

/// A replica's file, which begins so, of a server that does not run.
fn file_of(crew: &Crew, index: usize, prefix: &str) -> PathBuf {
    let files = contents(&crew.directory(index).join("regions")).into_keys();
    let mut files = files.filter(|path| {
        let name = path.file_name().and_then(|it| it.to_str());
        name.is_some_and(|name| name.starts_with(prefix))
    });
    files.next().expect("it has one")
}

/// What is done to a replica's directory while its server does not run.
type Harm = fn(&Crew, usize);

fn corrupt_manifest(crew: &Crew, index: usize) {
    let file = file_of(crew, index, "MANIFEST-");
    let mut bytes = fs::read(&file).expect("there");
    let middle = bytes.len() / 3;
    bytes[middle] ^= 0x40;
    fs::write(file, bytes).expect("written");
}

fn lose_data(crew: &Crew, index: usize) {
    let data = file_of(crew, index, "MANIFEST-");
    let data = data.parent().expect("a directory");
    fs::rename(data, data.with_file_name("elsewhere")).expect("moved");
}

fn note_of_the_future(crew: &Crew, index: usize) {
    let note = file_of(crew, index, "REPLICA");
    fs::write(note, r#"{"version":9,"copies":[]}"#).expect("written");
}

const HARMS: [Harm; 3] = [corrupt_manifest, lose_data, note_of_the_future];

/// Promise (CP18): a copy that is not as it was written is nobody's source: with three replicas the
/// others serve, the server is filled anew, and what was there is still on its disk.
#[test]
fn damaged_copies_are_replaced() {
    for harm in HARMS {
        let mut crew = Crew::new(3);
        let table = crew.table(3, false).with_durability(Durability::Sync);
        load(&table);
        let primary = crew.primary(&table);
        crew.stop(primary);
        harm(&crew, primary);
        let harmed = contents(&crew.directory(primary).join("regions"));
        check(&table);
        crew.start(primary);
        check(&table);
        crew.wait_whole(&table, 3);
        let after = contents(&crew.directory(primary).join("regions"));
        for (path, bytes) in harmed {
            assert_eq!(after.get(&path), Some(&bytes), "{}", path.display());
        }
        check(&table);
    }
}

/// Promise (CP18): where it is the only copy, nobody serves the region from nothing; and when what
/// was there is put back, everything is there again.
#[test]
fn the_only_copy_is_not_made_up() {
    for harm in HARMS {
        let mut crew = Crew::new(1);
        let table = crew.table(1, false);
        load(&table);
        crew.stop(0);
        let regions = crew.directory(0).join("regions");
        let before = contents(&regions);
        harm(&crew, 0);
        crew.start(0);
        let options = ClientOptions {
            secret: Some(secret()),
            patience: std::time::Duration::from_millis(1500),
            ..ClientOptions::default()
        };
        let hasty = Cluster::new(crew.coordinator.clone(), options);
        let hasty = hasty.open_table("t").expect("it is there");
        let answer = hasty.get(&key_of(1));
        assert!(
            matches!(answer, Err(ClientError::NotServed { .. })),
            "{answer:?}"
        );
        crew.stop(0);
        for (path, bytes) in before {
            fs::create_dir_all(path.parent().expect("a directory")).expect("made");
            fs::write(path, bytes).expect("written");
        }
        crew.start(0);
        check(&table);
    }
}
