//! LMDB through heed: a memory-mapped B+-tree with transactions, on a RAM disk.

use std::ops::Bound;
use std::path::Path;

use heed::types::Bytes;
use heed::{
    Database, Env, EnvFlags, EnvOpenOptions, IntegerComparator, PutFlags, RoTxn, WithoutTls,
};
use tempfile::TempDir;
use zerocopy::IntoBytes;

use super::first_records;
use crate::peer::{Client, Peer, PeerError, Work};

/// Where the map's file is: memory, so that no disk is measured.
const RAM_DISK: &str = "/dev/shm";

/// Room for a record, generously: pages are copied on write, and old ones reused late.
const MAP_SIZE_BYTES_PER_RECORD: usize = 128;
const MAP_SIZE_UNIT_BYTES: usize = 64 << 20;

type Records = Database<Bytes, Bytes, IntegerComparator>;

/// The environment, as fast as it goes: `MDB_NOSYNC`, `MDB_WRITEMAP`, `MDB_NOMEMINIT`,
/// `MDB_INTEGERKEY`, and loaded by `MDB_APPEND`, so that its pages are full.
pub struct LmdbPeer {
    env: Env<WithoutTls>,
    records: Records,
    /// Removed when everything above is closed.
    _folder: TempDir,
}

impl LmdbPeer {
    /// Loads the keys with their first values.
    ///
    /// # Errors
    /// There is no RAM disk, or LMDB's own.
    pub fn load(keys: &[u64]) -> Result<Self, PeerError> {
        let folder = tempfile::tempdir_in(RAM_DISK).map_err(|source| PeerError::Io {
            what: "cannot make a folder in /dev/shm for LMDB",
            source,
        })?;
        let env = open(folder.path(), keys.len())?;
        let mut transaction = env.write_txn()?;
        let records: Records = env
            .database_options()
            .types::<Bytes, Bytes>()
            .key_comparator::<IntegerComparator>()
            .create(&mut transaction)?;
        for (key, value) in first_records(keys) {
            let (key, value) = (key.as_bytes(), value.as_bytes());
            records.put_with_flags(&mut transaction, PutFlags::APPEND, key, value)?;
        }
        transaction.commit()?;
        Ok(Self {
            env,
            records,
            _folder: folder,
        })
    }
}

fn open(folder: &Path, record_count: usize) -> Result<Env<WithoutTls>, PeerError> {
    let mut options = EnvOpenOptions::new().read_txn_without_tls();
    let size_bytes = record_count * MAP_SIZE_BYTES_PER_RECORD + 1;
    // LMDB wants whole pages.
    options.map_size(size_bytes.next_multiple_of(MAP_SIZE_UNIT_BYTES));
    let flags = EnvFlags::NO_SYNC | EnvFlags::WRITE_MAP | EnvFlags::NO_MEM_INIT;
    // SAFETY: the flags give up durability and the protection from stray writes through the map,
    // not memory safety: the file lives in memory no longer than this process.
    unsafe { options.flags(flags) };
    // SAFETY: the folder was made for this environment alone, so nobody else truncates or writes
    // its file while it is mapped, nor opens it a second time.
    let env = unsafe { options.open(folder) }?;
    Ok(env)
}

/// One read transaction for all reads of a round, a write transaction for each put.
pub struct LmdbClient<'a> {
    peer: &'a LmdbPeer,
    /// Not while writing: it would keep replaced pages from being reused.
    snapshot: Option<RoTxn<'a, WithoutTls>>,
}

impl Peer for LmdbPeer {
    type Client<'a> = LmdbClient<'a>;

    fn client(&self, work: Work) -> Result<Self::Client<'_>, PeerError> {
        let snapshot = work.is_read().then(|| self.env.read_txn()).transpose()?;
        Ok(LmdbClient {
            peer: self,
            snapshot,
        })
    }
}

impl<'a> LmdbClient<'a> {
    #[inline]
    fn with_snapshot<R>(
        &self,
        read: impl FnOnce(&Records, &RoTxn<'a, WithoutTls>) -> Result<R, PeerError>,
    ) -> Result<R, PeerError> {
        match &self.snapshot {
            Some(snapshot) => read(&self.peer.records, snapshot),
            None => read(&self.peer.records, &self.peer.env.read_txn()?),
        }
    }
}

impl Client for LmdbClient<'_> {
    #[inline]
    fn get(&mut self, key: u64) -> Result<Option<u64>, PeerError> {
        self.with_snapshot(|records, snapshot| {
            let found = records.get(snapshot, key.as_bytes())?;
            found.map(word).transpose()
        })
    }

    #[inline]
    fn put(&mut self, key: u64, value: u64) -> Result<(), PeerError> {
        let mut transaction = self.peer.env.write_txn()?;
        let (key, value) = (key.as_bytes(), value.as_bytes());
        self.peer.records.put(&mut transaction, key, value)?;
        Ok(transaction.commit()?)
    }

    #[inline]
    fn scan(
        &mut self,
        from: u64,
        limit: usize,
        found: &mut Vec<(u64, u64)>,
    ) -> Result<(), PeerError> {
        found.clear();
        let from = (Bound::Included(from.as_bytes()), Bound::Unbounded);
        self.with_snapshot(|records, snapshot| {
            let range = records.range(snapshot, &from)?;
            for record in range.take(limit) {
                let (key, value) = record?;
                found.push((word(key)?, word(value)?));
            }
            Ok(())
        })
    }
}

/// A key or a value, as LMDB lends it.
#[inline]
fn word(bytes: &[u8]) -> Result<u64, PeerError> {
    let word = bytes.try_into().map_err(|_| PeerError::LmdbSize {
        size_bytes: bytes.len(),
    })?;
    Ok(u64::from_ne_bytes(word))
}
