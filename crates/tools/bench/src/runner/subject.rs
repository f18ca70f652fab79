//! Subject of a run: a table of one pool, one over several (`--partitions`), or one of a cluster
//! (`cluster`). Those of byte strings are in `string_table`.

use std::future::Future;

use farleaf::{
    Cost, Error, HintCounters, Insertion, PartitionedPool, PartitionedSession, PartitionedTable,
    Pool, Session, SessionOptions, Table, Update,
};
use farleaf_executor::Completions;

use super::TABLE_NAME;
use super::error::StoreFailure;

/// Result of an update of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UpdateOutcome {
    /// Previous value.
    Previous(u64),
    /// The key was present; its value was not read.
    Present,
    /// The key was absent, and still is.
    Absent,
}

impl From<Update> for UpdateOutcome {
    fn from(update: Update) -> Self {
        match update {
            Update::Updated(previous) => Self::Previous(previous),
            Update::Absent => Self::Absent,
        }
    }
}

/// Session with an open table. By default the table is not in far memory.
pub(super) trait Handle: Sized {
    /// Store in which the table is opened.
    type Place;
    /// Error of its operations.
    type Error: StoreFailure;

    fn open(place: &Self::Place, options: &SessionOptions) -> Result<Self, Self::Error>;
    fn completions(&self) -> impl Completions;
    fn block_on<F: Future>(&self, future: F) -> F::Output;

    /// Returns the cost in far memory of the operation that ended last; `None` if the table is
    /// elsewhere.
    fn last_cost(&self) -> Option<Cost> {
        None
    }

    /// Returns the bytes that the session holds to find leaves; `None` if there are no leaves.
    fn metadata_bytes(&self) -> Option<u64> {
        None
    }

    /// Returns the table's bytes of far memory; `None` if it is elsewhere.
    fn memory_bytes(&self) -> Result<Option<u64>, Self::Error> {
        Ok(None)
    }

    fn hint_counters(&self) -> HintCounters {
        HintCounters::default()
    }

    fn close(self) -> Result<(), Self::Error> {
        Ok(())
    }
}

/// Session with an open table: the operations of the workloads.
pub(super) trait Subject: Handle {
    fn get(&self, key: u64) -> impl Future<Output = Result<Option<u64>, Self::Error>>;
    fn update(
        &self,
        key: u64,
        value: u64,
    ) -> impl Future<Output = Result<UpdateOutcome, Self::Error>>;
    fn insert(&self, key: u64, value: u64) -> impl Future<Output = Result<Insertion, Self::Error>>;
    fn scan_into(
        &self,
        from: u64,
        limit: usize,
        records: &mut Vec<(u64, u64)>,
    ) -> impl Future<Output = Result<(), Self::Error>>;
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

/// Implements the handle of a table in far memory: fields `session`, `table`, opened by `open`, and
/// others, which begin empty.
macro_rules! far_handle {
    ($handle:ty, $place:ty, $open:ident $(, $field:ident)*) => {
        impl Handle for $handle {
            type Place = $place;
            type Error = Error;

            fn open(place: &$place, options: &SessionOptions) -> Result<Self, Error> {
                let session = place.session_with(options)?;
                let table = session.$open(TABLE_NAME)?;
                Ok(Self {
                    session,
                    table,
                    $($field: Default::default(),)*
                })
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

pub(super) use far_handle;

macro_rules! subject {
    ($subject:ty, $place:ty) => {
        far_handle!($subject, $place, open_table);

        impl Subject for $subject {
            #[inline]
            fn get(&self, key: u64) -> impl Future<Output = Result<Option<u64>, Error>> {
                self.table.asynchronous().get(key)
            }

            #[inline]
            async fn update(&self, key: u64, value: u64) -> Result<UpdateOutcome, Error> {
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
        }
    };
}

subject!(OneTable, Pool);
subject!(TableOfParts, PartitionedPool);
