//! Interface of every map.

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
    /// All kinds, in the order of a round.
    pub const ALL: [Self; 4] = [Self::Get, Self::MultiGet, Self::Put, Self::Scan];

    /// Returns whether the work changes nothing.
    pub fn is_read(self) -> bool {
        self != Self::Put
    }
}

/// Errors of a map.
#[derive(Debug, Error)]
pub enum PeerError {
    /// Farleaf failed.
    #[error("farleaf: {0}")]
    Farleaf(#[from] farleaf::Error),
    /// LMDB failed.
    #[error("LMDB: {0}")]
    Lmdb(#[from] heed::Error),
    /// A value in LMDB does not have 8 bytes.
    #[error("LMDB: expected 8 bytes, found a key or value of {size_bytes} bytes")]
    LmdbSize {
        /// Size of the value.
        size_bytes: usize,
    },
    /// The redb database failed.
    #[error("redb: {0}")]
    Redb(Box<redb::Error>),
    /// Redis failed.
    #[error("Redis: {0:#}")]
    Redis(anyhow::Error),
    /// The map does not hold such records on this host, or lacks the operation.
    #[error("{0}")]
    Unavailable(String),
    /// The congee tree failed.
    #[error("congee: out of memory")]
    Congee,
    /// A file or mapping failed.
    #[error("{what}: {source}")]
    Io {
        /// Operation that failed.
        what: &'static str,
        /// Cause of the failure.
        source: io::Error,
    },
    /// Leaves cannot have this number of slots.
    #[error(transparent)]
    Slots(#[from] farleaf_leaf::words::GeometryError),
}

/// Loaded map; any number of threads may have clients of it.
pub trait Peer<R: Records>: Sync {
    /// Handle of one thread.
    type Client<'a>: Client<R>
    where
        Self: 'a;

    /// Returns a handle for one kind of work. Not timed.
    fn client(&self, work: Work) -> Result<Self::Client<'_>, PeerError>;
}

/// Handle of one thread to a map: each operation as the map does it best. Results go to a sink, as
/// the map lends them.
pub trait Client<R: Records> {
    /// Reads the value of a key.
    fn get(&mut self, key: R::Item<'_>, sink: &mut impl Sink<R>) -> Result<(), PeerError>;

    /// Reads the values of keys, in their order. By default one get after the other.
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

    /// Writes a key, present or not.
    fn put(&mut self, key: R::Item<'_>, value: R::Item<'_>) -> Result<(), PeerError>;

    /// Reads the first `limit` records from `from` on, ascending.
    fn scan(
        &mut self,
        from: R::Item<'_>,
        limit: usize,
        sink: &mut impl Sink<R>,
    ) -> Result<(), PeerError>;

    /// Called every [`PAUSE_OPERATION_COUNT`](crate::subject::PAUSE_OPERATION_COUNT) operations:
    /// releases guards that keep the map from freeing memory, and that are too expensive to take
    /// for each operation.
    #[inline]
    fn pause(&mut self) -> Result<(), PeerError> {
        Ok(())
    }
}
