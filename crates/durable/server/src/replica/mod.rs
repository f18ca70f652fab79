//! A replica: its order, its status, and its thread.
//!
//! The replica's thread reads its newest order and carries it out, however long that takes, and
//! does background work in between. Giving an order does not wait, with two exceptions: a stop
//! takes effect at once ([`ServedRegion::stop`]), and the end of a life waits for the thread.
//!
//! | module | contents |
//! |---|---|
//! | `handle` | what other threads see of a replica |
//! | `order` | orders and status |
//! | `actor` | the thread: turns orders into what is open |
//! | `primary` | the engine of a primary, and its backups |
//! | `link` | a primary's backup: attached, filled, put in force |
//! | `backup` | a backup: memory that its primary writes, and the copy in force |
//! | `mismatches` | backups that did not write what their primary wrote |
//! | `log_end` | writes the end of the log to the disk, without a sync |
//! | `memory` | a backup's memory, and access to it |
//! | `tail` | schedule of background syncs of a primary's log |
//! | `verification` | progress of the verification of a replica's files |
//! | `split` | a region being split off another one |

mod actor;
mod backup;
mod handle;
mod link;
mod log_end;
mod memory;
mod mismatches;
mod order;
mod primary;
mod split;
mod tail;
mod verification;

use std::sync::atomic::AtomicU8;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use farleaf_cluster::lease::LeaseGuard;

use self::actor::Actor;
pub(crate) use self::handle::Replica;
use self::handle::{ORDINARY, PREPARING};
pub(crate) use self::order::{Ending, Role, Wanted};
pub(crate) use self::split::Split;
use crate::context::Context;
use crate::error::ServerError;
use crate::served::{ReplicaShared, Stripes};

impl Replica {
    /// Opens a replica. Its thread begins with this order, or the newest one at that time.
    pub(crate) fn open(
        context: &Arc<Context>,
        guard: LeaseGuard,
        wanted: Wanted,
        begins_at: Instant,
    ) -> Result<(Arc<Self>, JoinHandle<()>), ServerError> {
        let stripes = Arc::default();
        Self::open_at(context, guard, stripes, wanted, ORDINARY, begins_at)
    }

    /// Opens a replica of a region that does not exist yet, with the stripes of the region that it
    /// is split off.
    pub(crate) fn prepare(
        context: &Arc<Context>,
        guard: LeaseGuard,
        stripes: Arc<Stripes>,
        wanted: Wanted,
    ) -> Result<(Arc<Self>, JoinHandle<()>), ServerError> {
        Self::open_at(context, guard, stripes, wanted, PREPARING, Instant::now())
    }

    fn open_at(
        context: &Arc<Context>,
        guard: LeaseGuard,
        stripes: Arc<Stripes>,
        wanted: Wanted,
        stage: u8,
        begins_at: Instant,
    ) -> Result<(Arc<Self>, JoinHandle<()>), ServerError> {
        let order = &wanted.order;
        let shared = ReplicaShared {
            server: context.server,
            guard,
            stripes,
            damage: Arc::default(),
        };
        let replica = Arc::new(Self {
            table: order.table,
            incarnation: order.incarnation,
            region: order.region,
            number: order.replica,
            context: Arc::clone(context),
            shared,
            order_slot: Mutex::default(),
            changed: Condvar::new(),
            status: Mutex::default(),
            served: Mutex::default(),
            mismatches: Arc::default(),
            stage: AtomicU8::new(stage),
            split: Mutex::default(),
            log_end: Mutex::default(),
        });
        let name = format!("region-{}-{}", order.region.0, order.replica.0);
        replica.order(wanted);
        let actor = Actor::new(Arc::clone(&replica));
        let thread = std::thread::Builder::new().name(name);
        let thread = thread.spawn(move || actor.run(begins_at));
        let thread = thread.map_err(|source| ServerError::NoResource {
            what: "thread",
            source,
        })?;
        Ok((replica, thread))
    }
}
