//! A session's calls as futures.

use std::rc::Rc;

use farleaf_executor::Completions;
use farleaf_fabric::{Cost, Endpoint, KindCounters, OperationKind};
use farleaf_region::catalog::TableRecord;
use farleaf_region::part::{PartRecord, PartitionedTableId};
use farleaf_types::OwnerWord;

use super::base::SessionCore;
use crate::host::Host;
use crate::options::{SessionOptions, TableInfo, TableOptions};
use crate::{AsyncByteTable, AsyncTable, Error, ErrorKind, PartitionError, Pool};

/// One thread's way into a pool, with futures: many of them can be under way at once. Clones are
/// the same session, which lasts as long as any of them or of its tables.
///
/// Dropping a future of it before it is done may leave something locked: the session is then closed
/// to further operations, and others recover what it held when it is closed.
#[derive(Debug)]
pub struct AsyncSession<H: Host = Pool>(Rc<SessionCore<H>>);

impl<H: Host> Clone for AsyncSession<H> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<H: Host> AsyncSession<H> {
    /// The session that the memory node has registered as `owner`, with an endpoint of its own.
    pub fn new(host: H, endpoint: H::Endpoint, owner: OwnerWord) -> Self {
        Self::with_options(host, endpoint, owner, &SessionOptions::default())
    }

    /// [`new`](Self::new), with options.
    pub fn with_options(
        host: H,
        endpoint: H::Endpoint,
        owner: OwnerWord,
        options: &SessionOptions,
    ) -> Self {
        Self(Rc::new(SessionCore::new(host, endpoint, owner, *options)))
    }

    /// Where the completions of its operations come from, for whoever drives many of its futures at
    /// once (`TaskSet`, `Executor` of `farleaf-executor`).
    pub fn completions(&self) -> impl Completions {
        self.0.endpoint.completions()
    }

    pub(crate) fn core(&self) -> &Rc<SessionCore<H>> {
        &self.0
    }

    /// Makes an empty table and opens it. If the catalog is full, and some of its places are
    /// those of dropped tables that are not free yet, it waits about 2 s for one.
    ///
    /// # Errors
    /// The name is taken or bad, an option is out of range, or the pool or its catalog is full.
    /// [`ErrorKind::TableDropped`](crate::ErrorKind::TableDropped): it was made, and somebody
    /// dropped it before it was open here.
    pub async fn create_table(
        &self,
        name: &str,
        options: &TableOptions,
    ) -> Result<AsyncTable<H>, Error> {
        let (entry, begun) = self.0.create_entry(name, options, None).await?;
        self.0.open_entry(entry, &begun).await
    }

    /// [`create_table`](Self::create_table), of byte strings: options whose kind is
    /// [`TableKind::Bytes`](crate::TableKind::Bytes), as [`TableOptions::bytes`] has.
    ///
    /// # Errors
    /// As for [`create_table`](Self::create_table).
    pub async fn create_byte_table(
        &self,
        name: &str,
        options: &TableOptions,
    ) -> Result<AsyncByteTable<H>, Error> {
        let (entry, begun) = self.0.create_entry(name, options, None).await?;
        self.0.open_bytes(entry, &begun).await
    }

    /// [`open_table`](Self::open_table), of byte strings.
    ///
    /// # Errors
    /// As for [`open_table`](Self::open_table); or its keys are of another kind
    /// ([`ErrorKind::TableOfOtherKind`]).
    pub async fn open_byte_table(&self, name: &str) -> Result<AsyncByteTable<H>, Error> {
        let mut last = None;
        loop {
            let begun = self.0.begin().await?;
            let entry = self.0.find_table(name).await?;
            self.0.check_whole(&entry.record)?;
            let id = entry.record.id;
            match self.0.open_bytes(entry, &begun).await {
                // It was dropped meanwhile, with what lists its pages: by now there is no table of
                // this name, or another one.
                Err(error)
                    if matches!(error.kind(), ErrorKind::TableDropped { .. })
                        && last.replace(id) != Some(id) => {}
                opened => return opened,
            }
        }
    }

    /// [`create_table`](Self::create_table), of a part of a table over several pools (O1).
    pub(crate) async fn create_part(
        &self,
        name: &str,
        options: &TableOptions,
        part: PartRecord,
    ) -> Result<AsyncTable<H>, Error> {
        let (entry, begun) = self.0.create_entry(name, options, Some(part)).await?;
        self.0.open_entry(entry, &begun).await
    }

    /// Opens a table: reads its directory, unless this process has it already; with a metadata
    /// budget only what it always needs of it.
    ///
    /// # Errors
    /// There is no such table, it is damaged, or the session's metadata budget is too small or not
    /// for its search layer ([`ErrorKind::BadOption`]); it is a part of a table over several pools
    /// ([`PartitionError::IsPart`](crate::PartitionError::IsPart)).
    pub async fn open_table(&self, name: &str) -> Result<AsyncTable<H>, Error> {
        let begun = self.0.begin().await?;
        let entry = self.0.find_table(name).await?;
        self.0.check_whole(&entry.record)?;
        self.0.open_entry(entry, &begun).await
    }

    /// [`open_table`](Self::open_table), of a table by itself or of the part that this pool has of
    /// one over several: to look at it. What is written to a part beyond its range is not found by
    /// those who have the whole table open.
    ///
    /// # Errors
    /// As for [`open_table`](Self::open_table), but that it may be a part.
    pub async fn open_part(&self, name: &str) -> Result<AsyncTable<H>, Error> {
        let begun = self.0.begin().await?;
        let entry = self.0.find_table(name).await?;
        self.0.open_entry(entry, &begun).await
    }

    /// What there is to know of the table of this name, or part, if there is one. One round trip.
    pub(crate) async fn look_up(&self, name: &str) -> Result<Option<TableInfo>, Error> {
        let _begun = self.0.begin().await?;
        self.0.look_up(name).await
    }

    /// Drops a table. Whoever has it open gets
    /// [`ErrorKind::TableDropped`](crate::ErrorKind::TableDropped) soon; its memory is free when no
    /// operation on it is under way any more anywhere.
    ///
    /// # Errors
    /// There is no such table, or it is a part of one over several pools
    /// ([`PartitionError::IsPart`](crate::PartitionError::IsPart)).
    pub async fn drop_table(&self, name: &str) -> Result<(), Error> {
        let _begun = self.0.begin().await?;
        let check = |record: &TableRecord| self.0.check_whole(record);
        self.0.drop_entry(name, check).await
    }

    /// Drops the part that this pool has of a table over several, when the other pools are gone for
    /// good; [`drop_table`](crate::PartitionedSession::drop_table) drops all parts. Nobody can open
    /// the table after that, but sessions that have it open go on with its other parts.
    ///
    /// # Errors
    /// There is no such table, or it is one by itself
    /// ([`PartitionError::NotPart`](crate::PartitionError::NotPart)).
    pub async fn drop_part(&self, name: &str) -> Result<(), Error> {
        let _begun = self.0.begin().await?;
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

    /// [`drop_part`](Self::drop_part), if it is one of this very table (O6).
    pub(crate) async fn drop_part_of(
        &self,
        name: &str,
        table: PartitionedTableId,
    ) -> Result<(), Error> {
        let _begun = self.0.begin().await?;
        let is_of = |part: PartRecord| part.table == table;
        let check = |record: &TableRecord| match record.part {
            Some(part) if is_of(part) => Ok(()),
            _ => Err(self.0.not_found(name)),
        };
        self.0.drop_entry(name, check).await
    }

    /// All tables, in no order, parts of tables over several pools among them.
    ///
    /// # Errors
    /// The fabric failed, or the catalog is damaged.
    pub async fn list_tables(&self) -> Result<Vec<TableInfo>, Error> {
        let _begun = self.0.begin().await?;
        self.0.list().await
    }

    /// What the session stands on.
    pub fn host(&self) -> &H {
        &self.0.host
    }

    /// What the session posts with.
    pub fn endpoint(&self) -> &H::Endpoint {
        &self.0.endpoint
    }

    /// What operations of this kind have cost on this session (F9).
    pub fn counters(&self, kind: OperationKind) -> KindCounters {
        farleaf_fabric::Endpoint::counters(&self.0.endpoint).kind(kind)
    }

    /// What the operation that ended last has cost. With several operations under way, it is the
    /// right one directly after the await that ended it.
    pub fn last_cost(&self) -> Cost {
        self.0.last_cost.get()
    }

    /// Whether an operation was cut off, or failed, where it may have held something: the session
    /// does nothing any more, and wants to be closed.
    pub fn is_broken(&self) -> bool {
        self.0.is_broken()
    }

    /// Whether nothing else keeps the session alive.
    pub(crate) fn is_last(&self) -> bool {
        Rc::strong_count(&self.0) == 1
    }

    /// Gives back what is leased and closes, whatever else keeps the session: operations that begin
    /// afterwards are refused.
    ///
    /// # Errors
    /// [`ErrorKind::SessionBusy`](crate::ErrorKind::SessionBusy): an operation is under way;
    /// nothing has changed. What it leased could not be given back, or the memory node cannot be
    /// reached; the node then sweeps it when the process ends.
    pub async fn close(&self) -> Result<(), Error> {
        if !self.0.unfinished.is_idle() {
            return Err(ErrorKind::SessionBusy.into());
        }
        self.0.shut().await
    }
}
