//! Tests of replicas' directories.

use super::*;
use farleaf_cluster::agent::host::DiskCopies;
use farleaf_lsm::{Durability, Engine, EngineOptions};

const TABLE: TableId = TableId(1);
const REGION: RegionId = RegionId(5);
const REPLICA: ReplicaNumber = ReplicaNumber(2);
const CLUSTER: ClusterId = ClusterId(7 << 64);

fn note_of(epoch: u64, generation: u64) -> ReplicaNote {
    ReplicaNote::new(TABLE, REGION, REPLICA, Epoch(epoch), generation)
}

/// Returns a note as it is read back.
fn read(note: ReplicaNote) -> ReplicaNote {
    ReplicaNote {
        cluster: Some(CLUSTER),
        ..note
    }
}

fn place(scratch: &tempfile::TempDir) -> ReplicaStore {
    let regions = scratch.path().join("regions");
    let place = ReplicaStore::new(&regions, CLUSTER, REGION, REPLICA, OpenStorage::default());
    place.make().expect("made");
    place
}

fn copies_in(scratch: &tempfile::TempDir) -> DiskCopies {
    let regions = scratch.path().join("regions");
    copies(&regions, CLUSTER, &OpenStorage::default())
}

/// Checks that no copy is found. One that may have been one of this cluster's counts as damaged
/// (CONTROL-18).
fn is_lost(scratch: &tempfile::TempDir, is_told: bool) {
    let disk = copies_in(scratch);
    let damaged = disk.unusable.iter().filter(|it| it.is_damaged).count();
    assert_eq!(
        (disk.copies.len(), damaged),
        (0, usize::from(is_told)),
        "{disk:?}"
    );
}

/// A directory of another cluster, or of an unknown one, is neither removed nor overwritten: it is
/// moved aside with all its content. A directory that this cluster's server had begun, and never
/// filled, is removed.
#[test]
fn what_is_not_known_to_be_garbage_is_moved_aside() {
    let own = note_of(9, 4);
    let write = |scratch: &tempfile::TempDir, name: &str, bytes: &[u8]| {
        fs::write(scratch.path().join("regions/5-2").join(name), bytes).expect("written");
    };
    let other = ReplicaNote {
        cluster: Some(ClusterId(8 << 64)),
        ..own
    };
    let legacy = ReplicaNote { version: 1, ..own };
    for note in [Some(other), Some(legacy), None] {
        for act in ["list", "remove", "make"] {
            let scratch = tempfile::tempdir().expect("a scratch directory");
            let place = place(&scratch);
            fs::remove_file(place.path.join(BEGUN)).expect("it was there");
            fs::create_dir(place.data(4)).expect("made");
            write(&scratch, "data-4/log", b"precious");
            if let Some(note) = note {
                write(&scratch, NOTE, &serde_json::to_vec(&note).expect("plain"));
            }
            match act {
                "list" => is_lost(&scratch, note.is_none()),
                "remove" => place.remove().expect("moved"),
                _ if note.is_some() => {
                    let error = place.make().expect_err("it is another's").to_string();
                    let expected = match note {
                        Some(ReplicaNote {
                            cluster: Some(found),
                            ..
                        }) => format!("belongs to {found}, but this server belongs to {CLUSTER}"),
                        _ => "REPLICA does not name a cluster".to_owned(),
                    };
                    assert!(error.contains(&expected), "{error}");
                    place.remove().expect("moved");
                }
                _ => place.make().expect("moved, and made anew"),
            }
            let log = scratch.path().join("orphans/5-2/data-4/log");
            assert_eq!(
                fs::read(log).expect("it is still there"),
                b"precious",
                "{act}"
            );
            assert!(!place.data(4).exists());
        }
    }
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let unfinished = place(&scratch);
    fs::create_dir(unfinished.data(4)).expect("made");
    assert_eq!(copies_in(&scratch), DiskCopies::default());
    assert!(!unfinished.path.exists() && !scratch.path().join("orphans").exists());
    // A copy that was in force, and has lost its note.
    unfinished.make().expect("made");
    unfinished.put_in_force(&own).expect("written");
    fs::remove_file(unfinished.path.join(NOTE)).expect("it was there");
    is_lost(&scratch, true);
    assert!(scratch.path().join("orphans/5-2").exists());
}

/// A directory in another one's place is damage, whatever part of it was moved, and is not read.
/// The same holds for one that has lost its note (CONTROL-18).
#[test]
fn what_is_in_another_ones_place_is_not_used() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let regions = scratch.path().join("regions");
    let ids = [
        (RegionId(5), ReplicaNumber(2)),
        (RegionId(6), ReplicaNumber(1)),
    ];
    let places = ids.map(|(region, replica)| {
        let place = ReplicaStore::new(&regions, CLUSTER, region, replica, OpenStorage::default());
        place.make().expect("made");
        let storage = place.storage(4).expect("it can be opened");
        drop(Engine::open(storage, EngineOptions::new()).expect("a new one"));
        let note = ReplicaNote::new(TableId(1), region, replica, Epoch(9), 4);
        place.put_in_force(&note).expect("written");
        place
    });
    let swap = |one: PathBuf, other: PathBuf| {
        let between = scratch.path().join("between");
        for (from, to) in [(&one, &between), (&other, &one), (&between, &other)] {
            fs::rename(from, to).expect("moved");
        }
    };
    let found = |copy_count, hows: [&str; 2]| {
        let disk = copies_in(&scratch);
        assert_eq!(disk.copies.len(), copy_count, "{disk:?}");
        let reported: Vec<_> = disk
            .unusable
            .iter()
            .map(|it| (it.is_damaged, &*it.how))
            .collect();
        let expected = hows.iter().filter(|how| !how.is_empty());
        assert_eq!(reported.len(), expected.clone().count(), "{reported:?}");
        for how in expected {
            assert!(
                reported.iter().any(|it| it.0 && it.1.contains(how)),
                "{reported:?}"
            );
        }
    };
    found(2, ["", ""]);
    swap(places[0].path.clone(), places[1].path.clone());
    let is_note = [
        "it belongs to replica 1 of region 6",
        "to replica 2 of region 5",
    ];
    found(0, is_note);
    swap(places[0].path.clone(), places[1].path.clone());
    swap(places[0].data(4), places[1].data(4));
    found(
        0,
        [
            "5-2/data-4",
            "6-1/data-4 is corrupted: it is not the copy that REPLICA names",
        ],
    );
    swap(places[0].data(4), places[1].data(4));
    found(2, ["", ""]);
    fs::remove_file(places[0].path.join(NOTE)).expect("it was there");
    found(1, ["no `REPLICA` note", ""]);
}

/// A copy of another table makes way for a table with the same number, and is moved aside instead
/// of removed.
#[test]
fn copies_of_other_tables_are_kept() {
    let of = [1, 2].map(|number| Some(TableIncarnation(number << 64)));
    for [had, has] in [[of[0], of[1]], [of[0], of[0]], [None, of[1]], [of[0], None]] {
        for removes in [false, true] {
            let scratch = tempfile::tempdir().expect("a scratch directory");
            let before = place(&scratch).of_table(had);
            fs::create_dir(before.data(4)).expect("made");
            let note = before.put_in_force(&note_of(9, 4)).expect("written");
            assert_eq!(note.incarnation, had);
            let place = before.of_table(has);
            let is_other = had == of[0] && has == of[1];
            if removes {
                place.remove().expect("it is gone from here");
            } else {
                place
                    .move_other_table_aside()
                    .expect("it is moved, or stays");
                assert_eq!(place.data(4).exists(), !is_other);
            }
            let orphan = scratch.path().join("orphans/5-2/data-4");
            assert_eq!(orphan.exists(), is_other);
        }
    }
}

/// A copy that was not verified is moved aside instead of removed.
#[test]
fn what_was_not_verified_is_not_removed() {
    for is_verified in [true, false] {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let place = place(&scratch);
        fs::create_dir(place.data(4)).expect("made");
        let note = ReplicaNote {
            is_verified,
            ..note_of(9, 4)
        };
        place.put_in_force(&note).expect("written");
        place.remove().expect("it is gone from here");
        assert!(!place.path.exists());
        let orphan = scratch.path().join("orphans/5-2/data-4");
        assert_eq!(orphan.exists(), !is_verified);
    }
}

/// A copy that is set aside is complete: put back, it is the copy in force.
#[test]
fn a_copy_that_is_set_aside_can_be_put_back() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let place = place(&scratch);
    let engine = || {
        let storage = place.storage(4).expect("it can be opened");
        Engine::open(storage, EngineOptions::new()).expect("opened")
    };
    let put = engine().put(b"key", b"value", Durability::Sync);
    put.expect("there is room");
    let note = note_of(9, 4);
    place.put_in_force(&note).expect("written");
    fs::create_dir(place.data(5)).expect("made");
    place.set_aside(&note).expect("moved");
    let newer = note_of(10, 5);
    place.put_in_force(&newer).expect("written");
    place.clear_but(Some(5)).expect("cleared");
    assert!(place.data(5).exists());
    place.remove().expect("removed");
    let orphan = scratch.path().join("orphans/5-2");
    fs::rename(orphan, &place.path).expect("put back");
    assert_eq!(place.note().expect("it is there"), Some(read(note)));
    let value = engine().get(b"key").expect("it is there");
    assert_eq!(value.as_deref(), Some(&b"value"[..]));
}

/// Notes of an older version adopt the cluster's identifier, and no others do.
#[test]
fn notes_of_older_versions_are_adopted() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let place = place(&scratch);
    let regions = scratch.path().join("regions");
    let text = r#"{"version":1,"table":1,"region":5,"replica":2,"epoch":9,"generation":3}"#;
    fs::write(place.path.join(NOTE), text).expect("written");
    assert!(matches!(
        place.note(),
        Err(ServerError::OtherClusterFile { found: None, .. })
    ));
    adopt_replicas(&regions, CLUSTER).expect("adopted");
    let note = place.note().expect("it can be read").expect("it is there");
    assert_eq!((note.epoch, note.generation), (Epoch(9), 3));
    adopt_replicas(&regions, ClusterId(8 << 64)).expect("nothing to adopt");
    assert_eq!(place.note().expect("it can be read"), Some(note));
    adopt_replicas(&scratch.path().join("none"), CLUSTER).expect("nothing to adopt");
}

/// Notes that cannot be read, are damaged or too long do not prevent the adoption of others, and
/// stay unchanged.
#[test]
fn a_damaged_note_keeps_no_other_one_from_being_adopted() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let place = place(&scratch);
    let regions = scratch.path().join("regions");
    let text = r#"{"version":1,"table":1,"region":5,"replica":2,"epoch":9,"generation":3}"#;
    fs::write(place.path.join(NOTE), text).expect("written");
    fs::create_dir_all(regions.join("1-1").join(NOTE)).expect("made");
    for (name, bytes) in [("6-1", b"garbage".to_vec()), ("7-1", vec![b' '; 1 << 20])] {
        fs::create_dir(regions.join(name)).expect("made");
        fs::write(regions.join(name).join(NOTE), bytes).expect("written");
    }
    adopt_replicas(&regions, CLUSTER).expect("adopted");
    assert!(place.note().expect("it can be read").is_some());
    assert!(regions.join("1-1").join(NOTE).is_dir());
    let garbage = fs::read(regions.join("6-1").join(NOTE));
    assert_eq!(garbage.expect("it is there"), b"garbage");
}

/// A replica's directory that a server had not begun yet when it ended is created again or removed;
/// it is not an orphan.
#[test]
fn a_directory_that_was_not_begun_is_no_orphan() {
    for is_made in [true, false] {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let place = place(&scratch);
        fs::rename(place.path.join(BEGUN), place.path.join(BEGUN_NEW)).expect("renamed");
        if is_made {
            place.make().expect("made");
            assert!(place.was_begun());
        } else {
            assert_eq!(copies_in(&scratch), DiskCopies::default());
            assert!(!place.path.exists());
        }
        assert!(!scratch.path().join("orphans").exists());
    }
}

/// Fixes the format: a change needs a new version.
#[test]
fn notes_are_golden() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let place = place(&scratch);
    assert_eq!(place.note().expect("it can be read"), None);
    place.make().expect("made");
    let text = fs::read_to_string(scratch.path().join("regions/5-2/BEGUN")).expect("there");
    let golden = r#"{"version":1,"cluster":"00000000000000070000000000000000"}"#;
    assert_eq!(text, golden);
    let note = note_of(9, 3);
    place.put_in_force(&note).expect("written");
    let text = fs::read_to_string(scratch.path().join("regions/5-2/REPLICA")).expect("there");
    let golden = concat!(
        r#"{"version":2,"cluster":"00000000000000070000000000000000","#,
        r#""table":1,"region":5,"replica":2,"epoch":9,"generation":3,"is_verified":true}"#
    );
    assert_eq!(text, golden);
    assert_eq!(place.note().expect("it can be read"), Some(read(note)));
    let unverified = ReplicaNote {
        is_verified: false,
        ..note
    };
    place.put_in_force(&unverified).expect("written");
    let text = fs::read_to_string(scratch.path().join("regions/5-2/REPLICA")).expect("there");
    assert_eq!(text, golden.replace(r#","is_verified":true"#, ""));
    assert_eq!(
        place.note().expect("it can be read"),
        Some(read(unverified))
    );
    fs::write(
        scratch.path().join("regions/5-2/REPLICA"),
        "{\"version\":3}",
    )
    .expect("written");
    let error = place.note().expect_err("of the future").to_string();
    assert!(error.contains("a newer version has written it"), "{error}");
    assert!(
        error.contains("format version 3") && !error.contains("corrupted"),
        "{error}"
    );
}

/// A file of a copy that is too short, too long, garbage, or a directory, is damage. The error
/// names the file, the problem and the remedy.
#[test]
fn wrong_lengths_are_damage() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let place = place(&scratch);
    let storage = place.storage(4).expect("opened");
    let engine = Engine::open(storage, EngineOptions::new()).expect("made");
    engine.put(b"k", b"v", Durability::Sync).expect("written");
    drop(engine);
    let note = note_of(9, 4);
    place.put_in_force(&note).expect("written");
    assert!(place.copy().expect("it can be read").is_some());
    let directory = scratch.path().join("regions/5-2");
    for name in ["REPLICA", "data-4/CURRENT", "data-4/MANIFEST-1"] {
        let file = directory.join(name);
        let good = fs::read(&file).expect("it is there");
        let long = [&good[..], &vec![b'x'; 100_000]].concat();
        // An incomplete last line of a manifest is cut off.
        let is_manifest = name.ends_with("MANIFEST-1");
        let short = good[..if is_manifest { 9 } else { good.len() / 2 }].to_vec();
        let mut bad = vec![Vec::new(), short, b"garbage\n".to_vec()];
        bad.extend((!is_manifest).then_some(long));
        for bytes in bad {
            fs::write(&file, &bytes).expect("written");
            let error = place.copy().expect_err("it is not what was written");
            let said = error.to_string();
            assert!(
                is_corruption(&error),
                "{name}, {} bytes: {said}",
                bytes.len()
            );
            assert!(
                said.contains("corrupted") && said.contains("restore"),
                "{said}"
            );
        }
        fs::remove_file(&file).expect("it was there");
        fs::create_dir(&file).expect("made");
        let error = place.copy().expect_err("it is a directory");
        assert!(is_corruption(&error), "{error}");
        fs::remove_dir(&file).expect("made");
        fs::write(&file, good).expect("written");
    }
    assert!(place.copy().expect("it can be read").is_some());
}

/// A copy in force whose directory is missing or empty is not a copy, not even an empty one. This
/// is reported, and nothing is created in its place.
#[test]
fn copies_that_are_lost_are_not_made_anew() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let place = place(&scratch);
    let note = note_of(9, 4);
    place.put_in_force(&note).expect("written");
    let lost = place.storage_in_force(&note).expect_err("it is not there");
    assert!(lost.to_string().contains("is missing"), "{lost}");
    let disk = copies_in(&scratch);
    assert!(
        disk.copies.is_empty() && disk.unusable[0].is_damaged,
        "{disk:?}"
    );
    assert!(!place.data(4).exists() && place.note().expect("it can be read").is_some());
    fs::create_dir(place.data(4)).expect("made");
    let empty = place.storage_in_force(&note).expect_err("it has nothing");
    assert!(empty.to_string().contains("no manifest"), "{empty}");
    assert!(
        empty.to_string().contains("restore it from a copy"),
        "{empty}"
    );
    let disk = copies_in(&scratch);
    let [unusable] = &disk.unusable[..] else {
        panic!("{disk:?}");
    };
    assert!(disk.copies.is_empty() && unusable.is_damaged, "{disk:?}");
    assert_eq!((unusable.region, unusable.replica), (REGION, REPLICA));
}

/// The copy in force is reported and kept, others are removed, and a directory without a note is
/// not a copy.
#[test]
fn copies_are_those_in_force() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let place = place(&scratch);
    let none = copies_in(&scratch);
    assert_eq!(none, DiskCopies::default());
    place.make().expect("made again");
    for generation in [4, 6] {
        let storage = place.storage(generation).expect("opened");
        let engine = Engine::open(storage, EngineOptions::new()).expect("made");
        engine.put(b"k", b"v", Durability::Sync).expect("written");
    }
    place.put_in_force(&note_of(9, 4)).expect("written");
    let DiskCopies { copies, unusable } = copies_in(&scratch);
    assert_eq!((copies.len(), unusable.len()), (1, 0));
    assert_eq!((copies[0].replica, copies[0].epoch), (REPLICA, Epoch(9)));
    assert_eq!(place.clear_but(Some(4)).expect("cleared"), 7);
    assert!(place.data(4).exists() && !place.data(6).exists());
    place.remove().expect("removed");
    assert!(!scratch.path().join("regions/5-2").exists());
    place.remove().expect("nothing is left to be removed");
}
