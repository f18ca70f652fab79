//! The pools that a table is over.

use std::sync::Arc;

use super::bounds::check_part_count;
use super::{PartitionError, PartitionedSession};
use crate::options::SessionOptions;
use crate::{ConnectOptions, Error, ErrorKind, Pool, Session};

/// The most parts that a table has.
pub const PART_COUNT_MAX: usize = 256;

/// Several pools, each of which has a part of the same tables, in the order of the parts. Clones
/// are the same pools.
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
    /// As for [`Pool::open`]; there are fewer than 2 or more than [`PART_COUNT_MAX`], or one twice.
    pub fn open(addresses: &[&str]) -> Result<Self, Error> {
        Self::open_with(addresses, &ConnectOptions::default())
    }

    /// [`open`](Self::open), with what pools on the network want to know, the same for all.
    ///
    /// # Errors
    /// As for [`open`](Self::open) and [`Pool::open_with`].
    pub fn open_with(addresses: &[&str], options: &ConnectOptions) -> Result<Self, Error> {
        check_part_count(addresses.len())?;
        for (place, address) in addresses.iter().enumerate() {
            // Each `mem:` is a new one.
            if *address != "mem:" && addresses[..place].contains(address) {
                return Err(ErrorKind::BadOption {
                    option: "pool",
                    given: format!("'{address}', twice"),
                    allowed: "a table has each of its parts in another pool".to_owned(),
                }
                .into());
            }
        }
        let open = |address: &&str| Pool::open_with(address, options);
        let pools: Result<Vec<Pool>, Error> = addresses.iter().map(open).collect();
        Self::new(pools?)
    }

    /// Pools that are open already.
    ///
    /// # Errors
    /// There are fewer than 2 or more than [`PART_COUNT_MAX`], or one twice.
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

    /// The pools, in the order of the parts.
    pub fn pools(&self) -> &[Pool] {
        &self.0
    }

    /// Registers a session in each: one thread's way into all of them.
    ///
    /// # Errors
    /// A memory node cannot be reached, or has no session left.
    pub fn session(&self) -> Result<PartitionedSession, Error> {
        self.session_with(&SessionOptions::default())
    }

    /// [`session`](Self::session), with options, the same for all; a metadata budget is one for
    /// each part.
    ///
    /// # Errors
    /// As for [`session`](Self::session).
    pub fn session_with(&self, options: &SessionOptions) -> Result<PartitionedSession, Error> {
        let sessions = self.0.iter().map(|pool| pool.session_with(options));
        let sessions: Result<Vec<Session>, Error> = sessions.collect();
        Ok(PartitionedSession::new(sessions?))
    }
}
