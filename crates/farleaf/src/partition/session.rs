//! Creating, opening, listing and dropping tables over several pools
//! (docs/explanation/partitions.md).

use std::cell::Cell;
use std::collections::BTreeSet;
use std::future::Future;
use std::rc::Rc;

use farleaf_executor::{AllCompletions, Completions, block_on, together};
use farleaf_fabric::{Cost, KindCounters, OperationKind};
use farleaf_pool::part::{PartRecord, PartitionedTableId};

use super::agreement::{FoundParts, ListedPartition};
use super::{AsyncPartitionedTable, Bounds, PartitionError, PartitionedTable};
use crate::options::{TableInfo, TableOptions};
use crate::table::Table;
use crate::{Error, ErrorKind, Session};

/// Sessions in all pools, and the combined cost of their operations.
#[derive(Debug)]
pub(super) struct Sessions {
    pub(super) all: Vec<Session>,
    pub(super) last_cost: Cell<Cost>,
}

impl Sessions {
    pub(super) fn address(&self, number: usize) -> &str {
        &self.all[number].pool().0.share.address
    }

    pub(super) fn drive<F: Future>(&self, future: F) -> F::Output {
        block_on(future, AllCompletions::new(&self.all, Session::completions))
    }

    /// Adds the part to an error.
    #[cold]
    pub(super) fn in_part(&self, name: &str, number: usize, source: Error) -> Error {
        PartitionError::Part {
            name: name.to_owned(),
            number: number as u16,
            pool: self.address(number).to_owned(),
            source,
        }
        .into()
    }
}

/// Access of one thread to several pools: a session in each. Tables opened through it keep it
/// alive.
#[derive(Debug)]
pub struct PartitionedSession(Rc<Sessions>);

impl PartitionedSession {
    pub(super) fn new(sessions: Vec<Session>) -> Self {
        let last_cost = Cell::default();
        let all = sessions;
        Self(Rc::new(Sessions { all, last_cost }))
    }

    /// Creates an empty table with a part in each pool, and opens it.
    ///
    /// # Errors
    /// The same as those of [`Session::create_table`], with the part that failed. The parts created
    /// before are dropped again, or the error is [`PartitionError::CreationNotUndone`].
    /// [`ErrorKind::BadOption`]: the number of parts differs from the number of pools.
    pub fn create_table(
        &self,
        name: &str,
        options: &TableOptions,
        bounds: &Bounds,
    ) -> Result<PartitionedTable, Error> {
        self.block_on(self.create(name, options, bounds))
    }

    /// Opens a table if its parts in the pools agree. Opens all parts at once, each at the cost of
    /// [`Session::open_table`].
    ///
    /// # Errors
    /// The same as those of [`Session::open_table`]; also a [`PartitionError`] if the pools do not
    /// have all parts of one table, each in the right pool.
    pub fn open_table(&self, name: &str) -> Result<PartitionedTable, Error> {
        self.block_on(self.open(name))
    }

    /// Drops all parts of a table, also of an incomplete one.
    ///
    /// # Errors
    /// No part exists, or the existing ones do not belong to one table or are in the wrong pools.
    /// If a part could not be dropped, those before it still exist, and dropping can be retried.
    pub fn drop_table(&self, name: &str) -> Result<(), Error> {
        self.block_on(self.drop_parts(name))
    }

    /// Returns all tables over several pools of which at least one of these pools has a part, by
    /// name. Tables that these pools, in this order, cannot open are listed with the reason.
    /// Ordinary tables are not listed ([`Session::list_tables`]).
    ///
    /// # Errors
    /// The fabric failed, or a catalog is corrupted.
    pub fn list_tables(&self) -> Result<Vec<ListedPartition>, Error> {
        self.block_on(self.list())
    }

    /// Returns the sessions, in the order of the parts.
    pub fn sessions(&self) -> &[Session] {
        &self.0.all
    }

    /// Returns the cost of operations of this kind in all pools (FABRIC-9). An operation on several
    /// parts, such as a scan over a bound, counts in each.
    pub fn counters(&self, kind: OperationKind) -> KindCounters {
        let mut sum = KindCounters::default();
        for session in &self.0.all {
            sum += session.counters(kind);
        }
        sum
    }

    /// Returns the cost of the get, `multi_get`, write, `scan_into` or estimate that ended last, in
    /// all pools together. Concurrent round trips to several pools all count. With several
    /// unfinished operations, it is the right one directly after the await that ended it. For
    /// iterators, loads and statistics see [`counters`](Self::counters).
    pub fn last_cost(&self) -> Cost {
        self.0.last_cost.get()
    }

    /// Returns the completions of all pools, for callers that drive many futures concurrently.
    pub fn completions(&self) -> impl Completions {
        AllCompletions::new(&self.0.all, Session::completions)
    }

    /// Runs a future of this session's tables to completion.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.0.drive(future)
    }

    /// Closes the sessions if nothing else keeps them alive, and returns the result.
    ///
    /// # Errors
    /// The first error of [`Session::close`]; the other sessions are closed as far as possible.
    pub fn close(self) -> Result<(), Error> {
        let Some(sessions) = Rc::into_inner(self.0) else {
            return Ok(());
        };
        let mut closed = Ok(());
        for session in sessions.all {
            closed = closed.and(session.close());
        }
        closed
    }

    /// Creates the parts in order; drops them again if one cannot be created.
    async fn create(
        &self,
        name: &str,
        options: &TableOptions,
        bounds: &Bounds,
    ) -> Result<PartitionedTable, Error> {
        let count = self.0.all.len();
        if bounds.part_count() != count {
            return Err(ErrorKind::BadOption {
                option: "number of bounds",
                given: (bounds.part_count() - 1).to_string(),
                allowed: format!("expected {}, one fewer than pools", count - 1),
            }
            .into());
        }
        let table = draw_id()?;
        // In the order of the parts, so that only one of several creators of the same name gets
        // part 0.
        for number in 0..count {
            let range = bounds.range(number);
            let part = PartRecord {
                table,
                number: number as u16,
                count: count as u16,
                low: *range.start(),
                high: *range.end(),
            };
            let session = self.0.all[number].asynchronous();
            if let Err(error) = session.create_part(name, options, part).await {
                let error = self.creation_failed(name, table, number, error).await;
                return Err(self.undo_creation(name, table, number, error).await);
            }
        }
        // The first parts may have been dropped before the last ones existed.
        let opened = self.open(name).await;
        match opened {
            Ok(opened) if opened.info().id == table => return Ok(opened),
            Err(error) if !error.is_incomplete_table() => {
                return Err(self.undo_creation(name, table, count - 1, error).await);
            }
            _ => {}
        }
        let dropped = ErrorKind::TableDropped {
            name: name.to_owned(),
        };
        Err(self
            .undo_creation(name, table, count - 1, dropped.into())
            .await)
    }

    /// Returns the reason why a part could not be created.
    async fn creation_failed(
        &self,
        name: &str,
        table: PartitionedTableId,
        number: usize,
        error: Error,
    ) -> Error {
        let is_taken = matches!(error.kind(), ErrorKind::TableExists { .. });
        let session = self.0.all[number].asynchronous();
        if is_taken
            && let Ok(Some(found)) = session.look_up(name).await
            && let Some(part) = found.part.filter(|part| part.table == table)
        {
            return PartitionError::SamePool {
                first: self.0.address(part.number.into()).to_owned(),
                second: self.0.address(number).to_owned(),
            }
            .into();
        }
        self.0.in_part(name, number, error)
    }

    /// Drops the parts of a table whose creation failed, in reverse order, up to a given part.
    async fn undo_creation(
        &self,
        name: &str,
        table: PartitionedTableId,
        last: usize,
        error: Error,
    ) -> Error {
        let mut failed = None;
        for number in (0..=last).rev() {
            if let Err(error) = self.drop_part(name, table, number).await {
                failed = failed.or(Some(error));
            }
        }
        match failed {
            None => error,
            Some(source) => PartitionError::CreationNotUndone {
                name: name.to_owned(),
                why: error.to_string(),
                source,
            }
            .into(),
        }
    }

    /// Drops a part of this very table, if it exists.
    async fn drop_part(
        &self,
        name: &str,
        table: PartitionedTableId,
        number: usize,
    ) -> Result<(), Error> {
        let session = self.0.all[number].asynchronous();
        match session.drop_part_of(name, table).await {
            Err(error) if matches!(error.kind(), ErrorKind::TableNotFound { .. }) => Ok(()),
            dropped => dropped.map_err(|error| self.0.in_part(name, number, error)),
        }
    }

    /// Opens all parts after checking that they form one complete table.
    async fn open(&self, name: &str) -> Result<PartitionedTable, Error> {
        let sessions = self.0.all.iter();
        let open = sessions.map(|session| session.asynchronous().open_part(name));
        let mut parts = Vec::new();
        for (number, opened) in together(open).await.into_iter().enumerate() {
            parts.push(match opened {
                Ok(table) => Some(Table::new(table)),
                Err(error) if matches!(error.kind(), ErrorKind::TableNotFound { .. }) => None,
                Err(error) => return Err(self.0.in_part(name, number, error)),
            });
        }
        let infos = parts
            .iter()
            .map(|part| part.as_ref().map(|table| table.info().clone()));
        let info = self.found(name, infos.collect()).check()?;
        let parts = parts.into_iter().flatten().collect();
        let table = AsyncPartitionedTable::new(Rc::clone(&self.0), info, parts);
        Ok(PartitionedTable::new(table))
    }

    fn found<'a>(&'a self, name: &'a str, tables: Vec<Option<TableInfo>>) -> FoundParts<'a> {
        let pools = (0..self.0.all.len()).map(|number| self.0.address(number));
        FoundParts {
            name,
            pools: pools.collect(),
            tables,
        }
    }

    /// Looks the name up in all pools. Costs one round trip, all pools at once.
    async fn find_parts<'a>(&'a self, name: &'a str) -> Result<FoundParts<'a>, Error> {
        let sessions = self.0.all.iter();
        let find_parts = sessions.map(|session| session.asynchronous().look_up(name));
        let mut tables = Vec::new();
        for (number, table) in together(find_parts).await.into_iter().enumerate() {
            tables.push(table.map_err(|error| self.0.in_part(name, number, error))?);
        }
        Ok(self.found(name, tables))
    }

    /// Drops parts in reverse order until no pool has one of this identity.
    async fn drop_parts(&self, name: &str) -> Result<(), Error> {
        let mut found = self.find_parts(name).await?;
        let table = found.check_places()?;
        loop {
            let is_of = |part: PartRecord| part.table == table;
            let tables = found.tables.iter().map(Option::as_ref);
            let parts = tables.map(|found| found.and_then(|found| found.part).is_some_and(is_of));
            let there: Vec<bool> = parts.collect();
            if there.iter().all(|is_there| !is_there) {
                return Ok(());
            }
            // In reverse order of creation, so that the name is free only when all parts are gone.
            for number in (0..there.len()).rev().filter(|number| there[*number]) {
                self.drop_part(name, table, number).await?;
            }
            // A concurrent creator may have created more parts.
            found = self.find_parts(name).await?;
        }
    }

    async fn list(&self) -> Result<Vec<ListedPartition>, Error> {
        let sessions = self.0.all.iter();
        let lists = sessions.map(|session| session.asynchronous().list_tables());
        let lists = together(lists).await.into_iter().enumerate();
        let lists = lists.map(|(number, list)| {
            list.map_err(|source| {
                let pool = self.0.address(number).to_owned();
                Error::from(PartitionError::Pool { pool, source })
            })
        });
        let lists: Vec<Vec<TableInfo>> = lists.collect::<Result<_, Error>>()?;
        let parts = lists.iter().flatten().filter(|table| table.part.is_some());
        let names: BTreeSet<&str> = parts.map(|table| table.name.as_str()).collect();
        let listed = names.into_iter().map(|name| {
            let of_name = |list: &Vec<TableInfo>| list.iter().find(|it| it.name == name).cloned();
            ListedPartition {
                name: name.to_owned(),
                found: self
                    .found(name, lists.iter().map(of_name).collect())
                    .check(),
            }
        });
        Ok(listed.collect())
    }
}

/// Draws a random identity that no other table has.
fn draw_id() -> Result<PartitionedTableId, Error> {
    let mut bytes = [0; 8];
    let flags = rustix::rand::GetRandomFlags::empty();
    // The system returns up to 256 bytes completely or not at all.
    rustix::io::retry_on_intr(|| rustix::rand::getrandom(&mut bytes, flags))
        .map_err(|error| PartitionError::NoIdentity(error.into()))?;
    // 0 is not a valid identity.
    Ok(PartitionedTableId(u64::from_le_bytes(bytes).max(1)))
}
