//! Making, opening, listing and dropping tables over several pools (O3 to O6).

use std::cell::Cell;
use std::collections::BTreeSet;
use std::future::Future;
use std::rc::Rc;

use farleaf_executor::{Completions, block_on};
use farleaf_fabric::{Cost, KindCounters, OperationKind};
use farleaf_region::part::{PartRecord, PartitionedTableId};

use super::agreement::{Found, ListedPartition};
use super::together::{AllCompletions, together};
use super::{AsyncPartitionedTable, Bounds, PartitionError, PartitionedTable};
use crate::options::{TableInfo, TableOptions};
use crate::table::Table;
use crate::{Error, ErrorKind, Session};

/// A session in each pool, and what their operations cost together.
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
        block_on(future, AllCompletions::new(&self.all))
    }

    /// The same failure, with the part that it is of.
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

/// One thread's way into several pools: a session in each. Tables opened through it keep it alive.
#[derive(Debug)]
pub struct PartitionedSession(Rc<Sessions>);

impl PartitionedSession {
    pub(super) fn new(sessions: Vec<Session>) -> Self {
        let last_cost = Cell::default();
        let all = sessions;
        Self(Rc::new(Sessions { all, last_cost }))
    }

    /// Makes an empty table, a part in each pool, and opens it.
    ///
    /// # Errors
    /// As for [`Session::create_table`], with the part where it failed: what had been made is
    /// dropped again then, or the error says that it could not be
    /// ([`PartitionError::NotTakenBack`]). There are not as many parts as pools
    /// ([`ErrorKind::BadOption`]).
    pub fn create_table(
        &self,
        name: &str,
        options: &TableOptions,
        bounds: &Bounds,
    ) -> Result<PartitionedTable, Error> {
        self.block_on(self.create(name, options, bounds))
    }

    /// Opens a table, when what the pools have of it agrees (O5). All parts at once, each of which
    /// costs what [`Session::open_table`] does.
    ///
    /// # Errors
    /// As for [`Session::open_table`]; the pools have not all parts of one table, each in its
    /// place, and [`PartitionError`] says what they have.
    pub fn open_table(&self, name: &str) -> Result<PartitionedTable, Error> {
        self.block_on(self.open(name))
    }

    /// Drops a table, all its parts, or what there is of one that is half there.
    ///
    /// # Errors
    /// There is none of it, or what there is are not parts of one table, each in its place. A part
    /// could not be dropped: those before it are still there, and it can be tried again.
    pub fn drop_table(&self, name: &str) -> Result<(), Error> {
        self.block_on(self.drop_parts(name))
    }

    /// All tables over several pools of which any of these has a part, by name; those that these
    /// pools cannot open as they were named, with the reason. Tables of a pool by itself are not
    /// among them ([`Session::list_tables`]).
    ///
    /// # Errors
    /// The fabric failed, or a catalog is damaged.
    pub fn list_tables(&self) -> Result<Vec<ListedPartition>, Error> {
        self.block_on(self.list())
    }

    /// The sessions, in the order of the parts.
    pub fn sessions(&self) -> &[Session] {
        &self.0.all
    }

    /// What operations of this kind have cost in all pools (F9). One on several parts, as a scan
    /// over a bound, counts in each.
    pub fn counters(&self, kind: OperationKind) -> KindCounters {
        let mut sum = KindCounters::default();
        for session in &self.0.all {
            sum += session.counters(kind);
        }
        sum
    }

    /// What the get, `multi_get`, write, `scan_into` or estimate that ended last has cost, in all
    /// pools together: round trips to several pools at once are counted each. With several under
    /// way, it is the right one directly after the await that ended it. Of iterators, loads and
    /// statistics [`counters`](Self::counters) tell.
    pub fn last_cost(&self) -> Cost {
        self.0.last_cost.get()
    }

    /// Where the completions of all pools come from, for whoever drives many futures at once.
    pub fn completions(&self) -> impl Completions {
        AllCompletions::new(&self.0.all)
    }

    /// Runs a future of its tables to its end.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.0.drive(future)
    }

    /// Closes the sessions if nothing else keeps them alive, and tells whether that went well.
    ///
    /// # Errors
    /// The first that [`Session::close`] has; all are closed as far as they can be.
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

    /// O3, O4.
    async fn create(
        &self,
        name: &str,
        options: &TableOptions,
        bounds: &Bounds,
    ) -> Result<PartitionedTable, Error> {
        let count = self.0.all.len();
        if bounds.part_count() != count {
            return Err(ErrorKind::BadOption {
                option: "bounds",
                given: format!("for {} parts", bounds.part_count()),
                allowed: format!("{count} pools have {count} parts, and one bound fewer"),
            }
            .into());
        }
        let table = draw_id()?;
        // In the order of the parts: of two that make a table of this name, one finds part 0 taken.
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
                let error = self.creation_failed(name, (table, number), error).await;
                return Err(self.take_back(name, (table, number), error).await);
            }
        }
        // Somebody may have dropped the first parts before the last ones were there (O6).
        let opened = self.open(name).await;
        match opened {
            Ok(made) if made.info().id == table => return Ok(made),
            Err(error) if !error.is_no_whole_table() => {
                return Err(self.take_back(name, (table, count - 1), error).await);
            }
            _ => {}
        }
        let dropped = ErrorKind::TableDropped {
            name: name.to_owned(),
        };
        let made = (table, count - 1);
        Err(self.take_back(name, made, dropped.into()).await)
    }

    /// Why a part could not be made.
    async fn creation_failed(
        &self,
        name: &str,
        (table, number): (PartitionedTableId, usize),
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

    /// O4: drops what was made of a table, up to a part, as making it has failed.
    async fn take_back(
        &self,
        name: &str,
        (table, last): (PartitionedTableId, usize),
        error: Error,
    ) -> Error {
        let mut failed = None;
        for number in (0..=last).rev() {
            if let Err(error) = self.drop_part(name, (table, number)).await {
                failed = failed.or(Some(error));
            }
        }
        match failed {
            None => error,
            Some(source) => PartitionError::NotTakenBack {
                name: name.to_owned(),
                why: error.to_string(),
                source,
            }
            .into(),
        }
    }

    /// Drops a part of this very table, if it is there.
    async fn drop_part(
        &self,
        name: &str,
        (table, number): (PartitionedTableId, usize),
    ) -> Result<(), Error> {
        let session = self.0.all[number].asynchronous();
        match session.drop_part_of(name, table).await {
            Err(error) if matches!(error.kind(), ErrorKind::TableNotFound { .. }) => Ok(()),
            dropped => dropped.map_err(|error| self.0.in_part(name, number, error)),
        }
    }

    /// O5.
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

    fn found<'a>(&'a self, name: &'a str, tables: Vec<Option<TableInfo>>) -> Found<'a> {
        let pools = (0..self.0.all.len()).map(|number| self.0.address(number));
        Found {
            name,
            pools: pools.collect(),
            tables,
        }
    }

    /// What each pool has of this name. One round trip, all pools at once.
    async fn look<'a>(&'a self, name: &'a str) -> Result<Found<'a>, Error> {
        let sessions = self.0.all.iter();
        let look = sessions.map(|session| session.asynchronous().look_up(name));
        let mut tables = Vec::new();
        for (number, table) in together(look).await.into_iter().enumerate() {
            tables.push(table.map_err(|error| self.0.in_part(name, number, error))?);
        }
        Ok(self.found(name, tables))
    }

    /// O6.
    async fn drop_parts(&self, name: &str) -> Result<(), Error> {
        let mut found = self.look(name).await?;
        let table = found.check_places()?;
        loop {
            let is_of = |part: PartRecord| part.table == table;
            let tables = found.tables.iter().map(Option::as_ref);
            let parts = tables.map(|found| found.and_then(|found| found.part).is_some_and(is_of));
            let there: Vec<bool> = parts.collect();
            if there.iter().all(|is_there| !is_there) {
                return Ok(());
            }
            // In the other order than they are made: the name is free when all are gone.
            for number in (0..there.len()).rev().filter(|number| there[*number]) {
                self.drop_part(name, (table, number)).await?;
            }
            // Whoever is making it just now may have made more of it.
            found = self.look(name).await?;
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

/// An identity that no other table has had.
fn draw_id() -> Result<PartitionedTableId, Error> {
    let mut bytes = [0; 8];
    let flags = rustix::rand::GetRandomFlags::empty();
    // Up to 256 bytes the system gives all or nothing.
    rustix::io::retry_on_intr(|| rustix::rand::getrandom(&mut bytes, flags))
        .map_err(|error| PartitionError::NoIdentity(error.into()))?;
    // 0 is no identity.
    Ok(PartitionedTableId(u64::from_le_bytes(bytes).max(1)))
}
