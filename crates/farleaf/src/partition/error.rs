//! Errors that only tables over several pools have.

use thiserror::Error;

use crate::Error;

/// Error of a table over several pools: it cannot be used, or an operation failed in one part.
/// Parts are numbered from 0, in key order.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PartitionError {
    /// An operation failed in one part. Keys of other parts remain usable.
    #[error("part {number} of table '{name}', in {pool}: {source}")]
    Part {
        /// Name of the table.
        name: String,
        /// Number of the part.
        number: u16,
        /// Address of the part's pool.
        pool: String,
        /// Cause of the failure.
        source: Error,
    },
    /// A part was opened as an ordinary table.
    #[error(
        "table '{name}' in {pool} is part {number} of {count} of a table over several pools; give \
         all of them, in the order of the parts"
    )]
    IsPart {
        /// Name of the table.
        name: String,
        /// Address of the pool.
        pool: String,
        /// Number of the part.
        number: u16,
        /// Number of parts of the table.
        count: u16,
    },
    /// An ordinary table was opened as a part.
    #[error(
        "table '{name}' in {pool} is not part of a table over several pools; give {pool} alone, \
         without --part, or another table"
    )]
    NotPart {
        /// Name of the table.
        name: String,
        /// Address of the pool.
        pool: String,
    },
    /// The number of pools differs from the number of parts.
    #[error(
        "table '{name}' has {count} parts, each in a different pool, but {given} pools were given; \
         give all of them, in the order of the parts ({pool} has part {number})"
    )]
    OtherCount {
        /// Name of the table.
        name: String,
        /// Number of parts of the table.
        count: u16,
        /// Number of pools that were given.
        given: usize,
        /// Address of a pool that has a part.
        pool: String,
        /// Number of that part.
        number: u16,
    },
    /// A pool was given at another part's position.
    #[error(
        "{pool} has part {number} of table '{name}', but was given as part {place}; give the pools \
         in the order of the parts"
    )]
    OtherPlace {
        /// Name of the table.
        name: String,
        /// Address of the pool.
        pool: String,
        /// Number of the part that the pool has.
        number: u16,
        /// Position at which the pool was given.
        place: usize,
    },
    /// The pools have parts of different tables of the same name.
    #[error(
        "{first} and {second} have parts of two different tables named '{name}'; give the pools of \
         one of them (`farleaf table list` shows the parts in a pool, `farleaf table drop --part` \
         drops a leftover part)"
    )]
    OtherTable {
        /// Name of the tables.
        name: String,
        /// Address of a pool.
        first: String,
        /// Address of another pool, with a part of another table.
        second: String,
    },
    /// Two parts are not adjacent: the catalogs are corrupted.
    #[error(
        "the parts of table '{name}' are not adjacent: expected {pool} to have keys from \
         {expected} on, found {low}; drop the table, then load it again"
    )]
    Gap {
        /// Name of the table.
        name: String,
        /// Address of the pool.
        pool: String,
        /// First key of the pool's part.
        low: u64,
        /// Expected first key.
        expected: u64,
    },
    /// The last part does not end at the largest key: the catalogs are corrupted.
    #[error(
        "the parts of table '{name}' end at key {high}, in {pool}, instead of the largest key; \
         drop the table, then load it again"
    )]
    EndsEarly {
        /// Name of the table.
        name: String,
        /// Address of the last part's pool.
        pool: String,
        /// Last key of the last part.
        high: u64,
    },
    /// A pool cannot be read.
    #[error("cannot read {pool}: {source}")]
    Pool {
        /// Address of the pool.
        pool: String,
        /// Cause of the failure.
        source: Error,
    },
    /// Some pools have their part and some do not.
    #[error(
        "table '{name}' is incomplete: found in {present}, missing in {missing}; either a process \
         is creating or dropping it now, or that process died, or a pool was restarted, or a wrong \
         pool was given; if no process is creating or dropping it, drop the remaining parts with \
         `farleaf table drop` and the same pools, then create it again"
    )]
    HalfThere {
        /// Name of the table.
        name: String,
        /// Addresses of the pools that have their part.
        present: String,
        /// Addresses of the pools that do not.
        missing: String,
    },
    /// A pool was given twice, by two addresses.
    #[error(
        "{first} and {second} are the same pool; each part of a table must be in a different pool"
    )]
    SamePool {
        /// First address.
        first: String,
        /// Second address.
        second: String,
    },
    /// A table could not be created, and the parts that had been created could not be dropped.
    #[error(
        "table '{name}' was not created ({why}), and the parts created so far could not be \
         dropped: {source}; drop them with `farleaf table drop` and the same pools"
    )]
    CreationNotUndone {
        /// Name of the table.
        name: String,
        /// Reason why the table could not be created.
        why: String,
        /// Reason why its parts could not be dropped.
        source: Error,
    },
    /// A bulk load failed in one part after others had been loaded. Each part's records appear at
    /// once, one part after the other.
    #[error(
        "the load failed in part {number} of table '{name}', in {pool}: {source}; the parts before \
         it are loaded ({loaded} records), the parts after it are unchanged, and part {number} is \
         loaded completely or not at all"
    )]
    PartlyLoaded {
        /// Name of the table.
        name: String,
        /// Number of the part that failed.
        number: u16,
        /// Address of that part's pool.
        pool: String,
        /// Records in the parts before it, which are loaded.
        loaded: u64,
        /// Cause of the failure.
        source: Error,
    },
    /// The system has no random number for a new table's identity.
    #[error("cannot generate a random number for the table: {0}")]
    NoIdentity(std::io::Error),
}
