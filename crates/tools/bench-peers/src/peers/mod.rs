//! Maps, a file each: of integers, of byte strings, or of both.

pub mod strings;
pub mod words;

#[expect(
    unsafe_code,
    reason = "opening an LMDB environment is unsafe; proofs at each block"
)]
mod lmdb;

use std::path::PathBuf;

use clap::ValueEnum;
use farleaf::PageOptions;
use serde::Serialize;

pub use lmdb::LmdbPeer;

use crate::peer::{PeerError, Work};
use crate::records::{Records, StringRecords, WordRecords};
use crate::subject::Subject;
use strings::{FarleafStringPeer, MasstreeStringPeer, RedbPeer, RedisPeer};
use words::{BTreeMapPeer, CongeePeer, FarleafPeer, MasstreePeer, SkipListPeer};

/// Folder for files of maps: in memory, so that no disk is measured.
const RAM_DISK: &str = "/dev/shm";

/// A map, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum PeerName {
    /// Farleaf, on shared memory with its node in this process.
    Farleaf,
    /// The standard library's `RwLock<BTreeMap>`.
    BtreeMap,
    /// crossbeam-skiplist's `SkipMap`.
    SkipList,
    /// congee: an adaptive radix tree with optimistic lock coupling.
    Congee,
    /// The masstree crate.
    Masstree,
    /// LMDB through heed, on a RAM disk.
    Lmdb,
    /// redb, on a RAM disk.
    Redb,
    /// Redis over a Unix socket.
    Redis,
}

/// Settings of maps of byte strings.
#[derive(Clone, Debug)]
pub struct StringOptions {
    /// Size of keys, in bytes: 24 to 4,096.
    pub key_size_bytes: usize,
    /// Size of values, in bytes.
    pub value_size_bytes: usize,
    /// Options of Farleaf's pages.
    pub pages: PageOptions,
    /// Path of the Redis server's program.
    pub redis: PathBuf,
}

impl PeerName {
    /// Maps that hold integers.
    pub const OF_WORDS: [Self; 6] = [
        Self::Farleaf,
        Self::BtreeMap,
        Self::SkipList,
        Self::Congee,
        Self::Masstree,
        Self::Lmdb,
    ];

    /// Maps that hold byte strings.
    pub const OF_STRINGS: [Self; 5] = [
        Self::Farleaf,
        Self::Masstree,
        Self::Lmdb,
        Self::Redb,
        Self::Redis,
    ];

    /// Returns the name on the command line and in the table.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Farleaf => "farleaf",
            Self::BtreeMap => "btree-map",
            Self::SkipList => "skip-list",
            Self::Congee => "congee",
            Self::Masstree => "masstree",
            Self::Lmdb => "lmdb",
            Self::Redb => "redb",
            Self::Redis => "redis",
        }
    }

    /// Returns whether the map supports such work.
    pub fn does(self, work: Work) -> bool {
        self != Self::Redis || work != Work::Scan
    }

    /// Creates the map, loaded with integers, each with its first value.
    ///
    /// # Errors
    /// The map failed, or it does not hold integers.
    pub fn load_words(
        self,
        records: &WordRecords,
        slots: u64,
    ) -> Result<Box<dyn Subject<WordRecords>>, PeerError> {
        Ok(match self {
            Self::Farleaf => Box::new(FarleafPeer::load(records, slots)?),
            Self::BtreeMap => Box::new(BTreeMapPeer::load(records)),
            Self::SkipList => Box::new(SkipListPeer::load(records)),
            Self::Congee => Box::new(CongeePeer::load(records)?),
            Self::Masstree => Box::new(MasstreePeer::load(records)),
            Self::Lmdb => {
                let size_bytes = records.count() * 2 * size_of::<u64>();
                Box::new(LmdbPeer::load(records, size_bytes)?)
            }
            Self::Redb | Self::Redis => return Err(self.is_not_of("words")),
        })
    }

    /// Creates the map, loaded with byte strings, each with its first value.
    ///
    /// # Errors
    /// The map failed, or it does not hold byte strings.
    pub fn load_strings(
        self,
        records: &StringRecords,
        options: &StringOptions,
    ) -> Result<Box<dyn Subject<StringRecords>>, PeerError> {
        Ok(match self {
            Self::Farleaf => Box::new(FarleafStringPeer::load(records, options.pages)?),
            Self::Masstree => Box::new(MasstreeStringPeer::load(records)?),
            Self::Lmdb => Box::new(LmdbPeer::load(records, records.size_bytes())?),
            Self::Redb => Box::new(RedbPeer::load(records)?),
            Self::Redis => Box::new(RedisPeer::load(records, &options.redis)?),
            Self::BtreeMap | Self::SkipList | Self::Congee => {
                return Err(self.is_not_of("byte strings"));
            }
        })
    }

    fn is_not_of(self, records: &str) -> PeerError {
        PeerError::Unavailable(format!("{} does not support {records}", self.as_str()))
    }
}
