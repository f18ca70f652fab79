//! Outcomes of power failures, and their completeness.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::thread;

use crate::storage::{CrashStorage, PowerLoss, Storage, StorageFile};

pub(super) const SECTOR: usize = 512;
const OUTCOME_COUNT: usize = 400;

/// Returns contents whose sectors are filled with these bytes.
fn sectors(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().flat_map(|byte| [*byte; SECTOR]).collect()
}

pub(super) fn content(storage: &dyn Storage, name: &str) -> Option<Vec<u8>> {
    let file = storage.open(name).ok()?;
    let mut buffer = vec![0; file.size().expect("its size") as usize];
    file.read_at(&mut buffer, 0).expect("all of it");
    Some(buffer)
}

/// Returns a storage with a durable file, and its handle.
pub(super) fn with_durable(
    name: &str,
    bytes: &[u8],
    seed: u64,
) -> (CrashStorage, Arc<dyn StorageFile>) {
    let storage = CrashStorage::new(seed);
    let file = storage.create(name).expect("made");
    file.write_at(bytes, 0).expect("written");
    file.sync().expect("synced");
    storage.sync_names().expect("synced");
    (storage, file)
}

/// Returns the results of a function over many outcomes of a power failure.
fn outcomes<T: Ord>(storage: &CrashStorage, look: impl Fn(&CrashStorage) -> T) -> BTreeSet<T> {
    (0..OUTCOME_COUNT)
        .map(|_| look(&storage.lose_power(PowerLoss::Any)))
        .collect()
}

/// Promise: synced data survives any seed and kind of power failure, and is durable in the returned
/// storage.
#[test]
fn what_was_synced_is_there() {
    let bytes = [sectors(b"abcdefgh"), vec![9; 77]].concat();
    for seed in 0..200 {
        let (storage, file) = with_durable("a", &bytes, seed);
        file.write_at(b"behind", 10_000).expect("written");
        file.sync().expect("synced");
        let whole = content(&storage, "a");
        for loss in [PowerLoss::Nothing, PowerLoss::Everything, PowerLoss::Any] {
            let left = storage.lose_power(loss);
            assert_eq!(content(&left, "a"), whole);
            assert_eq!(content(&left.lose_power(PowerLoss::Nothing), "a"), whole);
        }
    }
}

/// Promise: each unsynced sector is the synced one, the newest, or one in between. All combinations
/// of two sectors occur, so some changes are lost and some survive.
#[test]
fn sectors_survive_each_by_itself() {
    let (storage, file) = with_durable("a", &sectors(b"xy-"), 1);
    file.write_at(&sectors(b"12"), 0).expect("written");
    file.write_at(&sectors(b"34"), 0).expect("written");
    let found = outcomes(&storage, |left| {
        let content = content(left, "a").expect("its name is durable");
        let heads: Vec<u8> = content.iter().step_by(SECTOR).copied().collect();
        assert_eq!(content, sectors(&heads), "a sector is torn");
        String::from_utf8(heads).expect("letters")
    });
    let all = ["x", "1", "3"]
        .iter()
        .flat_map(|first| ["y", "2", "4"].map(|second| format!("{first}{second}-")))
        .collect();
    assert_eq!(found, all);
}

/// Promise: all unsynced changes are lost, or all survive, if that is requested.
#[test]
fn nothing_and_everything_are_what_they_say() {
    let (storage, file) = with_durable("a", &sectors(b"abc"), 1);
    file.write_at(&sectors(b"BCDE"), SECTOR as u64)
        .expect("written");
    file.set_size(2000).expect("cut");
    storage.create("b").expect("made");
    storage.rename("a", "c").expect("renamed");
    let whole = content(&storage, "c");

    let left = storage.lose_power(PowerLoss::Nothing);
    assert_eq!(left.list().expect("names"), ["a"]);
    assert_eq!(content(&left, "a"), Some(sectors(b"abc")));
    let left = storage.lose_power(PowerLoss::Everything);
    assert_eq!(left.list().expect("names"), ["b", "c"]);
    assert_eq!(content(&left, "c"), whole);
}

/// Promise: the size is the synced one or a later one, independently. A write that extends a file
/// may have done so in part; setting a size may not.
#[test]
fn sizes_survive_by_themselves() {
    let sizes =
        |storage: &CrashStorage| outcomes(storage, |left| content(left, "a").expect("there").len());
    let (storage, file) = with_durable("a", &[1; 100], 1);
    file.set_size(5000).expect("longer");
    file.set_size(3000).expect("shorter");
    assert_eq!(sizes(&storage), BTreeSet::from([100, 3000, 5000]));

    let (storage, file) = with_durable("a", &[1; 100], 1);
    file.write_at(&[2; 1500], 100).expect("written");
    assert_eq!(
        sizes(&storage),
        BTreeSet::from([100, 512, 1024, 1536, 1600])
    );
}

/// Promise: behind the synced size there are written data, zeros, or garbage, and all occur. Before
/// it, nothing is lost or garbage.
#[test]
fn what_was_never_durable_is_anything() {
    let (storage, file) = with_durable("a", &[1; 100], 1);
    file.write_at(&[2; 924], 100).expect("written");
    let found = outcomes(&storage, |left| {
        let content = content(left, "a").expect("there");
        assert_eq!(content[..100], [1; 100]);
        assert!(
            content[100..content.len().min(512)]
                .iter()
                .all(|byte| matches!(byte, 0 | 2))
        );
        match content.get(512..1024) {
            None => "not there",
            Some([2, rest @ ..]) if rest.iter().all(|byte| *byte == 2) => "written",
            Some(sector) if sector.iter().all(|byte| *byte == 0) => "zeros",
            Some(_) => "garbage",
        }
    });
    let all = BTreeSet::from(["not there", "written", "zeros", "garbage"]);
    assert_eq!(found, all);
}

/// Promise: data behind the end that did not survive does not come back when the file grows.
#[test]
fn nothing_is_left_behind_the_end() {
    let (storage, file) = with_durable("a", &[1; 100], 1);
    file.write_at(&[2; 1500], 100).expect("written");
    for _ in 0..OUTCOME_COUNT {
        let left = storage.lose_power(PowerLoss::Any);
        let file = left.open("a").expect("there");
        let size_bytes = file.size().expect("its size") as usize;
        file.set_size(2000).expect("longer");
        let content = content(&left, "a").expect("there");
        assert!(content[size_bytes..].iter().all(|byte| *byte == 0));
    }
}

/// Promise: truncated data reads as zeros when the file grows, and each discarded sector has its
/// old contents or zeros.
#[test]
fn cut_and_discarded_sectors_are_old_or_zeros() {
    let heads = |left: &CrashStorage| {
        let content = content(left, "a").expect("there");
        content.iter().step_by(SECTOR).copied().collect::<Vec<u8>>()
    };
    let (storage, file) = with_durable("a", &sectors(b"abcd"), 1);
    file.set_size(SECTOR as u64).expect("cut");
    file.set_size(3 * SECTOR as u64).expect("longer");
    assert_eq!(heads(&storage), b"a\0\0");
    let found = outcomes(&storage, heads);
    assert!(
        found.contains(&b"abcd"[..]) && found.contains(&b"a\0c"[..]),
        "{found:?}"
    );

    let mut found = BTreeSet::new();
    for seed in 0..100 {
        let (storage, file) = with_durable("a", &sectors(b"abcd"), seed);
        file.discard(SECTOR as u64, 2 * SECTOR as u64)
            .expect("discarded");
        found.insert(heads(&storage));
    }
    let all = [&b"abcd"[..], b"a\0cd", b"ab\0d", b"a\0\0d"];
    assert_eq!(found, all.map(<[u8]>::to_vec).into());
}

/// Promise: each name that was not synced exists or not. A rename leaves the old target or the new
/// one, and never a file without a name.
#[test]
fn names_survive_each_by_itself() {
    let (storage, _) = with_durable("gone", b"g", 1);
    storage.create("new").expect("made");
    storage.remove("gone").expect("removed");
    let found = outcomes(&storage, |left| left.list().expect("names").join(" "));
    let all = ["", "gone", "gone new", "new"];
    assert_eq!(found, all.map(str::to_owned).into());

    let (storage, _) = with_durable("old", b"o", 1);
    let file = storage.create("temporary").expect("made");
    file.write_at(b"n", 0).expect("written");
    file.sync().expect("synced");
    storage.sync_names().expect("synced");
    storage.rename("temporary", "old").expect("renamed");
    let found = outcomes(&storage, |left| {
        (content(left, "temporary"), content(left, "old"))
    });
    let (old, new) = (Some(b"o".to_vec()), Some(b"n".to_vec()));
    let all = [(new.clone(), old), (new.clone(), new.clone()), (None, new)];
    assert_eq!(found, all.into());
    storage
        .lose_power(PowerLoss::Everything)
        .open("old")
        .expect("there");
}

/// Promise: reuse of its old name does not lose a renamed file.
#[test]
fn a_name_that_is_used_again_loses_no_file() {
    let (storage, _) = with_durable("a", b"kept", 1);
    storage.rename("a", "b").expect("renamed");
    storage.create("a").expect("made");
    let found = outcomes(&storage, |left| (content(left, "a"), content(left, "b")));
    let (contents, empty) = (Some(b"kept".to_vec()), Some(Vec::new()));
    let all = [
        (contents.clone(), None),
        (contents.clone(), contents.clone()),
        (None, contents.clone()),
        (empty, contents),
    ];
    assert_eq!(found, all.into());
}

/// Promise: a file with two names after a power failure is one file. Renaming one of its names to
/// the other changes nothing, as in POSIX.
#[test]
fn a_file_with_two_names_is_one_file() {
    let (storage, _) = with_durable("one", b"1", 1);
    storage.rename("one", "two").expect("renamed");
    let left = std::iter::repeat_with(|| storage.lose_power(PowerLoss::Any))
        .take(OUTCOME_COUNT)
        .find(|left| left.list().expect("names").len() == 2)
        .expect("it occurs");
    let one = left.open("one").expect("there");
    one.write_at(b"!", 0).expect("written");
    assert_eq!(content(&left, "two"), Some(b"!".to_vec()));
    left.rename("one", "two").expect("nothing to do");
    assert_eq!(left.list().expect("names"), ["one", "two"]);
}

/// Promise: old handles, names and locks fail after a power failure, and do not affect the returned
/// storage.
#[test]
fn nothing_works_without_power() {
    let (storage, file) = with_durable("a", b"abc", 1);
    let lock = storage.lock("LOCK").expect("no failure").expect("free");
    let left = storage.lose_power(PowerLoss::Everything);
    let off = Some(io::ErrorKind::BrokenPipe);
    let failures = [
        file.read_at(&mut [0], 0).err(),
        file.write_at(b"x", 0).err(),
        file.sync().err(),
        file.size().err(),
        file.set_size(1).err(),
        file.discard(0, 1).err(),
        storage.create("b").err(),
        storage.open("a").err(),
        storage.rename("a", "b").err(),
        storage.remove("a").err(),
        storage.list().err(),
        storage.sync_names().err(),
        storage.lock("other").err(),
    ];
    for (index, failure) in failures.into_iter().enumerate() {
        let failure = failure.unwrap_or_else(|| panic!("operation {index} works"));
        assert_eq!(Some(failure.kind()), off, "{index}");
        assert_eq!(failure.to_string(), "the power is off");
    }
    assert!(
        left.lock("LOCK").expect("no failure").is_some(),
        "locked by nobody"
    );
    drop((file, lock));
    assert_eq!(content(&left, "a"), Some(b"abc".to_vec()));
}

/// Promise: a sync reported to a thread is durable, whenever power fails meanwhile.
#[test]
fn what_was_synced_meanwhile_is_there() {
    for seed in 0..50 {
        let storage = CrashStorage::new(seed);
        let files = ["a", "b"].map(|name| storage.create(name).expect("made"));
        storage.sync_names().expect("synced");
        let (left, synced) = thread::scope(|scope| {
            let writers = files.each_ref().map(|file| {
                scope.spawn(move || {
                    let mut synced: u64 = 0;
                    while file.write_at(&(synced + 1).to_le_bytes(), 0).is_ok()
                        && file.sync().is_ok()
                    {
                        synced += 1;
                    }
                    synced
                })
            });
            while storage.operation_count() < 50 + seed {
                thread::yield_now();
            }
            let left = storage.lose_power(PowerLoss::Any);
            (left, writers.map(|writer| writer.join().expect("no panic")))
        });
        for (name, synced) in ["a", "b"].into_iter().zip(synced) {
            let mut bytes = content(&left, name).expect("its name was synced");
            bytes.resize(8, 0);
            let found = u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
            assert!(
                found == synced || found == synced + 1 || synced == 0,
                "{found} {synced}"
            );
        }
    }
}

/// Promise: a sector that is written very often uses bounded memory, and is one of the written
/// versions, including the newest.
#[test]
fn versions_are_bounded() {
    let (storage, file) = with_durable("a", &[0; 4], 1);
    for version in 1..=10_000_u32 {
        file.write_at(&version.to_le_bytes(), 0).expect("written");
    }
    let found = outcomes(&storage, |left| content(left, "a").expect("there"));
    assert!(found.contains(&[0; 4][..]) && found.contains(&10_000_u32.to_le_bytes()[..]));
    assert!((10..=65).contains(&found.len()), "{}", found.len());
}

/// Promise: equal seeds and operations have equal outcomes, and other seeds have others.
#[test]
fn the_seed_determines_what_is_left() {
    let run = |seed| {
        let (storage, file) = with_durable("a", &sectors(b"abcdefgh"), seed);
        file.write_at(&sectors(b"ABCDEFGHIJKL"), 0)
            .expect("written");
        file.discard(0, 2000).expect("discarded");
        storage.create("b").expect("made");
        let left = storage.lose_power(PowerLoss::Any);
        (content(&left, "a"), left.list().expect("names"))
    };
    assert_eq!(run(1), run(1));
    let different: BTreeSet<_> = (0..50).map(run).collect();
    assert!(different.len() > 20, "{}", different.len());
}

/// Replaces a file correctly, or without one of the syncs.
fn replace(storage: &CrashStorage, syncs_content: bool, syncs_names: bool) -> io::Result<()> {
    if storage.list()?.contains(&"temporary".to_owned()) {
        storage.remove("temporary")?;
        storage.sync_names()?;
    }
    let file = storage.create("temporary")?;
    file.write_at(&sectors(b"NEW"), 0)?;
    if syncs_content {
        file.sync()?;
    }
    storage.rename("temporary", "CURRENT")?;
    if syncs_names {
        storage.sync_names()?;
    }
    Ok(())
}

/// Cuts the power at each operation of a replacement. Counts the outcomes: the old file, the new
/// one, and wrong ones, such as the old file after the replacement was complete.
fn cut_everywhere(syncs_content: bool, syncs_names: bool) -> [usize; 3] {
    let mut counts = [0; 3];
    for seed in 0..40 {
        for cut_index in 1.. {
            let (storage, _) = with_durable("CURRENT", &sectors(b"OLD"), seed);
            let before_count = storage.operation_count();
            storage.cut_power_at(before_count + cut_index);
            let result = replace(&storage, syncs_content, syncs_names);
            let was_cut = storage.operation_count() == before_count + cut_index;
            assert_eq!(result.is_err(), was_cut);
            let left = storage.lose_power(PowerLoss::Any);
            let found = content(&left, "CURRENT");
            if found == Some(sectors(b"NEW")) {
                counts[1] += 1;
            } else if found == Some(sectors(b"OLD")) && was_cut {
                counts[0] += 1;
            } else {
                counts[2] += 1;
            }
            // Repeats it on the result.
            replace(&left, true, true).expect("it has power");
            let found = content(&left.lose_power(PowerLoss::Any), "CURRENT");
            assert_eq!(found, Some(sectors(b"NEW")));
            if !was_cut {
                break;
            }
        }
    }
    counts
}

/// Promise: with all syncs, replacing is safe wherever power fails; without one of them, the
/// simulation finds the bug.
#[test]
fn missing_syncs_are_found_out() {
    let [old, new, wrong] = cut_everywhere(true, true);
    assert!(old > 0 && new > 0, "{old} {new}");
    assert_eq!(wrong, 0);
    assert!(cut_everywhere(false, true)[2] > 0);
    assert!(cut_everywhere(true, false)[2] > 0);
}

/// Promise: a write at which power fails leaves nothing, everything, or parts, even if all
/// completed operations survive.
#[test]
fn a_write_is_torn_where_the_power_goes() {
    let mut found = BTreeSet::new();
    for seed in 0..200 {
        let (storage, file) = with_durable("a", &sectors(b"abc"), seed);
        storage.cut_power_at(0);
        let kind = file
            .write_at(&sectors(b"ABC"), 0)
            .map_err(|error| error.kind());
        assert_eq!(kind, Err(io::ErrorKind::BrokenPipe));
        found.insert(content(&storage.lose_power(PowerLoss::Everything), "a"));
    }
    assert_eq!(found.len(), 8, "each sector by itself");
}

/// Promise: each operation that can matter is counted once, and others are not counted.
#[test]
fn operations_are_counted() {
    let storage = CrashStorage::new(1);
    let file = storage.create("a").expect("made");
    file.write_at(b"a", 0).expect("written");
    file.set_size(9).expect("set");
    file.discard(0, 1).expect("discarded");
    file.sync().expect("synced");
    storage.rename("a", "b").expect("renamed");
    storage.sync_names().expect("synced");
    storage.remove("b").expect("removed");
    storage.lock("LOCK").expect("no failure").expect("free");
    assert_eq!(storage.operation_count(), 9);
    storage.lock("LOCK").expect("no failure").expect("free");
    file.size().expect("its size");
    file.read_at(&mut [0], 0).expect("read");
    storage.list().expect("names");
    storage.open("LOCK").expect("there");
    assert_eq!(storage.operation_count(), 9);
}

/// Promise: directories of one computer lose power together. Each has its own names, which its own
/// sync makes durable. A file with names in both stays while it has one.
#[test]
fn directories_lose_their_power_together() {
    let mut kept_counts = [0; 2];
    for seed in 0..40 {
        let one = CrashStorage::new(seed);
        let two = one.beside(1);
        let file = one.create("file").expect("made");
        file.write_at(b"synced", 0).expect("written");
        file.sync().expect("synced");
        one.sync_names().expect("synced");
        let origin = one.origin("file").expect("there");
        two.link(&origin, "link").expect("linked");
        one.sync_names().expect("of the other directory");
        let left = one.lose_power(PowerLoss::Any);
        assert!(two.open("link").is_err() && one.open("file").is_err());
        let names = left.beside(1).list().expect("listed");
        kept_counts[names.len()] += 1;
        two_names(&left, &names);
    }
    assert!(
        kept_counts.iter().all(|count| *count > 4),
        "{kept_counts:?}"
    );
}

/// Counts outcomes: the link exists or not, but the file does.
fn two_names(left: &CrashStorage, names: &[String]) {
    let mut bytes = [0; 6];
    left.open("file")
        .expect("synced")
        .read_at(&mut bytes, 0)
        .expect("read");
    assert_eq!(&bytes, b"synced");
    if names.is_empty() {
        return;
    }
    left.remove("file").expect("removed");
    left.sync_names().expect("synced");
    let link = left.beside(1).open("link").expect("there");
    link.read_at(&mut bytes, 0).expect("read");
    assert_eq!(&bytes, b"synced");
}
