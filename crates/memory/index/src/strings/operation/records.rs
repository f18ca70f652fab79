//! Records as scans return them.

/// Record with its own memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Key of the record.
    pub key: Vec<u8>,
    /// Value of the record; empty if only keys were requested.
    pub value: Vec<u8>,
}

/// Records stored one after the other in one allocation. A reused buffer allocates nothing per
/// record.
#[derive(Clone, Debug, Default)]
pub struct RecordBuffer {
    bytes: Vec<u8>,
    places: Vec<RecordSpan>,
}

/// Position of a record in the buffer.
#[derive(Clone, Copy, Debug)]
struct RecordSpan {
    key_start: usize,
    key_size_bytes: usize,
    value_start: usize,
    value_size_bytes: usize,
}

impl RecordBuffer {
    /// Creates a buffer without records.
    pub const fn new() -> Self {
        Self {
            bytes: Vec::new(),
            places: Vec::new(),
        }
    }

    /// Returns the number of records.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Removes all records, and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.places.clear();
    }

    /// Returns key and value of the record with this index.
    #[inline]
    pub fn get(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let place = self.places.get(index)?;
        Some(self.at(place))
    }

    /// Returns the record that was added last.
    pub fn last(&self) -> Option<(&[u8], &[u8])> {
        self.get(self.len().checked_sub(1)?)
    }

    /// Iterates over keys and values, in the order in which they were found.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&[u8], &[u8])> + DoubleEndedIterator {
        self.places.iter().map(|place| self.at(place))
    }

    /// Copies each record into its own memory.
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
        self.push_parts(key, &[], value);
    }

    /// Adds a record whose key is in two parts.
    #[inline]
    pub(super) fn push_parts(&mut self, prefix: &[u8], suffix: &[u8], value: &[u8]) {
        let key_start = self.bytes.len();
        self.bytes.extend_from_slice(prefix);
        self.bytes.extend_from_slice(suffix);
        let value_start = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.places.push(RecordSpan {
            key_start,
            key_size_bytes: value_start - key_start,
            value_start,
            value_size_bytes: value.len(),
        });
    }

    /// Sets the value of a record.
    pub(super) fn set_value(&mut self, index: usize, value: &[u8]) {
        let place = &mut self.places[index];
        (place.value_start, place.value_size_bytes) = (self.bytes.len(), value.len());
        self.bytes.extend_from_slice(value);
    }

    /// Removes a record; later ones move up.
    pub(super) fn remove(&mut self, index: usize) {
        self.places.remove(index);
    }

    /// Removes all records from this index on.
    pub(super) fn truncate(&mut self, count: usize) {
        self.places.truncate(count);
        let end = |place: &RecordSpan| {
            let key_end = place.key_start + place.key_size_bytes;
            key_end.max(place.value_start + place.value_size_bytes)
        };
        let end = self.places.iter().map(end).max();
        self.bytes.truncate(end.unwrap_or(0));
    }

    #[inline]
    fn at(&self, place: &RecordSpan) -> (&[u8], &[u8]) {
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

    /// Promise: records are returned as they were added, whatever is added or removed later.
    #[test]
    fn records_come_back() {
        let mut records = RecordBuffer::new();
        records.push(b"a", b"1");
        records.push_parts(b"pre", b"fix", b"");
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
