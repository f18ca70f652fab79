//! Operations of a table as futures.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use farleaf_fabric::{Batch, OperationKind};
use farleaf_index::load::{LoadSummary, bulk_load};
use farleaf_index::operation::{Decision, HintCounters, ScanCursor};
use farleaf_index::rpc::Change;
use farleaf_index::{Index, IndexError};

use crate::at_once::{GetAttempt, MultiGetAttempt};
use crate::begin::OperationGuard;
use crate::direction::DirectedCursor;
use crate::host::SessionHost;
use crate::options::TableInfo;
use crate::session::{SessionCore, TableState};
use crate::table::{Insertion, Swap, Update};
use crate::{Error, PartialCounts, Pool};

/// Operations of a table as futures, so that one thread can run many of them concurrently. On `mem`
/// and `shm` a future is ready at its first poll, unless it has to wait for another client's lock.
///
/// Dropping the future of a write before it is ready may leave a leaf locked. The session is then
/// closed to further operations, and others recover the leaf once the session is dropped. Spawn
/// writes on an executor rather than racing them against timeouts.
pub struct AsyncTable<H: SessionHost = Pool> {
    pub(crate) session: Rc<SessionCore<H>>,
    pub(crate) state: Rc<TableState>,
}

impl<H: SessionHost> Clone for AsyncTable<H> {
    fn clone(&self) -> Self {
        Self::new(Rc::clone(&self.session), Rc::clone(&self.state))
    }
}

impl<H: SessionHost> fmt::Debug for AsyncTable<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncTable")
            .field("info", &self.state.info)
            .finish_non_exhaustive()
    }
}

/// Boxed: these futures are rarely awaited, and a future is as large as the largest one inside it.
pub(crate) type SlowPathFuture<'a, R> = Pin<Box<dyn Future<Output = Result<R, Error>> + 'a>>;

/// One unfinished operation.
pub(crate) struct Operation<'a, H: SessionHost> {
    table: &'a AsyncTable<H>,
    pub(crate) batch: Box<Batch>,
    pub(crate) index: Index<'a, H::Endpoint>,
    _guard: OperationGuard<'a>,
}

impl<H: SessionHost> Operation<'_, H> {
    /// Ends the operation and counts its cost. If it failed, [`AsyncTable::refresh_after`] decides
    /// whether to retry it.
    #[expect(
        clippy::inline_always,
        reason = "a call would hand the operation over by memory"
    )]
    #[inline(always)]
    pub(crate) fn finish<R>(
        self,
        kind: OperationKind,
        result: Result<R, IndexError>,
    ) -> Result<R, IndexError> {
        self.table.session.finish(kind, self.batch);
        result
    }

    /// Ends the operation like [`finish`](Self::finish), without a result.
    pub(crate) fn end(self, kind: OperationKind) {
        self.table.session.finish(kind, self.batch);
    }
}

impl<H: SessionHost> AsyncTable<H> {
    pub(crate) fn new(session: Rc<SessionCore<H>>, state: Rc<TableState>) -> Self {
        Self { session, state }
    }

    /// Returns the properties that are known without reading the table.
    pub fn info(&self) -> &TableInfo {
        &self.state.info
    }

    /// Handles a failed operation. `Ok` means that the session's root was outdated and has been
    /// refreshed; the operation had no effect, and the caller retries it.
    #[cold]
    pub(crate) fn refresh_after(&self, error: IndexError) -> SlowPathFuture<'_, ()> {
        match error {
            IndexError::Outdated => Box::pin(async {
                // The failed operation's note of its sequence number is gone, so another one is
                // needed.
                let _guard = self.session.begin_on_slow_path(&self.state).await?;
                self.session.refresh(&self.state).await
            }),
            other => {
                let error = Error::from(other).of_table(&self.state.info.name);
                Box::pin(std::future::ready(Err(error)))
            }
        }
    }

    /// Begins one operation.
    #[expect(
        clippy::inline_always,
        reason = "a call would build the operation in memory twice"
    )]
    #[inline(always)]
    pub(crate) async fn begin(&self) -> Result<Operation<'_, H>, Error> {
        let guard = match self.session.begin_at_once(&self.state) {
            Some(guard) => guard,
            None => self.session.begin_on_slow_path(&self.state).await?,
        };
        Ok(self.operation(guard))
    }

    #[expect(clippy::inline_always, reason = "as for `begin`")]
    #[inline(always)]
    pub(crate) fn operation<'a>(&'a self, guard: OperationGuard<'a>) -> Operation<'a, H> {
        Operation {
            table: self,
            batch: self.session.take_batch(),
            index: self.index(),
            _guard: guard,
        }
    }

    #[inline]
    pub(crate) fn index(&self) -> Index<'_, H::Endpoint> {
        Index::new(self.session.access(&self.state), &self.state.index)
    }

    /// Returns the value of a key. Costs one round trip and reads one leaf if the hint is right.
    ///
    /// # Errors
    /// The table was dropped or is corrupted, or the fabric failed.
    #[inline]
    pub async fn get(&self, key: u64) -> Result<Option<u64>, Error> {
        match self.get_at_once(key) {
            GetAttempt::Done(value) => Ok(value),
            GetAttempt::Unfinished(rest) => self.get_rest(key, rest).await,
        }
    }

    /// Returns the values of many keys, in the order of the keys. Costs one round trip per 1024
    /// keys.
    ///
    /// # Errors
    /// The same as those of [`get`](Self::get).
    pub async fn multi_get(&self, keys: &[u64]) -> Result<Vec<Option<u64>>, Error> {
        let mut values = Vec::new();
        self.multi_get_into(keys, &mut values).await?;
        Ok(values)
    }

    /// Reads the values of many keys like [`multi_get`](Self::multi_get) into a vector, which is
    /// cleared first.
    ///
    /// # Errors
    /// The same as those of [`get`](Self::get).
    pub async fn multi_get_into(
        &self,
        keys: &[u64],
        values: &mut Vec<Option<u64>>,
    ) -> Result<(), Error> {
        match self.multi_get_at_once(keys, values) {
            MultiGetAttempt::Done => Ok(()),
            MultiGetAttempt::Unfinished(rest) => self.multi_get_rest(keys, values, rest).await,
        }
    }

    /// Writes a key whether it is present or not, and returns its previous value. Costs two round
    /// trips if the hint is right.
    ///
    /// # Errors
    /// The same as those of [`get`](Self::get); also if the leaf and the pool are full: then
    /// nothing has changed.
    #[inline]
    pub async fn put(&self, key: u64, value: u64) -> Result<Option<u64>, Error> {
        self.modify(
            OperationKind::Put,
            key,
            || Change::Put(value),
            |previous| (Decision::Set(value), previous),
        )
        .await
    }

    /// Writes a key if it is absent. Costs two round trips if the hint is right.
    ///
    /// # Errors
    /// The same as those of [`put`](Self::put).
    pub async fn insert(&self, key: u64, value: u64) -> Result<Insertion, Error> {
        self.modify(
            OperationKind::Insert,
            key,
            || Change::Insert(value),
            |previous| match previous {
                None => (Decision::Set(value), Insertion::Inserted),
                Some(found) => (Decision::Keep, Insertion::AlreadyPresent(found)),
            },
        )
        .await
    }

    /// Writes a key if it is present. Costs two round trips if the hint is right.
    ///
    /// # Errors
    /// The same as those of [`get`](Self::get).
    #[inline]
    pub async fn update(&self, key: u64, value: u64) -> Result<Update, Error> {
        self.modify(
            OperationKind::Update,
            key,
            || Change::Update(value),
            |previous| match previous {
                Some(found) => (Decision::Set(value), Update::Updated(found)),
                None => (Decision::Keep, Update::Absent),
            },
        )
        .await
    }

    /// Removes a key and returns its value. Costs two round trips if the hint is right.
    ///
    /// # Errors
    /// The same as those of [`get`](Self::get).
    pub async fn delete(&self, key: u64) -> Result<Option<u64>, Error> {
        self.modify(
            OperationKind::Delete,
            key,
            || Change::Delete,
            |previous| (Decision::Remove, previous),
        )
        .await
    }

    /// Sets the value of a key to `new` (`None` removes the key) if it is `expected` (`None`: if
    /// the key is absent). Costs two round trips if the hint is right.
    ///
    /// # Errors
    /// The same as those of [`put`](Self::put).
    pub async fn compare_and_swap(
        &self,
        key: u64,
        expected: Option<u64>,
        new: Option<u64>,
    ) -> Result<Swap, Error> {
        let decision = new.map_or(Decision::Remove, Decision::Set);
        let change = || Change::CompareSwap { expected, new };
        self.modify(OperationKind::CompareSwap, key, change, |found| {
            if found == expected {
                (decision, Swap::Swapped)
            } else {
                (Decision::Keep, Swap::Differs(found))
            }
        })
        .await
    }

    #[inline]
    async fn modify<R>(
        &self,
        kind: OperationKind,
        key: u64,
        change: impl Fn() -> Change,
        mut decide: impl FnMut(Option<u64>) -> (Decision, R),
    ) -> Result<R, Error> {
        loop {
            // Not `begin`, which would cost every operation a hundred instructions.
            let guard = match self.session.begin_at_once(&self.state) {
                Some(guard) => guard,
                None if self.is_remote() || self.has_node_writes() => {
                    // The node has made the same decision on the value that it found.
                    let found = self.change_remote(kind, key, change()).await?;
                    return Ok(decide(found).1);
                }
                None => self.session.begin_on_slow_path(&self.state).await?,
            };
            let mut operation = self.operation(guard);
            let result = operation
                .index
                .modify(&mut operation.batch, key, &mut decide)
                .await;
            match operation.finish(kind, result) {
                Ok(done) => return Ok(done),
                Err(error) => self.refresh_after(error).await?,
            }
        }
    }

    /// Replaces the contents of `records` by the first `limit` records from `from` on, ascending.
    /// Costs one round trip on a freshly loaded table. The result is not a snapshot (LEAF-9).
    ///
    /// # Errors
    /// The same as those of [`get`](Self::get).
    pub async fn scan_into(
        &self,
        from: u64,
        limit: usize,
        records: &mut Vec<(u64, u64)>,
    ) -> Result<(), Error> {
        records.clear();
        let mut cursor = ScanCursor::from(from);
        self.scan_on(&mut cursor, limit, records).await?;
        records.truncate(limit);
        Ok(())
    }

    /// Adds at least `wanted` records in the cursor's direction and moves the cursor behind them.
    pub(crate) async fn scan_on<C: DirectedCursor>(
        &self,
        cursor: &mut C,
        wanted: usize,
        records: &mut Vec<(u64, u64)>,
    ) -> Result<(), Error> {
        let end = records.len().saturating_add(wanted);
        loop {
            // An attempt that failed may have added some.
            let wanted = end.saturating_sub(records.len());
            // Not `begin`, which would cost every operation a hundred instructions.
            let guard = match self.session.begin_at_once(&self.state) {
                Some(guard) => guard,
                None if self.is_remote() => {
                    return self.scan_remote(cursor, wanted, records).await;
                }
                None if self.has_node_writes() => {
                    return self.scan_by_models(cursor, wanted, records).await;
                }
                None => self.session.begin_on_slow_path(&self.state).await?,
            };
            let mut operation = self.operation(guard);
            let (index, batch) = (&operation.index, &mut *operation.batch);
            let done = cursor.read(index, batch, wanted, records).await;
            match operation.finish(OperationKind::Scan, done) {
                Ok(done) => return Ok(done),
                Err(error) => self.refresh_after(error).await?,
            }
        }
    }

    /// Estimates the number of records from a sample of the leaves. Costs at most a few hundred
    /// round trips.
    ///
    /// # Errors
    /// The same as those of [`get`](Self::get).
    pub async fn len_estimate(&self) -> Result<u64, Error> {
        if self.is_remote() || self.has_node_writes() {
            return self.count_remote().await;
        }
        loop {
            let mut operation = self.begin().await?;
            let estimate = operation.index.estimate_len(&mut operation.batch).await;
            match operation.finish(OperationKind::Control, estimate) {
                Ok(done) => return Ok(done),
                Err(error) => self.refresh_after(error).await?,
            }
        }
    }

    /// Returns how often this session's hints were wrong since it opened the table.
    pub fn hint_counters(&self) -> HintCounters {
        self.state.index.hint_counters()
    }

    /// Returns the bytes that this session holds to find leaves: models, upper models, residuals,
    /// tables and synonyms. Caches shared by the process's sessions count in full. Never more than
    /// the session's metadata budget.
    pub fn metadata_bytes(&self) -> u64 {
        if self.is_remote() {
            return 0;
        }
        self.state.index.metadata_bytes()
    }

    /// Returns how often this session has fetched and evicted parts of the table's models and
    /// residuals; `None` if it has no metadata budget.
    pub fn partial_counts(&self) -> Option<PartialCounts> {
        self.state.index.partial_counts()
    }
}

/// Bulk loads.
impl<H: SessionHost> AsyncTable<H> {
    /// Loads an empty table from a sequence that ascends by key, and trains its search layer. All
    /// records appear at once, or none. Calls `progress` from time to time with the number of
    /// records read. An empty sequence changes nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Load`](crate::ErrorKind::Load): the sequence does not ascend, or the table has
    /// records or had many. [`ErrorKind::Full`](crate::ErrorKind::Full): the pool is out of memory.
    /// In both cases the table is unchanged.
    /// [`ErrorKind::TableDropped`](crate::ErrorKind::TableDropped): the table was dropped before or
    /// during the load, and the loaded records with it.
    pub async fn bulk_load(
        &self,
        records: impl IntoIterator<Item = (u64, u64)>,
        progress: impl FnMut(u64),
    ) -> Result<LoadSummary, Error> {
        if self.is_remote() {
            return self.load_remote(records.into_iter(), progress).await;
        }
        let (session, state) = (&self.session, &self.state);
        let guard = session.begin_on_slow_path(state).await?;
        session.check_live(state).await?;
        session.chunk_owner_count.update(|count| count + 1);
        let plan = state.info.options.load_plan();
        let access = session.access(state);
        let (records, broken) = (records.into_iter(), &session.broken);
        let loaded = bulk_load(access, &state.entry, plan, broken, records, progress).await;
        if matches!(&loaded, Err(error) if error.is_outcome_unknown()) {
            session.mark_broken();
        } else {
            session.chunk_owner_count.update(|count| count - 1);
        }
        let loaded = loaded.map_err(|error| Error::from(error).of_table(&state.info.name));
        // The loader knows of the new root and need not discover it through the retired first leaf.
        let refreshed = match loaded {
            Ok(_) => session.refresh(state).await,
            Err(_) => Ok(()),
        };
        drop(guard);
        refreshed?;
        let summary = loaded?;
        // Loads take long. If the table was dropped meanwhile, the records are in memory that no
        // client reads.
        session.check_live(state).await?;
        Ok(summary)
    }
}
