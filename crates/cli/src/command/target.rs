//! A table, and the sessions that lead to it: in the pool that `--pool` names, or over the several
//! that it lists.

use std::ops::RangeInclusive;

use farleaf::{
    Error, KindCounters, LoadSummary, OperationKind, PartitionedSession, PartitionedTable, Pool,
    Session, Table,
};

/// A session in one pool, or one in each of several.
pub(super) enum Sessions {
    One(Session),
    Parts(PartitionedSession),
}

/// A table of one pool, or one over several.
pub(super) enum AnyTable {
    One(Table),
    Parts(PartitionedTable),
}

impl Sessions {
    pub(super) fn open_table(&self, name: &str) -> Result<AnyTable, Error> {
        Ok(match self {
            Self::One(session) => AnyTable::One(session.open_table(name)?),
            Self::Parts(session) => AnyTable::Parts(session.open_table(name)?),
        })
    }

    pub(super) fn counters(&self, kind: OperationKind) -> KindCounters {
        match self {
            Self::One(session) => session.counters(kind),
            Self::Parts(session) => session.counters(kind),
        }
    }

    /// The pools, in the order in which they were named.
    pub(super) fn pools(&self) -> Vec<&Pool> {
        match self {
            Self::One(session) => vec![session.pool()],
            Self::Parts(session) => session.sessions().iter().map(Session::pool).collect(),
        }
    }
}

impl AnyTable {
    pub(super) fn name(&self) -> &str {
        match self {
            Self::One(table) => &table.info().name,
            Self::Parts(table) => &table.info().name,
        }
    }

    pub(super) fn get(&self, key: u64) -> Result<Option<u64>, Error> {
        match self {
            Self::One(table) => table.get(key),
            Self::Parts(table) => table.get(key),
        }
    }

    pub(super) fn multi_get(&self, keys: &[u64]) -> Result<Vec<Option<u64>>, Error> {
        match self {
            Self::One(table) => table.multi_get(keys),
            Self::Parts(table) => table.multi_get(keys),
        }
    }

    pub(super) fn put(&self, key: u64, value: u64) -> Result<Option<u64>, Error> {
        match self {
            Self::One(table) => table.put(key, value),
            Self::Parts(table) => table.put(key, value),
        }
    }

    pub(super) fn delete(&self, key: u64) -> Result<Option<u64>, Error> {
        match self {
            Self::One(table) => table.delete(key),
            Self::Parts(table) => table.delete(key),
        }
    }

    /// Its records with these keys, ascending.
    pub(super) fn range(
        &self,
        range: RangeInclusive<u64>,
    ) -> Box<dyn Iterator<Item = Result<(u64, u64), Error>>> {
        match self {
            Self::One(table) => Box::new(table.range(range)),
            Self::Parts(table) => Box::new(table.range(range)),
        }
    }

    pub(super) fn bulk_load(
        &self,
        records: impl IntoIterator<Item = (u64, u64)>,
        progress: impl FnMut(u64),
    ) -> Result<LoadSummary, Error> {
        match self {
            Self::One(table) => table.bulk_load(records, progress),
            Self::Parts(table) => table.bulk_load(records, progress),
        }
    }
}
