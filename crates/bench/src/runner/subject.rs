//! What a run works on: a table of one pool, or one over several (`--partitions`).

use std::future::Future;

use farleaf::{
    Bounds, Cost, Error, HintCounters, Insertion, PartitionedPool, PartitionedSession,
    PartitionedTable, Pool, Session, SessionOptions, Table, TableOptions, Update,
};
use farleaf_executor::Completions;

use super::TABLE_NAME;

/// A session and the table that it has open: the operations that the workloads ask for.
pub(super) trait Subject: Sized {
    /// What it is opened in.
    type Place;

    fn open(place: &Self::Place, options: &SessionOptions) -> Result<Self, Error>;
    fn get(&self, key: u64) -> impl Future<Output = Result<Option<u64>, Error>>;
    fn update(&self, key: u64, value: u64) -> impl Future<Output = Result<Update, Error>>;
    fn insert(&self, key: u64, value: u64) -> impl Future<Output = Result<Insertion, Error>>;
    fn scan_into(
        &self,
        from: u64,
        limit: usize,
        records: &mut Vec<(u64, u64)>,
    ) -> impl Future<Output = Result<(), Error>>;
    /// What the operation that ended last has cost.
    fn last_cost(&self) -> Cost;
    fn completions(&self) -> impl Completions;
    fn block_on<F: Future>(&self, future: F) -> F::Output;
    fn metadata_bytes(&self) -> u64;
    fn memory_bytes(&self) -> Result<u64, Error>;
    fn hint_counters(&self) -> HintCounters;
    fn close(self) -> Result<(), Error>;
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
            fn update(&self, key: u64, value: u64) -> impl Future<Output = Result<Update, Error>> {
                self.table.asynchronous().update(key, value)
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
            fn last_cost(&self) -> Cost {
                self.session.last_cost()
            }

            fn completions(&self) -> impl Completions {
                self.session.completions()
            }

            #[inline]
            fn block_on<F: Future>(&self, future: F) -> F::Output {
                self.session.block_on(future)
            }

            fn metadata_bytes(&self) -> u64 {
                self.table.metadata_bytes()
            }

            fn memory_bytes(&self) -> Result<u64, Error> {
                self.table.memory_bytes()
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

/// Where the table is.
#[derive(Clone, Debug)]
pub(super) enum Pools {
    One(Pool),
    Several(PartitionedPool),
}

impl Pools {
    /// The only pool, or the first.
    pub(super) fn first(&self) -> &Pool {
        match self {
            Self::One(pool) => pool,
            Self::Several(pools) => &pools.pools()[0],
        }
    }

    /// Makes the table and loads the records; of several pools, each gets as many of them.
    pub(super) fn load(
        &self,
        options: &TableOptions,
        keys: &[u64],
        value_of: impl Fn(u64) -> u64,
        progress: impl FnMut(u64),
    ) -> Result<(), Error> {
        let records = keys.iter().map(|key| (*key, value_of(*key)));
        match self {
            Self::One(pool) => {
                let session = pool.session()?;
                let table = session.create_table(TABLE_NAME, options)?;
                table.bulk_load(records, progress)?;
                drop(table);
                session.close()
            }
            Self::Several(pools) => {
                let bounds = Bounds::of_sample(keys.to_vec(), pools.pools().len())?;
                let session = pools.session()?;
                let table = session.create_table(TABLE_NAME, options, &bounds)?;
                table.bulk_load(records, progress)?;
                drop(table);
                session.close()
            }
        }
    }
}
