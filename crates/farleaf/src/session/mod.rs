//! One thread's way into a pool: as blocking calls here, as futures in [`AsyncSession`], and what
//! both stand on in [`SessionCore`].

mod asynchronous;
mod base;
mod calls;
mod catalog;
mod follow;
mod listings;

use std::future::Future;

use farleaf_executor::Completions;
use farleaf_fabric::{Cost, KindCounters, OperationKind};

pub use asynchronous::AsyncSession;
pub(crate) use base::{SessionCore, TableState};
pub(crate) use catalog::{Known, read_catalog};

use farleaf_key::{Key, Value};

use crate::Error;
use crate::bytes::{ByteTable, TypedTable};
use crate::options::{SessionOptions, TableInfo, TableOptions};
use crate::pool::Pool;
use crate::table::Table;

/// One thread's way into a pool. Tables opened through it keep it alive; when the last of them and
/// the session itself are dropped, it gives back what it leased and closes.
#[derive(Debug)]
pub struct Session(AsyncSession);

impl Session {
    pub(crate) fn open(pool: Pool, options: &SessionOptions) -> Result<Self, Error> {
        let owner = pool.0.control.register_session()?;
        let endpoint = pool.endpoint(Some(owner));
        let endpoint = match endpoint {
            Ok(endpoint) => endpoint,
            Err(error) => {
                // Whether that can be told or not, it has nothing, and ends with the process.
                let _ = pool.0.control.close_session(owner);
                return Err(error);
            }
        };
        let session = AsyncSession::with_options(pool, endpoint, owner, options);
        Ok(Self(session))
    }

    /// The same session, with futures.
    pub fn asynchronous(&self) -> &AsyncSession {
        &self.0
    }

    /// See [`AsyncSession::create_table`].
    ///
    /// # Errors
    /// See [`AsyncSession::create_table`].
    pub fn create_table(&self, name: &str, options: &TableOptions) -> Result<Table, Error> {
        let table = self.block_on(self.0.create_table(name, options));
        table.map(Table::new)
    }

    /// See [`AsyncSession::open_table`].
    ///
    /// # Errors
    /// See [`AsyncSession::open_table`].
    pub fn open_table(&self, name: &str) -> Result<Table, Error> {
        self.block_on(self.0.open_table(name)).map(Table::new)
    }

    /// See [`AsyncSession::create_byte_table`].
    ///
    /// # Errors
    /// See [`AsyncSession::create_table`].
    pub fn create_byte_table(
        &self,
        name: &str,
        options: &TableOptions,
    ) -> Result<ByteTable, Error> {
        let table = self.block_on(self.0.create_byte_table(name, options));
        table.map(ByteTable::new)
    }

    /// See [`AsyncSession::open_byte_table`].
    ///
    /// # Errors
    /// See [`AsyncSession::open_byte_table`].
    pub fn open_byte_table(&self, name: &str) -> Result<ByteTable, Error> {
        let table = self.block_on(self.0.open_byte_table(name));
        table.map(ByteTable::new)
    }

    /// [`create_byte_table`](Self::create_byte_table), with keys and values of Rust's types.
    ///
    /// # Errors
    /// See [`AsyncSession::create_table`].
    pub fn create_typed_table<K: Key, V: Value>(
        &self,
        name: &str,
        options: &TableOptions,
    ) -> Result<TypedTable<K, V>, Error> {
        self.create_byte_table(name, options).map(TypedTable::new)
    }

    /// [`open_byte_table`](Self::open_byte_table), with keys and values of Rust's types: those that
    /// it was written with.
    ///
    /// # Errors
    /// See [`AsyncSession::open_byte_table`].
    pub fn open_typed_table<K: Key, V: Value>(
        &self,
        name: &str,
    ) -> Result<TypedTable<K, V>, Error> {
        self.open_byte_table(name).map(TypedTable::new)
    }

    /// See [`AsyncSession::open_part`].
    ///
    /// # Errors
    /// See [`AsyncSession::open_part`].
    pub fn open_part(&self, name: &str) -> Result<Table, Error> {
        self.block_on(self.0.open_part(name)).map(Table::new)
    }

    /// See [`AsyncSession::drop_table`].
    ///
    /// # Errors
    /// See [`AsyncSession::drop_table`].
    pub fn drop_table(&self, name: &str) -> Result<(), Error> {
        self.block_on(self.0.drop_table(name))
    }

    /// See [`AsyncSession::drop_part`].
    ///
    /// # Errors
    /// See [`AsyncSession::drop_part`].
    pub fn drop_part(&self, name: &str) -> Result<(), Error> {
        self.block_on(self.0.drop_part(name))
    }

    /// See [`AsyncSession::list_tables`].
    ///
    /// # Errors
    /// See [`AsyncSession::list_tables`].
    pub fn list_tables(&self) -> Result<Vec<TableInfo>, Error> {
        self.block_on(self.0.list_tables())
    }

    /// See [`AsyncSession::completions`].
    pub fn completions(&self) -> impl Completions {
        self.0.completions()
    }

    /// The pool.
    pub fn pool(&self) -> &Pool {
        self.0.host()
    }

    /// What operations of this kind have cost on this session (F9).
    pub fn counters(&self, kind: OperationKind) -> KindCounters {
        self.0.counters(kind)
    }

    /// What the operation that ended last has cost. With several operations under way, it is the
    /// right one directly after the await that ended it.
    pub fn last_cost(&self) -> Cost {
        self.0.last_cost()
    }

    /// Runs a future of this session's tables to its end.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.0.core().drive(future)
    }

    /// Closes the session if nothing else keeps it alive, and tells whether that went well;
    /// dropping it does the same and logs what went wrong.
    ///
    /// # Errors
    /// What it leased could not be given back, or the memory node cannot be reached; the node then
    /// sweeps it when the process ends.
    pub fn close(self) -> Result<(), Error> {
        if !self.0.is_last() {
            return Ok(());
        }
        self.block_on(self.0.close())
    }
}
