//! What every map has to offer.

use std::io;

use clap::ValueEnum;
use serde::Serialize;
use thiserror::Error;

use crate::records::{Records, Sink};

/// Keys of one `multi_get`.
pub const GROUP_SIZE: usize = 16;

/// Records of one scan.
pub const SCAN_LIMIT: usize = 100;

/// A kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// The value of one key that is there.
    Get,
    /// The values of [`GROUP_SIZE`] keys that are there, counted a key.
    MultiGet,
    /// A new value for a key that is there.
    Put,
    /// The first [`SCAN_LIMIT`] records from a key on, counted a scan.
    Scan,
}

impl Work {
    /// In the order in which a round does them.
    pub const ALL: [Self; 4] = [Self::Get, Self::MultiGet, Self::Put, Self::Scan];

    /// Whether it changes nothing.
    pub fn is_read(self) -> bool {
        self != Self::Put
    }
}

/// What can go wrong with a map.
#[derive(Debug, Error)]
pub enum PeerError {
    /// Farleaf.
    #[error("farleaf: {0}")]
    Farleaf(#[from] farleaf::Error),
    /// LMDB.
    #[error("LMDB: {0}")]
    Lmdb(#[from] heed::Error),
    /// A value in LMDB has not 8 bytes.
    #[error("LMDB holds a key or a value of {size_bytes} bytes")]
    LmdbSize {
        /// How many it has.
        size_bytes: usize,
    },
    /// redb.
    #[error("redb: {0}")]
    Redb(Box<redb::Error>),
    /// Redis.
    #[error("Redis: {0:#}")]
    Redis(anyhow::Error),
    /// The map has no such records on this host, or no such operation.
    #[error("{0}")]
    Unavailable(String),
    /// congee.
    #[error("congee has no memory left")]
    Congee,
    /// Files and mappings.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// The number of slots that leaves are to have.
    #[error(transparent)]
    Slots(#[from] farleaf_leaf::GeometryError),
}

/// A map, loaded; any number of threads may have clients of it.
pub trait Peer<R: Records>: Sync {
    /// One thread's handle.
    type Client<'a>: Client<R>
    where
        Self: 'a;

    /// A handle for one kind of work. Not timed.
    fn client(&self, work: Work) -> Result<Self::Client<'_>, PeerError>;
}

/// One thread's handle to a map: each operation as the map does it best. What is found goes to a
/// sink, as the map lends it.
pub trait Client<R: Records> {
    /// The value of a key.
    fn get(&mut self, key: R::Item<'_>, sink: &mut impl Sink<R>) -> Result<(), PeerError>;

    /// The values of keys, in their order. Unless a map has something better, one get after the
    /// other.
    #[inline]
    fn multi_get(
        &mut self,
        keys: &[R::Item<'_>],
        sink: &mut impl Sink<R>,
    ) -> Result<(), PeerError> {
        for key in keys {
            self.get(*key, sink)?;
        }
        Ok(())
    }

    /// Writes a key, whether it is there or not.
    fn put(&mut self, key: R::Item<'_>, value: R::Item<'_>) -> Result<(), PeerError>;

    /// The first `limit` records from `from` on, ascending.
    fn scan(
        &mut self,
        from: R::Item<'_>,
        limit: usize,
        sink: &mut impl Sink<R>,
    ) -> Result<(), PeerError>;

    /// Called every [`PAUSE_OPERATION_COUNT`](crate::subject::PAUSE_OPERATION_COUNT) operations:
    /// lets go of what hinders the map from freeing memory, guards that cost more to take than one
    /// operation should bear.
    #[inline]
    fn pause(&mut self) -> Result<(), PeerError> {
        Ok(())
    }
}
