use std::sync::Arc;

use super::{Change, Manifest, ManifestState, chain};
use crate::error::LsmError;
use crate::log::record::EngineId;
use crate::place::{LogNumber, LogPosition, SegmentId};
use crate::storage::{CrashStorage, Fault, FaultyStorage, Operation, PowerLoss, Storage};

fn made(storage: &CrashStorage) -> Manifest {
    let storage = Arc::new(storage.clone());
    Manifest::create(storage, ManifestState::new(EngineId(9))).expect("it can be written")
}

fn reserve(first: u64, count: u32) -> Change {
    let segments = (0..count).map(|index| SegmentId(first as u32 + index));
    Change::ReserveLog {
        first: LogNumber(first),
        segments: segments.collect(),
    }
}

fn file_of(storage: &dyn Storage, name: &str) -> Vec<u8> {
    let file = storage.open(name).expect("it is there");
    let mut bytes = vec![0; file.size().expect("it is open") as usize];
    file.read_at(&mut bytes, 0).expect("it can be read");
    bytes
}

fn overwrite(storage: &dyn Storage, name: &str, bytes: &[u8]) {
    let file = storage.create(name).expect("a file");
    file.write_at(bytes, 0).expect("written");
}

/// Promise: committed edits are present when the directory is reopened, and all of them are
/// counted.
#[test]
fn edits_are_there_again() {
    let storage = CrashStorage::new(1);
    let manifest = made(&storage);
    manifest.commit(&[reserve(0, 3)]).expect("committed");
    let to = LogNumber(1).start();
    let free = Change::FreeLog {
        numbers: vec![LogNumber(0)],
    };
    let changes = [Change::ReadFrom(to), free];
    manifest.commit(&changes).expect("committed");
    let (again, is_cut) = Manifest::open(Arc::new(storage)).expect("it is whole");
    assert_eq!((again.state(), is_cut), (manifest.state(), false));
    assert_eq!((again.edit_count(), again.state().read_from), (2, to));
    assert_eq!(again.state().log.len(), 2);
}

/// Promise: wherever power fails during edits and rewriting, all edits in force are present
/// afterwards, and at most one more.
#[test]
fn no_edit_is_lost_with_the_power() {
    let mut last_was_there = [0, 0];
    let mut written_anew_count = 0;
    for seed in 0..40 {
        for cut in 1.. {
            let storage = CrashStorage::new(seed * 1000 + cut);
            storage.cut_power_at(cut);
            let (mut in_force, mut is_over) = (None, false);
            let shared: Arc<dyn Storage> = Arc::new(storage.clone());
            if let Ok(manifest) = Manifest::create(shared, ManifestState::new(EngineId(9))) {
                in_force = Some(0);
                let manifest = manifest.rewritten_from(1500);
                // Large enough for rewriting the file: eight times the first line.
                let edits = (0..14).map(|index| reserve(index * 20, 20));
                is_over = edits.into_iter().all(|edit| {
                    let done = manifest.commit(&[edit]).is_ok();
                    in_force = Some(manifest.edit_count());
                    done
                });
            }
            let left = storage.lose_power(PowerLoss::Any);
            let names = left.list().expect("listed");
            let was_written_anew = names.iter().any(|name| name == "MANIFEST-2");
            match (Manifest::is_there(&left).expect("listed"), in_force) {
                (false, in_force) => assert_eq!(in_force, None, "seed {seed}, cut {cut}"),
                (true, in_force) => {
                    let opened = Manifest::open(Arc::new(left));
                    let (again, _) = opened.unwrap_or_else(|it| panic!("{seed}, {cut}: {it}"));
                    let (found, least) = (again.edit_count(), in_force.unwrap_or(0));
                    assert!(
                        (least..=least + 1).contains(&found),
                        "{seed}, {cut}: {found}"
                    );
                    assert_eq!(again.state().log.len() as u64, found * 20);
                    last_was_there[usize::from(found > least)] += 1;
                }
            }
            if is_over {
                written_anew_count += usize::from(was_written_anew);
                break;
            }
        }
    }
    assert_eq!(
        written_anew_count, 40,
        "of each seed the run in which all was done"
    );
    assert!(
        last_was_there.iter().all(|count| *count > 20),
        "{last_was_there:?}"
    );
}

/// Promise: a `CURRENT` of any wrong length, and a missing manifest, are corruption and not an
/// error of the device. A failing device is not corruption.
#[test]
fn wrong_lengths_are_damage() {
    let storage = CrashStorage::new(5);
    drop(made(&storage));
    let good = file_of(&storage, "CURRENT");
    let open = || Manifest::open(Arc::new(storage.clone())).map(|_| ());
    for size_bytes in [0, 1, good.len() - 1, good.len() + 1, 64, 65, 110, 5000] {
        let mut bytes = good.clone();
        bytes.resize(size_bytes, b'x');
        overwrite(&storage, "CURRENT", &bytes);
        let error = open().expect_err("it is not what was written");
        let is_corruption = matches!(error, LsmError::CorruptManifest { .. });
        assert!(is_corruption, "{size_bytes} bytes: {error}");
        assert!(error.to_string().contains("CURRENT"), "{error}");
    }
    overwrite(&storage, "CURRENT", b"MANIFEST-7\n");
    let error = open().expect_err("there is none");
    assert!(matches!(error, LsmError::CorruptManifest { .. }), "{error}");
    overwrite(&storage, "CURRENT", &good);
    let faulty = FaultyStorage::new(Arc::new(storage.clone()));
    faulty.set(Fault::Fail {
        operations: Operation::ALL,
        file: Some("CURRENT".to_owned()),
        nth: 1,
        times: 1,
    });
    let error = Manifest::open(Arc::new(faulty)).map(|_| ());
    let error = error.expect_err("the device fails");
    assert!(matches!(error, LsmError::Storage { .. }), "{error}");
    open().expect("it is as it was");
}

/// Promise: one changed byte is an error that names the line, or makes the last line incomplete.
/// The file stays unchanged.
#[test]
fn damage_is_an_error() {
    let storage = CrashStorage::new(3);
    let manifest = made(&storage);
    for index in 0..3 {
        manifest
            .commit(&[reserve(index * 2, 2)])
            .expect("committed");
    }
    drop(manifest);
    let whole = file_of(&storage, "MANIFEST-1");
    let last_line = whole[..whole.len() - 1]
        .iter()
        .rposition(|byte| *byte == b'\n');
    let last_line = last_line.expect("there are four lines") + 1;
    for at in 0..whole.len() {
        let mut flipped = whole.clone();
        flipped[at] ^= 4;
        overwrite(&storage, "MANIFEST-1", &flipped);
        match Manifest::open(Arc::new(storage.clone())) {
            Ok((manifest, is_cut)) => {
                assert!(is_cut && at >= last_line, "byte {at}");
                assert_eq!(manifest.edit_count(), 2);
            }
            Err(LsmError::CorruptManifest { how, .. }) => {
                assert!(
                    at < last_line && how.starts_with("line "),
                    "byte {at}: {how}"
                );
                assert_eq!(file_of(&storage, "MANIFEST-1"), flipped);
            }
            Err(other) => panic!("byte {at}: {other}"),
        }
    }
    overwrite(&storage, "CURRENT", b"MANIFEST-01\n");
    let error = Manifest::open(Arc::new(storage)).expect_err("no such name is written");
    assert!(
        error.to_string().contains("it does not name a manifest"),
        "{error}"
    );
}

/// Promise: a removed line is corruption, even the last but one, although all other lines are
/// valid.
#[test]
fn a_line_that_is_missing_is_damage() {
    let storage = CrashStorage::new(6);
    let manifest = made(&storage);
    for index in 0..3 {
        manifest.commit(&[reserve(index, 1)]).expect("committed");
    }
    drop(manifest);
    let whole = file_of(&storage, "MANIFEST-1");
    let lines: Vec<&[u8]> = whole.split_inclusive(|byte| *byte == b'\n').collect();
    for missing in 0..3 {
        let mut left = lines.clone();
        left.remove(missing);
        overwrite(&storage, "MANIFEST-1", &left.concat());
        let opened = Manifest::open(Arc::new(storage.clone()));
        assert!(
            matches!(opened, Err(LsmError::CorruptManifest { .. })),
            "line {missing}: {opened:?}"
        );
    }
}

/// Promise: if a process ends before it has synced an edit, and the edit is read at reopening, it
/// is durable from then on.
#[test]
fn what_was_read_is_durable() {
    let storage = CrashStorage::new(7);
    let faulty = FaultyStorage::new(Arc::new(storage.clone()));
    let state = ManifestState::new(EngineId(9));
    let manifest = Manifest::create(Arc::new(faulty.clone()), state).expect("made");
    faulty.set(Fault::Fail {
        operations: &[Operation::Sync],
        file: None,
        nth: 1,
        times: 1,
    });
    manifest
        .commit(&[reserve(0, 1)])
        .expect_err("the sync fails");
    let (again, _) = Manifest::open(Arc::new(storage.clone())).expect("it is whole");
    assert_eq!(again.edit_count(), 1);
    let left = storage.lose_power(PowerLoss::Nothing);
    let (again, _) = Manifest::open(Arc::new(left)).expect("it is whole");
    assert_eq!(again.edit_count(), 1);
}

/// Promise: an ignored line is gone when the next edit is made, however long it was.
#[test]
fn what_is_left_out_is_cut_off() {
    let storage = CrashStorage::new(8);
    let manifest = made(&storage);
    manifest.commit(&[reserve(0, 200)]).expect("committed");
    drop(manifest);
    let mut bytes = file_of(&storage, "MANIFEST-1");
    let last = bytes.len() - 1;
    bytes[last] = b' ';
    overwrite(&storage, "MANIFEST-1", &bytes);
    let (again, is_cut) = Manifest::open(Arc::new(storage.clone())).expect("read");
    assert_eq!((again.edit_count(), is_cut), (0, true));
    assert_eq!(file_of(&storage, "MANIFEST-1"), bytes, "not yet");
    again.commit(&[reserve(0, 1)]).expect("committed");
    let (last, is_cut) = Manifest::open(Arc::new(storage)).expect("whole");
    assert_eq!((last.state(), is_cut), (again.state(), false));
}

/// Promise: a directory of a later or earlier version is refused as such, whatever else its
/// manifest contains.
#[test]
fn other_versions_are_refused() {
    let storage = CrashStorage::new(4);
    drop(made(&storage));
    for (version, is_later) in [(1, false), (3, true)] {
        let json = format!(r#"[{{"all":{{"version":{version},"news":true}}}}]"#);
        overwrite(&storage, "MANIFEST-1", &chain(&[json]));
        match (Manifest::open(Arc::new(storage.clone())), is_later) {
            (Err(LsmError::NewerVersion { version: 3, .. }), true)
            | (Err(LsmError::OlderVersion { version: 1, .. }), false) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Promise: after a failed edit, no other one is made, and the state in force is present.
#[test]
fn nothing_is_committed_after_a_failure() {
    let storage = CrashStorage::new(5);
    let faulty = FaultyStorage::new(Arc::new(storage.clone()));
    let state = ManifestState::new(EngineId(9));
    let manifest = Manifest::create(Arc::new(faulty.clone()), state).expect("made");
    manifest.commit(&[reserve(0, 1)]).expect("committed");
    faulty.set(Fault::Fail {
        operations: &[Operation::Sync],
        file: None,
        nth: 1,
        times: 1,
    });
    let failed = manifest.commit(&[Change::ReadFrom(LogPosition(1))]);
    assert!(
        matches!(
            failed,
            Err(LsmError::Storage {
                action: "write",
                ..
            })
        ),
        "{failed:?}"
    );
    let after = manifest.commit(&[Change::ReadFrom(LogPosition(1))]);
    assert!(matches!(after, Err(LsmError::Stopped { .. })), "{after:?}");
    let left = storage.lose_power(PowerLoss::Nothing);
    let (again, _) = Manifest::open(Arc::new(left)).expect("it is whole");
    assert_eq!(again.edit_count(), 1);
}

/// Promise: a rewritten manifest still records the durable end of the log.
#[test]
fn what_was_synced_is_said_anew() {
    let storage = CrashStorage::new(1);
    let manifest = made(&storage).rewritten_from(0);
    let to = LogNumber(1).start().plus(300);
    manifest.commit(&[reserve(0, 2)]).expect("committed");
    manifest
        .commit(&[Change::LogSynced(to)])
        .expect("committed");
    for index in 0..40 {
        let edit = reserve(2 + index * 20, 20);
        manifest.commit(&[edit]).expect("committed");
    }
    let names = storage.list().expect("listed");
    assert!(!names.iter().any(|name| name == "MANIFEST-1"), "{names:?}");
    let (again, _) = Manifest::open(Arc::new(storage)).expect("it is whole");
    assert_eq!(again.state().log_synced_to, to);
}

/// Promise: an edit for which the disk is full is not made, not even partially. Others can be made
/// when there is space, also while the manifest is rewritten, and after a power failure.
#[test]
fn a_full_disk_is_waited_for() {
    for after_bytes in 0..140 {
        let storage = CrashStorage::new(after_bytes);
        let faulty = FaultyStorage::new(Arc::new(storage.clone()));
        let state = ManifestState::new(EngineId(9));
        let manifest = Manifest::create(Arc::new(faulty.clone()), state).expect("made");
        let manifest = manifest.rewritten_from(if after_bytes % 2 == 0 { 0 } else { 1 << 20 });
        let mut injected_count = 0;
        for round in 0..12 {
            let full = faulty.set(Fault::Full { after_bytes });
            let made = manifest.commit(&[reserve(injected_count, 1)]);
            faulty.lift(full);
            if let Err(error) = &made {
                assert!(error.is_out_of_space(), "{error}");
                manifest.check().expect("edits can be made");
            }
            injected_count += u64::from(made.is_ok());
            if round % 3 == 2 {
                manifest
                    .commit(&[reserve(injected_count, 1)])
                    .expect("there is room");
                injected_count += 1;
            }
        }
        assert_eq!(manifest.state().log.len() as u64, injected_count);
        let left = storage.lose_power(PowerLoss::Any);
        let (again, _) = Manifest::open(Arc::new(left)).expect("it is whole");
        assert_eq!(again.edit_count(), injected_count, "{after_bytes}");
        assert_eq!(again.state(), manifest.state());
    }
}
