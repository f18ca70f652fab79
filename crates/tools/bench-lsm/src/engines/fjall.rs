//! Engine of fjall.

use std::path::Path;

use fjall::config::CompressionPolicy;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions, PersistMode};

use super::{Engine, EngineSettings, Promise};

/// Database with one keyspace.
pub(super) struct Fjall {
    database: Database,
    records: Keyspace,
    promise: Promise,
}

impl Fjall {
    pub(super) fn open(
        directory: &Path,
        shape: EngineSettings,
        is_apart: bool,
    ) -> anyhow::Result<Self> {
        let database = Database::builder(directory)
            .cache_size(shape.cache_size_bytes as u64)
            .journal_compression(fjall::CompressionType::None)
            .manual_journal_persist(true)
            .open()?;
        let options = || {
            let options = KeyspaceCreateOptions::default()
                .max_memtable_size(shape.memtable_size_bytes as u64)
                .manual_journal_persist(true)
                .data_block_compression_policy(CompressionPolicy::disabled());
            let apart = KvSeparationOptions::default()
                .separation_threshold(64)
                .compression(fjall::CompressionType::None);
            options.with_kv_separation(is_apart.then_some(apart))
        };
        let records = database.keyspace("records", options)?;
        Ok(Self {
            database,
            records,
            promise: shape.promise,
        })
    }
}

impl Engine for Fjall {
    fn put(&self, key: &[u8], value: &[u8]) -> anyhow::Result<()> {
        self.records.insert(key, value)?;
        if self.promise == Promise::Synced {
            self.database.persist(PersistMode::SyncData)?;
        }
        Ok(())
    }

    fn get(&self, key: &[u8]) -> anyhow::Result<Option<usize>> {
        Ok(self.records.get(key)?.map(|value| value.len()))
    }

    fn scan(&self, from: &[u8], count: usize) -> anyhow::Result<usize> {
        let mut found_count = 0;
        for pair in self.records.range(from..).take(count) {
            let (key, value) = pair.into_inner()?;
            std::hint::black_box((key.len(), value.len()));
            found_count += 1;
        }
        Ok(found_count)
    }

    fn sync(&self) -> anyhow::Result<()> {
        Ok(self.database.persist(PersistMode::SyncData)?)
    }
}
