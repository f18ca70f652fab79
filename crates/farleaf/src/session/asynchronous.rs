//! Operations of a session as futures.

use std::rc::Rc;

use farleaf_base::OwnerWord;
use farleaf_executor::Completions;
use farleaf_fabric::{Cost, Endpoint, KindCounters, OperationKind};
use farleaf_pool::catalog::TableRecord;
use farleaf_pool::part::{PartRecord, PartitionedTableId};

use super::base::SessionCore;
use crate::host::SessionHost;
use crate::options::{SessionOptions, TableInfo, TableOptions};
use crate::{AsyncByteTable, AsyncTable, Error, ErrorKind, PartitionError, Pool};

/// Access of one thread to a pool, with operations as futures, so that many can run concurrently.
/// Clones are the same session, which lasts until all of them and all of its tables are dropped.
///
/// Dropping one of its futures before it is ready may leave locks held. The session is then closed
/// to further operations, and others recover what it held when it is closed.
#[derive(Debug)]
pub struct AsyncSession<H: SessionHost = Pool>(Rc<SessionCore<H>>);

impl<H: SessionHost> Clone for AsyncSession<H> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<H: SessionHost> AsyncSession<H> {
    /// Creates the session that the memory node has registered as `owner`, with its own endpoint.
    pub fn new(host: H, endpoint: H::Endpoint, owner: OwnerWord) -> Self {
        Self::with_options(host, endpoint, owner, &SessionOptions::default())
    }

    /// Creates a session like [`new`](Self::new), with options.
    pub fn with_options(
        host: H,
        endpoint: H::Endpoint,
        owner: OwnerWord,
        options: &SessionOptions,
    ) -> Self {
        Self(Rc::new(SessionCore::new(host, endpoint, owner, *options)))
    }

    /// Returns the completions of the session's operations, for callers that drive many of its
    /// futures concurrently (`TaskSet`, `Executor` of `farleaf-executor`).
    pub fn completions(&self) -> impl Completions {
        self.0.endpoint.completions()
    }

    pub(crate) fn core(&self) -> &Rc<SessionCore<H>> {
        &self.0
    }

    /// Creates an empty table and opens it. If the catalog is full, but entries of dropped tables
    /// are about to become free, it waits about 2 s for one.
    ///
    /// # Errors
    /// The name is in use or invalid, an option is out of range, or the pool or its catalog is
    /// full. [`ErrorKind::TableDropped`](crate::ErrorKind::TableDropped): the table was created,
    /// and another client dropped it before it was open here.
    pub async fn create_table(
        &self,
        name: &str,
        options: &TableOptions,
    ) -> Result<AsyncTable<H>, Error> {
        let (entry, guard) = self.0.create_entry(name, options, None).await?;
        self.0.open_entry(entry, &guard).await
    }

    /// Creates a table of byte strings; otherwise like [`create_table`](Self::create_table). The
    /// options' kind must be [`TableKind::Bytes`](crate::TableKind::Bytes), as in
    /// [`TableOptions::bytes`].
    ///
    /// # Errors
    /// The same as those of [`create_table`](Self::create_table).
    pub async fn create_byte_table(
        &self,
        name: &str,
        options: &TableOptions,
    ) -> Result<AsyncByteTable<H>, Error> {
        let (entry, guard) = self.0.create_entry(name, options, None).await?;
        self.0.open_bytes(entry, &guard).await
    }

    /// Opens a table of byte strings; otherwise like [`open_table`](Self::open_table).
    ///
    /// # Errors
    /// The same as those of [`open_table`](Self::open_table); also [`ErrorKind::TableOfOtherKind`]
    /// if its keys are of another kind.
    pub async fn open_byte_table(&self, name: &str) -> Result<AsyncByteTable<H>, Error> {
        let mut last = None;
        loop {
            let guard = self.0.begin().await?;
            let entry = self.0.find_table(name).await?;
            self.0.check_whole(&entry.record)?;
            let id = entry.record.id;
            match self.0.open_bytes(entry, &guard).await {
                // The table was dropped meanwhile, with its listing: by now the name is free or
                // belongs to another table.
                Err(error)
                    if matches!(error.kind(), ErrorKind::TableDropped { .. })
                        && last.replace(id) != Some(id) => {}
                opened => return opened,
            }
        }
    }

    /// Creates a table like [`create_table`](Self::create_table), as a part of a table over several
    /// pools.
    pub(crate) async fn create_part(
        &self,
        name: &str,
        options: &TableOptions,
        part: PartRecord,
    ) -> Result<AsyncTable<H>, Error> {
        let (entry, guard) = self.0.create_entry(name, options, Some(part)).await?;
        self.0.open_entry(entry, &guard).await
    }

    /// Opens a table. Reads its directory unless this process has it already; with a metadata
    /// budget, reads only the part that the session always holds.
    ///
    /// # Errors
    /// The table does not exist or is corrupted; the session's metadata budget is too small or
    /// unsupported by its search layer ([`ErrorKind::BadOption`]); or it is a part of a table over
    /// several pools ([`PartitionError::IsPart`](crate::PartitionError::IsPart)).
    pub async fn open_table(&self, name: &str) -> Result<AsyncTable<H>, Error> {
        let guard = self.0.begin().await?;
        let entry = self.0.find_table(name).await?;
        self.0.check_whole(&entry.record)?;
        self.0.open_entry(entry, &guard).await
    }

    /// Opens an ordinary table, or the part that this pool has of a table over several pools, for
    /// inspection. Records written to a part beyond its range are invisible to clients that have
    /// the whole table open.
    ///
    /// # Errors
    /// The same as those of [`open_table`](Self::open_table), except that a part is not an error.
    pub async fn open_part(&self, name: &str) -> Result<AsyncTable<H>, Error> {
        let guard = self.0.begin().await?;
        let entry = self.0.find_table(name).await?;
        self.0.open_entry(entry, &guard).await
    }

    /// Returns the properties of the table, or part, of this name, if it exists. Costs one round
    /// trip.
    pub(crate) async fn look_up(&self, name: &str) -> Result<Option<TableInfo>, Error> {
        let _guard = self.0.begin().await?;
        self.0.look_up(name).await
    }

    /// Drops a table. Clients that have it open soon get
    /// [`ErrorKind::TableDropped`](crate::ErrorKind::TableDropped). Its memory becomes free when
    /// all clients' operations on it have ended.
    ///
    /// # Errors
    /// The table does not exist, or it is a part of a table over several pools
    /// ([`PartitionError::IsPart`](crate::PartitionError::IsPart)).
    pub async fn drop_table(&self, name: &str) -> Result<(), Error> {
        let _guard = self.0.begin().await?;
        let check = |record: &TableRecord| self.0.check_whole(record);
        self.0.drop_entry(name, check).await
    }

    /// Drops the part that this pool has of a table over several pools, when the other pools are
    /// permanently lost; [`drop_table`](crate::PartitionedSession::drop_table) drops all parts.
    /// After that the table cannot be opened, but sessions that have it open can still use its
    /// other parts.
    ///
    /// # Errors
    /// The table does not exist, or it is an ordinary table
    /// ([`PartitionError::NotPart`](crate::PartitionError::NotPart)).
    pub async fn drop_part(&self, name: &str) -> Result<(), Error> {
        let _guard = self.0.begin().await?;
        let check = |record: &TableRecord| match record.part {
            Some(_) => Ok(()),
            None => Err(PartitionError::NotPart {
                name: name.to_owned(),
                pool: self.0.share().address.clone(),
            }
            .into()),
        };
        self.0.drop_entry(name, check).await
    }

    /// Drops a part like [`drop_part`](Self::drop_part), if it belongs to this very table.
    pub(crate) async fn drop_part_of(
        &self,
        name: &str,
        table: PartitionedTableId,
    ) -> Result<(), Error> {
        let _guard = self.0.begin().await?;
        let is_of = |part: PartRecord| part.table == table;
        let check = |record: &TableRecord| match record.part {
            Some(part) if is_of(part) => Ok(()),
            _ => Err(self.0.not_found(name)),
        };
        self.0.drop_entry(name, check).await
    }

    /// Returns all tables, in no order, including parts of tables over several pools.
    ///
    /// # Errors
    /// The fabric failed, or the catalog is corrupted.
    pub async fn list_tables(&self) -> Result<Vec<TableInfo>, Error> {
        let _guard = self.0.begin().await?;
        self.0.list().await
    }

    /// Returns the session's host.
    pub fn host(&self) -> &H {
        &self.0.host
    }

    /// Returns the session's endpoint.
    pub fn endpoint(&self) -> &H::Endpoint {
        &self.0.endpoint
    }

    /// Returns the cost of this session's operations of this kind (FABRIC-9).
    pub fn counters(&self, kind: OperationKind) -> KindCounters {
        farleaf_fabric::Endpoint::counters(&self.0.endpoint).kind(kind)
    }

    /// Returns the cost of the operation that ended last. With several unfinished operations, it is
    /// the right one directly after the await that ended it.
    pub fn last_cost(&self) -> Cost {
        self.0.last_cost.get()
    }

    /// Returns whether an operation was cancelled, or failed, while it may have held a lock. The
    /// session then executes nothing any more and should be closed.
    pub fn is_broken(&self) -> bool {
        self.0.is_broken()
    }

    /// Returns whether nothing else keeps the session alive.
    pub(crate) fn is_last(&self) -> bool {
        Rc::strong_count(&self.0) == 1
    }

    /// Returns leased memory and closes the session, even if something else keeps it alive:
    /// operations that begin afterwards fail.
    ///
    /// # Errors
    /// [`ErrorKind::SessionBusy`](crate::ErrorKind::SessionBusy): an operation is unfinished;
    /// nothing has changed. Other errors: leased memory could not be returned, or the memory node
    /// cannot be reached; the node then sweeps the session when the process ends.
    pub async fn close(&self) -> Result<(), Error> {
        if !self.0.unfinished.is_idle() {
            return Err(ErrorKind::SessionBusy.into());
        }
        self.0.shut_down().await
    }
}
