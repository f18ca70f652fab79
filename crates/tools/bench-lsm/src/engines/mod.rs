//! Engines of the comparison.

mod farleaf;
mod fjall;
#[cfg(feature = "rocksdb")]
mod rocksdb;

use std::path::Path;

use clap::ValueEnum;

/// Durability of a write when it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Promise {
    /// The engine has it, in this process's memory: its log is written when a buffer is full.
    Buffered,
    /// The device has it. Writers that come at the same time share a sync.
    Synced,
}

/// Settings of all engines.
#[derive(Clone, Copy, Debug)]
pub struct EngineSettings {
    /// Durability of writes.
    pub promise: Promise,
    /// Size of the memory for the newest records, before they are written as a tree or a table, in
    /// bytes.
    pub memtable_size_bytes: usize,
    /// Size of the cache for blocks that were read, in bytes.
    pub cache_size_bytes: usize,
}

/// Ordered map in a directory, usable from any thread.
pub trait Engine: Send + Sync {
    /// Puts a value.
    ///
    /// # Errors
    /// The engine failed.
    fn put(&self, key: &[u8], value: &[u8]) -> anyhow::Result<()>;

    /// Reads a key's value and returns its size in bytes; `None` if there is none. The whole value
    /// is read.
    ///
    /// # Errors
    /// The engine failed.
    fn get(&self, key: &[u8]) -> anyhow::Result<Option<usize>>;

    /// Reads this many records from a key on. Returns the number found.
    ///
    /// # Errors
    /// The engine failed.
    fn scan(&self, from: &[u8], count: usize) -> anyhow::Result<usize>;

    /// Syncs all puts to the device.
    ///
    /// # Errors
    /// The engine failed.
    fn sync(&self) -> anyhow::Result<()>;
}

/// Engine and its configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum EngineName {
    /// This project's.
    Farleaf,
    /// fjall, values in its tables.
    Fjall,
    /// fjall, values apart.
    FjallBlobs,
    /// RocksDB, values in its tables.
    Rocksdb,
    /// RocksDB, values in blob files.
    RocksdbBlobs,
}

impl EngineName {
    /// Returns the name in reports.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Farleaf => "farleaf",
            Self::Fjall => "fjall",
            Self::FjallBlobs => "fjall, values apart",
            Self::Rocksdb => "RocksDB",
            Self::RocksdbBlobs => "RocksDB, blob files",
        }
    }

    /// Returns whether the engine is part of this build.
    pub const fn is_built(self) -> bool {
        cfg!(feature = "rocksdb") || !matches!(self, Self::Rocksdb | Self::RocksdbBlobs)
    }

    /// Opens an engine in an empty directory.
    ///
    /// # Errors
    /// The engine is not part of this build, or it failed.
    pub fn open(self, directory: &Path, shape: EngineSettings) -> anyhow::Result<Box<dyn Engine>> {
        Ok(match self {
            Self::Farleaf => Box::new(farleaf::Farleaf::open(directory, shape)?),
            Self::Fjall => Box::new(fjall::Fjall::open(directory, shape, false)?),
            Self::FjallBlobs => Box::new(fjall::Fjall::open(directory, shape, true)?),
            #[cfg(feature = "rocksdb")]
            Self::Rocksdb => Box::new(rocksdb::RocksDb::open(directory, shape, false)?),
            #[cfg(feature = "rocksdb")]
            Self::RocksdbBlobs => Box::new(rocksdb::RocksDb::open(directory, shape, true)?),
            #[cfg(not(feature = "rocksdb"))]
            Self::Rocksdb | Self::RocksdbBlobs => {
                anyhow::bail!(
                    "RocksDB is not part of this build; see docs/explanation/lsm-peers.md for how \
                     to add it"
                )
            }
        })
    }
}
