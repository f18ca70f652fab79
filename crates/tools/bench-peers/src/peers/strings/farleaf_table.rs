//! Farleaf's table of byte strings on shared memory, with its memory node in this process.

use farleaf::{
    ByteTable, EmbeddedFabric, PageOptions, Pool, PoolOptions, RecordBuffer, Session, TableKind,
    TableOptions,
};

use crate::peer::{Client, Peer, PeerError, Work};
use crate::records::{Records, Sink, StringRecords};

const TABLE_NAME: &str = "peers";

/// Bytes of the pool per record besides keys and values, generously: pages are filled to three
/// quarters, and value blocks are up to half larger than their contents.
const POOL_SIZE_BYTES_PER_RECORD: u64 = 96;
const POOL_SIZE_FACTOR: u64 = 2;
const POOL_SIZE_BYTES_MIN: u64 = 128 << 20;

/// Pool with one table.
#[derive(Debug)]
pub struct FarleafStringPeer {
    pool: Pool,
}

impl FarleafStringPeer {
    /// Loads the records with their first values into such pages.
    ///
    /// # Errors
    /// Farleaf failed.
    pub fn load(records: &StringRecords, pages: PageOptions) -> Result<Self, PeerError> {
        let pool = Pool::embedded(&PoolOptions {
            fabric: EmbeddedFabric::Shm { name: None },
            size_bytes: records.size_bytes() as u64 * POOL_SIZE_FACTOR
                + records.count() as u64 * POOL_SIZE_BYTES_PER_RECORD
                + POOL_SIZE_BYTES_MIN,
            ..PoolOptions::default()
        })?;
        let session = pool.session()?;
        let options = TableOptions {
            kind: TableKind::Bytes(pages),
            ..TableOptions::bytes()
        };
        let table = session.create_byte_table(TABLE_NAME, &options)?;
        let first = (0..records.count()).map(|rank| {
            let mut value = Vec::new();
            let key = records.key(rank);
            records.value(key, 0, &mut value);
            (key, value)
        });
        table.bulk_load(first, |_| {})?;
        drop(table);
        session.close()?;
        Ok(Self { pool })
    }
}

/// Client with a session of its own.
#[derive(Debug)]
pub struct FarleafStringClient {
    table: ByteTable,
    records: RecordBuffer,
    _session: Session,
}

impl Peer<StringRecords> for FarleafStringPeer {
    type Client<'a> = FarleafStringClient;

    fn client(&self, _work: Work) -> Result<Self::Client<'_>, PeerError> {
        let session = self.pool.session()?;
        Ok(FarleafStringClient {
            table: session.open_byte_table(TABLE_NAME)?,
            records: RecordBuffer::new(),
            _session: session,
        })
    }
}

impl Client<StringRecords> for FarleafStringClient {
    #[inline]
    fn get(&mut self, key: &[u8], sink: &mut impl Sink<StringRecords>) -> Result<(), PeerError> {
        Ok(self.table.get_with(key, |value| sink.value(value))?)
    }

    #[inline]
    fn multi_get(
        &mut self,
        keys: &[&[u8]],
        sink: &mut impl Sink<StringRecords>,
    ) -> Result<(), PeerError> {
        for value in self.table.multi_get(keys)? {
            sink.value(value.as_deref());
        }
        Ok(())
    }

    #[inline]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), PeerError> {
        self.table.put(key, value)?;
        Ok(())
    }

    #[inline]
    fn scan(
        &mut self,
        from: &[u8],
        limit: usize,
        sink: &mut impl Sink<StringRecords>,
    ) -> Result<(), PeerError> {
        self.table.scan_into(from, None, limit, &mut self.records)?;
        for (key, value) in self.records.iter() {
            sink.record(key, value);
        }
        Ok(())
    }
}
