//! Tables of either kind and their sessions, in the pool that `--pool` names or over several pools
//! that it lists.

use std::ffi::OsStr;
use std::ops::RangeInclusive;
use std::os::unix::ffi::OsStrExt as _;

use farleaf::key::text::Escaped;
use farleaf::{
    Error, ErrorKind, KindCounters, LoadSummary, OperationKind, PartitionedSession,
    PartitionedTable, Pool, Session, Table,
};

use super::string_table::StringTable;
use crate::cluster_options::DurabilityArgument;
use crate::failure::BadArgument;
use farleaf_bench::quantity::parse_key;

/// Session in one pool, or one in each of several.
pub(super) enum Sessions {
    One(Session),
    Parts(PartitionedSession),
}

/// Table of the kind that the catalog records.
pub(super) enum AnyTable {
    Words(WordTable),
    Bytes(StringTable),
}

/// Table of words, of one pool or over several.
pub(super) enum WordTable {
    One(Table),
    Parts(PartitionedTable),
}

impl AnyTable {
    /// Returns the table with this durability of its writes. Tables of words are not affected: the
    /// option has been rejected before.
    pub(super) fn with_durability(self, durability: DurabilityArgument) -> Self {
        match self {
            Self::Bytes(table) => Self::Bytes(table.with_durability(durability.durability())),
            Self::Words(table) => Self::Words(table),
        }
    }
}

impl Sessions {
    pub(super) fn open_table(&self, name: &str) -> Result<AnyTable, Error> {
        let words = match self {
            Self::One(session) => match session.open_table(name) {
                Err(error) if matches!(error.kind(), ErrorKind::TableOfOtherKind { .. }) => {
                    let table = session.open_byte_table(name)?;
                    return Ok(AnyTable::Bytes(StringTable::Memory(table)));
                }
                opened => WordTable::One(opened?),
            },
            Self::Parts(session) => WordTable::Parts(session.open_table(name)?),
        };
        Ok(AnyTable::Words(words))
    }

    pub(super) fn counters(&self, kind: OperationKind) -> KindCounters {
        match self {
            Self::One(session) => session.counters(kind),
            Self::Parts(session) => session.counters(kind),
        }
    }

    /// Returns the pools, in the order in which they were named.
    pub(super) fn pools(&self) -> Vec<&Pool> {
        match self {
            Self::One(session) => vec![session.pool()],
            Self::Parts(session) => session.sessions().iter().map(Session::pool).collect(),
        }
    }
}

/// Parses an argument as a word.
///
/// # Errors
/// The argument is not an unsigned 64-bit integer.
pub(super) fn read_word(table: &str, role: &str, argument: &OsStr) -> Result<u64, BadArgument> {
    let parsed = argument.to_str().map(parse_key);
    parsed.and_then(Result::ok).ok_or_else(|| {
        BadArgument(format!(
            "invalid value '{}' for the {role} in table '{table}', which holds 64-bit words: \
             expected a whole number from 0 to {}",
            Escaped(argument.as_bytes()),
            u64::MAX
        ))
    })
}

/// Rejects a given option that only tables of bytes support.
pub(super) fn refuse_for_words<'a>(
    table: &WordTable,
    options: impl IntoIterator<Item = Option<&'a str>>,
) -> Result<(), BadArgument> {
    let Some(option) = options.into_iter().flatten().next() else {
        return Ok(());
    };
    Err(BadArgument(format!(
        "{option} cannot be used with table '{}', which holds 64-bit words, not byte strings; leave it \
         out",
        table.name()
    )))
}

impl WordTable {
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

    /// Returns the records in this range of keys, ascending or descending.
    pub(super) fn range(
        &self,
        range: RangeInclusive<u64>,
        is_reverse: bool,
    ) -> Box<dyn Iterator<Item = Result<(u64, u64), Error>>> {
        match (self, is_reverse) {
            (Self::One(table), false) => Box::new(table.range(range)),
            (Self::One(table), true) => Box::new(table.range_reverse(range)),
            (Self::Parts(table), false) => Box::new(table.range(range)),
            (Self::Parts(table), true) => Box::new(table.range_reverse(range)),
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
