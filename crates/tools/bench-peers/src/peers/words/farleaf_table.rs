//! Farleaf on shared memory, with its memory node in this process: like an application that shares
//! the table with other processes of the host.

use farleaf::{EmbeddedFabric, Pool, PoolOptions, Session, Table, TableOptions};

use crate::peer::{Client, GROUP_SIZE, Peer, PeerError, SCAN_LIMIT, Work};
use crate::records::{Records, Sink, WordRecords};

const TABLE_NAME: &str = "peers";

/// Bytes of the pool per record, generously: a record takes 32 bytes in a leaf of 8 slots filled to
/// 6.
const POOL_SIZE_BYTES_PER_RECORD: u64 = 56;
const POOL_SIZE_BYTES_MIN: u64 = 64 << 20;

/// Pool with one table.
#[derive(Debug)]
pub struct FarleafPeer {
    pool: Pool,
}

impl FarleafPeer {
    /// Loads the keys with their first values into leaves of `slots`.
    ///
    /// # Errors
    /// Farleaf failed.
    pub fn load(records: &WordRecords, slots: u64) -> Result<Self, PeerError> {
        let pool = Pool::embedded(&PoolOptions {
            fabric: EmbeddedFabric::Shm { name: None },
            size_bytes: records.count() as u64 * POOL_SIZE_BYTES_PER_RECORD + POOL_SIZE_BYTES_MIN,
            ..PoolOptions::default()
        })?;
        let session = pool.session()?;
        let options = TableOptions {
            slots,
            ..TableOptions::default()
        };
        let table = session.create_table(TABLE_NAME, &options)?;
        table.bulk_load(records.first(), |_| {})?;
        drop(table);
        session.close()?;
        Ok(Self { pool })
    }
}

/// Client with a session of its own.
#[derive(Debug)]
pub struct FarleafClient {
    table: Table,
    values: Vec<Option<u64>>,
    records: Vec<(u64, u64)>,
    _session: Session,
}

impl Peer<WordRecords> for FarleafPeer {
    type Client<'a> = FarleafClient;

    fn client(&self, _work: Work) -> Result<Self::Client<'_>, PeerError> {
        let session = self.pool.session()?;
        Ok(FarleafClient {
            table: session.open_table(TABLE_NAME)?,
            values: Vec::with_capacity(GROUP_SIZE),
            records: Vec::with_capacity(SCAN_LIMIT),
            _session: session,
        })
    }
}

impl Client<WordRecords> for FarleafClient {
    #[inline]
    fn get(&mut self, key: u64, sink: &mut impl Sink<WordRecords>) -> Result<(), PeerError> {
        sink.value(self.table.get(key)?);
        Ok(())
    }

    #[inline]
    fn multi_get(
        &mut self,
        keys: &[u64],
        sink: &mut impl Sink<WordRecords>,
    ) -> Result<(), PeerError> {
        self.table.multi_get_into(keys, &mut self.values)?;
        self.values.iter().for_each(|value| sink.value(*value));
        Ok(())
    }

    #[inline]
    fn put(&mut self, key: u64, value: u64) -> Result<(), PeerError> {
        self.table.put(key, value)?;
        Ok(())
    }

    #[inline]
    fn scan(
        &mut self,
        from: u64,
        limit: usize,
        sink: &mut impl Sink<WordRecords>,
    ) -> Result<(), PeerError> {
        self.table.scan_into(from, limit, &mut self.records)?;
        for (key, value) in &self.records {
            sink.record(*key, *value);
        }
        Ok(())
    }
}
