//! Forged blocks with valid checksums.

use std::sync::Arc;

use proptest::prelude::*;
use proptest::sample::Index;

use super::keys::{binary_keys, equal_heads, keys_with_prefix};
use super::{MemoryBlocks, MemoryLog, model_of, written};
use crate::cache::BlockCache;
use crate::error::LsmError;
use crate::place::{BLOCK_SIZE_BYTES, BlockNumber, TreeId};
use crate::tree::format::{seal, stamp};
use crate::tree::inner::InnerBuilder;
use crate::tree::leaf_builder::LeafBuilder;
use crate::tree::separator::Separator;
use crate::tree::{
    BlockRange, EntrySource, ReadAhead, Tree, TreeBuilder, TreeCursor, TreeEntries, TreeShape,
    key_hash,
};

const TREE: TreeId = TreeId(1);

/// Uses a tree in all ways; returns the number of entries that it iterated over.
fn use_all(tree: &Arc<Tree>, log: &MemoryLog) -> u64 {
    let keys = [&b""[..], b"p", b"000---", &[b'p'; 300], &[0xff; 9], b"003"];
    let mut cursor = TreeCursor::new(Arc::clone(tree), ReadAhead::SCAN);
    for key in keys {
        let _ = tree.get(key, key_hash(key), log);
        let _ = cursor.seek(key, log).and_then(|()| cursor.advance());
        let _ = cursor.seek_back(key, log).and_then(|()| cursor.retreat());
    }
    let mut count = 0;
    if cursor.seek_first().is_ok() {
        while cursor.entry().is_some() && cursor.advance().is_ok() {
            count += 1;
        }
    }
    if cursor.seek_last().is_ok() {
        while cursor.entry().is_some() && cursor.retreat().is_ok() {
            count += 1;
        }
    }
    if let Ok(references) = tree.references() {
        count += references.needed().count() as u64;
    }
    if let Ok(entries) = TreeEntries::new(Arc::clone(tree)) {
        let again = written(2, 1, entries, log);
        assert!(
            again.is_ok()
                || matches!(
                    again,
                    Err(LsmError::CorruptTree { .. } | LsmError::CorruptLog { .. })
                )
        );
    }
    count
}

fn tree(bytes: Vec<u8>, shape: TreeShape) -> Arc<Tree> {
    let source = Arc::new(MemoryBlocks(bytes.into()));
    Arc::new(Tree::new(
        TREE,
        shape,
        source,
        Arc::new(BlockCache::new(1 << 20)),
    ))
}

fn restamp(bytes: &mut [u8], number: usize) {
    let (blocks, _) = bytes.as_chunks_mut::<BLOCK_SIZE_BYTES>();
    stamp(&mut blocks[number], TREE, BlockNumber(number as u32));
}

/// Returns the blocks of a tree with all kinds of blocks and separators.
fn whole(log: &MemoryLog) -> (Vec<u8>, TreeShape) {
    let mut keys = equal_heads(600);
    keys.extend(keys_with_prefix(300, 2_000));
    keys.extend(binary_keys(400));
    let model = model_of(keys, log);
    let blocks = MemoryBlocks::default();
    let mut builder = TreeBuilder::new(TREE, model.len() as u64, &blocks);
    let mut entries = super::ModelEntries::new(&model);
    while let Some(entry) = entries.entry() {
        builder.add(entry, 100, log).unwrap();
        entries.advance().unwrap();
    }
    let shape = builder.finish().unwrap().unwrap();
    let bytes = blocks.0.lock().unwrap().clone();
    (bytes, shape)
}

/// Upper bound for the entries and segments that corruption of that tree can produce.
const STEP_COUNT_MAX: u64 = 200_000;

/// Promise: iteration in either direction detects a tree whose inner blocks refer to the same
/// leaves again.
#[test]
fn a_walk_does_not_come_back() {
    let log = MemoryLog::default();
    let model = model_of(keys_with_prefix(0, 10), &log);
    let mut leaf = LeafBuilder::default();
    let mut bytes = Vec::new();
    let mut push = |block: &mut [u8; BLOCK_SIZE_BYTES], header| {
        let number = bytes.len() / BLOCK_SIZE_BYTES;
        seal(block, header, TREE, BlockNumber(number as u32));
        bytes.extend_from_slice(block);
    };
    for _ in 0..2 {
        let mut entries = super::ModelEntries::new(&model);
        while let Some(entry) = entries.entry() {
            leaf.add(entry);
            entries.advance().unwrap();
        }
        let mut block = [0; BLOCK_SIZE_BYTES];
        let header = leaf.write(&mut block);
        push(&mut block, header);
    }
    for (height, first) in [(1, 0), (1, 0), (2, 2)] {
        let mut inner = InnerBuilder::default();
        inner.add(BlockNumber(first), Separator::default());
        inner.add(BlockNumber(first + 1), Separator::default());
        let mut block = [0; BLOCK_SIZE_BYTES];
        let (header, _) = inner.write(&mut block, height);
        push(&mut block, header);
    }
    let shape = TreeShape {
        root: BlockNumber(4),
        height: 2,
        entry_count: 40,
        block_count: 5,
        filter: BlockRange {
            first: BlockNumber(0),
            count: 0,
        },
        references: BlockRange {
            first: BlockNumber(0),
            count: 0,
        },
    };
    let mut cursor = TreeCursor::new(tree(bytes, shape), ReadAhead::SCAN);
    cursor.seek_first().unwrap();
    let advanced = (0..20)
        .map(|_| cursor.advance())
        .collect::<Result<Vec<()>, _>>();
    assert!(matches!(
        advanced,
        Err(LsmError::CorruptTree { block: 0, .. })
    ));
    assert_eq!(cursor.entry(), None);
    cursor.seek_last().unwrap();
    let retreated = (0..20)
        .map(|_| cursor.retreat())
        .collect::<Result<Vec<()>, _>>();
    assert!(matches!(
        retreated,
        Err(LsmError::CorruptTree { block: 1, .. })
    ));
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..Default::default()
    })]

    /// Promise: a tree with some changed bytes, but valid checksums, returns results or reports
    /// corruption in bounded time.
    #[test]
    fn damaged_trees_are_no_danger(
        damages in prop::collection::vec((any::<Index>(), 0..96_usize, any::<u8>()), 1..12),
        deep in prop::collection::vec((any::<Index>(), any::<u8>()), 0..4),
    ) {
        let log = MemoryLog::default();
        let (mut bytes, shape) = whole(&log);
        let count = shape.block_count as usize;
        for (block, at, byte) in damages {
            // The last blocks are references and inner blocks, in which more can be wrong.
            let number = block.index(count * 2).min(count - 1);
            bytes[number * BLOCK_SIZE_BYTES + at] = byte;
            restamp(&mut bytes, number);
        }
        for (at, byte) in deep {
            let at = at.index(bytes.len());
            bytes[at] = byte;
            restamp(&mut bytes, at / BLOCK_SIZE_BYTES);
        }
        let steps = use_all(&tree(bytes, shape), &log);
        prop_assert!(steps <= STEP_COUNT_MAX, "{steps} steps");
    }

    /// Promise: the same holds for arbitrary blocks with nearly valid headers, and any shape.
    #[test]
    fn garbage_is_no_danger(
        seeds in prop::collection::vec(any::<[u8; 24]>(), 1..6),
        kinds in prop::collection::vec((1..6_u8, 0..3_u8, 0..200_u16, 0..1100_u16), 6),
        shape in (0..7_u32, 0..12_u8, 0..7_u32, 0..4_u32, 0..7_u32, 0..4_u32),
    ) {
        let mut bytes = Vec::new();
        for (number, seed) in seeds.iter().enumerate() {
            let (kind, height, count, place) = kinds[number];
            bytes.extend(seed.iter().cycle().take(BLOCK_SIZE_BYTES));
            let block = &mut bytes[number * BLOCK_SIZE_BYTES..];
            block[..32].fill(0);
            block[4] = kind;
            block[5] = height;
            block[6..8].copy_from_slice(&count.to_le_bytes());
            block[8..10].copy_from_slice(&place.to_le_bytes());
            restamp(&mut bytes, number);
        }
        let range = |first, count| BlockRange { first: BlockNumber(first), count };
        let shape = TreeShape {
            root: BlockNumber(shape.0),
            height: shape.1,
            entry_count: 1,
            block_count: seeds.len() as u32,
            filter: range(shape.2, shape.3),
            references: range(shape.4, shape.5),
        };
        let steps = use_all(&tree(bytes, shape), &MemoryLog::default());
        prop_assert!(steps <= STEP_COUNT_MAX, "{steps} steps");
    }
}
