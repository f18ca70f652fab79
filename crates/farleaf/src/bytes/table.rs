//! Operations on a table of byte strings as blocking calls.

use farleaf_byte_index::load::ByteLoadSummary;
use farleaf_byte_index::operation::{Record, RecordBuffer};
use farleaf_index::operation::HintCounters;
use farleaf_key::{ByteRange, prefix_range};
use farleaf_region::allocation::ChunkAllocator;
use farleaf_region::layout::CHUNK_SIZE_BYTES;

use super::{AsyncByteTable, ByteInsertion, ByteReverseScan, ByteScan, ByteSwap};
use crate::options::TableInfo;
use crate::{Error, PartCounts};

/// An ordered map from byte strings to byte strings, keys of 0 to 4,096 bytes and values of 0 to 64
/// MiB, in the order of the keys' unsigned bytes; one session's handle to it.
///
/// ```
/// use farleaf::{Pool, TableOptions};
///
/// # fn main() -> Result<(), farleaf::Error> {
/// let session = Pool::open("mem:")?.session()?;
/// let users = session.create_byte_table("users", &TableOptions::bytes())?;
/// users.put(b"user:1", b"alice")?;
/// users.put(b"user:2", b"bob")?;
/// assert_eq!(users.get(b"user:1")?.as_deref(), Some(&b"alice"[..]));
/// let last = users.prefix(b"user:").rev().next().transpose()?;
/// assert_eq!(last.map(|record| record.value), Some(b"bob".to_vec()));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ByteTable(AsyncByteTable);

impl ByteTable {
    pub(crate) fn new(table: AsyncByteTable) -> Self {
        Self(table)
    }

    /// The same operations as futures.
    pub fn asynchronous(&self) -> &AsyncByteTable {
        &self.0
    }

    fn drive<F: Future>(&self, future: F) -> F::Output {
        self.0.session.drive(future)
    }

    /// What there is to know of the table without looking into it.
    pub fn info(&self) -> &TableInfo {
        self.0.info()
    }

    /// See [`AsyncByteTable::get`].
    ///
    /// # Errors
    /// See [`AsyncByteTable::get`].
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.drive(self.0.get(key))
    }

    /// See [`AsyncByteTable::get_into`].
    ///
    /// # Errors
    /// See [`AsyncByteTable::get`].
    pub fn get_into(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Error> {
        self.drive(self.0.get_into(key, value))
    }

    /// See [`AsyncByteTable::get_with`].
    ///
    /// # Errors
    /// See [`AsyncByteTable::get`].
    pub fn get_with<R>(
        &self,
        key: &[u8],
        read: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R, Error> {
        self.drive(self.0.get_with(key, read))
    }

    /// See [`AsyncByteTable::multi_get`].
    ///
    /// # Errors
    /// See [`AsyncByteTable::get`].
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        self.drive(self.0.multi_get(keys))
    }

    /// See [`AsyncByteTable::put`].
    ///
    /// # Errors
    /// See [`AsyncByteTable::put`].
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        self.drive(self.0.put(key, value))
    }

    /// See [`AsyncByteTable::multi_put`].
    ///
    /// # Errors
    /// See [`AsyncByteTable::multi_put`].
    pub fn multi_put<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        records: &[(K, V)],
    ) -> Result<u64, Error> {
        self.drive(self.0.multi_put(records))
    }

    /// See [`AsyncByteTable::replace`].
    ///
    /// # Errors
    /// See [`AsyncByteTable::put`].
    pub fn replace(&self, key: &[u8], value: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.drive(self.0.replace(key, value))
    }

    /// See [`AsyncByteTable::insert`].
    ///
    /// # Errors
    /// See [`AsyncByteTable::put`].
    pub fn insert(&self, key: &[u8], value: &[u8]) -> Result<ByteInsertion, Error> {
        self.drive(self.0.insert(key, value))
    }

    /// See [`AsyncByteTable::update`].
    ///
    /// # Errors
    /// See [`AsyncByteTable::put`].
    pub fn update(&self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        self.drive(self.0.update(key, value))
    }

    /// See [`AsyncByteTable::delete`].
    ///
    /// # Errors
    /// See [`AsyncByteTable::get`].
    pub fn delete(&self, key: &[u8]) -> Result<bool, Error> {
        self.drive(self.0.delete(key))
    }

    /// See [`AsyncByteTable::take`].
    ///
    /// # Errors
    /// See [`AsyncByteTable::get`].
    pub fn take(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.drive(self.0.take(key))
    }

    /// See [`AsyncByteTable::compare_and_swap`].
    ///
    /// # Errors
    /// See [`AsyncByteTable::put`].
    pub fn compare_and_swap(
        &self,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<ByteSwap, Error> {
        self.drive(self.0.compare_and_swap(key, expected, new))
    }

    /// See [`AsyncByteTable::delete_range`].
    ///
    /// # Errors
    /// See [`AsyncByteTable::delete_range`].
    pub fn delete_range(&self, start: &[u8], end: Option<&[u8]>) -> Result<u64, Error> {
        self.drive(self.0.delete_range(start, end))
    }

    /// Removes all keys that begin with a string; see [`AsyncByteTable::delete_range`].
    ///
    /// # Errors
    /// See [`AsyncByteTable::delete_range`].
    pub fn delete_prefix(&self, prefix: &[u8]) -> Result<u64, Error> {
        let ByteRange { start, end } = prefix_range(prefix);
        self.delete_range(&start, end.as_deref())
    }

    /// See [`AsyncByteTable::scan`].
    ///
    /// # Errors
    /// See [`AsyncByteTable::get`].
    pub fn scan(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Record>, Error> {
        self.drive(self.0.scan(start, end, limit))
    }

    /// See [`AsyncByteTable::scan_into`].
    ///
    /// # Errors
    /// See [`AsyncByteTable::scan_into`].
    pub fn scan_into(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        limit: usize,
        records: &mut RecordBuffer,
    ) -> Result<(), Error> {
        self.drive(self.0.scan_into(start, end, limit, records))
    }

    /// See [`AsyncByteTable::scan_reverse`].
    ///
    /// # Errors
    /// See [`AsyncByteTable::get`].
    pub fn scan_reverse(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Record>, Error> {
        self.drive(self.0.scan_reverse(start, end, limit))
    }

    /// See [`AsyncByteTable::scan_reverse_into`].
    ///
    /// # Errors
    /// See [`AsyncByteTable::scan_into`].
    pub fn scan_reverse_into(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        limit: usize,
        records: &mut RecordBuffer,
    ) -> Result<(), Error> {
        self.drive(self.0.scan_reverse_into(start, end, limit, records))
    }

    /// The records from `start` on, inclusive, to `end`, exclusive, or to the last one, ascending,
    /// read ahead as they are asked for; [`rev`](ByteScan::rev) has them in descending order. Not a
    /// snapshot (D9).
    pub fn range(&self, start: &[u8], end: Option<&[u8]>) -> ByteScan {
        ByteScan::new(self.0.clone(), start, end)
    }

    /// The records whose keys begin with a string; see [`range`](Self::range).
    pub fn prefix(&self, prefix: &[u8]) -> ByteScan {
        let ByteRange { start, end } = prefix_range(prefix);
        self.range(&start, end.as_deref())
    }

    /// The records of a range in descending order; see [`range`](Self::range).
    pub fn range_reverse(&self, start: &[u8], end: Option<&[u8]>) -> ByteReverseScan {
        ByteReverseScan::new(self.0.clone(), start, end)
    }

    /// See [`AsyncByteTable::bulk_load`].
    ///
    /// # Errors
    /// See [`AsyncByteTable::bulk_load`].
    pub fn bulk_load<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        records: impl IntoIterator<Item = (K, V)>,
        progress: impl FnMut(u64),
    ) -> Result<ByteLoadSummary, Error> {
        self.drive(self.0.bulk_load(records, progress))
    }

    /// Bytes of far memory that are the table's, in chunks of 64 KiB. A few round trips, and 64
    /// bytes for each chunk of the pool.
    ///
    /// # Errors
    /// The fabric failed.
    pub fn memory_bytes(&self) -> Result<u64, Error> {
        let session = &self.0.session;
        let allocator = ChunkAllocator::new(&session.endpoint, session.layout(), session.owner);
        let chunks = self.drive(allocator.entries())?;
        let listing = self.0.state.listing.as_ref().map(|it| it.info.id);
        let is_own = |table: u32| table == self.info().id || Some(table) == listing;
        let own = chunks.iter().filter(|(_, chunk)| is_own(chunk.table.0));
        Ok(own.count() as u64 * CHUNK_SIZE_BYTES)
    }

    /// See [`AsyncByteTable::hint_counters`].
    pub fn hint_counters(&self) -> HintCounters {
        self.0.hint_counters()
    }

    /// See [`AsyncByteTable::len_estimate`].
    pub fn len_estimate(&self) -> u64 {
        self.0.len_estimate()
    }

    /// See [`AsyncByteTable::metadata_bytes`].
    pub fn metadata_bytes(&self) -> u64 {
        self.0.metadata_bytes()
    }

    /// See [`AsyncByteTable::part_counts`].
    pub fn part_counts(&self) -> Option<PartCounts> {
        self.0.part_counts()
    }
}
