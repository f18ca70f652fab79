//! Records moved by a merge while the log is in use.

use std::sync::Arc;

use super::{maintain_all, open_as, tiny, value_of};
use crate::engine::collect::CollectingEntries;
use crate::engine::{Durability, EngineOptions};
use crate::log::Record;
use crate::storage::CrashStorage;
use crate::tree::{Deletes, Merge, TreeEntries};

/// Promise: moved records stay until the merge's tree is in force, even if a flush moves the start
/// of recovery behind them, and no longer.
#[test]
fn what_was_moved_stays_until_a_tree_leads_there() {
    let options = EngineOptions {
        // Nothing is read from memory, so data missing on the device is missing.
        log_memory_size_bytes: 0,
        ..tiny()
    };
    let engine = open_as(&CrashStorage::new(1), options).expect("made");
    let put = |key: &[u8], value: &[u8]| {
        let put = engine.put(key, value, Durability::Memory);
        put.expect("no fault is set");
    };
    put(b"cold", &value_of(1, 9_000));
    put(b"large", &value_of(2, 3 << 20));
    engine.freeze();
    maintain_all(&engine);

    let core = &engine.core;
    let version = core.version();
    let trees: Vec<_> = version.trees().collect();
    let ids = [trees[0].entry().id];
    let dead = core.mostly_dead(&version, &ids);
    assert_eq!(
        dead.len(),
        1,
        "that of the cold one; the large ones fill theirs"
    );
    assert!(
        core.mostly_dead(&version, &[]).is_empty(),
        "a tree leads there"
    );
    let entries = TreeEntries::new(Arc::clone(trees[0].tree())).expect("read");
    let log = Arc::clone(&core.log);
    let merge = Merge::new(vec![entries], Deletes::Keep, log).expect("read");
    let mut collect = CollectingEntries::new(core, merge, Deletes::Omit, dead).expect("moved");
    let moved = collect.entry().expect("the first one").position;
    assert_eq!(collect.record_size_bytes(), 12 + 4 + 9_000);
    assert!(collect.end() > Some(moved));
    while collect.entry().is_some() {
        collect.advance(core).expect("moved");
    }

    // The merge is unfinished, and the log continues.
    drop(version);
    put(b"large", &value_of(3, 3 << 20));
    put(b"more", b"");
    engine.freeze();
    maintain_all(&engine);
    assert!(core.manifest.read_from().number() > moved.number());
    let mut record = Record::default();
    core.log.read(moved, &mut record).expect("it is kept");
    assert_eq!(record.key(), b"cold");
    assert!(record.value() == value_of(1, 9_000));
    drop(collect);
    maintain_all(&engine);
    assert!(
        core.log.read(moved, &mut record).is_err(),
        "nobody keeps it"
    );
}
