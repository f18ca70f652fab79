//! What a run works on: a table of one pool, or one over several (`--partitions`), or of a cluster
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
use super::spelling::Spelling;

/// What an update of a key found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UpdateSeen {
    /// It had this value.
    Previous(u64),
    /// It was present; its value was not read.
    Present,
    /// It was absent, and still is.
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

/// A session and the table that it has open: the operations that the workloads ask for.
pub(super) trait Subject: Sized {
    /// What it is opened in.
    type Place;
    /// What its operations fail with.
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
    /// What the operation that ended last has cost in far memory; `None`: it is not there.
    fn last_cost(&self) -> Option<Cost>;
    fn completions(&self) -> impl Completions;
    fn block_on<F: Future>(&self, future: F) -> F::Output;
    /// What the session holds to find leaves; `None`: there are none.
    fn metadata_bytes(&self) -> Option<u64>;
    /// What the table takes of far memory; `None`: it is not there.
    fn memory_bytes(&self) -> Result<Option<u64>, Self::Error>;
    fn hint_counters(&self) -> HintCounters;
    fn close(self) -> Result<(), Self::Error>;
}

/// A table of one pool.
pub(super) struct OneTable {
    session: Session,
    table: Table,
}

/// A table over several.
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

/// A table of byte strings of one pool.
pub(super) struct StringTable {
    session: Session,
    table: ByteTable,
    spelling: Spelling,
    /// Buffers of operations that are not under way: a key's and a value's.
    buffers: RefCell<Vec<(Vec<u8>, Vec<u8>)>>,
    /// What the last scan has found.
    records: RefCell<RecordBuffer>,
    /// What an operation that has just ended has cost, where it was several of the table's.
    whole_cost: Cell<Option<Cost>>,
}

impl StringTable {
    /// Does something with a key, and a value if there is a word for it, in buffers.
    async fn with_strings<R>(
        &self,
        (number, word): (u64, Option<u64>),
        work: impl AsyncFnOnce(&[u8], &mut Vec<u8>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let (mut key, mut value) = self.buffers.borrow_mut().pop().unwrap_or_default();
        self.spelling.key(number, &mut key);
        value.clear();
        if let Some(word) = word {
            self.spelling.strings.value(number, word, &mut value);
        }
        let done = work(&key, &mut value).await;
        self.buffers.borrow_mut().push((key, value));
        done
    }

    /// Reads a value and puts it with one field changed, as YCSB's bindings for stores of keys and
    /// values do: what is put between the two is lost.
    async fn update_field(&self, number: u64, word: u64) -> Result<UpdateSeen, Error> {
        self.with_strings((number, None), async |string, value| {
            let table = self.table.asynchronous();
            if !table.get_into(string, value).await? {
                return Ok(UpdateSeen::Absent);
            }
            let mut cost = self.session.last_cost();
            let previous = self.spelling.change(number, word, value);
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
    type Place = (Pool, Spelling);
    type Error = Error;

    fn open((pool, spelling): &Self::Place, options: &SessionOptions) -> Result<Self, Error> {
        let session = pool.session_with(options)?;
        let table = session.open_byte_table(TABLE_NAME)?;
        Ok(Self {
            session,
            table,
            spelling: spelling.clone(),
            buffers: RefCell::default(),
            records: RefCell::default(),
            whole_cost: Cell::default(),
        })
    }

    async fn get(&self, key: u64) -> Result<Option<u64>, Error> {
        self.with_strings((key, None), async |string, _| {
            let read = |value: Option<&[u8]>| value.map(|value| self.spelling.word(key, value));
            self.table.asynchronous().get_with(string, read).await
        })
        .await
    }

    async fn update(&self, key: u64, value: u64) -> Result<UpdateSeen, Error> {
        if self.spelling.strings.field_count > 1 {
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
                    Insertion::AlreadyPresent(self.spelling.word(key, &found))
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
                let number = self.spelling.found_number(key, &mut start);
                (number, self.spelling.word(number, value))
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
