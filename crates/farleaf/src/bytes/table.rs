//! Operations on a table of byte strings as blocking calls.

use farleaf_index::operation::HintCounters;
use farleaf_index::strings::load::ByteLoadSummary;
use farleaf_index::strings::operation::{Record, RecordBuffer};
use farleaf_key::{ByteRange, prefix_range};
use farleaf_pool::allocation::ChunkAllocator;
use farleaf_pool::layout::CHUNK_SIZE_BYTES;

use super::{AsyncByteTable, ByteInsertion, ByteReverseScan, ByteScan, ByteSwap};
use crate::options::TableInfo;
use crate::{Error, PartCounts};

/// Ordered map from byte strings to byte strings, as one session accesses it. Keys have 0 to 4,096
/// bytes and sort as unsigned bytes; values have 0 to 64 MiB.
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

    /// Returns the same operations as futures.
    pub fn asynchronous(&self) -> &AsyncByteTable {
        &self.0
    }

    fn drive<F: Future>(&self, future: F) -> F::Output {
        self.0.session.drive(future)
    }

    /// Returns the properties that are known without reading the table.
    pub fn info(&self) -> &TableInfo {
        self.0.info()
    }

    /// Returns the value of a key; see [`AsyncByteTable::get`].
    ///
    /// # Errors
    /// The same as those of [`AsyncByteTable::get`].
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.drive(self.0.get(key))
    }

    /// Appends the value of a key to a buffer; see [`AsyncByteTable::get_into`].
    ///
    /// # Errors
    /// The same as those of [`AsyncByteTable::get`].
    pub fn get_into(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Error> {
        self.drive(self.0.get_into(key, value))
    }

    /// Calls a function with the value of a key; see [`AsyncByteTable::get_with`].
    ///
    /// # Errors
    /// The same as those of [`AsyncByteTable::get`].
    pub fn get_with<R>(
        &self,
        key: &[u8],
        read: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R, Error> {
        self.drive(self.0.get_with(key, read))
    }

    /// Returns the values of many keys; see [`AsyncByteTable::multi_get`].
    ///
    /// # Errors
    /// The same as those of [`AsyncByteTable::get`].
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        self.drive(self.0.multi_get(keys))
    }

    /// Writes a key and returns whether it was present; see [`AsyncByteTable::put`].
    ///
    /// # Errors
    /// The same as those of [`AsyncByteTable::put`].
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        self.drive(self.0.put(key, value))
    }

    /// Writes many keys and returns how many were present; see [`AsyncByteTable::multi_put`].
    ///
    /// # Errors
    /// The same as those of [`AsyncByteTable::multi_put`].
    pub fn multi_put<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        records: &[(K, V)],
    ) -> Result<u64, Error> {
        self.drive(self.0.multi_put(records))
    }

    /// Writes a key and returns its previous value; see [`AsyncByteTable::replace`].
    ///
    /// # Errors
    /// The same as those of [`AsyncByteTable::replace`].
    pub fn replace(&self, key: &[u8], value: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.drive(self.0.replace(key, value))
    }

    /// Writes a key if it is absent; see [`AsyncByteTable::insert`].
    ///
    /// # Errors
    /// The same as those of [`AsyncByteTable::put`].
    pub fn insert(&self, key: &[u8], value: &[u8]) -> Result<ByteInsertion, Error> {
        self.drive(self.0.insert(key, value))
    }

    /// Writes a key if it is present; see [`AsyncByteTable::update`].
    ///
    /// # Errors
    /// The same as those of [`AsyncByteTable::put`].
    pub fn update(&self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        self.drive(self.0.update(key, value))
    }

    /// Removes a key and returns whether it was present; see [`AsyncByteTable::delete`].
    ///
    /// # Errors
    /// The same as those of [`AsyncByteTable::get`].
    pub fn delete(&self, key: &[u8]) -> Result<bool, Error> {
        self.drive(self.0.delete(key))
    }

    /// Removes a key and returns its value; see [`AsyncByteTable::take`].
    ///
    /// # Errors
    /// The same as those of [`AsyncByteTable::take`].
    pub fn take(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.drive(self.0.take(key))
    }

    /// Replaces a key's value if it is the expected one; see [`AsyncByteTable::compare_and_swap`].
    ///
    /// # Errors
    /// The same as those of [`AsyncByteTable::put`].
    pub fn compare_and_swap(
        &self,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<ByteSwap, Error> {
        self.drive(self.0.compare_and_swap(key, expected, new))
    }

    /// Removes all keys of a range and returns their number; see [`AsyncByteTable::delete_range`].
    ///
    /// # Errors
    /// The same as those of [`AsyncByteTable::delete_range`].
    pub fn delete_range(&self, start: &[u8], end: Option<&[u8]>) -> Result<u64, Error> {
        self.drive(self.0.delete_range(start, end))
    }

    /// Removes all keys with a prefix and returns their number; see
    /// [`AsyncByteTable::delete_range`].
    ///
    /// # Errors
    /// The same as those of [`AsyncByteTable::delete_range`].
    pub fn delete_prefix(&self, prefix: &[u8]) -> Result<u64, Error> {
        let ByteRange { start, end } = prefix_range(prefix);
        self.delete_range(&start, end.as_deref())
    }

    /// Returns the first records of a range, ascending; see [`AsyncByteTable::scan`].
    ///
    /// # Errors
    /// The same as those of [`AsyncByteTable::get`].
    pub fn scan(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Record>, Error> {
        self.drive(self.0.scan(start, end, limit))
    }

    /// Reads the first records of a range into a buffer; see [`AsyncByteTable::scan_into`].
    ///
    /// # Errors
    /// The same as those of [`AsyncByteTable::scan_into`].
    pub fn scan_into(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        limit: usize,
        records: &mut RecordBuffer,
    ) -> Result<(), Error> {
        self.drive(self.0.scan_into(start, end, limit, records))
    }

    /// Returns the last records of a range, descending; see [`AsyncByteTable::scan_reverse`].
    ///
    /// # Errors
    /// The same as those of [`AsyncByteTable::get`].
    pub fn scan_reverse(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Record>, Error> {
        self.drive(self.0.scan_reverse(start, end, limit))
    }

    /// Reads the last records of a range into a buffer; see [`AsyncByteTable::scan_reverse_into`].
    ///
    /// # Errors
    /// The same as those of [`AsyncByteTable::scan_into`].
    pub fn scan_reverse_into(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        limit: usize,
        records: &mut RecordBuffer,
    ) -> Result<(), Error> {
        self.drive(self.0.scan_reverse_into(start, end, limit, records))
    }

    /// Returns an iterator over the records from `start`, inclusive, to `end`, exclusive, or to the
    /// last record, ascending; [`rev`](ByteScan::rev) reverses it. It reads ahead on demand and is
    /// not a snapshot (LEAF-9).
    pub fn range(&self, start: &[u8], end: Option<&[u8]>) -> ByteScan {
        ByteScan::new(self.0.clone(), start, end)
    }

    /// Returns an iterator over the records whose keys have a prefix; see [`range`](Self::range).
    pub fn prefix(&self, prefix: &[u8]) -> ByteScan {
        let ByteRange { start, end } = prefix_range(prefix);
        self.range(&start, end.as_deref())
    }

    /// Returns an iterator over the records of a range in descending order; see
    /// [`range`](Self::range).
    pub fn range_reverse(&self, start: &[u8], end: Option<&[u8]>) -> ByteReverseScan {
        ByteReverseScan::new(self.0.clone(), start, end)
    }

    /// Loads records in key order into an empty table; see [`AsyncByteTable::bulk_load`].
    ///
    /// # Errors
    /// The same as those of [`AsyncByteTable::bulk_load`].
    pub fn bulk_load<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        records: impl IntoIterator<Item = (K, V)>,
        progress: impl FnMut(u64),
    ) -> Result<ByteLoadSummary, Error> {
        self.drive(self.0.bulk_load(records, progress))
    }

    /// Returns the bytes of far memory that the table owns, in chunks of 64 KiB. Costs a few round
    /// trips and 64 bytes per chunk of the pool.
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

    /// Returns how often this session's hints were wrong; see [`AsyncByteTable::hint_counters`].
    pub fn hint_counters(&self) -> HintCounters {
        self.0.hint_counters()
    }

    /// Returns the number of records at the last training; see [`AsyncByteTable::len_estimate`].
    pub fn len_estimate(&self) -> u64 {
        self.0.len_estimate()
    }

    /// Returns the session's bytes of metadata; see [`AsyncByteTable::metadata_bytes`].
    pub fn metadata_bytes(&self) -> u64 {
        self.0.metadata_bytes()
    }

    /// Returns fetches and evictions under a metadata budget; see [`AsyncByteTable::part_counts`].
    pub fn part_counts(&self) -> Option<PartCounts> {
        self.0.part_counts()
    }
}
