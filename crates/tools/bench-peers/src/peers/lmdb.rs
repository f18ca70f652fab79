//! LMDB through heed: a memory-mapped B+-tree with transactions, on a RAM disk; for integers and
//! byte strings.

use std::ops::Bound;
use std::path::Path;

use heed::types::Bytes;
use heed::{
    Comparator, Database, DefaultComparator, Env, EnvFlags, EnvOpenOptions, IntegerComparator,
    PutFlags, RoTxn, WithoutTls,
};
use tempfile::TempDir;
use zerocopy::IntoBytes;

use super::RAM_DISK;
use crate::peer::{Client, Peer, PeerError, Work};
use crate::records::{Records, Sink, StringRecords, WordRecords};

/// Bytes of the map per record, generously: pages are copied on write, and old ones reused late.
const MAP_SIZE_BYTES_PER_RECORD: usize = 64;
const MAP_SIZE_FACTOR: usize = 4;
const MAP_SIZE_UNIT_BYTES: usize = 64 << 20;

/// Records as LMDB stores them.
pub trait LmdbRecords: Records {
    /// Order of keys.
    type Order: Comparator + Sync + 'static;

    /// Returns an item's bytes.
    fn bytes<'a>(item: &'a Self::Item<'_>) -> &'a [u8];

    /// Decodes a key or a value that LMDB lends.
    ///
    /// # Errors
    /// The item has an invalid size.
    fn item(bytes: &[u8]) -> Result<Self::Item<'_>, PeerError>;
}

impl LmdbRecords for WordRecords {
    type Order = IntegerComparator;

    #[inline]
    fn bytes(item: &u64) -> &[u8] {
        item.as_bytes()
    }

    #[inline]
    fn item(bytes: &[u8]) -> Result<u64, PeerError> {
        let word = bytes.try_into().map_err(|_| PeerError::LmdbSize {
            size_bytes: bytes.len(),
        })?;
        Ok(u64::from_ne_bytes(word))
    }
}

impl LmdbRecords for StringRecords {
    type Order = DefaultComparator;

    #[inline]
    fn bytes<'a>(item: &'a &[u8]) -> &'a [u8] {
        item
    }

    #[inline]
    fn item(bytes: &[u8]) -> Result<&[u8], PeerError> {
        Ok(bytes)
    }
}

type Stored<R> = Database<Bytes, Bytes, <R as LmdbRecords>::Order>;

/// LMDB environment with its fastest settings: `MDB_NOSYNC`, `MDB_WRITEMAP`, `MDB_NOMEMINIT`, for
/// integers `MDB_INTEGERKEY`, and loaded by `MDB_APPEND`, so that its pages are full.
pub struct LmdbPeer<R: LmdbRecords> {
    env: Env<WithoutTls>,
    stored: Stored<R>,
    /// Folder of the files; removed when everything above is closed.
    _folder: TempDir,
}

impl<R: LmdbRecords> LmdbPeer<R> {
    /// Loads the records with their first values. `size_bytes` is the size of all.
    ///
    /// # Errors
    /// Keys are longer than LMDB permits, there is no RAM disk, or LMDB failed.
    pub fn load(records: &R, size_bytes: usize) -> Result<Self, PeerError> {
        let folder = tempfile::tempdir_in(RAM_DISK).map_err(|source| PeerError::Io {
            what: "cannot create a folder in /dev/shm for LMDB",
            source,
        })?;
        let env = open(folder.path(), records.count(), size_bytes)?;
        let mut transaction = env.write_txn()?;
        let stored: Stored<R> = env
            .database_options()
            .types::<Bytes, Bytes>()
            .key_comparator::<R::Order>()
            .create(&mut transaction)?;
        let mut buffer = Vec::new();
        for rank in 0..records.count() {
            let key = records.key(rank);
            let value = records.value(key, 0, &mut buffer);
            let (key, value) = (R::bytes(&key), R::bytes(&value));
            if key.len() > env.max_key_size() {
                return Err(PeerError::Unavailable(format!(
                    "LMDB supports keys of at most {} bytes",
                    env.max_key_size()
                )));
            }
            stored.put_with_flags(&mut transaction, PutFlags::APPEND, key, value)?;
        }
        transaction.commit()?;
        Ok(Self {
            env,
            stored,
            _folder: folder,
        })
    }
}

fn open(
    folder: &Path,
    record_count: usize,
    size_bytes: usize,
) -> Result<Env<WithoutTls>, PeerError> {
    let mut options = EnvOpenOptions::new().read_txn_without_tls();
    let size_bytes = record_count * MAP_SIZE_BYTES_PER_RECORD + size_bytes * MAP_SIZE_FACTOR + 1;
    // LMDB requires whole pages.
    options.map_size(size_bytes.next_multiple_of(MAP_SIZE_UNIT_BYTES));
    let flags = EnvFlags::NO_SYNC | EnvFlags::WRITE_MAP | EnvFlags::NO_MEM_INIT;
    // SAFETY: the flags give up durability and the protection from stray writes through the map,
    // but not memory safety. The file lives in memory no longer than this process.
    unsafe { options.flags(flags) };
    // SAFETY: the folder was created for this environment alone. No other code truncates or writes
    // its file while it is mapped, or opens it a second time.
    let env = unsafe { options.open(folder) }?;
    Ok(env)
}

/// Client with one read transaction for all reads of a round, and a write transaction for each put.
pub struct LmdbClient<'a, R: LmdbRecords> {
    peer: &'a LmdbPeer<R>,
    /// Read transaction; none while writing, since it would keep replaced pages from being reused.
    snapshot: Option<RoTxn<'a, WithoutTls>>,
}

impl<R: LmdbRecords> Peer<R> for LmdbPeer<R> {
    type Client<'a> = LmdbClient<'a, R>;

    fn client(&self, work: Work) -> Result<Self::Client<'_>, PeerError> {
        let snapshot = work.is_read().then(|| self.env.read_txn()).transpose()?;
        Ok(LmdbClient {
            peer: self,
            snapshot,
        })
    }
}

impl<'a, R: LmdbRecords> LmdbClient<'a, R> {
    #[inline]
    fn with_snapshot<T>(
        &self,
        read: impl FnOnce(&Stored<R>, &RoTxn<'a, WithoutTls>) -> Result<T, PeerError>,
    ) -> Result<T, PeerError> {
        match &self.snapshot {
            Some(snapshot) => read(&self.peer.stored, snapshot),
            None => read(&self.peer.stored, &self.peer.env.read_txn()?),
        }
    }
}

impl<R: LmdbRecords> Client<R> for LmdbClient<'_, R> {
    #[inline]
    fn get(&mut self, key: R::Item<'_>, sink: &mut impl Sink<R>) -> Result<(), PeerError> {
        self.with_snapshot(|stored, snapshot| {
            let found = stored.get(snapshot, R::bytes(&key))?;
            sink.value(found.map(R::item).transpose()?);
            Ok(())
        })
    }

    #[inline]
    fn put(&mut self, key: R::Item<'_>, value: R::Item<'_>) -> Result<(), PeerError> {
        let mut transaction = self.peer.env.write_txn()?;
        let (key, value) = (R::bytes(&key), R::bytes(&value));
        self.peer.stored.put(&mut transaction, key, value)?;
        Ok(transaction.commit()?)
    }

    #[inline]
    fn scan(
        &mut self,
        from: R::Item<'_>,
        limit: usize,
        sink: &mut impl Sink<R>,
    ) -> Result<(), PeerError> {
        let from = (Bound::Included(R::bytes(&from)), Bound::Unbounded);
        self.with_snapshot(|stored, snapshot| {
            for record in stored.range(snapshot, &from)?.take(limit) {
                let (key, value) = record?;
                sink.record(R::item(key)?, R::item(value)?);
            }
            Ok(())
        })
    }
}
