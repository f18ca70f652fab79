//! A table's operations as futures.

use std::fmt;
use std::rc::Rc;

use farleaf_fabric::mapped::MappedEndpoint;
use farleaf_fabric::{Batch, OperationKind};
use farleaf_index::operation::{Decision, ScanCursor};
use farleaf_index::{Index, IndexError};

use crate::Error;
use crate::at_once::{GetBegun, MultiGetBegun};
use crate::begin::Begun;
use crate::options::TableInfo;
use crate::session::{SessionCore, TableState};
use crate::table::{Insertion, Swap, Update};

/// A table's operations as futures, for having many of them under way on one thread. On `mem` and
/// `shm` a future is ready at its first poll, unless it has to wait for another client's lock.
///
/// Dropping the future of a write before it is done may leave a leaf locked: the session is then
/// closed to further operations, and others recover the leaf when it has been dropped. Spawn writes
/// on an executor rather than racing them against time-outs.
#[derive(Clone)]
pub struct AsyncTable {
    pub(crate) session: Rc<SessionCore>,
    pub(crate) state: Rc<TableState>,
}

impl fmt::Debug for AsyncTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncTable")
            .field("info", &self.state.info)
            .finish_non_exhaustive()
    }
}

/// One operation under way.
pub(crate) struct Operation<'a> {
    table: &'a AsyncTable,
    pub(crate) batch: Box<Batch>,
    pub(crate) index: Index<'a, MappedEndpoint>,
    _begun: Begun<'a>,
}

impl Operation<'_> {
    /// Counts what it cost. `None`: the session's root was out of date, and is no more; the
    /// operation has done nothing and has to be begun again.
    #[expect(
        clippy::inline_always,
        reason = "a call would hand the operation over by memory"
    )]
    #[inline(always)]
    pub(crate) fn finish<R>(
        self,
        kind: OperationKind,
        result: Result<R, IndexError>,
    ) -> Result<Option<R>, Error> {
        self.table.session.finish(kind, self.batch);
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) => self.table.refresh_after(error).map(|()| None),
        }
    }
}

impl AsyncTable {
    pub(crate) fn new(session: Rc<SessionCore>, state: Rc<TableState>) -> Self {
        Self { session, state }
    }

    /// What there is to know of the table without looking into it.
    pub fn info(&self) -> &TableInfo {
        &self.state.info
    }

    /// Takes the newest root if that is what an operation failed for.
    #[cold]
    fn refresh_after(&self, error: IndexError) -> Result<(), Error> {
        match error {
            IndexError::Outdated => self.session.refresh(&self.state),
            other => Err(Error::from(other).of_table(&self.state.info.name)),
        }
    }

    /// Begins one operation.
    #[expect(
        clippy::inline_always,
        reason = "a call would build the operation in memory twice"
    )]
    #[inline(always)]
    pub(crate) fn begin(&self) -> Result<Operation<'_>, Error> {
        Ok(self.operation(self.session.begin(&self.state)?))
    }

    #[expect(clippy::inline_always, reason = "as for `begin`")]
    #[inline(always)]
    pub(crate) fn operation<'a>(&'a self, begun: Begun<'a>) -> Operation<'a> {
        Operation {
            table: self,
            batch: self.session.take_batch(),
            index: self.index(),
            _begun: begun,
        }
    }

    #[inline]
    pub(crate) fn index(&self) -> Index<'_, MappedEndpoint> {
        Index::new(self.session.access(&self.state), &self.state.index)
    }

    /// The value of a key. One round trip, one leaf, when the hint is right.
    ///
    /// # Errors
    /// The table was dropped or is damaged, or the fabric failed.
    #[inline]
    pub async fn get(&self, key: u64) -> Result<Option<u64>, Error> {
        match self.get_at_once(key) {
            GetBegun::Done(value) => Ok(value),
            GetBegun::Unfinished(rest) => self.get_rest(key, rest).await,
        }
    }

    /// The values of many keys, in their order: one round trip per 1024 keys.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub async fn multi_get(&self, keys: &[u64]) -> Result<Vec<Option<u64>>, Error> {
        let mut values = Vec::new();
        self.multi_get_into(keys, &mut values).await?;
        Ok(values)
    }

    /// [`multi_get`](Self::multi_get) into a vector that is cleared first.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub async fn multi_get_into(
        &self,
        keys: &[u64],
        values: &mut Vec<Option<u64>>,
    ) -> Result<(), Error> {
        match self.multi_get_at_once(keys, values) {
            MultiGetBegun::Done => Ok(()),
            MultiGetBegun::Unfinished(rest) => self.multi_get_rest(keys, values, rest).await,
        }
    }

    /// Writes a key whether it is present or not, and returns its previous value. Two round trips
    /// when the hint is right.
    ///
    /// # Errors
    /// As for [`get`](Self::get); or the leaf is full and so is the pool: then nothing has changed.
    #[inline]
    pub async fn put(&self, key: u64, value: u64) -> Result<Option<u64>, Error> {
        self.modify(OperationKind::Put, key, |previous| {
            (Decision::Set(value), previous)
        })
        .await
    }

    /// Writes a key if it is absent. Two round trips when the hint is right.
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub async fn insert(&self, key: u64, value: u64) -> Result<Insertion, Error> {
        self.modify(OperationKind::Insert, key, |previous| match previous {
            None => (Decision::Set(value), Insertion::Inserted),
            Some(found) => (Decision::Keep, Insertion::AlreadyPresent(found)),
        })
        .await
    }

    /// Writes a key if it is present. Two round trips when the hint is right.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    #[inline]
    pub async fn update(&self, key: u64, value: u64) -> Result<Update, Error> {
        self.modify(OperationKind::Update, key, |previous| match previous {
            Some(found) => (Decision::Set(value), Update::Updated(found)),
            None => (Decision::Keep, Update::Absent),
        })
        .await
    }

    /// Removes a key and returns its value. Two round trips when the hint is right.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub async fn delete(&self, key: u64) -> Result<Option<u64>, Error> {
        self.modify(OperationKind::Delete, key, |previous| {
            (Decision::Remove, previous)
        })
        .await
    }

    /// Gives a key the value `new` (`None` removes it) if its value is `expected` (`None`: if it is
    /// absent). Two round trips when the hint is right.
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub async fn compare_and_swap(
        &self,
        key: u64,
        expected: Option<u64>,
        new: Option<u64>,
    ) -> Result<Swap, Error> {
        let decision = new.map_or(Decision::Remove, Decision::Set);
        self.modify(OperationKind::CompareSwap, key, |found| {
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
        mut decide: impl FnMut(Option<u64>) -> (Decision, R),
    ) -> Result<R, Error> {
        loop {
            let mut operation = self.begin()?;
            let result = operation
                .index
                .modify(&mut operation.batch, key, &mut decide)
                .await;
            if let Some(done) = operation.finish(kind, result)? {
                return Ok(done);
            }
        }
    }

    /// Replaces `records` by the first `limit` records from `from` on, ascending. One round trip on
    /// a freshly loaded table. Not a snapshot (D9).
    ///
    /// # Errors
    /// As for [`get`](Self::get).
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

    /// Adds at least `wanted` records and moves the cursor behind them.
    pub(crate) async fn scan_on(
        &self,
        cursor: &mut ScanCursor,
        wanted: usize,
        records: &mut Vec<(u64, u64)>,
    ) -> Result<(), Error> {
        loop {
            let mut operation = self.begin()?;
            let done = operation
                .index
                .scan(&mut operation.batch, cursor, wanted, records)
                .await;
            if let Some(done) = operation.finish(OperationKind::Scan, done)? {
                return Ok(done);
            }
        }
    }

    /// About how many records the table has, from a sample of its leaves. At most a few hundred
    /// round trips.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub async fn len_estimate(&self) -> Result<u64, Error> {
        loop {
            let mut operation = self.begin()?;
            let estimate = operation.index.estimate_len(&mut operation.batch).await;
            if let Some(done) = operation.finish(OperationKind::Control, estimate)? {
                return Ok(done);
            }
        }
    }

    /// Bytes that this session holds to find leaves: models, upper models, residuals, tables and
    /// synonyms; what sessions of a process share is counted whole.
    pub fn metadata_bytes(&self) -> u64 {
        self.state.index.metadata_bytes()
    }
}
