//! Opening directories, and refusing them.

use std::sync::Arc;

use super::{Engine, open, open_as, tiny};
use crate::engine::{DEVICE_FILES, Durability, EngineOptions};
use crate::error::LsmError;
use crate::log::record::EngineId;
use crate::storage::{
    CrashStorage, DirectoryStorage, Fault, FaultyStorage, Operation, PowerLoss, Storage,
};

/// Creates a directory with records in the log and in a tree.
fn filled(seed: u64) -> CrashStorage {
    let storage = CrashStorage::new(seed);
    let engine = open(&storage).expect("made");
    engine.put(b"key", b"value", Durability::Sync).expect("put");
    engine.freeze();
    engine.maintain().expect("flushed");
    engine
        .put(b"late", b"value", Durability::Sync)
        .expect("put");
    drop(engine);
    storage
}

/// Promise: an open directory is refused until all its users are gone.
#[test]
fn one_engine_has_a_directory() {
    let storage = CrashStorage::new(1);
    let engine = open(&storage).expect("made");
    let snapshot = engine.snapshot();
    let refused = open(&storage);
    assert!(
        matches!(refused, Err(LsmError::Locked { .. })),
        "{refused:?}"
    );
    drop(engine);
    assert!(open(&storage).is_err(), "a snapshot has it");
    drop(snapshot);
    open(&storage).expect("nobody has it");
}

/// Promise: a real directory works, too: it is created, locked, and reopened, also with devices
/// that bypass the page cache, if the file system supports that.
#[test]
fn a_real_directory_is_opened_again() {
    real_directory_is_opened_again(&[]);
    real_directory_is_opened_again(&DEVICE_FILES);
}

fn real_directory_is_opened_again(direct: &[&str]) {
    let directory = tempfile::tempdir().expect("there is room");
    let opened = || {
        let storage = DirectoryStorage::open(directory.path()).expect("it is there");
        let storage = Arc::new(storage.with_direct_io(direct));
        let shared: Arc<dyn Storage> = storage.clone();
        let engine = Engine::open(shared, tiny());
        if let Some(why) = storage.direct_io_refused() {
            eprintln!("skipped: no direct I/O here: {why}");
        }
        engine
    };
    let engine = opened().expect("made");
    for number in 0..500_u32 {
        let key = (number % 100).to_be_bytes();
        let value = number.to_string().repeat(1_000);
        let put = engine.put(&key, value.as_bytes(), Durability::Memory);
        put.expect("there is room");
        if number % 50 == 0 {
            engine.maintain().expect("there is room");
        }
    }
    assert!(matches!(opened(), Err(LsmError::Locked { .. })));
    engine.sync().expect("synced");
    drop(engine);
    let engine = opened().expect("whole");
    engine.merge_all().expect("merged");
    for number in 400..500_u32 {
        let value = engine.get(&(number % 100).to_be_bytes()).expect("read");
        assert!(value == Some(number.to_string().repeat(1_000).into_bytes()));
    }
}

/// Promise: a directory created without an id gets a unique one and keeps it, whatever later
/// options say; one created with an id has that one.
#[test]
fn an_id_is_drawn_once() {
    let id_of = |engine: Engine| engine.core.manifest.state().engine;
    let drawn = [1, 2].map(|seed| {
        let storage = CrashStorage::new(seed);
        let drawn = || open_as(&storage, EngineOptions::default());
        let id = id_of(drawn().expect("made"));
        assert_eq!(id_of(drawn().expect("whole")), id);
        assert_eq!(id_of(open(&storage).expect("whole")), id);
        id
    });
    assert_ne!(drawn[0], drawn[1]);
    let storage = CrashStorage::new(3);
    assert_eq!(id_of(open(&storage).expect("made")), EngineId(77));
}

/// Promise: a directory with a missing file is corrupted; it is neither created anew nor opened
/// with less data.
#[test]
fn a_file_that_is_gone_is_damage() {
    for file in ["CURRENT", "log", "trees", "MANIFEST-1"] {
        let storage = filled(2);
        storage.remove(file).expect("removed");
        let names = storage.list().expect("listed").len();
        let refused = open(&storage);
        match (file, &refused) {
            ("MANIFEST-1", Err(LsmError::Storage { .. }))
            | (_, Err(LsmError::CorruptManifest { .. })) => {}
            _ => panic!("{file}: {refused:?}"),
        }
        assert_eq!(storage.list().expect("listed").len(), names, "{file}");
    }
}

/// Promise: a changed byte in a tree, or in a record of a tree or the log, is an error and not
/// another value.
#[test]
fn damage_is_told() {
    for (file, offset) in [("trees", 40), ("trees", 4096), ("log", 33), ("log", 45)] {
        let storage = filled(3);
        let opened = storage.open(file).expect("there");
        let mut byte = [0];
        opened.read_at(&mut byte, offset).expect("read");
        opened.write_at(&[byte[0] ^ 1], offset).expect("written");
        let got = open(&storage).and_then(|engine| engine.get(b"key"));
        assert!(
            matches!(
                got,
                Err(LsmError::CorruptTree { .. } | LsmError::CorruptLog { .. })
            ),
            "{file} {offset}: {got:?}"
        );
    }
}

/// Promise: if a tree is too short, or a block needed for opening is corrupted, the error gives the
/// byte, the file, and the remedy. With the file restored, everything is present.
#[test]
fn a_tree_that_is_cut_is_told_with_its_place() {
    let storage = filled(8);
    let file = storage.open("trees").expect("there");
    let mut bytes = vec![0; file.size().expect("known") as usize];
    file.read_at(&mut bytes, 0).expect("read");
    for size_bytes in [0, 4096] {
        file.set_size(size_bytes).expect("cut");
        let refused = open(&storage).expect_err("it is damaged").to_string();
        for part in [
            "of tree 1 is corrupted",
            "(byte ",
            " of memory/trees)",
            "restore",
        ] {
            assert!(refused.contains(part), "no {part:?} in {refused}");
        }
        file.write_at(&bytes, 0).expect("written");
        let engine = open(&storage).expect("whole");
        assert_eq!(engine.get(b"key").expect("got"), Some(b"value".to_vec()));
    }
}

/// Promise: after a failed edit nothing is written, and reads continue. After reopening, everything
/// is present.
#[test]
fn a_failure_stops_the_writes() {
    let storage = CrashStorage::new(4);
    let faulty = FaultyStorage::new(Arc::new(storage.clone()));
    let shared: Arc<dyn Storage> = Arc::new(faulty.clone());
    let engine = Engine::open(shared, tiny()).expect("made");
    engine.put(b"key", b"value", Durability::Sync).expect("put");
    engine.freeze();
    faulty.set(Fault::Fail {
        operations: &[Operation::Sync],
        file: Some("MANIFEST-1".to_owned()),
        nth: 1,
        times: 1,
    });
    assert!(engine.maintain().is_err());
    let stopped = engine.put(b"more", b"value", Durability::Memory);
    assert!(
        matches!(stopped, Err(LsmError::Stopped { .. })),
        "{stopped:?}"
    );
    let stopped = engine.maintain();
    assert!(
        matches!(stopped, Err(LsmError::Stopped { .. })),
        "{stopped:?}"
    );
    assert_eq!(engine.get(b"key").expect("read"), Some(b"value".to_vec()));
    drop(engine);
    let left = storage.lose_power(PowerLoss::Any);
    let again = open(&left).expect("whole");
    assert_eq!(again.get(b"key").expect("read"), Some(b"value".to_vec()));
}

/// Promise: a tree that does not fit on a full disk changes nothing, and background work continues
/// when there is space. A tree that cannot be synced stops the engine.
#[test]
fn a_full_disk_can_be_waited_for() {
    let storage = CrashStorage::new(5);
    let faulty = FaultyStorage::new(Arc::new(storage.clone()));
    let shared: Arc<dyn Storage> = Arc::new(faulty.clone());
    let engine = Engine::open(shared, tiny()).expect("made");
    engine.put(b"key", b"value", Durability::Sync).expect("put");
    engine.freeze();
    let fail = |operations| {
        faulty.set(Fault::Fail {
            operations,
            file: Some("trees".to_owned()),
            nth: 1,
            times: 1,
        });
        assert!(engine.maintain().is_err(), "{operations:?}");
        assert_eq!(engine.counts().tree_segment_count, 0);
        assert_eq!(engine.get(b"key").expect("read"), Some(b"value".to_vec()));
    };
    fail(&[Operation::Write]);
    fail(&[Operation::Read]);
    engine.maintain().expect("nothing is set any more");
    assert_eq!(engine.counts().tree_counts, [1]);

    // After a failed sync, the next one guarantees nothing.
    engine.put(b"more", b"", Durability::Memory).expect("put");
    engine.freeze();
    fail_sync(&faulty);
    assert!(engine.maintain().is_err());
    let stopped = engine.maintain();
    assert!(
        matches!(stopped, Err(LsmError::Stopped { .. })),
        "{stopped:?}"
    );
}

fn fail_sync(faulty: &FaultyStorage) {
    faulty.set(Fault::Fail {
        operations: &[Operation::Sync],
        file: Some("trees".to_owned()),
        nth: 1,
        times: 1,
    });
}

/// Promise: invalid options are refused by name, and nothing is created.
#[test]
fn options_that_cannot_be_are_refused() {
    let changes: [fn(&mut EngineOptions); 6] = [
        |options| options.growth_factor = 1,
        |options| options.live_percent_min = 101,
        |options| options.l0_size_bytes_max = 0,
        |options| options.l0_log_size_bytes_max = 0,
        |options| options.level_1_tree_count_max = 0,
        |options| options.merge_step_entry_count = 0,
    ];
    for change in changes {
        let storage = CrashStorage::new(1);
        let mut options = tiny();
        change(&mut options);
        let refused = Engine::open(Arc::new(storage.clone()), options);
        let Err(error @ LsmError::BadOption { option, .. }) = refused else {
            panic!("{refused:?}");
        };
        let text = error.to_string();
        assert!(
            text.contains(option) && text.contains("it must be"),
            "{text}"
        );
        assert!(open(&storage).is_ok(), "nothing is there");
    }
}
