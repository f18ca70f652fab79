//! Engine of this project.

use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use farleaf_lsm::engine::{Direction, Worker};
use farleaf_lsm::storage::DirectoryStorage;
use farleaf_lsm::{Durability, EngineOptions};

use super::{Engine, EngineSettings, Promise};

/// Engine with its one thread.
pub(super) struct Farleaf {
    engine: farleaf_lsm::Engine,
    durability: Durability,
    _worker: Worker,
}

impl Farleaf {
    pub(super) fn open(directory: &Path, shape: EngineSettings) -> anyhow::Result<Self> {
        let options = EngineOptions {
            // The others' memtables have the values, too. (And L0 is frozen when these take twice
            // as much as a memtable.)
            log_memory_size_bytes: shape.memtable_size_bytes / 2,
            cache_size_bytes: shape.cache_size_bytes,
            ..EngineOptions::new().with_l0_size(shape.memtable_size_bytes / 2)
        };
        let storage = Arc::new(DirectoryStorage::open(directory)?);
        let engine = farleaf_lsm::Engine::open(storage, options)?;
        let worker = engine.start_worker();
        let durability = match shape.promise {
            Promise::Buffered => Durability::Memory,
            Promise::Synced => Durability::Sync,
        };
        Ok(Self {
            engine,
            durability,
            _worker: worker,
        })
    }
}

impl Engine for Farleaf {
    fn put(&self, key: &[u8], value: &[u8]) -> anyhow::Result<()> {
        Ok(self.engine.put(key, value, self.durability)?)
    }

    fn get(&self, key: &[u8]) -> anyhow::Result<Option<usize>> {
        Ok(self.engine.get(key)?.map(|value| value.len()))
    }

    fn scan(&self, from: &[u8], count: usize) -> anyhow::Result<usize> {
        let mut found_count = 0;
        let snapshot = self.engine.snapshot();
        let range = (Bound::Included(from), Bound::Unbounded);
        let scan = snapshot.scan(range, Direction::Ascending)?;
        for pair in scan.take(count) {
            pair?;
            found_count += 1;
        }
        Ok(found_count)
    }

    fn sync(&self) -> anyhow::Result<()> {
        Ok(self.engine.sync()?)
    }
}
