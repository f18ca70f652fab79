//! Operations of workloads on a persistent table, executed synchronously by each thread.

use std::cell::RefCell;

use farleaf::persistent::{ClientError, Insertion as Inserted, PersistentTable};
use farleaf::{Cost, HintCounters, Insertion, SessionOptions};
use farleaf_executor::{Completions, block_on};

use super::super::string_codec::StringCodec;
use super::super::subject::{Subject, UpdateSeen};

/// Table and its strings.
#[derive(Clone, Debug)]
pub(in super::super) struct ClusterTableStore {
    pub(super) table: PersistentTable,
    pub(super) string_codec: StringCodec,
}

/// One thread's client of a persistent table.
pub(in super::super) struct ClusterTable {
    place: ClusterTableStore,
    /// Buffers of a key and a value: there is one operation at a time.
    buffers: RefCell<(Vec<u8>, Vec<u8>)>,
}

impl ClusterTable {
    /// Calls a function with a key, and a value if a word is given, in buffers.
    fn with_strings<R>(
        &self,
        (number, word): (u64, Option<u64>),
        work: impl FnOnce(&[u8], &mut Vec<u8>) -> R,
    ) -> R {
        let (key, value) = &mut *self.buffers.borrow_mut();
        let string_codec = &self.place.string_codec;
        string_codec.key(number, key);
        value.clear();
        if let Some(word) = word {
            string_codec.strings.value(number, word, value);
        }
        work(key, value)
    }

    /// Reads a value and puts it with one field changed; a put of another client in between is
    /// lost.
    fn update_field(&self, number: u64, word: u64) -> Result<UpdateSeen, ClientError> {
        let ClusterTableStore {
            table,
            string_codec,
        } = &self.place;
        self.with_strings((number, None), |key, _| {
            let Some(mut value) = table.get(key)? else {
                return Ok(UpdateSeen::Absent);
            };
            let previous = string_codec.change(number, word, &mut value);
            Ok(if table.update(key, &value)? {
                UpdateSeen::Previous(previous)
            } else {
                UpdateSeen::Absent
            })
        })
    }
}

impl Subject for ClusterTable {
    type Place = ClusterTableStore;
    type Error = ClientError;

    fn open(place: &ClusterTableStore, _: &SessionOptions) -> Result<Self, ClientError> {
        Ok(Self {
            place: place.clone(),
            buffers: RefCell::default(),
        })
    }

    async fn get(&self, key: u64) -> Result<Option<u64>, ClientError> {
        let ClusterTableStore {
            table,
            string_codec,
        } = &self.place;
        let value = self.with_strings((key, None), |string, _| table.get(string))?;
        Ok(value.map(|value| string_codec.word(key, &value)))
    }

    async fn update(&self, key: u64, value: u64) -> Result<UpdateSeen, ClientError> {
        let ClusterTableStore {
            table,
            string_codec,
        } = &self.place;
        if string_codec.strings.field_count > 1 {
            return self.update_field(key, value);
        }
        let updated = self.with_strings((key, Some(value)), |string, value| {
            table.update(string, value)
        });
        Ok(if updated? {
            UpdateSeen::Present
        } else {
            UpdateSeen::Absent
        })
    }

    async fn insert(&self, key: u64, value: u64) -> Result<Insertion, ClientError> {
        let ClusterTableStore {
            table,
            string_codec,
        } = &self.place;
        let inserted = self.with_strings((key, Some(value)), |string, value| {
            table.insert(string, value)
        });
        Ok(match inserted? {
            Inserted::Inserted => Insertion::Inserted,
            Inserted::AlreadyPresent(found) => {
                Insertion::AlreadyPresent(string_codec.word(key, &found))
            }
        })
    }

    async fn scan_into(
        &self,
        from: u64,
        limit: usize,
        records: &mut Vec<(u64, u64)>,
    ) -> Result<(), ClientError> {
        let ClusterTableStore {
            table,
            string_codec,
        } = &self.place;
        records.clear();
        let found = self.with_strings((from, None), |string, _| table.scan(string, None, limit))?;
        let mut start = from;
        records.extend(found.iter().map(|record| {
            let number = string_codec.found_number(&record.key, &mut start);
            (number, string_codec.word(number, &record.value))
        }));
        Ok(())
    }

    fn last_cost(&self) -> Option<Cost> {
        None
    }

    fn completions(&self) -> impl Completions {
        || 0
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        block_on(future, self.completions())
    }

    fn metadata_bytes(&self) -> Option<u64> {
        None
    }

    fn memory_bytes(&self) -> Result<Option<u64>, ClientError> {
        Ok(None)
    }

    fn hint_counters(&self) -> HintCounters {
        HintCounters::default()
    }

    fn close(self) -> Result<(), ClientError> {
        Ok(())
    }
}
