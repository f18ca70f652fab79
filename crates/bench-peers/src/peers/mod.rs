//! The maps, a file each.

mod btree_map;
mod congee_tree;
mod farleaf_table;
mod masstree_tree;
mod skip_list;

#[expect(
    unsafe_code,
    reason = "opening an LMDB environment is unsafe; proofs at each block"
)]
mod lmdb;

use clap::ValueEnum;
use serde::Serialize;

pub use btree_map::BTreeMapPeer;
pub use congee_tree::CongeePeer;
pub use farleaf_table::FarleafPeer;
pub use lmdb::LmdbPeer;
pub use masstree_tree::MasstreePeer;
pub use skip_list::SkipListPeer;

use crate::peer::PeerError;
use crate::requests::first_value;
use crate::subject::Subject;

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
}

impl PeerName {
    /// As on the command line and in the table.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Farleaf => "farleaf",
            Self::BtreeMap => "btree-map",
            Self::SkipList => "skip-list",
            Self::Congee => "congee",
            Self::Masstree => "masstree",
            Self::Lmdb => "lmdb",
        }
    }

    /// The map, loaded with `keys`, which ascend, each with its first value.
    ///
    /// # Errors
    /// The map's own.
    pub fn load(self, keys: &[u64], slots: u64) -> Result<Box<dyn Subject>, PeerError> {
        Ok(match self {
            Self::Farleaf => Box::new(FarleafPeer::load(keys, slots)?),
            Self::BtreeMap => Box::new(BTreeMapPeer::load(keys)),
            Self::SkipList => Box::new(SkipListPeer::load(keys)),
            Self::Congee => Box::new(CongeePeer::load(keys)?),
            Self::Masstree => Box::new(MasstreePeer::load(keys)),
            Self::Lmdb => Box::new(LmdbPeer::load(keys)?),
        })
    }
}

fn first_records(keys: &[u64]) -> impl Iterator<Item = (u64, u64)> + '_ {
    keys.iter().map(|key| (*key, first_value(*key)))
}
