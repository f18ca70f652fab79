//! Farleaf on shared memory, with its memory node in this process: what an application has that
//! shares the table with other processes of the host.

use farleaf::{EmbeddedFabric, Pool, PoolOptions, Session, Table, TableOptions};

use super::first_records;
use crate::peer::{Client, Peer, PeerError, Work};

const TABLE_NAME: &str = "peers";

/// Room for a record, generously: a record takes 32 bytes in a leaf of 8 slots filled to 6.
const POOL_SIZE_BYTES_PER_RECORD: u64 = 56;
const POOL_SIZE_BYTES_MIN: u64 = 64 << 20;

/// The pool, with one table.
#[derive(Debug)]
pub struct FarleafPeer {
    pool: Pool,
}

impl FarleafPeer {
    /// Loads the keys with their first values into leaves of `slots`.
    ///
    /// # Errors
    /// Farleaf's own.
    pub fn load(keys: &[u64], slots: u64) -> Result<Self, PeerError> {
        let pool = Pool::embedded(&PoolOptions {
            fabric: EmbeddedFabric::Shm { name: None },
            size_bytes: keys.len() as u64 * POOL_SIZE_BYTES_PER_RECORD + POOL_SIZE_BYTES_MIN,
            ..PoolOptions::default()
        })?;
        let session = pool.session()?;
        let options = TableOptions {
            slots,
            ..TableOptions::default()
        };
        let table = session.create_table(TABLE_NAME, &options)?;
        table.bulk_load(first_records(keys), |_| {})?;
        drop(table);
        session.close()?;
        Ok(Self { pool })
    }
}

/// A session of this thread's own.
#[derive(Debug)]
pub struct FarleafClient {
    table: Table,
    _session: Session,
}

impl Peer for FarleafPeer {
    type Client<'a> = FarleafClient;

    fn client(&self, _work: Work) -> Result<Self::Client<'_>, PeerError> {
        let session = self.pool.session()?;
        Ok(FarleafClient {
            table: session.open_table(TABLE_NAME)?,
            _session: session,
        })
    }
}

impl Client for FarleafClient {
    #[inline]
    fn get(&mut self, key: u64) -> Result<Option<u64>, PeerError> {
        Ok(self.table.get(key)?)
    }

    #[inline]
    fn multi_get(&mut self, keys: &[u64], values: &mut Vec<Option<u64>>) -> Result<(), PeerError> {
        Ok(self.table.multi_get_into(keys, values)?)
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
        records: &mut Vec<(u64, u64)>,
    ) -> Result<(), PeerError> {
        Ok(self.table.scan_into(from, limit, records)?)
    }
}
