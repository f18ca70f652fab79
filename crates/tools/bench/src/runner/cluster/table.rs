//! The operations of workloads on a persistent table, each waited for by its thread.

use std::cell::RefCell;

use farleaf::persistent::{ClientError, Insertion as Inserted, PersistentTable};
use farleaf::{Cost, HintCounters, Insertion, SessionOptions};
use farleaf_executor::{Completions, block_on};

use super::super::spelling::Spelling;
use super::super::subject::{Subject, UpdateSeen};

/// A table, and what its strings are.
#[derive(Clone, Debug)]
pub(in super::super) struct ClusterPlace {
    pub(super) table: PersistentTable,
    pub(super) spelling: Spelling,
}

/// One thread's way to a persistent table.
pub(in super::super) struct ClusterTable {
    place: ClusterPlace,
    /// A key's and a value's: there is one operation at a time.
    buffers: RefCell<(Vec<u8>, Vec<u8>)>,
}

impl ClusterTable {
    /// Does something with a key, and a value if there is a word for it, in buffers.
    fn with_strings<R>(
        &self,
        (number, word): (u64, Option<u64>),
        work: impl FnOnce(&[u8], &mut Vec<u8>) -> R,
    ) -> R {
        let (key, value) = &mut *self.buffers.borrow_mut();
        let spelling = &self.place.spelling;
        spelling.key(number, key);
        value.clear();
        if let Some(word) = word {
            spelling.strings.value(number, word, value);
        }
        work(key, value)
    }

    /// Reads a value and puts it with one field changed: what is put between the two is lost.
    fn update_field(&self, number: u64, word: u64) -> Result<UpdateSeen, ClientError> {
        let ClusterPlace { table, spelling } = &self.place;
        self.with_strings((number, None), |key, _| {
            let Some(mut value) = table.get(key)? else {
                return Ok(UpdateSeen::Absent);
            };
            let previous = spelling.change(number, word, &mut value);
            Ok(if table.update(key, &value)? {
                UpdateSeen::Previous(previous)
            } else {
                UpdateSeen::Absent
            })
        })
    }
}

impl Subject for ClusterTable {
    type Place = ClusterPlace;
    type Error = ClientError;

    fn open(place: &ClusterPlace, _: &SessionOptions) -> Result<Self, ClientError> {
        Ok(Self {
            place: place.clone(),
            buffers: RefCell::default(),
        })
    }

    async fn get(&self, key: u64) -> Result<Option<u64>, ClientError> {
        let ClusterPlace { table, spelling } = &self.place;
        let value = self.with_strings((key, None), |string, _| table.get(string))?;
        Ok(value.map(|value| spelling.word(key, &value)))
    }

    async fn update(&self, key: u64, value: u64) -> Result<UpdateSeen, ClientError> {
        let ClusterPlace { table, spelling } = &self.place;
        if spelling.strings.field_count > 1 {
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
        let ClusterPlace { table, spelling } = &self.place;
        let inserted = self.with_strings((key, Some(value)), |string, value| {
            table.insert(string, value)
        });
        Ok(match inserted? {
            Inserted::Inserted => Insertion::Inserted,
            Inserted::AlreadyPresent(found) => {
                Insertion::AlreadyPresent(spelling.word(key, &found))
            }
        })
    }

    async fn scan_into(
        &self,
        from: u64,
        limit: usize,
        records: &mut Vec<(u64, u64)>,
    ) -> Result<(), ClientError> {
        let ClusterPlace { table, spelling } = &self.place;
        records.clear();
        let found = self.with_strings((from, None), |string, _| table.scan(string, None, limit))?;
        let mut start = from;
        records.extend(found.iter().map(|record| {
            let number = spelling.found_number(&record.key, &mut start);
            (number, spelling.word(number, &record.value))
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
