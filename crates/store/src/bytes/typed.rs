//! Tables with keys and values of Rust's types, over byte strings that sort as the keys do.

use std::fmt;
use std::marker::PhantomData;

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
