//! redb: a copy-on-write B-tree with transactions, in a file on a RAM disk.

use redb::{
    Database, Durability, ReadOnlyTable, ReadableDatabase, TableDefinition, WriteTransaction,
};
use tempfile::TempDir;

use super::super::RAM_DISK;
use crate::peer::{Client, Peer, PeerError, Work};
use crate::records::{Sink, StringRecords};

const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("peers");

/// Size of redb's own cache, relative to the records: it holds all of them.
const CACHE_SIZE_FACTOR: usize = 4;
const CACHE_SIZE_BYTES_MIN: usize = 1 << 30;

/// Database of redb.
pub struct RedbPeer {
    database: Database,
    /// Folder of the file; removed when the database is closed.
    _folder: TempDir,
}

/// Client with one read transaction for all reads of a round, and a write transaction for each put.
pub struct RedbClient<'a> {
    database: &'a Database,
    table: Option<ReadOnlyTable<&'static [u8], &'static [u8]>>,
}

fn failed(error: impl Into<redb::Error>) -> PeerError {
    PeerError::Redb(Box::new(error.into()))
}

impl RedbPeer {
    /// Loads the records with their first values, in one transaction.
    ///
    /// # Errors
    /// There is no RAM disk, or redb failed.
    pub fn load(records: &StringRecords) -> Result<Self, PeerError> {
        let folder = tempfile::tempdir_in(RAM_DISK).map_err(|source| PeerError::Io {
            what: "cannot create a folder in /dev/shm for redb",
            source,
        })?;
        let cache_size_bytes = records.size_bytes() * CACHE_SIZE_FACTOR + CACHE_SIZE_BYTES_MIN;
        let database = Database::builder()
            .set_cache_size(cache_size_bytes)
            .create(folder.path().join("peers.redb"))
            .map_err(failed)?;
        let transaction = database.begin_write().map_err(failed)?;
        {
            let mut table = transaction.open_table(TABLE).map_err(failed)?;
            records
                .for_each_first(|key, value| table.insert(key, value).map(drop).map_err(failed))?;
        }
        transaction.commit().map_err(failed)?;
        Ok(Self {
            database,
            _folder: folder,
        })
    }
}

impl Peer<StringRecords> for RedbPeer {
    type Client<'a> = RedbClient<'a>;

    fn client(&self, work: Work) -> Result<Self::Client<'_>, PeerError> {
        let mut client = RedbClient {
            database: &self.database,
            table: None,
        };
        if work.is_read() {
            client.table = Some(client.open()?);
        }
        Ok(client)
    }
}

impl RedbClient<'_> {
    fn open(&self) -> Result<ReadOnlyTable<&'static [u8], &'static [u8]>, PeerError> {
        let transaction = self.database.begin_read().map_err(failed)?;
        transaction.open_table(TABLE).map_err(failed)
    }

    /// Calls a function with the committed table; for a client that writes, with the current one.
    #[inline]
    fn with_table<T>(
        &self,
        read: impl FnOnce(&ReadOnlyTable<&'static [u8], &'static [u8]>) -> Result<T, PeerError>,
    ) -> Result<T, PeerError> {
        match &self.table {
            Some(table) => read(table),
            None => read(&self.open()?),
        }
    }

    fn begin(&self, durability: Durability) -> Result<WriteTransaction, PeerError> {
        let mut transaction = self.database.begin_write().map_err(failed)?;
        transaction.set_durability(durability).map_err(failed)?;
        Ok(transaction)
    }
}

impl Client<StringRecords> for RedbClient<'_> {
    #[inline]
    fn get(&mut self, key: &[u8], sink: &mut impl Sink<StringRecords>) -> Result<(), PeerError> {
        self.with_table(|table| {
            let found = table.get(key).map_err(failed)?;
            sink.value(found.as_ref().map(redb::AccessGuard::value));
            Ok(())
        })
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), PeerError> {
        let transaction = self.begin(Durability::None)?;
        {
            let mut table = transaction.open_table(TABLE).map_err(failed)?;
            table.insert(key, value).map_err(failed)?;
        }
        transaction.commit().map_err(failed)
    }

    #[inline]
    fn scan(
        &mut self,
        from: &[u8],
        limit: usize,
        sink: &mut impl Sink<StringRecords>,
    ) -> Result<(), PeerError> {
        self.with_table(|table| {
            for record in table.range(from..).map_err(failed)?.take(limit) {
                let (key, value) = record.map_err(failed)?;
                sink.record(key.value(), value.value());
            }
            Ok(())
        })
    }

    /// Commits with durability, which frees the pages that commits without it have left.
    fn pause(&mut self) -> Result<(), PeerError> {
        if self.table.is_some() {
            return Ok(());
        }
        let transaction = self.begin(Durability::Immediate)?;
        transaction.commit().map_err(failed)
    }
}
