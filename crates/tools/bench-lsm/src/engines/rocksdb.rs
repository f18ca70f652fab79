//! Engine of RocksDB, from the system's library.

use std::path::Path;

use rocksdb::{
    BlockBasedOptions, Cache, DB, DBCompressionType, Direction, IteratorMode, Options, WriteOptions,
};

use super::{Engine, EngineSettings, Promise};

/// Bits of its Bloom filters per key, like Farleaf's.
const FILTER_BITS: f64 = 10.0;
/// Values below this size stay in its tables.
const BLOB_SIZE_BYTES_MIN: u64 = 64;

/// Database with its write options.
pub(super) struct RocksDb {
    database: DB,
    writes: WriteOptions,
}

impl RocksDb {
    pub(super) fn open(
        directory: &Path,
        shape: EngineSettings,
        is_apart: bool,
    ) -> anyhow::Result<Self> {
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_write_buffer_size(shape.memtable_size_bytes);
        options.set_compression_type(DBCompressionType::None);
        options.set_bottommost_compression_type(DBCompressionType::None);
        // Unsynced writes stay in this process until a buffer is full, like Farleaf's.
        options.set_manual_wal_flush(shape.promise == Promise::Buffered);
        let mut blocks = BlockBasedOptions::default();
        blocks.set_block_cache(&Cache::new_lru_cache(shape.cache_size_bytes)?);
        blocks.set_bloom_filter(FILTER_BITS, false);
        options.set_block_based_table_factory(&blocks);
        if is_apart {
            options.set_enable_blob_files(true);
            options.set_min_blob_size(BLOB_SIZE_BYTES_MIN);
            options.set_enable_blob_gc(true);
        }
        let mut writes = WriteOptions::default();
        writes.set_sync(shape.promise == Promise::Synced);
        Ok(Self {
            database: DB::open(&options, directory)?,
            writes,
        })
    }
}

impl Engine for RocksDb {
    fn put(&self, key: &[u8], value: &[u8]) -> anyhow::Result<()> {
        Ok(self.database.put_opt(key, value, &self.writes)?)
    }

    fn get(&self, key: &[u8]) -> anyhow::Result<Option<usize>> {
        Ok(self.database.get_pinned(key)?.map(|value| value.len()))
    }

    fn scan(&self, from: &[u8], count: usize) -> anyhow::Result<usize> {
        let mut found_count = 0;
        let mode = IteratorMode::From(from, Direction::Forward);
        for pair in self.database.iterator(mode).take(count) {
            pair?;
            found_count += 1;
        }
        Ok(found_count)
    }

    fn sync(&self) -> anyhow::Result<()> {
        Ok(self.database.flush_wal(true)?)
    }
}
