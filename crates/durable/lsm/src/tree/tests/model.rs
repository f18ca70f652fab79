//! Trees return the same results as a `BTreeMap`.

use std::ops::Bound::{Excluded, Included, Unbounded};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use super::keys::{equal_heads, kinds, user_keys};
use super::{MemoryBlocks, MemoryLog, Model, ModelEntries, model_of, rebuilt, tree_of, written};
use crate::cache::BlockCache;
use crate::error::LsmError;
use crate::head::KnownKey;
use crate::place::{BLOCK_SIZE_BYTES, BlockNumber, LogPosition, SEGMENT_SIZE_BLOCKS, TreeId};
use crate::tree::format::damaged;
use crate::tree::{
    BlockSink, BlockSource, Candidate, Entry, EntrySource, ReadAhead, Tree, TreeBuilder,
    TreeCursor, TreeEntries, TreeShape, key_hash,
};

/// Returns the keys, and strings right before and after them.
fn places(model: &Model) -> impl Iterator<Item = Vec<u8>> {
    let stride = (model.len() / 3_000).max(1);
    model.keys().step_by(stride).flat_map(|key| {
        let mut behind = key.clone();
        behind.push(0);
        let mut places = vec![key.clone(), behind];
        if let [start @ .., last] = key.as_slice() {
            places.push(start.to_vec());
            places.push([start, &[last.wrapping_add(1)]].concat());
            places.push([start, &[last.wrapping_sub(1), 0xff]].concat());
        }
        places
    })
}

/// Returns the result of a get after the record was read.
fn found(tree: &Tree, key: &[u8], log: &MemoryLog) -> Option<(LogPosition, bool)> {
    let candidate = tree.get(key, key_hash(key), log).unwrap()?;
    let is_it = log.is_key_of(candidate.position, key);
    assert!(is_it || !candidate.is_certain, "{key:?}");
    is_it.then_some((candidate.position, candidate.is_delete))
}

fn current(cursor: &TreeCursor) -> Option<(LogPosition, bool)> {
    cursor.entry().map(|it| (it.position, it.is_delete))
}

fn assert_gets_and_seeks(name: &str, tree: &Arc<Tree>, model: &Model, log: &MemoryLog) {
    let mut cursor = TreeCursor::new(Arc::clone(tree), ReadAhead::SCAN);
    for key in places(model) {
        assert_eq!(
            found(tree, &key, log),
            model.get(&key).copied(),
            "{name}: get {key:?}"
        );
        cursor.seek(&key, log).unwrap();
        let mut from = model.range::<Vec<u8>, _>((Included(&key), Unbounded));
        assert_eq!(
            current(&cursor),
            from.next().map(|it| *it.1),
            "{name}: from {key:?}"
        );
        if current(&cursor).is_some() {
            cursor.advance().unwrap();
            assert_eq!(
                current(&cursor),
                from.next().map(|it| *it.1),
                "{name}: next {key:?}"
            );
        }
        cursor.seek_back(&key, log).unwrap();
        let mut until = model.range::<Vec<u8>, _>((Unbounded, Included(&key)));
        assert_eq!(
            current(&cursor),
            until.next_back().map(|it| *it.1),
            "{name}: to {key:?}"
        );
        if current(&cursor).is_some() {
            cursor.retreat().unwrap();
            let before = until.next_back().map(|it| *it.1);
            assert_eq!(current(&cursor), before, "{name}: before {key:?}");
        }
        cursor.seek_back(&key, log).unwrap();
        if current(&cursor).is_some() {
            cursor.advance().unwrap();
            let mut behind = model.range::<Vec<u8>, _>((Excluded(&key), Unbounded));
            assert_eq!(
                current(&cursor),
                behind.next().map(|it| *it.1),
                "{name}: turn {key:?}"
            );
        }
    }
}

fn assert_walks(name: &str, tree: &Arc<Tree>, model: &Model) {
    // Powers of two would coincide with the ends of segments.
    let odd = ReadAhead {
        block_count_max: 7,
        fills_cache: false,
    };
    for read_ahead in [ReadAhead::SCAN, ReadAhead::MERGE, odd] {
        let mut cursor = TreeCursor::new(Arc::clone(tree), read_ahead);
        assert_eq!(cursor.entry(), None);
        cursor.seek_first().unwrap();
        for (key, value) in model {
            let entry = cursor.entry().unwrap();
            assert_eq!((entry.position, entry.is_delete), *value, "{name}: {key:?}");
            assert_eq!(entry.hash, key_hash(key));
            assert!(
                key.starts_with(entry.key.bytes),
                "{name}: bytes of {key:?} are invented"
            );
            assert_eq!(entry.key.continues, key.len() > entry.key.bytes.len());
            cursor.advance().unwrap();
        }
        assert_eq!(cursor.entry(), None);
        cursor.advance().unwrap();
        assert_eq!(cursor.entry(), None, "behind the end there is nothing");
        cursor.seek_last().unwrap();
        for value in model.values().rev() {
            assert_eq!(current(&cursor), Some(*value), "{name}: backwards");
            cursor.retreat().unwrap();
        }
        assert_eq!(cursor.entry(), None);
    }
}

pub(super) fn assert_is(name: &str, tree: &Arc<Tree>, model: &Model, log: &MemoryLog) {
    assert_eq!(tree.shape().entry_count, model.len() as u64);
    assert_walks(name, tree, model);
    assert_gets_and_seeks(name, tree, model, log);
    let references = tree.references().unwrap();
    let count: u64 = references.iter().map(|it| it.1.entry_count).sum();
    assert_eq!(count, model.len() as u64, "{name}: references");
}

/// Promise: with any keys, a tree has exactly these, in order, in both directions. So does a tree
/// made from it, and one made from that, which know only heads.
#[test]
fn a_tree_is_what_a_map_is() {
    let mut heights = Vec::new();
    for (name, keys) in kinds() {
        let log = MemoryLog::default();
        let model = model_of(keys, &log);
        let tree = tree_of(1, &model, &log);
        heights.push(tree.shape().height);
        assert_is(name, &tree, &model, &log);
        let second = rebuilt(2, &tree, &log);
        assert_is(name, &second, &model, &log);
        let third = rebuilt(3, &second, &log);
        assert_is(name, &third, &model, &log);
    }
    assert!(
        [0, 1, 2].iter().all(|it| heights.contains(it)),
        "{heights:?}"
    );
}

/// Promise: heads distinguish YCSB keys. Writing trees from whole keys or from trees, gets of
/// absent keys, and iteration read no keys from the log.
#[test]
fn keys_of_ycsb_are_not_read_from_the_log() {
    let log = MemoryLog::default();
    let model = model_of(user_keys(1, 40_000), &log);
    let tree = tree_of(1, &model, &log);
    let third = rebuilt(3, &rebuilt(2, &tree, &log), &log);
    for key in user_keys(2, 10_000) {
        assert_eq!(found(&third, &key, &log), None);
    }
    assert_walks("user", &third, &model);
    assert_eq!(log.read_count(), 0);
}

/// Promise: a get reads the documented number of blocks and no key. A seek to a present key reads
/// at most one key, if heads distinguish the others.
#[test]
fn a_get_costs_what_it_says() {
    let log = MemoryLog::default();
    let model = model_of(user_keys(1, 45_000), &log);
    let tree = rebuilt(2, &tree_of(1, &model, &log), &log);
    let height = u64::from(tree.shape().height);
    let visited = || {
        let counts = tree.cache().counts();
        counts.hit_count + counts.miss_count
    };
    for key in model.keys().take(2_000) {
        let before = visited();
        let candidate = tree.get(key, key_hash(key), &log).unwrap().unwrap();
        assert_eq!((candidate.position, candidate.is_delete), model[key]);
        assert_eq!(visited() - before, height + 2);
    }
    let before = visited();
    for key in user_keys(2, 10_000) {
        assert_eq!(found(&tree, &key, &log), None);
    }
    let per_get = (visited() - before) as f64 / 10_000.0;
    assert!(
        (1.0..1.05).contains(&per_get),
        "{per_get} blocks for a key that is not there"
    );
    assert_eq!(log.read_count(), 0);
    let mut cursor = TreeCursor::new(Arc::clone(&tree), ReadAhead::SCAN);
    for key in model.keys().take(2_000) {
        cursor.seek(key, &log).unwrap();
    }
    assert!(log.read_count() <= 2_000, "{}", log.read_count());
}

/// Promise: among keys with equal hash and head, a get finds the requested one, and nothing for an
/// absent one.
#[test]
fn keys_of_one_hash_are_told_apart() {
    let log = MemoryLog::default();
    let keys = equal_heads(100);
    let blocks = Arc::new(MemoryBlocks::default());
    let mut builder = TreeBuilder::new(TreeId(1), 100, &*blocks);
    let model = model_of(keys, &log);
    let mut entries = ModelEntries::new(&model);
    while let Some(mut entry) = entries.entry() {
        entry.hash = 77;
        builder.add(entry, 100, &log).unwrap();
        entries.advance().unwrap();
    }
    let shape = builder.finish().unwrap().unwrap();
    let cache = Arc::new(BlockCache::new(1 << 20));
    let tree = Tree::new(TreeId(1), shape, blocks, cache);
    for (key, (position, is_delete)) in &model {
        let candidate = Candidate {
            position: *position,
            is_delete: *is_delete,
            is_certain: true,
        };
        assert_eq!(tree.get(key, 77, &log).unwrap(), Some(candidate));
    }
    let other = format!("003{}99999", "-".repeat(30));
    assert_eq!(tree.get(other.as_bytes(), 77, &log).unwrap(), None);
}

/// Promise: a tree of several segments is iterated like others. The sink and source of this test
/// accept no blocks of two segments at a time.
#[test]
fn segments_are_not_crossed() {
    let log = MemoryLog::default();
    let model = model_of(user_keys(1, 134 * 1_400), &log);
    let tree = tree_of(1, &model, &log);
    assert_eq!(tree.shape().block_count.div_ceil(SEGMENT_SIZE_BLOCKS), 3);
    assert_walks("three segments", &tree, &model);
    assert_eq!(rebuilt(1, &tree, &log).shape(), tree.shape());
}

/// Promise: a failure of the source is an error, after which a cursor is nowhere and can seek
/// again. A failure of the sink is an error, too.
#[test]
fn failures_are_handed_on() {
    let log = MemoryLog::default();
    let model = model_of(user_keys(1, 5_000), &log);
    let shape = tree_of(1, &model, &log).shape();
    let whole = MemoryBlocks::default();
    let mut builder = TreeBuilder::new(TreeId(1), 5_000, &whole);
    add_all(&mut builder, &model, &log).unwrap();
    assert_eq!(builder.finish().unwrap(), Some(shape));

    let failing = Arc::new(Failing {
        blocks: whole,
        reads_left: AtomicI64::new(i64::MAX),
    });
    // An empty cache: each visit is a read.
    let cache = Arc::new(BlockCache::new(0));
    let source = Arc::clone(&failing) as Arc<dyn BlockSource>;
    let tree = Arc::new(Tree::new(TreeId(1), shape, source, cache));
    let key = model.keys().next_back().unwrap();
    for reads_left in 0..3 {
        failing.reads_left.store(reads_left, Ordering::Relaxed);
        assert!(tree.get(key, key_hash(key), &log).is_err());
    }
    let mut cursor = TreeCursor::new(Arc::clone(&tree), ReadAhead::MERGE);
    for reads_left in 2..5 {
        failing.reads_left.store(reads_left, Ordering::Relaxed);
        cursor.seek_first().unwrap();
        let advanced = (0..5_000).try_for_each(|_| cursor.advance());
        assert!(matches!(advanced, Err(LsmError::CorruptTree { .. })));
        assert_eq!(cursor.entry(), None);
    }
    failing.reads_left.store(i64::MAX, Ordering::Relaxed);
    assert_walks("after failures", &tree, &model);

    let mut builder = TreeBuilder::new(TreeId(1), 5_000, Nowhere);
    assert!(
        add_all(&mut builder, &model, &log).is_ok(),
        "less than a segment waits"
    );
    assert!(builder.finish().is_err());
}

fn add_all<S: BlockSink>(
    builder: &mut TreeBuilder<S>,
    model: &Model,
    log: &MemoryLog,
) -> Result<(), LsmError> {
    let mut entries = ModelEntries::new(model);
    while let Some(entry) = entries.entry() {
        builder.add(entry, entries.record_size_bytes(), log)?;
        entries.advance()?;
    }
    Ok(())
}

fn failure() -> LsmError {
    damaged(TreeId(1), BlockNumber(0), "on purpose")
}

struct Failing {
    blocks: MemoryBlocks,
    reads_left: AtomicI64,
}

impl BlockSource for Failing {
    fn read(&self, first: BlockNumber, buffer: &mut [u8]) -> Result<(), LsmError> {
        if self.reads_left.fetch_sub(1, Ordering::Relaxed) <= 0 {
            return Err(failure());
        }
        self.blocks.read(first, buffer)
    }
}

struct Nowhere;

impl BlockSink for Nowhere {
    fn append(&mut self, _: &mut Vec<u8>) -> Result<(), LsmError> {
        Err(failure())
    }
}

/// Promise: threads can share trees, and move cursors.
#[test]
fn trees_are_shared() {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Tree>();
    is_shared::<TreeCursor>();
    is_shared::<TreeEntries>();
}

/// Promise: trees are as small as possible. Leaves are full, with at least 128 YCSB keys, and inner
/// blocks are no larger than needed.
#[test]
fn trees_are_small() {
    let log = MemoryLog::default();
    let model = model_of(user_keys(1, 128 * 300), &log);
    let shape = tree_of(1, &model, &log).shape();
    let (leaves, filter) = (300, (128 * 300_u32).div_ceil(3_251));
    let rest = shape.block_count - leaves - filter - shape.references.count;
    assert!(rest <= 5, "{rest} blocks beside the leaves: {shape:?}");
    assert_eq!(shape.height, 2);
}

/// Promise: without entries, there is no tree, and nothing is written.
#[test]
fn no_entries_make_no_tree() {
    let log = MemoryLog::default();
    let none = written(1, 0, ModelEntries::new(&Model::new()), &log);
    assert!(none.unwrap().is_none());
}

/// Promise: entries that do not ascend are refused, whether known bytes or the log show it.
#[test]
fn entries_that_do_not_ascend_are_refused() {
    let log = MemoryLog::default();
    let entry = |bytes: &'static [u8], continues, position| Entry {
        key: KnownKey { bytes, continues },
        hash: 0,
        position,
        is_delete: false,
    };
    let place = log.put(b"same");
    for (first, second) in [(&b"b"[..], &b"a"[..]), (b"a", b"a")] {
        let mut builder = TreeBuilder::new(TreeId(1), 2, Nowhere);
        builder.add(entry(first, false, place), 1, &log).unwrap();
        let refused = builder.add(entry(second, false, place), 1, &log);
        assert!(matches!(refused, Err(LsmError::CorruptTree { .. })));
    }
    let mut builder = TreeBuilder::new(TreeId(1), 2, Nowhere);
    let refused = (0..300).find_map(|_| builder.add(entry(b"s", true, place), 1, &log).err());
    assert!(matches!(refused, Some(LsmError::CorruptTree { .. })));
}

/// Promise (format): equal entries make exactly these bytes, and the shape survives the manifest.
#[test]
fn a_tree_has_these_bytes() {
    let sum = || {
        let log = MemoryLog::default();
        let model = model_of(user_keys(1, 1_000), &log);
        let blocks = MemoryBlocks::default();
        let mut builder = TreeBuilder::new(TreeId(9), 1_000, &blocks);
        add_all(&mut builder, &model, &log).unwrap();
        let shape = builder.finish().unwrap().unwrap();
        let bytes = blocks.0.lock().unwrap();
        assert_eq!(bytes.len(), shape.block_count as usize * BLOCK_SIZE_BYTES);
        (shape, crc_fast::crc32_iscsi(&bytes))
    };
    assert_eq!(sum(), sum());
    let (shape, sum) = sum();
    let text = serde_json::to_string(&shape).unwrap();
    assert_eq!(
        text,
        r#"{"root":11,"height":1,"entry_count":1000,"block_count":12,"filter":{"first":8,"count":1},"references":{"first":9,"count":1}}"#
    );
    assert_eq!(serde_json::from_str::<TreeShape>(&text).unwrap(), shape);
    assert_eq!(sum, 0x32e0_121d);
}

/// Promise: trees made from trees know the sizes of records, exactly if all records of a segment
/// have one size.
#[test]
fn sizes_of_records_are_handed_on() {
    let log = MemoryLog::default();
    let model = model_of(user_keys(1, 40_000), &log);
    let tree = tree_of(1, &model, &log);
    let references = tree.references().unwrap();
    assert!(references.iter().count() > 1);
    let size: u64 = references.iter().map(|it| it.1.size_bytes).sum();
    assert_eq!(size, 40_000 * (24 + super::RECORD_REST_BYTES));
    assert_eq!(rebuilt(2, &tree, &log).references().unwrap(), references);
    assert!(TreeEntries::new(tree).is_ok());
}
