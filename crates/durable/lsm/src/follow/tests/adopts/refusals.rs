//! Copies from which nothing, or not everything, can be reused.

use std::sync::Arc;

use super::{Promoted, beside, promoted};
use crate::follow::tests::{
    FollowOptions, FollowedEngine, Follower, IndexKind, all, follow_options, options,
};
use crate::storage::{
    CrashStorage, DirectoryStorage, Fault, FaultyStorage, Operation, PowerLoss, Storage,
};
use crate::tree::random_numbers;
use crate::{Durability, Engine, LsmError};

/// Promise: a copy of another engine, an incomplete one, an open one, and one on another computer
/// are not used and stay unchanged. A backup that builds its trees uses none, either. Everything is
/// sent then.
#[test]
fn what_cannot_be_used_is_left_alone() {
    let Promoted {
        mut pair,
        copy,
        model,
        ..
    } = Promoted::new(5);
    let (other, empty) = (CrashStorage::new(7), copy.beside(4));
    drop(Engine::open(
        Arc::new(other.clone()) as Arc<dyn Storage>,
        crate::EngineOptions::new(),
    ));
    let far = CrashStorage::new(8);
    let held = copy.lock("LOCK").expect("locked");
    let check = |pair: &mut FollowedEngine, to: &CrashStorage, options: FollowOptions| {
        let filled = pair.fill_beside(to, options).expect("filled");
        assert!(
            !filled.has_previous && filled.taken_count == 0,
            "{filled:?}"
        );
        assert!(filled.sent_log.len() > 3);
        assert!(
            !to.list()
                .expect("listed")
                .iter()
                .any(|name| name == "SHARED")
        );
        drop(pair.follower.take());
    };
    check(&mut pair, &copy.beside(1), beside(&copy));
    drop(held);
    check(&mut pair, &other.beside(1), beside(&other));
    check(&mut pair, &copy.beside(1), beside(&empty));
    check(&mut pair, &far, beside(&copy));
    let built = FollowOptions {
        index: IndexKind::Built,
        ..beside(&copy)
    };
    check(&mut pair, &copy.beside(1), built);
    assert!(all(&promoted(&copy)) == model);
}

/// Promise: a copy whose manifest has lost its last edit is not shared, since sharing would hide
/// the loss. One that loses it while it is shared is not opened.
#[test]
fn a_lost_edit_is_found_all_the_same() {
    let Promoted { mut pair, copy, .. } = Promoted::new(11);
    let follower = Follower::open(Arc::new(copy.clone()) as Arc<dyn Storage>).expect("whole");
    drop(follower);
    let name = |storage: &CrashStorage| {
        let names = storage.list().expect("listed");
        let mut manifests = names.into_iter().filter(|it| it.starts_with("MANIFEST-"));
        manifests.next().expect("one is there")
    };
    let cut = |storage: &CrashStorage| {
        let file = storage.open(&name(storage)).expect("there");
        let size_bytes = file.size().expect("known");
        let mut bytes = vec![0; size_bytes as usize];
        file.read_at(&mut bytes, 0).expect("read");
        let without_last = &bytes[..bytes.len() - 1];
        let last = without_last
            .iter()
            .rposition(|it| *it == b'\n')
            .expect("several lines");
        file.set_size(last as u64 + 1).expect("cut");
        size_bytes > last as u64 + 1
    };
    // An edit that names log segments, one of which is then written, and nothing is synced.
    let lost = FollowedEngine::over(promoted(&copy));
    for number in 0..3 {
        lost.engine
            .put(&[number], &vec![1; 1 << 20], Durability::Memory)
            .expect("put");
    }
    drop(lost);
    let before = copy.lose_power(PowerLoss::Everything);
    assert!(cut(&before));
    let filled = pair
        .fill_beside(&before.beside(1), beside(&before))
        .expect("filled");
    assert!(!filled.has_previous);
    drop(pair.follower.take());
    let error = Engine::open(Arc::new(before) as Arc<dyn Storage>, options()).expect_err("damaged");
    assert!(
        matches!(
            error,
            LsmError::CorruptLog { .. } | LsmError::CorruptManifest { .. }
        ),
        "{error}"
    );

    let during = copy.lose_power(PowerLoss::Everything);
    let filled = pair
        .fill_beside(&during.beside(1), beside(&during))
        .expect("filled");
    assert!(filled.has_previous);
    drop(pair.follower.take());
    assert!(cut(&during));
    let error = Engine::open(Arc::new(during) as Arc<dyn Storage>, options()).expect_err("damaged");
    assert!(matches!(error, LsmError::CorruptManifest { .. }), "{error}");
}

/// Promise: in a real directory both copies have the same device files, and nothing is written
/// twice. If the devices cannot be linked, or own pieces cannot be read, everything needed is sent.
#[test]
fn a_real_directory_shares_its_files() {
    use std::os::unix::fs::MetadataExt;

    let scratch = tempfile::tempdir().expect("a folder for the test");
    let open = |name: &str| {
        let storage = DirectoryStorage::open(scratch.path().join(name)).expect("made");
        Arc::new(storage) as Arc<dyn Storage>
    };
    let mut pair = FollowedEngine::new(&CrashStorage::new(3));
    for number in random_numbers(3).take(400) {
        pair.step(number);
    }
    let mut fill = |to: Arc<dyn Storage>, previous: Option<Arc<dyn Storage>>| {
        let options = FollowOptions {
            previous,
            ..follow_options(IndexKind::Sent)
        };
        let filled = pair.fill_into(to, options).expect("filled");
        let mut follower = pair.follower.take().expect("filled");
        follower.release_previous().expect("released");
        filled
    };
    let first = fill(open("data-0"), None);
    let second = fill(open("data-1"), Some(open("data-0")));
    assert!(
        second.has_previous && second.sent_trees.is_empty(),
        "{second:?}"
    );
    assert!(second.sent_log.len() <= 1 && second.taken_count >= first.sent_log.len());
    let inode = |name: &str| {
        let metadata = std::fs::metadata(scratch.path().join(name)).expect("there");
        metadata.ino()
    };
    assert_eq!(inode("data-0/log"), inode("data-1/log"));
    assert_eq!(inode("data-0/trees"), inode("data-1/trees"));
    std::fs::remove_dir_all(scratch.path().join("data-0")).expect("removed");
    let faulty = FaultyStorage::new(open("data-2"));
    let id = faulty.set(Fault::Fail {
        operations: &[Operation::Read],
        file: Some("log".to_owned()),
        nth: 1,
        times: 3,
    });
    let third = fill(Arc::new(faulty.clone()), Some(open("data-1")));
    assert!(faulty.hit_count(id) == 3 && third.has_previous);
    assert!(
        third.sent_log.len() >= 3 && third.sent_log.len() <= 4,
        "{third:?}"
    );
    faulty.lift_all();
    let faulty = FaultyStorage::new(open("data-3"));
    let id = faulty.set(Fault::Fail {
        operations: &[Operation::Create],
        file: Some("trees".to_owned()),
        nth: 1,
        times: 1,
    });
    let fourth = fill(Arc::new(faulty.clone()), Some(open("data-2")));
    assert!(faulty.hit_count(id) == 1 && !fourth.has_previous && fourth.taken_count == 0);
    assert_ne!(inode("data-2/log"), inode("data-3/log"));
    let follower = Follower::open(open("data-3")).expect("whole");
    assert!(all(&follower.promote(options()).expect("an engine")) == pair.model);
}
