//! Tables with keys and values of Rust types, over byte strings that sort as the keys do.

use std::fmt;
use std::marker::PhantomData;

use farleaf_index::strings::load::ByteLoadSummary;
use farleaf_index::strings::operation::Record;
use farleaf_key::{
    AsKey, AsRange, AsValue, ByteRange, Key, Value, decode_key, decode_value, encode_key,
    encode_value,
};

use super::{ByteReverseScan, ByteScan, ByteTable};
use crate::{Error, ErrorKind};

/// Ordered map from `K` to `V`: a table of byte strings whose keys are encoded so that they sort as
/// `K` does (`docs/reference/keys.md`). The table does not record the types: the caller that opens
/// it names them, and bytes that do not decode are an error.
///
/// ```
/// use farleaf::{Pool, TableOptions};
///
/// # fn main() -> Result<(), farleaf::Error> {
/// let session = Pool::open("mem:")?.session()?;
/// let options = TableOptions::bytes();
/// let visits = session.create_typed_table::<(String, u32), f64>("visits", &options)?;
/// visits.put(&("rome", 7), &0.5)?;
/// visits.put(&("oslo", 9), &1.5)?;
/// assert_eq!(visits.get(&("rome", 7))?, Some(0.5));
/// let first = visits.range(..)?.next().transpose()?;
/// assert_eq!(first, Some((("oslo".to_owned(), 9), 1.5)));
/// # Ok(())
/// # }
/// ```
pub struct TypedTable<K, V> {
    table: ByteTable,
    types: PhantomData<fn() -> (K, V)>,
}

impl<K, V> Clone for TypedTable<K, V> {
    fn clone(&self) -> Self {
        Self::new(self.table.clone())
    }
}

impl<K, V> fmt::Debug for TypedTable<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TypedTable").field(&self.table).finish()
    }
}

impl<K, V> TypedTable<K, V> {
    pub(crate) const fn new(table: ByteTable) -> Self {
        Self {
            table,
            types: PhantomData,
        }
    }

    /// Returns the table of byte strings.
    pub const fn bytes(&self) -> &ByteTable {
        &self.table
    }
}

impl<K: Key, V: Value> TypedTable<K, V> {
    /// Returns the value of a key. Costs the same as [`ByteTable::get`].
    ///
    /// # Errors
    /// The same as those of [`ByteTable::get`]; also [`ErrorKind::Decode`] if the value is not a
    /// `V`.
    pub fn get(&self, key: &(impl AsKey<K> + ?Sized)) -> Result<Option<V>, Error> {
        let value = self.table.get(&encode_key::<K>(key)?)?;
        value.map(decoded_value).transpose()
    }

    /// Appends the encoded value of a key (`docs/reference/keys.md`) to a buffer. Returns false,
    /// and appends nothing, if the key is absent. Copies the value once and does not decode it.
    /// Costs the same as [`ByteTable::get`].
    ///
    /// # Errors
    /// The same as those of [`ByteTable::get`].
    pub fn get_into(
        &self,
        key: &(impl AsKey<K> + ?Sized),
        value: &mut Vec<u8>,
    ) -> Result<bool, Error> {
        self.table.get_into(&encode_key::<K>(key)?, value)
    }

    /// Calls a function with the encoded value of a key (`docs/reference/keys.md`), or `None`, and
    /// returns the function's result. A value in the page is not copied; [`decode_value`] decodes
    /// it. Costs the same as [`ByteTable::get`].
    ///
    /// # Errors
    /// The same as those of [`ByteTable::get`].
    pub fn get_with<R>(
        &self,
        key: &(impl AsKey<K> + ?Sized),
        read: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R, Error> {
        self.table.get_with(&encode_key::<K>(key)?, read)
    }

    /// Returns the values of many keys, in the order of the keys. Costs the same as
    /// [`ByteTable::multi_get`].
    ///
    /// # Errors
    /// The same as those of [`get`](Self::get).
    pub fn multi_get<'k, Q: AsKey<K> + ?Sized + 'k>(
        &self,
        keys: impl IntoIterator<Item = &'k Q>,
    ) -> Result<Vec<Option<V>>, Error> {
        let keys = keys.into_iter().map(encode_key::<K>);
        let keys: Vec<Vec<u8>> = keys.collect::<Result<_, _>>()?;
        let values = self.table.multi_get(&keys)?.into_iter();
        let values = values.map(|value| value.map(decoded_value).transpose());
        values.collect()
    }

    /// Writes a key whether it is present or not, and returns whether it was present. Costs the
    /// same as [`ByteTable::put`].
    ///
    /// # Errors
    /// The same as those of [`ByteTable::put`].
    pub fn put(
        &self,
        key: &(impl AsKey<K> + ?Sized),
        value: &(impl AsValue<V> + ?Sized),
    ) -> Result<bool, Error> {
        self.table
            .put(&encode_key::<K>(key)?, &encode_value::<V>(value)?)
    }

    /// Writes many keys, and returns how many of them were present. Not atomic: another session may
    /// see some of the records and not the others. If a key occurs twice, its last value stays.
    /// Costs the same as [`ByteTable::multi_put`]. Values that are passed by reference and consist
    /// of bytes, such as `&str`, are not copied.
    ///
    /// # Errors
    /// The same as those of [`ByteTable::multi_put`].
    pub fn multi_put<'r, Q: AsKey<K> + ?Sized + 'r, W: AsValue<V> + ?Sized + 'r>(
        &self,
        records: impl IntoIterator<Item = (&'r Q, &'r W)>,
    ) -> Result<u64, Error> {
        let records = records.into_iter().map(|(key, value)| {
            let record = (encode_key::<K>(key)?, encode_value::<V>(value)?);
            Ok::<_, Error>(record)
        });
        let records: Vec<_> = records.collect::<Result<_, _>>()?;
        self.table.multi_put(&records)
    }

    /// Writes a key if it is absent; returns the existing value if it is present.
    ///
    /// # Errors
    /// The same as those of [`ByteTable::put`]; also if the existing value is not a `V`.
    pub fn insert(
        &self,
        key: &(impl AsKey<K> + ?Sized),
        value: &(impl AsValue<V> + ?Sized),
    ) -> Result<Option<V>, Error> {
        let (key, value) = (encode_key::<K>(key)?, encode_value::<V>(value)?);
        match self.table.insert(&key, &value)? {
            super::ByteInsertion::Inserted => Ok(None),
            super::ByteInsertion::AlreadyPresent(value) => decoded_value(value).map(Some),
        }
    }

    /// Writes a key if it is present, and returns whether it was.
    ///
    /// # Errors
    /// The same as those of [`ByteTable::put`].
    pub fn update(
        &self,
        key: &(impl AsKey<K> + ?Sized),
        value: &(impl AsValue<V> + ?Sized),
    ) -> Result<bool, Error> {
        self.table
            .update(&encode_key::<K>(key)?, &encode_value::<V>(value)?)
    }

    /// Removes a key, and returns the value that it had.
    ///
    /// # Errors
    /// The same as those of [`get`](Self::get).
    pub fn delete(&self, key: &(impl AsKey<K> + ?Sized)) -> Result<Option<V>, Error> {
        let value = self.table.take(&encode_key::<K>(key)?)?;
        value.map(decoded_value).transpose()
    }

    /// Returns an iterator over the records of a key range, ascending. It reads ahead on demand and
    /// is not a snapshot (LEAF-9). Accepts Rust's ranges of any type by which keys can be looked
    /// up, and [`prefix_of`](farleaf_key::prefix_of) for tuples.
    ///
    /// # Errors
    /// An encoded bound is longer than the limit for keys.
    pub fn range(&self, range: impl AsRange<K>) -> Result<TypedScan<K, V>, Error> {
        let ByteRange { start, end } = range.byte_range()?;
        let scan = self.table.range(&start, end.as_deref());
        Ok(TypedScan {
            scan,
            types: PhantomData,
        })
    }

    /// Returns an iterator over the records of a key range, descending.
    ///
    /// # Errors
    /// An encoded bound is longer than the limit for keys.
    pub fn range_reverse(&self, range: impl AsRange<K>) -> Result<TypedReverseScan<K, V>, Error> {
        let ByteRange { start, end } = range.byte_range()?;
        let scan = self.table.range_reverse(&start, end.as_deref());
        Ok(TypedReverseScan {
            scan,
            types: PhantomData,
        })
    }

    /// Loads an empty table from a sequence that ascends by key, and trains its models. All records
    /// appear at once, or none. Calls `progress` from time to time with the number of records read.
    /// An empty sequence changes nothing. Costs the same as [`ByteTable::bulk_load`], and a copy of
    /// each value. Encodes one record at a time, so the sequence may be larger than memory.
    ///
    /// ```
    /// # use farleaf::{Pool, TableOptions};
    /// # fn main() -> Result<(), farleaf::Error> {
    /// # let session = Pool::open("mem:")?.session()?;
    /// # let options = TableOptions::bytes();
    /// let squares = session.create_typed_table::<u32, u64>("squares", &options)?;
    /// squares.bulk_load((0..1_000_u32).map(|root| (root, u64::from(root).pow(2))), |_| {})?;
    /// assert_eq!(squares.get(&12)?, Some(144));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The same as those of [`ByteTable::bulk_load`].
    pub fn bulk_load<Q: AsKey<K>, W: AsValue<V>>(
        &self,
        records: impl IntoIterator<Item = (Q, W)>,
        progress: impl FnMut(u64),
    ) -> Result<ByteLoadSummary, Error> {
        // The load checks the sizes, and its errors name the position in the sequence.
        let records = records.into_iter().map(|(key, value)| {
            let mut bytes = Vec::new();
            key.encode_last(&mut bytes);
            (bytes, value.value_bytes().into_owned())
        });
        self.table.bulk_load(records, progress)
    }

    /// Removes all keys of a range, and returns their number; see [`ByteTable::delete_range`].
    ///
    /// # Errors
    /// The same as those of [`ByteTable::delete_range`].
    pub fn delete_range(&self, range: impl AsRange<K>) -> Result<u64, Error> {
        let ByteRange { start, end } = range.byte_range()?;
        self.table.delete_range(&start, end.as_deref())
    }
}

fn decoded_value<V: Value>(value: Vec<u8>) -> Result<V, Error> {
    decode_value::<V>(value).map_err(|source| {
        ErrorKind::Decode {
            what: "value",
            source,
        }
        .into()
    })
}

fn decoded<K: Key, V: Value>(record: Record) -> Result<(K, V), Error> {
    let key = decode_key::<K>(&record.key).map_err(|source| ErrorKind::Decode {
        what: "key",
        source,
    })?;
    Ok((key, decoded_value(record.value)?))
}

/// Iterator over records in ascending order; see [`TypedTable::range`].
#[derive(Debug)]
pub struct TypedScan<K, V> {
    scan: ByteScan,
    types: PhantomData<fn() -> (K, V)>,
}

/// Iterator over records in descending order; see [`TypedTable::range_reverse`].
#[derive(Debug)]
pub struct TypedReverseScan<K, V> {
    scan: ByteReverseScan,
    types: PhantomData<fn() -> (K, V)>,
}

impl<K: Key, V: Value> Iterator for TypedScan<K, V> {
    type Item = Result<(K, V), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let record = self.scan.next()?;
        Some(record.and_then(decoded))
    }
}

impl<K: Key, V: Value> Iterator for TypedReverseScan<K, V> {
    type Item = Result<(K, V), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let record = self.scan.next()?;
        Some(record.and_then(decoded))
    }
}
