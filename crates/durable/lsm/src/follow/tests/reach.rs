//! How far the log of a copy goes, whatever has happened to it since.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use super::options;
use crate::follow::reach;
use crate::storage::{DirectoryStorage, Storage};
use crate::{Durability, Engine};

fn storage(path: &Path) -> Arc<dyn Storage> {
    Arc::new(DirectoryStorage::open(path).expect("a directory"))
}

/// Promise (CONTROL-18): of two copies, the one that has lost its end goes less far. Both may have
/// been reopened since, so that their logs continue in other segments.
#[test]
fn a_copy_that_has_lost_its_end_goes_less_far() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let (whole, cut) = (scratch.path().join("whole"), scratch.path().join("cut"));
    let engine = Engine::open(storage(&whole), options()).expect("made");
    for number in 0..100_u32 {
        let put = engine.put(&number.to_be_bytes(), b"[the value]", Durability::Sync);
        put.expect("there is room");
    }
    drop(engine);
    fs::create_dir(&cut).expect("made");
    for entry in fs::read_dir(&whole).expect("listed") {
        let path = entry.expect("listed").path();
        fs::copy(&path, cut.join(path.file_name().expect("a file"))).expect("copied");
    }
    let log = fs::read(cut.join("log")).expect("it is there");
    let mut windows = log.windows(11);
    let last = windows.rposition(|window| window == b"[the value]");
    let last = last.expect("it was written") as u64;
    let file = fs::OpenOptions::new().write(true).open(cut.join("log"));
    file.expect("it is there").set_len(last).expect("cut");
    let of = |path: &Path| reach(&storage(path)).expect("it is read");
    let (before, shorter) = (of(&whole), of(&cut));
    assert!(shorter < before, "{shorter} {before}");
    for path in [&whole, &cut, &cut] {
        drop(Engine::open(storage(path), options()).expect("it is one"));
    }
    assert_eq!((of(&whole), of(&cut)), (before, shorter));
}
