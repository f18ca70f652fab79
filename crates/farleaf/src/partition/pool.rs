//! Pools over which a table is partitioned.

use std::sync::Arc;

use super::bounds::check_part_count;
use super::{PartitionError, PartitionedSession};
use crate::options::SessionOptions;
use crate::{ConnectOptions, Error, ErrorKind, Pool, Session};

/// Largest number of parts of a table.
pub const PART_COUNT_MAX: usize = 256;

/// Several pools, in the order of the parts; each has one part of every table. Clones share the
/// same pools.
///
/// ```
/// use farleaf::{Bounds, PartitionedPool, Pool, TableOptions};
///
/// # fn main() -> Result<(), farleaf::Error> {
/// let pools = PartitionedPool::new(vec![Pool::open("mem:")?, Pool::open("mem:")?])?;
/// let session = pools.session()?;
/// let bounds = Bounds::new(vec![4])?; // 0 to 3 in the first pool, the others in the second
/// let table = session.create_table("planets", &TableOptions::default(), &bounds)?;
/// table.put(3, 12_742)?;
/// table.put(5, 139_820)?;
/// assert_eq!(table.multi_get(&[5, 3])?, [Some(139_820), Some(12_742)]);
/// let records: Result<Vec<_>, _> = table.range(..).collect();
/// assert_eq!(records?, [(3, 12_742), (5, 139_820)]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct PartitionedPool(Vec<Pool>);

impl PartitionedPool {
    /// Opens pools by their addresses ([`Pool::open`]).
    ///
    /// # Errors
    /// The same as those of [`Pool::open`]; also if there are fewer than 2 or more than
    /// [`PART_COUNT_MAX`] addresses, or one twice.
    pub fn open(addresses: &[&str]) -> Result<Self, Error> {
        Self::open_with(addresses, &ConnectOptions::default())
    }

    /// Opens pools like [`open`](Self::open), with the same options for all pools on the network.
    ///
    /// # Errors
    /// The same as those of [`open`](Self::open) and [`Pool::open_with`].
    pub fn open_with(addresses: &[&str], options: &ConnectOptions) -> Result<Self, Error> {
        check_part_count(addresses.len())?;
        for (place, address) in addresses.iter().enumerate() {
            // Each `mem:` is a new pool, so it may occur several times.
            if *address != "mem:" && addresses[..place].contains(address) {
                return Err(ErrorKind::BadOption {
                    option: "pool",
                    given: format!("'{address}', given twice"),
                    allowed: "each part of a table must be in a different pool".to_owned(),
                }
                .into());
            }
        }
        let open = |address: &&str| Pool::open_with(address, options);
        let pools: Result<Vec<Pool>, Error> = addresses.iter().map(open).collect();
        Self::new(pools?)
    }

    /// Combines pools that are already open.
    ///
    /// # Errors
    /// There are fewer than 2 or more than [`PART_COUNT_MAX`] pools, or one twice.
    pub fn new(pools: Vec<Pool>) -> Result<Self, Error> {
        check_part_count(pools.len())?;
        for (place, pool) in pools.iter().enumerate() {
            let same = |before: &&Pool| Arc::ptr_eq(&before.0, &pool.0);
            if let Some(first) = pools[..place].iter().find(same) {
                return Err(PartitionError::SamePool {
                    first: first.info().address,
                    second: pool.info().address,
                }
                .into());
            }
        }
        Ok(Self(pools))
    }

    /// Returns the pools, in the order of the parts.
    pub fn pools(&self) -> &[Pool] {
        &self.0
    }

    /// Registers a session in each pool: the access of one thread to all of them.
    ///
    /// # Errors
    /// A memory node cannot be reached, or has no free session.
    pub fn session(&self) -> Result<PartitionedSession, Error> {
        self.session_with(&SessionOptions::default())
    }

    /// Registers sessions like [`session`](Self::session), with the same options for all pools; a
    /// metadata budget applies to each part separately.
    ///
    /// # Errors
    /// The same as those of [`session`](Self::session).
    pub fn session_with(&self, options: &SessionOptions) -> Result<PartitionedSession, Error> {
        let sessions = self.0.iter().map(|pool| pool.session_with(options));
        let sessions: Result<Vec<Session>, Error> = sessions.collect();
        Ok(PartitionedSession::new(sessions?))
    }
}
