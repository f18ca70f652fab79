//! Helpers for the trees' tests: blocks and a log in memory, and keys of many kinds.

mod garbage;
mod keys;
mod merges;
mod model;

pub(crate) use keys::random_numbers;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::cache::BlockCache;
use crate::error::LsmError;
use crate::head::{KeySource, KnownKey};
use crate::place::{
    BLOCK_SIZE_BYTES, BlockNumber, LogPosition, SEGMENT_SIZE_BLOCKS, SEGMENT_SIZE_BYTES, TreeId,
};
use crate::tree::format::{Header, Kind, seal};
use crate::tree::{
    Block, BlockSink, BlockSource, Entry, EntrySource, Tree, TreeBuilder, TreeEntries, key_hash,
};

/// Size in bytes of [`MemoryLog`]'s records, without their keys.
pub(super) const RECORD_REST_BYTES: u64 = 112;

/// Log in memory that counts the keys read from it.
#[derive(Default)]
pub(super) struct MemoryLog {
    keys: RefCell<BTreeMap<LogPosition, Vec<u8>>>,
    end: Cell<u64>,
    read_count: Cell<u64>,
}

impl MemoryLog {
    pub(super) const FIRST: LogPosition = LogPosition(32);

    pub(super) fn put(&self, key: &[u8]) -> LogPosition {
        let size_bytes = RECORD_REST_BYTES + key.len() as u64;
        let mut start = self.end.get().max(Self::FIRST.0);
        if start % SEGMENT_SIZE_BYTES + size_bytes > SEGMENT_SIZE_BYTES {
            start = LogPosition(start).number().next().start().0 + 32;
        }
        self.end.set(start + size_bytes);
        self.keys
            .borrow_mut()
            .insert(LogPosition(start), key.to_vec());
        LogPosition(start)
    }

    pub(super) fn is_key_of(&self, position: LogPosition, key: &[u8]) -> bool {
        self.keys.borrow()[&position] == key
    }

    pub(super) fn read_count(&self) -> u64 {
        self.read_count.get()
    }
}

impl KeySource for MemoryLog {
    fn append_key(&self, position: LogPosition, to: &mut Vec<u8>) -> Result<(), LsmError> {
        self.read_count.set(self.read_count.get() + 1);
        let keys = self.keys.borrow();
        let key = keys.get(&position).ok_or(LsmError::CorruptLog {
            position,
            how: "there is no record".to_owned(),
        })?;
        to.extend_from_slice(key);
        Ok(())
    }
}

/// Blocks of a tree in memory.
#[derive(Default)]
pub(super) struct MemoryBlocks(pub(super) Mutex<Vec<u8>>);

impl BlockSink for &MemoryBlocks {
    fn append(&mut self, blocks: &mut Vec<u8>) -> Result<(), LsmError> {
        let all = &mut *self.0.lock().unwrap();
        assert_eq!(
            all.len() as u64 % SEGMENT_SIZE_BYTES,
            0,
            "only the last one is in part"
        );
        assert!(blocks.len() as u64 <= SEGMENT_SIZE_BYTES && !blocks.is_empty());
        assert_eq!(blocks.len() % BLOCK_SIZE_BYTES, 0);
        all.append(blocks);
        Ok(())
    }
}

impl BlockSource for MemoryBlocks {
    fn read(&self, first: BlockNumber, buffer: &mut [u8]) -> Result<(), LsmError> {
        let count = (buffer.len() / BLOCK_SIZE_BYTES) as u32;
        assert!(first.0 % SEGMENT_SIZE_BLOCKS + count <= SEGMENT_SIZE_BLOCKS);
        let start = first.0 as usize * BLOCK_SIZE_BYTES;
        buffer.copy_from_slice(&self.0.lock().unwrap()[start..start + buffer.len()]);
        Ok(())
    }
}

/// Returns a valid block without useful contents.
pub(crate) fn block_for_tests(tree: TreeId, number: BlockNumber) -> Block {
    let mut bytes = [0; BLOCK_SIZE_BYTES];
    let header = Header {
        kind: Kind::Filter,
        height: 0,
        count: 1,
        place: 0,
        head_size_bytes: 0,
    };
    seal(&mut bytes, header, tree, number);
    Block::open_copy(&bytes, tree, number).unwrap()
}

/// Expected contents of a tree: the position of each key's record, and whether it is a delete.
pub(super) type Model = BTreeMap<Vec<u8>, (LogPosition, bool)>;

/// Puts keys into the log and a model; every seventh is deleted.
pub(super) fn model_of(keys: impl IntoIterator<Item = Vec<u8>>, log: &MemoryLog) -> Model {
    let entry = |(index, key): (usize, Vec<u8>)| {
        let position = log.put(&key);
        (key, (position, index % 7 == 3))
    };
    keys.into_iter().enumerate().map(entry).collect()
}

/// Source of a model's entries, with whole keys.
pub(super) struct ModelEntries<'m> {
    rest: std::collections::btree_map::Iter<'m, Vec<u8>, (LogPosition, bool)>,
    current: Option<(&'m [u8], LogPosition, bool)>,
}

impl<'m> ModelEntries<'m> {
    pub(super) fn new(model: &'m Model) -> Self {
        let mut entries = Self {
            rest: model.iter(),
            current: None,
        };
        entries.advance().unwrap();
        entries
    }
}

impl EntrySource for ModelEntries<'_> {
    fn entry(&self) -> Option<Entry<'_>> {
        self.current.map(|(key, position, is_delete)| Entry {
            key: KnownKey::whole(key),
            hash: key_hash(key),
            position,
            is_delete,
        })
    }

    fn record_size_bytes(&self) -> u64 {
        let size = |(key, ..): (&[u8], _, _)| key.len() as u64 + RECORD_REST_BYTES;
        self.current.map_or(0, size)
    }

    fn advance(&mut self) -> Result<(), LsmError> {
        let next = self.rest.next();
        self.current = next.map(|(key, it)| (key.as_slice(), it.0, it.1));
        Ok(())
    }
}

/// Writes a tree with a source's entries; `None` if it has none.
pub(super) fn written(
    id: u64,
    entry_count_max: u64,
    mut entries: impl EntrySource,
    log: &MemoryLog,
) -> Result<Option<Arc<Tree>>, LsmError> {
    let blocks = Arc::new(MemoryBlocks::default());
    let mut builder = TreeBuilder::new(TreeId(id), entry_count_max, &*blocks);
    while let Some(entry) = entries.entry() {
        builder.add(entry, entries.record_size_bytes(), log)?;
        entries.advance()?;
    }
    let Some(shape) = builder.finish()? else {
        return Ok(None);
    };
    let size_blocks = blocks.0.lock().unwrap().len() / BLOCK_SIZE_BYTES;
    assert_eq!(shape.block_count as usize, size_blocks);
    assert_eq!(
        shape.root.0 + 1,
        shape.block_count,
        "the root is the last block"
    );
    let cache = Arc::new(BlockCache::new(8 << 20));
    Ok(Some(Arc::new(Tree::new(TreeId(id), shape, blocks, cache))))
}

/// Writes a tree with the entries of a model that is not empty.
pub(super) fn tree_of(id: u64, model: &Model, log: &MemoryLog) -> Arc<Tree> {
    let tree = written(id, model.len() as u64, ModelEntries::new(model), log);
    tree.unwrap().unwrap()
}

/// Writes a tree with a tree's entries, of which only prefixes and heads are known.
pub(super) fn rebuilt(id: u64, tree: &Arc<Tree>, log: &MemoryLog) -> Arc<Tree> {
    let entries = TreeEntries::new(Arc::clone(tree)).unwrap();
    let tree = written(id, tree.shape().entry_count, entries, log);
    tree.unwrap().unwrap()
}
