//! Failovers in which backups keep identical pieces (REPLICATION-14).

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use farleaf_client::{Durability, PersistentTable};
use farleaf_lsm::EngineOptions;
use farleaf_lsm::storage::{DirectoryStorage, Origin, Storage, StorageFile, StorageLock};
use farleaf_server::OpenStorage;
use farleaf_trial::load::wait_served;

use crate::test_cluster::TestCluster;

/// A directory whose files cannot have second names: backups are filled from scratch.
#[derive(Debug)]
struct Unlinked(DirectoryStorage);

impl Storage for Unlinked {
    fn create(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        self.0.create(name)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        self.0.open(name)
    }

    fn open_uncached(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        self.0.open_uncached(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.0.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.remove(name)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.0.list()
    }

    fn sync_names(&self) -> io::Result<()> {
        self.0.sync_names()
    }

    fn lock(&self, name: &str) -> io::Result<Option<Box<dyn StorageLock>>> {
        self.0.lock(name)
    }

    fn name(&self) -> String {
        self.0.name()
    }

    fn origin(&self, _name: &str) -> Option<Origin> {
        None
    }

    fn link(&self, _origin: &Origin, _name: &str) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

fn unlinked() -> OpenStorage {
    OpenStorage::new(|path| Ok(Arc::new(Unlinked(DirectoryStorage::open(path)?))))
}

/// Returns the logs in a server's directory: paths and inode numbers.
fn logs(directory: &Path) -> BTreeMap<PathBuf, u64> {
    let mut found = BTreeMap::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        // A directory being removed is skipped.
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let path = entry.path();
            match entry.metadata() {
                Ok(metadata) if metadata.is_dir() => directories.push(path),
                Ok(metadata) if entry.file_name() == "log" => {
                    found.insert(path, metadata.ino());
                }
                _ => {}
            }
        }
    }
    found
}

fn value_of(key: u64, round: u64, size_bytes: usize) -> Vec<u8> {
    let mut value = (key * 1000 + round).to_le_bytes().repeat(size_bytes / 8);
    value.push(7);
    value
}

fn put_all(table: &PersistentTable, keys: std::ops::Range<u64>, round: u64, size_bytes: usize) {
    let pairs: Vec<(Vec<u8>, Vec<u8>)> = keys
        .map(|key| (key.to_be_bytes().to_vec(), value_of(key, round, size_bytes)))
        .collect();
    for part in pairs.chunks(64) {
        for (key, value) in part {
            table.put(key, value).expect("it is served");
        }
    }
}

/// When a primary ends, the other backup's next copy shares the files of its previous one, so that
/// hardly anything is sent. If files cannot have two names, everything is sent. Either way all data
/// are present, over several primaries in sequence, and after a restart of all servers from their
/// disks (REPLICATION-14).
#[test]
fn a_backup_keeps_what_it_has() {
    for (links, rounds) in [(true, 1..3), (false, 1..2)] {
        let mut test_cluster = TestCluster::with(3, move |_, options| {
            if !links {
                options.storage = unlinked();
            }
        });
        let table = test_cluster
            .table(3, false)
            .with_durability(Durability::Memory);
        put_all(&table, 0..400, 0, 4000);
        for round in rounds.clone() {
            let primary = test_cluster.primary(&table);
            let others = (0..3).filter(|it| *it != primary);
            let before: Vec<_> = others
                .map(|it| (it, logs(&test_cluster.directory(it))))
                .collect();
            test_cluster.stop(primary);
            wait_served(&table);
            let heir = test_cluster.primary(&table);
            for (index, before) in before {
                let after = logs(&test_cluster.directory(index));
                let new: Vec<_> = after
                    .iter()
                    .filter(|it| !before.contains_key(it.0))
                    .collect();
                assert_eq!(
                    new.len(),
                    usize::from(index != heir),
                    "{before:?}, {after:?}"
                );
                let is_same = |it: &u64| before.values().any(|before| before == it);
                assert!(new.iter().all(|it| is_same(it.1) == links), "{new:?}");
            }
            put_all(&table, 100 * round..100 * round + 300, round, 4000);
            test_cluster.start(primary);
            test_cluster.wait_replicated(&table, 3);
        }
        for index in 0..3 {
            test_cluster.stop(index);
        }
        for index in 0..3 {
            test_cluster.start(index);
        }
        wait_served(&table);
        for key in 0..400_u64 {
            let last = rounds
                .clone()
                .rev()
                .find(|it| (100 * it..100 * it + 300).contains(&key));
            let found = table.get(&key.to_be_bytes()).expect("it is served");
            let expected = value_of(key, last.unwrap_or(0), 4000);
            assert!(found == Some(expected), "{links}: key {key}");
        }
    }
}

/// Measures how long a large region of `FARLEAF_TEST_MIB` (500) is unavailable when its primary
/// ends, with reused pieces and filled from scratch. `cargo test --release -p farleaf-server --test
/// it large_region -- --ignored --nocapture`
#[test]
#[ignore = "takes a minute, and disk"]
fn a_large_region_fails_over() {
    let size_mib: u64 = std::env::var("FARLEAF_TEST_MIB").map_or(500, |text| {
        text.parse().expect("FARLEAF_TEST_MIB is a number")
    });
    for links in [false, true] {
        let mut test_cluster = TestCluster::with(3, move |_, options| {
            options.engine = EngineOptions::new();
            options.link_patience = Duration::from_secs(10);
            if !links {
                options.storage = unlinked();
            }
        });
        let table = test_cluster
            .table(3, false)
            .with_durability(Durability::Memory);
        let since = Instant::now();
        put_all(&table, 0..size_mib << 10, 0, 1000);
        eprintln!("{size_mib} MiB written in {:?}", since.elapsed());
        std::thread::sleep(Duration::from_secs(3));
        test_cluster.stop(test_cluster.primary(&table));
        let away = wait_served(&table);
        let how = if links { "with what it has" } else { "anew" };
        eprintln!("filled {how}: away {away:?}");
    }
}
