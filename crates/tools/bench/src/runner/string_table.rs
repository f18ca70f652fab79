//! Tables of byte strings, in a pool or in a cluster: the operations of the workloads on numbers.

use std::cell::{Cell, RefCell};

use farleaf::{
    ByteInsertion, ByteTable, Cost, Error, HintCounters, Insertion, Pool, RecordBuffer, Session,
    SessionOptions,
};
use farleaf_executor::Completions;

use super::TABLE_NAME;
use super::string_codec::StringCodec;
use super::subject::{Handle, Subject, UpdateOutcome, far_handle};

/// Store of a table, with the codec of its strings.
#[derive(Clone, Debug)]
pub(super) struct StringStore<P> {
    pub(super) place: P,
    pub(super) string_codec: StringCodec,
}

/// Session with an open table of byte strings.
pub(super) trait ByteStore: Handle {
    /// Calls a function with the value of a key.
    async fn get_with<R>(
        &self,
        key: &[u8],
        read: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R, Self::Error>;
    /// Returns whether the key was present.
    async fn update(&self, key: &[u8], value: &[u8]) -> Result<bool, Self::Error>;
    /// Returns the value of a key that was already present.
    async fn insert(&self, key: &[u8], value: &[u8]) -> Result<Option<Vec<u8>>, Self::Error>;
    async fn scan(
        &self,
        from: &[u8],
        limit: usize,
        visit: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), Self::Error>;
}

/// Table of byte strings as a subject.
pub(super) struct StringTable<B> {
    store: B,
    string_codec: StringCodec,
    /// Buffers of operations that are not in progress: a key's and a value's.
    buffers: RefCell<Vec<(Vec<u8>, Vec<u8>)>>,
    /// Cost of the operation that has just ended, if it consisted of several table operations.
    whole_cost: Cell<Option<Cost>>,
}

impl<B: ByteStore> StringTable<B> {
    /// Calls a function with a key, and a value if a word is given, in buffers.
    async fn with_strings<R>(
        &self,
        number: u64,
        word: Option<u64>,
        work: impl AsyncFnOnce(&[u8], &mut Vec<u8>) -> Result<R, B::Error>,
    ) -> Result<R, B::Error> {
        let (mut key, mut value) = self.buffers.borrow_mut().pop().unwrap_or_default();
        self.string_codec.key(number, &mut key);
        value.clear();
        if let Some(word) = word {
            self.string_codec.strings.value(number, word, &mut value);
        }
        let done = work(&key, &mut value).await;
        self.buffers.borrow_mut().push((key, value));
        done
    }

    /// Reads a value and puts it with one field changed, like YCSB's bindings for key-value stores;
    /// a put of another client in between is lost.
    async fn update_field(&self, number: u64, word: u64) -> Result<UpdateOutcome, B::Error> {
        self.with_strings(number, None, async |string, value| {
            let read = |found: Option<&[u8]>| found.map(|found| value.extend_from_slice(found));
            if self.store.get_with(string, read).await?.is_none() {
                return Ok(UpdateOutcome::Absent);
            }
            let read_cost = self.store.last_cost();
            let previous = self.string_codec.change(number, word, value);
            let is_present = self.store.update(string, value).await?;
            let costs = read_cost.zip(self.store.last_cost());
            self.whole_cost.set(costs.map(|(mut cost, of_update)| {
                cost += of_update;
                cost
            }));
            Ok(if is_present {
                UpdateOutcome::Previous(previous)
            } else {
                UpdateOutcome::Absent
            })
        })
        .await
    }
}

impl<B: ByteStore> Handle for StringTable<B> {
    type Place = StringStore<B::Place>;
    type Error = B::Error;

    fn open(store: &Self::Place, options: &SessionOptions) -> Result<Self, B::Error> {
        Ok(Self {
            store: B::open(&store.place, options)?,
            string_codec: store.string_codec.clone(),
            buffers: RefCell::default(),
            whole_cost: Cell::default(),
        })
    }

    fn last_cost(&self) -> Option<Cost> {
        self.whole_cost.take().or_else(|| self.store.last_cost())
    }

    fn completions(&self) -> impl Completions {
        self.store.completions()
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.store.block_on(future)
    }

    fn metadata_bytes(&self) -> Option<u64> {
        self.store.metadata_bytes()
    }

    fn memory_bytes(&self) -> Result<Option<u64>, B::Error> {
        self.store.memory_bytes()
    }

    fn hint_counters(&self) -> HintCounters {
        self.store.hint_counters()
    }

    fn close(self) -> Result<(), B::Error> {
        self.store.close()
    }
}

impl<B: ByteStore> Subject for StringTable<B> {
    async fn get(&self, key: u64) -> Result<Option<u64>, B::Error> {
        self.with_strings(key, None, async |string, _| {
            let read = |value: Option<&[u8]>| value.map(|value| self.string_codec.word(key, value));
            self.store.get_with(string, read).await
        })
        .await
    }

    async fn update(&self, key: u64, value: u64) -> Result<UpdateOutcome, B::Error> {
        if self.string_codec.strings.field_count > 1 {
            return self.update_field(key, value).await;
        }
        self.with_strings(key, Some(value), async |string, value| {
            Ok(if self.store.update(string, value).await? {
                UpdateOutcome::Present
            } else {
                UpdateOutcome::Absent
            })
        })
        .await
    }

    async fn insert(&self, key: u64, value: u64) -> Result<Insertion, B::Error> {
        self.with_strings(key, Some(value), async |string, value| {
            let found = self.store.insert(string, value).await?;
            Ok(found.map_or(Insertion::Inserted, |found| {
                Insertion::AlreadyPresent(self.string_codec.word(key, &found))
            }))
        })
        .await
    }

    async fn scan_into(
        &self,
        from: u64,
        limit: usize,
        records: &mut Vec<(u64, u64)>,
    ) -> Result<(), B::Error> {
        records.clear();
        self.with_strings(from, None, async |string, _| {
            let mut start = from;
            let visit = |key: &[u8], value: &[u8]| {
                let number = self.string_codec.found_number(key, &mut start);
                records.push((number, self.string_codec.word(number, value)));
            };
            self.store.scan(string, limit, visit).await
        })
        .await
    }
}

/// Table of byte strings of one pool.
pub(super) struct PoolStore {
    session: Session,
    table: ByteTable,
    /// Records that the last scan has found.
    records: RefCell<RecordBuffer>,
}

far_handle!(PoolStore, Pool, open_byte_table, records);

impl ByteStore for PoolStore {
    async fn get_with<R>(
        &self,
        key: &[u8],
        read: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R, Error> {
        self.table.asynchronous().get_with(key, read).await
    }

    async fn update(&self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        self.table.asynchronous().update(key, value).await
    }

    async fn insert(&self, key: &[u8], value: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        Ok(match self.table.asynchronous().insert(key, value).await? {
            ByteInsertion::Inserted => None,
            ByteInsertion::AlreadyPresent(found) => Some(found),
        })
    }

    async fn scan(
        &self,
        from: &[u8],
        limit: usize,
        mut visit: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), Error> {
        let mut found = self.records.take();
        let table = self.table.asynchronous();
        let scanned = table.scan_into(from, None, limit, &mut found).await;
        for (key, value) in found.iter() {
            visit(key, value);
        }
        self.records.replace(found);
        scanned
    }
}
