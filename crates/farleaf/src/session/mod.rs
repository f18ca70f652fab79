//! Access of one thread to a pool: blocking calls here, futures in [`AsyncSession`], and the state
//! that both share in [`SessionCore`].

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
pub(crate) use catalog::{KnownSessionCheck, read_catalog};

use farleaf_key::{Key, Value};

use crate::Error;
use crate::bytes::{ByteTable, TypedTable};
use crate::options::{SessionOptions, TableInfo, TableOptions};
use crate::pool::Pool;
use crate::table::Table;

/// Access of one thread to a pool. Tables opened through it keep it alive. When the session and all
/// of its tables are dropped, it returns leased memory and closes.
#[derive(Debug)]
pub struct Session(AsyncSession);

impl Session {
    pub(crate) fn open(pool: Pool, options: &SessionOptions) -> Result<Self, Error> {
        let owner = pool.0.control.register_session()?;
        let endpoint = pool.endpoint(Some(owner));
        let endpoint = match endpoint {
            Ok(endpoint) => endpoint,
            Err(error) => {
                // The session holds nothing; if closing fails too, it ends with the process.
                let _ = pool.0.control.close_session(owner);
                return Err(error);
            }
        };
        let session = AsyncSession::with_options(pool, endpoint, owner, options);
        Ok(Self(session))
    }

    /// Returns the same session with operations as futures.
    pub fn asynchronous(&self) -> &AsyncSession {
        &self.0
    }

    /// Creates an empty table and opens it; see [`AsyncSession::create_table`].
    ///
    /// # Errors
    /// The same as those of [`AsyncSession::create_table`].
    pub fn create_table(&self, name: &str, options: &TableOptions) -> Result<Table, Error> {
        let table = self.block_on(self.0.create_table(name, options));
        table.map(Table::new)
    }

    /// Opens a table; see [`AsyncSession::open_table`].
    ///
    /// # Errors
    /// The same as those of [`AsyncSession::open_table`].
    pub fn open_table(&self, name: &str) -> Result<Table, Error> {
        self.block_on(self.0.open_table(name)).map(Table::new)
    }

    /// Creates a table of byte strings; see [`AsyncSession::create_byte_table`].
    ///
    /// # Errors
    /// The same as those of [`AsyncSession::create_table`].
    pub fn create_byte_table(
        &self,
        name: &str,
        options: &TableOptions,
    ) -> Result<ByteTable, Error> {
        let table = self.block_on(self.0.create_byte_table(name, options));
        table.map(ByteTable::new)
    }

    /// Opens a table of byte strings; see [`AsyncSession::open_byte_table`].
    ///
    /// # Errors
    /// The same as those of [`AsyncSession::open_byte_table`].
    pub fn open_byte_table(&self, name: &str) -> Result<ByteTable, Error> {
        let table = self.block_on(self.0.open_byte_table(name));
        table.map(ByteTable::new)
    }

    /// Creates a table like [`create_byte_table`](Self::create_byte_table), with keys and values of
    /// Rust types.
    ///
    /// # Errors
    /// The same as those of [`AsyncSession::create_table`].
    pub fn create_typed_table<K: Key, V: Value>(
        &self,
        name: &str,
        options: &TableOptions,
    ) -> Result<TypedTable<K, V>, Error> {
        self.create_byte_table(name, options).map(TypedTable::new)
    }

    /// Opens a table like [`open_byte_table`](Self::open_byte_table), with keys and values of the
    /// Rust types with which it was written.
    ///
    /// # Errors
    /// The same as those of [`AsyncSession::open_byte_table`].
    pub fn open_typed_table<K: Key, V: Value>(
        &self,
        name: &str,
    ) -> Result<TypedTable<K, V>, Error> {
        self.open_byte_table(name).map(TypedTable::new)
    }

    /// Opens an ordinary table or a part; see [`AsyncSession::open_part`].
    ///
    /// # Errors
    /// The same as those of [`AsyncSession::open_part`].
    pub fn open_part(&self, name: &str) -> Result<Table, Error> {
        self.block_on(self.0.open_part(name)).map(Table::new)
    }

    /// Drops a table; see [`AsyncSession::drop_table`].
    ///
    /// # Errors
    /// The same as those of [`AsyncSession::drop_table`].
    pub fn drop_table(&self, name: &str) -> Result<(), Error> {
        self.block_on(self.0.drop_table(name))
    }

    /// Drops the part that this pool has of a table over several pools; see
    /// [`AsyncSession::drop_part`].
    ///
    /// # Errors
    /// The same as those of [`AsyncSession::drop_part`].
    pub fn drop_part(&self, name: &str) -> Result<(), Error> {
        self.block_on(self.0.drop_part(name))
    }

    /// Returns all tables; see [`AsyncSession::list_tables`].
    ///
    /// # Errors
    /// The same as those of [`AsyncSession::list_tables`].
    pub fn list_tables(&self) -> Result<Vec<TableInfo>, Error> {
        self.block_on(self.0.list_tables())
    }

    /// Returns the completions of the session's operations; see [`AsyncSession::completions`].
    pub fn completions(&self) -> impl Completions {
        self.0.completions()
    }

    /// Returns the session's pool.
    pub fn pool(&self) -> &Pool {
        self.0.host()
    }

    /// Returns the cost of this session's operations of this kind (FABRIC-9).
    pub fn counters(&self, kind: OperationKind) -> KindCounters {
        self.0.counters(kind)
    }

    /// Returns the cost of the operation that ended last. With several unfinished operations, it is
    /// the right one directly after the await that ended it.
    pub fn last_cost(&self) -> Cost {
        self.0.last_cost()
    }

    /// Runs a future of this session's tables to completion.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.0.core().drive(future)
    }

    /// Closes the session if nothing else keeps it alive, and returns the result. Dropping the
    /// session does the same and logs errors.
    ///
    /// # Errors
    /// Leased memory could not be returned, or the memory node cannot be reached; the node then
    /// sweeps the session when the process ends.
    pub fn close(self) -> Result<(), Error> {
        if !self.0.is_last() {
            return Ok(());
        }
        self.block_on(self.0.close())
    }
}
