//! Tables with keys and values of Rust's types, over byte strings that sort as the keys do.

use std::fmt;
use std::marker::PhantomData;

use farleaf_byte_index::load::ByteLoadSummary;
use farleaf_byte_index::operation::Record;
use farleaf_key::{
    AsKey, AsRange, AsValue, ByteRange, Key, Value, decode_key, decode_value, encode_key,
    encode_value,
};

use super::{ByteReverseScan, ByteScan, ByteTable};
use crate::{Error, ErrorKind};

/// An ordered map from `K` to `V`, a table of byte strings whose keys are encoded so that they sort
/// as `K` does (`docs/keys.md`). The table does not know the types: whoever opens it names them,
/// and what does not decode is an error.
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

    /// The table of byte strings.
    pub const fn bytes(&self) -> &ByteTable {
        &self.table
    }
}

impl<K: Key, V: Value> TypedTable<K, V> {
    /// The value of a key; costs as [`ByteTable::get`].
    ///
    /// # Errors
    /// As for [`ByteTable::get`]; or the value is no `V` ([`ErrorKind::Decode`]).
    pub fn get(&self, key: &(impl AsKey<K> + ?Sized)) -> Result<Option<V>, Error> {
        let value = self.table.get(&encode_key::<K>(key)?)?;
        value.map(decoded_value).transpose()
    }

    /// Appends the value of a key, as it is stored (`docs/keys.md`), to a buffer; false, and
    /// nothing appended, if it is absent. The value is copied once and not decoded. Costs as
    /// [`ByteTable::get`].
    ///
    /// # Errors
    /// As for [`ByteTable::get`].
    pub fn get_into(
        &self,
        key: &(impl AsKey<K> + ?Sized),
        value: &mut Vec<u8>,
    ) -> Result<bool, Error> {
        self.table.get_into(&encode_key::<K>(key)?, value)
    }

    /// Hands the value of a key, as it is stored (`docs/keys.md`), or `None`, to a function, and
    /// returns what that returns. Where the value lies in its page it is not copied; it is not
    /// decoded, which [`decode_value`] does. Costs as [`ByteTable::get`].
    ///
    /// # Errors
    /// As for [`ByteTable::get`].
    pub fn get_with<R>(
        &self,
        key: &(impl AsKey<K> + ?Sized),
        read: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R, Error> {
        self.table.get_with(&encode_key::<K>(key)?, read)
    }

    /// The values of many keys, in their order; costs as [`ByteTable::multi_get`].
    ///
    /// # Errors
    /// As for [`get`](Self::get).
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

    /// Writes a key whether it is present or not; whether it was. Costs as [`ByteTable::put`].
    ///
    /// # Errors
    /// As for [`ByteTable::put`].
    pub fn put(
        &self,
        key: &(impl AsKey<K> + ?Sized),
        value: &(impl AsValue<V> + ?Sized),
    ) -> Result<bool, Error> {
        self.table
            .put(&encode_key::<K>(key)?, &encode_value::<V>(value)?)
    }

    /// Writes many keys; how many of them were present. Each by itself: another session may see
    /// some of them and not the others; of a key that is there twice the last value stays. Costs
    /// as [`ByteTable::multi_put`]; values that are given by reference and consist of bytes, as
    /// `&str` does, are not copied.
    ///
    /// # Errors
    /// As for [`ByteTable::multi_put`].
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

    /// Writes a key if it is absent; the value that it has, if it is present.
    ///
    /// # Errors
    /// As for [`ByteTable::put`]; or that value is no `V`.
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

    /// Writes a key if it is present; whether it was.
    ///
    /// # Errors
    /// As for [`ByteTable::put`].
    pub fn update(
        &self,
        key: &(impl AsKey<K> + ?Sized),
        value: &(impl AsValue<V> + ?Sized),
    ) -> Result<bool, Error> {
        self.table
            .update(&encode_key::<K>(key)?, &encode_value::<V>(value)?)
    }

    /// Removes a key; the value that it had.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn delete(&self, key: &(impl AsKey<K> + ?Sized)) -> Result<Option<V>, Error> {
        let value = self.table.take(&encode_key::<K>(key)?)?;
        value.map(decoded_value).transpose()
    }

    /// The records with keys in a range, ascending, read ahead as they are asked for. Not a
    /// snapshot (D9). Ranges are Rust's, of whatever a key can be looked up by, and
    /// [`prefix_of`](farleaf_key::prefix_of) of tuples.
    ///
    /// # Errors
    /// A bound is longer than keys can be.
    pub fn range(&self, range: impl AsRange<K>) -> Result<TypedScan<K, V>, Error> {
        let ByteRange { start, end } = range.byte_range()?;
        let scan = self.table.range(&start, end.as_deref());
        Ok(TypedScan {
            scan,
            types: PhantomData,
        })
    }

    /// The same in descending order.
    ///
    /// # Errors
    /// A bound is longer than keys can be.
    pub fn range_reverse(&self, range: impl AsRange<K>) -> Result<TypedReverseScan<K, V>, Error> {
        let ByteRange { start, end } = range.byte_range()?;
        let scan = self.table.range_reverse(&start, end.as_deref());
        Ok(TypedReverseScan {
            scan,
            types: PhantomData,
        })
    }

    /// Fills an empty table from a sequence that ascends by key, and trains its models. All of it
    /// appears at once, or nothing. `progress` is told now and then how many records have been
    /// taken. An empty sequence changes nothing. Costs as [`ByteTable::bulk_load`], and a copy of
    /// each value: one record at a time is encoded, so the sequence may be larger than memory.
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
    /// As for [`ByteTable::bulk_load`].
    pub fn bulk_load<Q: AsKey<K>, W: AsValue<V>>(
        &self,
        records: impl IntoIterator<Item = (Q, W)>,
        progress: impl FnMut(u64),
    ) -> Result<ByteLoadSummary, Error> {
        // Sizes are left to the load, which tells of them with the place in the sequence.
        let records = records.into_iter().map(|(key, value)| {
            let mut bytes = Vec::new();
            key.encode_last(&mut bytes);
            (bytes, value.value_bytes().into_owned())
        });
        self.table.bulk_load(records, progress)
    }

    /// Removes all keys of a range; how many there were. See [`ByteTable::delete_range`].
    ///
    /// # Errors
    /// As for [`ByteTable::delete_range`].
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

/// Records in ascending order; see [`TypedTable::range`].
#[derive(Debug)]
pub struct TypedScan<K, V> {
    scan: ByteScan,
    types: PhantomData<fn() -> (K, V)>,
}

/// Records in descending order; see [`TypedTable::range_reverse`].
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
