//! The engines that are compared.

mod farleaf;
mod fjall;
#[cfg(feature = "rocksdb")]
mod rocksdb;

use std::path::Path;

use clap::ValueEnum;

/// What a write has come to when it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Promise {
    /// The engine has it, in this process's memory: its log is written when a buffer is full.
    Buffered,
    /// The device has it. Writers that come at the same time share a sync.
    Synced,
}

/// What all engines are given.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// What writes promise.
    pub promise: Promise,
    /// For what is newest, before it is written as a tree or a table, in bytes.
    pub memtable_size_bytes: usize,
    /// For blocks that were read, in bytes.
    pub cache_size_bytes: usize,
}

/// An ordered map in a directory, from any thread.
pub trait Engine: Send + Sync {
    /// Puts a value.
    ///
    /// # Errors
    /// What the engine says.
    fn put(&self, key: &[u8], value: &[u8]) -> anyhow::Result<()>;

    /// The size of a key's value in bytes; `None`: there is none. All of it is read.
    ///
    /// # Errors
    /// What the engine says.
    fn get(&self, key: &[u8]) -> anyhow::Result<Option<usize>>;

    /// Reads so many records from a key on; how many there were.
    ///
    /// # Errors
    /// What the engine says.
    fn scan(&self, from: &[u8], count: usize) -> anyhow::Result<usize>;

    /// Everything that was put is on the device when it returns.
    ///
    /// # Errors
    /// What the engine says.
    fn sync(&self) -> anyhow::Result<()>;
}

/// Which engine, and how it is used.
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
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Farleaf,
        Self::Fjall,
        Self::FjallBlobs,
        Self::Rocksdb,
        Self::RocksdbBlobs,
    ];

    /// What it is called in reports.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Farleaf => "farleaf",
            Self::Fjall => "fjall",
            Self::FjallBlobs => "fjall, values apart",
            Self::Rocksdb => "RocksDB",
            Self::RocksdbBlobs => "RocksDB, blob files",
        }
    }

    /// Whether it is part of this build.
    pub const fn is_built(self) -> bool {
        cfg!(feature = "rocksdb") || !matches!(self, Self::Rocksdb | Self::RocksdbBlobs)
    }

    /// Opens one in an empty directory.
    ///
    /// # Errors
    /// It is not part of this build, or what the engine says.
    pub fn open(self, directory: &Path, shape: Shape) -> anyhow::Result<Box<dyn Engine>> {
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
                    "this build is without RocksDB: docs/lsm-peers.md says how to have it"
                )
            }
        })
    }
}
