//! Records as scans bring them.

/// A record by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Its key.
    pub key: Vec<u8>,
    /// Its value; empty if only keys were asked for.
    pub value: Vec<u8>,
}

/// Records one behind the other in one piece of memory: used again, it takes none for each of them.
#[derive(Clone, Debug, Default)]
pub struct RecordBuffer {
    bytes: Vec<u8>,
    places: Vec<Place>,
}

/// Where a record lies.
#[derive(Clone, Copy, Debug)]
struct Place {
    key_start: usize,
    key_size_bytes: usize,
    value_start: usize,
    value_size_bytes: usize,
}

impl RecordBuffer {
    /// One without records.
    pub const fn new() -> Self {
        Self {
            bytes: Vec::new(),
            places: Vec::new(),
        }
    }

    /// How many records there are.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Removes all records, and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.places.clear();
    }

    /// Key and value of the record with this index.
    #[inline]
    pub fn get(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let place = self.places.get(index)?;
        Some(self.at(place))
    }

    /// The record that was added last.
    pub fn last(&self) -> Option<(&[u8], &[u8])> {
        self.get(self.len().checked_sub(1)?)
    }

    /// Keys and values, in the order in which they were found.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&[u8], &[u8])> + DoubleEndedIterator {
        self.places.iter().map(|place| self.at(place))
    }

    /// Each record by itself.
    pub fn to_records(&self) -> Vec<Record> {
        let record = |(key, value): (&[u8], &[u8])| Record {
            key: key.to_vec(),
            value: value.to_vec(),
        };
        self.iter().map(record).collect()
    }

    /// Adds a record.
    #[inline]
    pub fn push(&mut self, key: &[u8], value: &[u8]) {
        self.push_parts((key, &[]), value);
    }

    /// Adds a record whose key is in two parts.
    #[inline]
    pub(super) fn push_parts(&mut self, (prefix, suffix): (&[u8], &[u8]), value: &[u8]) {
        let key_start = self.bytes.len();
        self.bytes.extend_from_slice(prefix);
        self.bytes.extend_from_slice(suffix);
        let value_start = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.places.push(Place {
            key_start,
            key_size_bytes: value_start - key_start,
            value_start,
            value_size_bytes: value.len(),
        });
    }

    /// Gives a record another value.
    pub(super) fn set_value(&mut self, index: usize, value: &[u8]) {
        let place = &mut self.places[index];
        (place.value_start, place.value_size_bytes) = (self.bytes.len(), value.len());
        self.bytes.extend_from_slice(value);
    }

    /// Removes a record; those behind it move up.
    pub(super) fn remove(&mut self, index: usize) {
        self.places.remove(index);
    }

    /// Removes all records from this index on.
    pub(super) fn truncate(&mut self, count: usize) {
        self.places.truncate(count);
        let end = |place: &Place| {
            let key_end = place.key_start + place.key_size_bytes;
            key_end.max(place.value_start + place.value_size_bytes)
        };
        let end = self.places.iter().map(end).max();
        self.bytes.truncate(end.unwrap_or(0));
    }

    #[inline]
    fn at(&self, place: &Place) -> (&[u8], &[u8]) {
        let key = &self.bytes[place.key_start..][..place.key_size_bytes];
        (
            key,
            &self.bytes[place.value_start..][..place.value_size_bytes],
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: records come back as they were added, whatever is added to them later and whatever
    /// is removed.
    #[test]
    fn records_come_back() {
        let mut records = RecordBuffer::new();
        records.push(b"a", b"1");
        records.push_parts((b"pre", b"fix"), b"");
        records.push(b"", b"3");
        records.set_value(1, b"later");
        let of = |records: &RecordBuffer| -> Vec<(Vec<u8>, Vec<u8>)> {
            let records = records.to_records().into_iter();
            records.map(|record| (record.key, record.value)).collect()
        };
        let pair = |key: &str, value: &str| (key.into(), value.into());
        let all = [pair("a", "1"), pair("prefix", "later"), pair("", "3")];
        assert_eq!(of(&records), all);
        assert_eq!(records.get(1), Some((&b"prefix"[..], &b"later"[..])));
        assert_eq!((records.get(3), records.len()), (None, 3));
        records.remove(0);
        assert_eq!(of(&records), all[1..]);
        records.truncate(1);
        records.push(b"b", b"4");
        assert_eq!(of(&records), [pair("prefix", "later"), pair("b", "4")]);
        records.clear();
        assert!(records.is_empty());
    }
}
