//! A replica: what is ordered of it, what it shows, and the thread that has it (RS6).
//!
//! Orders are words on a board; the replica's own thread reads the newest ones and brings them
//! about, however long that takes, and does the replica's background work in between. Nobody who
//! gives orders waits, but for two: a stop takes effect at once ([`Served::stop`]), and the end of
//! a life waits for the thread.
//!
//! | module | what it holds |
//! |---|---|
//! | `actor` | the thread: from orders to what is open |
//! | `primary` | the engine of a primary, and its backups |
//! | `link` | a backup of a primary: attached, filled, put in force |
//! | `backup` | a backup: memory into which its primary writes, and the copy in force |
//! | `damage` | damage that all copies of a region have |
//! | `mismatches` | backups that did not write what their primary wrote |
//! | `memory` | that memory, and who may write into it |
//! | `tail` | when the end of a primary's log is made durable that nobody waits for |
//! | `verification` | how far its files are verified |
//! | `split` | a region that is being split off another one |

mod actor;
mod backup;
mod damage;
mod link;
mod memory;
mod mismatches;
mod primary;
mod split;
mod tail;
mod verification;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use farleaf_cluster::agent::host::{BackupOrder, Closing, RegionOrder, ReplicaFailure, Source};
use farleaf_cluster::ids::{Epoch, RegionId, ReplicaNumber, ServerId, TableId, TableIncarnation};
use farleaf_cluster::lease::LeaseGuard;
use farleaf_cluster::record::{PrimaryReport, VerificationReport};

use self::actor::Actor;
pub(crate) use self::damage::{SharedDamage, segment_of};
use self::mismatches::Mismatches;
pub(crate) use self::split::Split;
use crate::context::Context;
use crate::error::ServerError;
use crate::log_ends::LogEnd;
use crate::peer::{PeerReply, PeerRequest};
use crate::served::{Served, Stripes};

/// What a replica is to be.
#[derive(Clone, Debug)]
pub(crate) enum Role {
    Primary {
        backups: Vec<BackupOrder>,
        source: Source,
    },
    Backup {
        primary: ServerId,
        source: Source,
    },
}

/// What is ordered of it.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) order: RegionOrder,
    pub(crate) role: Role,
}

impl Wanted {
    /// The primary of a region, with these backups.
    pub(crate) fn primary(order: &RegionOrder, backups: &[BackupOrder], source: Source) -> Self {
        Self {
            order: order.clone(),
            role: Role::Primary {
                backups: backups.to_vec(),
                source,
            },
        }
    }

    /// A backup of this server's.
    pub(crate) fn backup(order: &RegionOrder, (primary, source): (ServerId, Source)) -> Self {
        Self {
            order: order.clone(),
            role: Role::Backup { primary, source },
        }
    }
}

/// Why its thread is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The life is over: its copy stays.
    LifeOver,
    /// As the agent says.
    Closed(Closing),
}

/// What another server asks, and where the answer goes.
pub(crate) struct Errand {
    pub(crate) request: PeerRequest,
    pub(crate) reply: SyncSender<PeerReply>,
}

/// The board of orders.
#[derive(Default)]
struct Board {
    wanted: Option<Wanted>,
    ending: Option<Ending>,
    errands: VecDeque<Errand>,
    /// Something else may have changed: a backup was filled, or is lost.
    is_nudged: bool,
}

/// What it shows of itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shown {
    /// The newest epoch that was ordered.
    pub(crate) ordered: Option<Epoch>,
    /// Which epoch it is open at, and as what.
    pub(crate) epoch: Option<Epoch>,
    pub(crate) primary: Option<PrimaryReport>,
    /// RS8: of a primary: another replica has all, so this one can go.
    pub(crate) has_other: bool,
    pub(crate) failure: Option<ReplicaFailure>,
    /// RS10: it is not yet what was ordered, for want of room.
    pub(crate) waits_for_room: bool,
    /// RS8: what is wrong with it, while it goes on, as no other replica is better.
    pub(crate) fault: Option<String>,
    pub(crate) verification: Option<VerificationReport>,
    pub(crate) size_bytes: u64,
    pub(crate) position_bytes: u64,
    /// Backups of a primary that do not have all yet.
    pub(crate) filling_count: usize,
    /// RS9: backups that have all stay.
    pub(crate) is_frozen: bool,
}

/// RS9: how far a replica of a region is that is being split off: its backups leave when they
/// fail; they do not; it is a region as others are.
const PREPARING: u8 = 0;
const FROZEN: u8 = 1;
const GOES_ON: u8 = 2;

/// A replica that was opened, as everybody but its own thread sees it.
pub(crate) struct Replica {
    pub(crate) table: TableId,
    pub(crate) incarnation: Option<TableIncarnation>,
    pub(crate) region: RegionId,
    pub(crate) number: ReplicaNumber,
    context: Arc<Context>,
    guard: LeaseGuard,
    board: Mutex<Board>,
    changed: Condvar,
    shown: Mutex<Shown>,
    served: Mutex<Option<Arc<Served>>>,
    stripes: Arc<Stripes>,
    damage: Arc<SharedDamage>,
    mismatches: Arc<Mismatches>,
    stage: AtomicU8,
    /// RS9: what is being split off this one.
    split: Mutex<Option<Arc<Split>>>,
    /// RS13.
    log_end: Mutex<LogEnd>,
}

impl Replica {
    /// Opens one: its thread begins with this order, or the newest one by then, at that time.
    pub(crate) fn open(
        context: &Arc<Context>,
        guard: LeaseGuard,
        (wanted, begins_at): (Wanted, Instant),
    ) -> Result<(Arc<Self>, JoinHandle<()>), ServerError> {
        let stripes = Arc::default();
        Self::open_at(context, (guard, stripes), (wanted, GOES_ON, begins_at))
    }

    /// Opens one of a region that is not there yet (RS9), with the stripes of the one that it is
    /// split off from.
    pub(crate) fn prepare(
        context: &Arc<Context>,
        (guard, stripes): (LeaseGuard, Arc<Stripes>),
        wanted: Wanted,
    ) -> Result<(Arc<Self>, JoinHandle<()>), ServerError> {
        let stage = (wanted, PREPARING, Instant::now());
        Self::open_at(context, (guard, stripes), stage)
    }

    fn open_at(
        context: &Arc<Context>,
        (guard, stripes): (LeaseGuard, Arc<Stripes>),
        (wanted, stage, begins_at): (Wanted, u8, Instant),
    ) -> Result<(Arc<Self>, JoinHandle<()>), ServerError> {
        let order = &wanted.order;
        let replica = Arc::new(Self {
            table: order.table,
            incarnation: order.incarnation,
            region: order.region,
            number: order.replica,
            context: Arc::clone(context),
            guard,
            board: Mutex::default(),
            changed: Condvar::new(),
            shown: Mutex::default(),
            served: Mutex::default(),
            stripes,
            damage: Arc::default(),
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

    fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn show(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// RS9: its region is there, and this is what the record says of it.
    pub(crate) fn go_on(&self, wanted: Wanted) {
        self.stage.store(GOES_ON, Ordering::SeqCst);
        self.order(wanted);
    }

    /// RS9: backups that have all do not leave from now on; [`Shown::is_frozen`] tells when.
    pub(crate) fn freeze(&self) {
        let exchange = (PREPARING, FROZEN);
        // One that goes on already has its backups from the record.
        let _ =
            self.stage
                .compare_exchange(exchange.0, exchange.1, Ordering::SeqCst, Ordering::SeqCst);
        self.nudge();
    }

    fn stage(&self) -> u8 {
        self.stage.load(Ordering::SeqCst)
    }

    /// What is being split off it.
    pub(crate) fn split(&self) -> MutexGuard<'_, Option<Arc<Split>>> {
        self.split.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it shows now.
    pub(crate) fn shown(&self) -> Shown {
        let mut shown = self.show().clone();
        let served = self.served();
        if let (Some(report), Some(split)) = (&mut shown.primary, &*self.split()) {
            report.prepared = split.prepared().map(|on| (split.child, on));
        }
        match served.as_ref().and_then(|served| served.failure()) {
            Some((failure, true)) if shown.has_other => {
                shown.failure.get_or_insert_with(|| failure.into());
            }
            // RS8: what was damaged is there no more.
            Some((failure, _)) if self.damage.is_collected(failure.segment) => {
                shown.fault = self.damage.text();
            }
            // While nobody else has all, or what this one lacks, what can be read is served.
            Some((failure, _)) => shown.fault = Some(failure.how),
            None => shown.fault = self.damage.text(),
        }
        shown
    }

    fn log_end(&self) -> MutexGuard<'_, LogEnd> {
        self.log_end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// RS13: writes the end of its log to its disk, without a sync, if that is due. The bytes of a
    /// primary's log go through `buffer`.
    pub(crate) fn write_log_end(&self, buffer: &mut Vec<u8>) {
        let served = self.served();
        if let Err(error) = self.log_end().write(served.as_deref(), buffer) {
            // Its own thread meets it, too, or writes what this one could not.
            tracing::debug!(%error, "the end of a log of {} was not written", self.region);
            if !error.is_no_room() {
                self.nudge();
            }
        }
    }

    /// RS10: whether it is not yet what was ordered, for want of room.
    pub(crate) fn waits_for_room(&self) -> bool {
        self.show().waits_for_room
    }

    /// The region as clients see it, if it is primary.
    pub(crate) fn served(&self) -> Option<Arc<Served>> {
        let served = self.served.lock();
        served.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_served(&self, served: Option<Arc<Served>>) {
        let mut current = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = current.take() {
            before.stop();
        }
        *current = served;
    }

    /// From now on this is what it is to be. A primary stops at once if it is to be something
    /// else, or at another epoch.
    pub(crate) fn order(&self, wanted: Wanted) {
        let is_same_primary = |served: &Arc<Served>| {
            served.epoch() == wanted.order.epoch && matches!(wanted.role, Role::Primary { .. })
        };
        if let Some(served) = self.served().filter(|served| !is_same_primary(served)) {
            served.stop();
            // RP13: its thread may wait for a backup that hangs, and is to read this.
            served.primary.stop();
        }
        self.show().ordered = Some(wanted.order.epoch);
        self.board().wanted = Some(wanted);
        self.changed.notify_all();
    }

    /// RH4: a primary acknowledges nothing more at this epoch. Waits a little for what has begun.
    pub(crate) fn stop(&self) {
        if let Some(served) = self.served() {
            served.drain();
        }
    }

    /// Begins to stop: what has begun is acknowledged still, and nothing else begins.
    pub(crate) fn begin_stop(&self) {
        if let Some(served) = self.served() {
            served.begin_stop();
        }
    }

    /// Whether anything that has begun is not over.
    pub(crate) fn is_at_work(&self) -> bool {
        self.served().is_some_and(|served| served.is_at_work())
    }

    /// RS8: what is damaged in all copies.
    pub(crate) fn damage(&self) -> &Arc<SharedDamage> {
        &self.damage
    }

    /// RS12: backups that did not write what this primary wrote.
    fn mismatches(&self) -> &Arc<Mismatches> {
        &self.mismatches
    }

    pub(crate) fn stripes(&self) -> Arc<Stripes> {
        Arc::clone(&self.stripes)
    }

    /// Its thread ends, soon; nothing more is acknowledged from now on, and nobody of it waits for
    /// a backup (RP13).
    pub(crate) fn end(&self, ending: Ending) {
        if let Some(served) = self.served() {
            served.stop();
            served.primary.stop();
        }
        self.board().ending = Some(ending);
        self.changed.notify_all();
    }

    /// Has its thread look again.
    pub(crate) fn nudge(&self) {
        self.board().is_nudged = true;
        self.changed.notify_all();
    }

    /// Another server's request, answered by its thread; none in that time: it is busy.
    pub(crate) fn answer(&self, request: PeerRequest, timeout: Duration) -> PeerReply {
        let (reply, answer) = std::sync::mpsc::sync_channel(1);
        self.board().errands.push_back(Errand { request, reply });
        self.changed.notify_all();
        let answer = answer.recv_timeout(timeout);
        answer.unwrap_or_else(|_| PeerReply::NotYet("the replica is busy".to_owned()))
    }
}
