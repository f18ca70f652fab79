//! Subject of a run: a table of one pool, one over several (`--partitions`), or one of a cluster
//! (`persistent`).

use std::future::Future;

use std::cell::{Cell, RefCell};

use farleaf::{
    ByteInsertion, ByteTable, Cost, Error, HintCounters, Insertion, PartitionedPool,
    PartitionedSession, PartitionedTable, Pool, RecordBuffer, Session, SessionOptions, Table,
    Update,
};
use farleaf_executor::Completions;

use super::TABLE_NAME;
use super::error::StoreFailure;
use super::string_codec::StringCodec;

/// Result of an update of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UpdateSeen {
    /// Previous value.
    Previous(u64),
    /// The key was present; its value was not read.
    Present,
    /// The key was absent, and still is.
    Absent,
}

impl From<Update> for UpdateSeen {
    fn from(update: Update) -> Self {
        match update {
            Update::Updated(previous) => Self::Previous(previous),
            Update::Absent => Self::Absent,
        }
    }
}

/// Session with an open table: the operations of the workloads.
pub(super) trait Subject: Sized {
    /// Store in which the subject is opened.
    type Place;
    /// Error of its operations.
    type Error: StoreFailure;

    fn open(place: &Self::Place, options: &SessionOptions) -> Result<Self, Self::Error>;
    fn get(&self, key: u64) -> impl Future<Output = Result<Option<u64>, Self::Error>>;
    fn update(&self, key: u64, value: u64)
    -> impl Future<Output = Result<UpdateSeen, Self::Error>>;
    fn insert(&self, key: u64, value: u64) -> impl Future<Output = Result<Insertion, Self::Error>>;
    fn scan_into(
        &self,
        from: u64,
        limit: usize,
        records: &mut Vec<(u64, u64)>,
    ) -> impl Future<Output = Result<(), Self::Error>>;
    /// Returns the cost in far memory of the operation that ended last; `None` if the table is
    /// elsewhere.
    fn last_cost(&self) -> Option<Cost>;
    fn completions(&self) -> impl Completions;
    fn block_on<F: Future>(&self, future: F) -> F::Output;
    /// Returns the bytes that the session holds to find leaves; `None` if there are no leaves.
    fn metadata_bytes(&self) -> Option<u64>;
    /// Returns the table's bytes of far memory; `None` if it is elsewhere.
    fn memory_bytes(&self) -> Result<Option<u64>, Self::Error>;
    fn hint_counters(&self) -> HintCounters;
    fn close(self) -> Result<(), Self::Error>;
}

/// Table of one pool.
pub(super) struct OneTable {
    session: Session,
    table: Table,
}

/// Table over several pools.
pub(super) struct TableOfParts {
    session: PartitionedSession,
    table: PartitionedTable,
}

macro_rules! subject {
    ($subject:ty, $place:ty) => {
        impl Subject for $subject {
            type Place = $place;
            type Error = Error;

            fn open(place: &$place, options: &SessionOptions) -> Result<Self, Error> {
                let session = place.session_with(options)?;
                let table = session.open_table(TABLE_NAME)?;
                Ok(Self { session, table })
            }

            #[inline]
            fn get(&self, key: u64) -> impl Future<Output = Result<Option<u64>, Error>> {
                self.table.asynchronous().get(key)
            }

            #[inline]
            async fn update(&self, key: u64, value: u64) -> Result<UpdateSeen, Error> {
                let updated = self.table.asynchronous().update(key, value).await?;
                Ok(updated.into())
            }

            #[inline]
            fn insert(
                &self,
                key: u64,
                value: u64,
            ) -> impl Future<Output = Result<Insertion, Error>> {
                self.table.asynchronous().insert(key, value)
            }

            #[inline]
            fn scan_into(
                &self,
                from: u64,
                limit: usize,
                records: &mut Vec<(u64, u64)>,
            ) -> impl Future<Output = Result<(), Error>> {
                self.table.asynchronous().scan_into(from, limit, records)
            }

            #[inline]
            fn last_cost(&self) -> Option<Cost> {
                Some(self.session.last_cost())
            }

            fn completions(&self) -> impl Completions {
                self.session.completions()
            }

            #[inline]
            fn block_on<F: Future>(&self, future: F) -> F::Output {
                self.session.block_on(future)
            }

            fn metadata_bytes(&self) -> Option<u64> {
                Some(self.table.metadata_bytes())
            }

            fn memory_bytes(&self) -> Result<Option<u64>, Error> {
                self.table.memory_bytes().map(Some)
            }

            fn hint_counters(&self) -> HintCounters {
                self.table.hint_counters()
            }

            fn close(self) -> Result<(), Error> {
                drop(self.table);
                self.session.close()
            }
        }
    };
}

subject!(OneTable, Pool);
subject!(TableOfParts, PartitionedPool);

/// Table of byte strings of one pool.
pub(super) struct StringTable {
    session: Session,
    table: ByteTable,
    string_codec: StringCodec,
    /// Buffers of operations that are not in progress: a key's and a value's.
    buffers: RefCell<Vec<(Vec<u8>, Vec<u8>)>>,
    /// Records that the last scan has found.
    records: RefCell<RecordBuffer>,
    /// Cost of the operation that has just ended, if it consisted of several table operations.
    whole_cost: Cell<Option<Cost>>,
}

impl StringTable {
    /// Calls a function with a key, and a value if a word is given, in buffers.
    async fn with_strings<R>(
        &self,
        (number, word): (u64, Option<u64>),
        work: impl AsyncFnOnce(&[u8], &mut Vec<u8>) -> Result<R, Error>,
    ) -> Result<R, Error> {
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
    async fn update_field(&self, number: u64, word: u64) -> Result<UpdateSeen, Error> {
        self.with_strings((number, None), async |string, value| {
            let table = self.table.asynchronous();
            if !table.get_into(string, value).await? {
                return Ok(UpdateSeen::Absent);
            }
            let mut cost = self.session.last_cost();
            let previous = self.string_codec.change(number, word, value);
            let is_there = table.update(string, value).await?;
            cost += self.session.last_cost();
            self.whole_cost.set(Some(cost));
            Ok(if is_there {
                UpdateSeen::Previous(previous)
            } else {
                UpdateSeen::Absent
            })
        })
        .await
    }
}

impl Subject for StringTable {
    type Place = (Pool, StringCodec);
    type Error = Error;

    fn open((pool, string_codec): &Self::Place, options: &SessionOptions) -> Result<Self, Error> {
        let session = pool.session_with(options)?;
        let table = session.open_byte_table(TABLE_NAME)?;
        Ok(Self {
            session,
            table,
            string_codec: string_codec.clone(),
            buffers: RefCell::default(),
            records: RefCell::default(),
            whole_cost: Cell::default(),
        })
    }

    async fn get(&self, key: u64) -> Result<Option<u64>, Error> {
        self.with_strings((key, None), async |string, _| {
            let read = |value: Option<&[u8]>| value.map(|value| self.string_codec.word(key, value));
            self.table.asynchronous().get_with(string, read).await
        })
        .await
    }

    async fn update(&self, key: u64, value: u64) -> Result<UpdateSeen, Error> {
        if self.string_codec.strings.field_count > 1 {
            return self.update_field(key, value).await;
        }
        self.with_strings((key, Some(value)), async |string, value| {
            let is_there = self.table.asynchronous().update(string, value).await?;
            Ok(if is_there {
                UpdateSeen::Present
            } else {
                UpdateSeen::Absent
            })
        })
        .await
    }

    async fn insert(&self, key: u64, value: u64) -> Result<Insertion, Error> {
        self.with_strings((key, Some(value)), async |string, value| {
            let inserted = self.table.asynchronous().insert(string, value).await?;
            Ok(match inserted {
                ByteInsertion::Inserted => Insertion::Inserted,
                ByteInsertion::AlreadyPresent(found) => {
                    Insertion::AlreadyPresent(self.string_codec.word(key, &found))
                }
            })
        })
        .await
    }

    async fn scan_into(
        &self,
        from: u64,
        limit: usize,
        records: &mut Vec<(u64, u64)>,
    ) -> Result<(), Error> {
        records.clear();
        self.with_strings((from, None), async |string, _| {
            let mut found = self.records.take();
            let table = self.table.asynchronous();
            let scanned = table.scan_into(string, None, limit, &mut found).await;
            let mut start = from;
            records.extend(found.iter().map(|(key, value)| {
                let number = self.string_codec.found_number(key, &mut start);
                (number, self.string_codec.word(number, value))
            }));
            self.records.replace(found);
            scanned
        })
        .await
    }

    fn last_cost(&self) -> Option<Cost> {
        let whole_cost = self.whole_cost.take();
        whole_cost.or_else(|| Some(self.session.last_cost()))
    }

    fn completions(&self) -> impl Completions {
        self.session.completions()
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.session.block_on(future)
    }

    fn metadata_bytes(&self) -> Option<u64> {
        Some(self.table.metadata_bytes())
    }

    fn memory_bytes(&self) -> Result<Option<u64>, Error> {
        self.table.memory_bytes().map(Some)
    }

    fn hint_counters(&self) -> HintCounters {
        self.table.hint_counters()
    }

    fn close(self) -> Result<(), Error> {
        drop(self.table);
        self.session.close()
    }
}
