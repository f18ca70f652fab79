//! What can go wrong with a table over several pools that cannot go wrong in one.

use thiserror::Error;

use crate::Error;

/// A table over several pools cannot be used, or one of its parts failed. Parts are numbered from
/// 0, in the order of keys.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PartitionError {
    /// An operation failed in one part. Keys of other parts can be used as before.
    #[error("part {number} of table '{name}', in {pool}: {source}")]
    Part {
        /// The table.
        name: String,
        /// Which part of it.
        number: u16,
        /// Where that is.
        pool: String,
        /// What went wrong there.
        source: Error,
    },
    /// A part was to be used as a table by itself.
    #[error(
        "table '{name}' in {pool} is part {number} of {count} of a table over several pools: name \
         all of them, in the order of the parts"
    )]
    IsPart {
        /// The table.
        name: String,
        /// The pool.
        pool: String,
        /// Which part this is.
        number: u16,
        /// Of how many.
        count: u16,
    },
    /// A table by itself was to be used as a part.
    #[error(
        "table '{name}' in {pool} is no part of a table over several pools: name {pool} alone, \
         without --part, or another table"
    )]
    NotPart {
        /// The table.
        name: String,
        /// The pool.
        pool: String,
    },
    /// There are not as many pools as parts.
    #[error(
        "table '{name}' has {count} parts, each in another pool, and {given} pools were named: \
         name all of them, in the order of the parts ({pool} has part {number})"
    )]
    OtherCount {
        /// The table.
        name: String,
        /// How many parts it has.
        count: u16,
        /// How many pools were named.
        given: usize,
        /// A pool that has a part.
        pool: String,
        /// Which one.
        number: u16,
    },
    /// A pool stands in another part's place.
    #[error(
        "{pool} has part {number} of table '{name}' and was named in the place of part {place}: \
         name the pools in the order of the parts"
    )]
    OtherPlace {
        /// The table.
        name: String,
        /// The pool.
        pool: String,
        /// The part that it has.
        number: u16,
        /// Where it stands.
        place: usize,
    },
    /// The pools have parts of different tables of the same name.
    #[error(
        "{first} and {second} have parts of two different tables of the name '{name}': name the \
         pools of one of them (`farleaf table list` shows what a pool has a part of, `farleaf \
         table drop --part` drops one that is left over)"
    )]
    OtherTable {
        /// The name.
        name: String,
        /// A pool.
        first: String,
        /// Another one, with a part of another table.
        second: String,
    },
    /// Parts do not meet: somebody has damaged the catalogs.
    #[error(
        "the parts of table '{name}' do not meet: {pool} has keys from {low} on, where {expected} \
         should be the first; drop the table, and load it again"
    )]
    Gap {
        /// The table.
        name: String,
        /// The pool.
        pool: String,
        /// Where its part begins.
        low: u64,
        /// Where it should.
        expected: u64,
    },
    /// No part has the largest keys: somebody has damaged the catalogs.
    #[error(
        "the parts of table '{name}' end at key {high}, in {pool}, and not at the largest one; \
         drop the table, and load it again"
    )]
    EndsEarly {
        /// The table.
        name: String,
        /// The pool of the last part.
        pool: String,
        /// Where that ends.
        high: u64,
    },
    /// A pool cannot be looked at.
    #[error("in {pool}: {source}")]
    Pool {
        /// The pool.
        pool: String,
        /// What went wrong there.
        source: Error,
    },
    /// Some pools have their part and some do not.
    #[error(
        "table '{name}' is half there: in {present}, but not in {missing}. It is being made or \
         dropped just now, or whoever was at it has died, or a pool was served anew, or is not \
         the one that was meant; if nobody is at it, drop what there is (`farleaf table drop`, \
         with the same pools) and make it again"
    )]
    HalfThere {
        /// The table.
        name: String,
        /// Pools that have their part.
        present: String,
        /// Pools that have not.
        missing: String,
    },
    /// A pool was named twice, by two addresses.
    #[error("{first} and {second} are the same pool; a table has each of its parts in another one")]
    SamePool {
        /// One address.
        first: String,
        /// The other.
        second: String,
    },
    /// A table was not made, and what had been made of it could not be taken back.
    #[error(
        "table '{name}' was not made ({why}), and what there is of it could not be dropped again: \
         {source}; `farleaf table drop`, with the same pools, drops it"
    )]
    NotTakenBack {
        /// The table.
        name: String,
        /// Why it was not made.
        why: String,
        /// Why it is half there.
        source: Error,
    },
    /// A bulk load failed in one part, when others had been loaded: parts appear one after the
    /// other, each at once.
    #[error(
        "the load failed in part {number} of table '{name}', in {pool}: {source}; the parts before \
         it are loaded, {loaded} records, those behind it are as they were, and of part {number} \
         all is there or nothing"
    )]
    PartlyLoaded {
        /// The table.
        name: String,
        /// The part that failed.
        number: u16,
        /// Where that is.
        pool: String,
        /// Records in the parts before it, which are there.
        loaded: u64,
        /// What went wrong.
        source: Error,
    },
    /// There is no number for a new table.
    #[error("cannot draw a number for the table: {0}")]
    NoIdentity(std::io::Error),
}
