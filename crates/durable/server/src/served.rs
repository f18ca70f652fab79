//! A region as clients see it, at one epoch, and the conditions for acknowledging an operation.

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use farleaf_cluster::agent::host::{RegionOrder, ReplicaFailure};
use farleaf_cluster::ids::{Epoch, ServerId};
use farleaf_cluster::lease::LeaseGuard;
use farleaf_cluster::record::region::Key;
use farleaf_fabric::tcp::TcpEndpoint;
use farleaf_lsm::LsmError;
use farleaf_lsm::place::{LogNumber, LogPosition};
use farleaf_replica::{Primary, ReplicaError};

use crate::damage::{SharedDamage, segment_of};
use crate::sync::{change_state, lock, read, write};

/// Number of stripes. Exchanges, and writes of the same keys, are serialized by stripe.
const STRIPE_COUNT: usize = 64;

const OPENING: u8 = 0;
const OPEN: u8 = 1;
/// State in which operations in progress are still acknowledged, and no others begin.
const STOPPING: u8 = 2;
const STOPPED: u8 = 3;

/// Time for which a stop waits for operations in progress, whose outcome would otherwise be unknown
/// to their clients.
pub(crate) const DRAIN_TIME_MAX: Duration = Duration::from_millis(200);
pub(crate) const DRAIN_REST: Duration = Duration::from_micros(100);

/// Locks that serialize writes of a key. A replica keeps them at all epochs and shares them with a
/// region split off it. So an operation that began before cannot come between later ones.
#[derive(Debug)]
pub(crate) struct Stripes {
    locks: Box<[Mutex<()>]>,
    hasher: BuildHasherDefault<DefaultHasher>,
}

impl Default for Stripes {
    fn default() -> Self {
        Self {
            locks: (0..STRIPE_COUNT).map(|_| Mutex::default()).collect(),
            hasher: BuildHasherDefault::default(),
        }
    }
}

/// State that a replica shares with the regions that it serves, at all epochs.
#[derive(Clone)]
pub(crate) struct ReplicaShared {
    pub(crate) server: ServerId,
    pub(crate) guard: LeaseGuard,
    pub(crate) stripes: Arc<Stripes>,
    /// Corruption that all copies have, which is not a reason to give up.
    pub(crate) damage: Arc<SharedDamage>,
}

/// A region whose primary this server has, at one epoch.
pub(crate) struct ServedRegion {
    pub(crate) order: RegionOrder,
    pub(crate) primary: Primary<TcpEndpoint>,
    shared: ReplicaShared,
    state: AtomicU8,
    /// Number of operations in progress.
    running_count: AtomicU64,
    /// Whether no other replica has everything, so that writes are acknowledged only when they are
    /// on the disk here.
    is_alone: AtomicBool,
    pub(crate) operation_count: AtomicU64,
    /// The first failure of the engine.
    failure: Mutex<Option<EngineFailure>>,
    /// Whether the disk is full, so that nothing can be written.
    is_full: AtomicBool,
    /// Description and time of the full disk.
    out_of_space: Mutex<Option<(String, Instant)>>,
    /// Region being split off, which also gets the writes of its keys.
    split: RwLock<Option<SplitTarget>>,
}

/// Error of an engine because of which this replica may be replaced.
#[derive(Clone, Debug)]
pub(crate) struct EngineFailure {
    pub(crate) how: String,
    /// The damaged segment of the log, if that is the failure.
    pub(crate) segment: Option<LogNumber>,
    /// Whether data are damaged, while the replica could continue.
    is_corruption: bool,
}

impl From<String> for EngineFailure {
    fn from(how: String) -> Self {
        Self {
            how,
            segment: None,
            is_corruption: false,
        }
    }
}

impl From<EngineFailure> for ReplicaFailure {
    fn from(failure: EngineFailure) -> Self {
        Self {
            how: failure.how,
            lacked_space: false,
            is_damaged: failure.is_corruption,
        }
    }
}

/// The region being split off: it also gets all writes of its keys.
#[derive(Clone)]
pub(crate) struct SplitTarget {
    pub(crate) at: Key,
    pub(crate) child: Arc<ServedRegion>,
}

/// Ends of written records: in the log of the region, and in that of the region being split off.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WrittenEnds {
    pub(crate) end: Option<LogPosition>,
    pub(crate) end_of_child: Option<LogPosition>,
}

/// An operation in progress, until this is dropped.
pub(crate) struct RunningOperation<'s>(&'s ServedRegion);

impl Drop for RunningOperation<'_> {
    fn drop(&mut self) {
        self.0.running_count.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Whether a client's operation may proceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServingState {
    Open,
    /// Not yet: a needed backup is being filled.
    Opening,
    /// Never again at this epoch.
    Stopped,
    /// The server's lease may be over.
    NoLease,
}

impl ServedRegion {
    pub(crate) fn new(
        order: &RegionOrder,
        primary: &Primary<TcpEndpoint>,
        shared: &ReplicaShared,
    ) -> Self {
        Self {
            order: order.clone(),
            primary: primary.clone(),
            shared: shared.clone(),
            state: AtomicU8::new(OPENING),
            running_count: AtomicU64::new(0),
            is_alone: AtomicBool::new(true),
            operation_count: AtomicU64::new(0),
            failure: Mutex::default(),
            is_full: AtomicBool::new(false),
            out_of_space: Mutex::default(),
            split: RwLock::default(),
        }
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.order.epoch
    }

    /// Opens the region: everything needed is complete, and operations are served.
    pub(crate) fn open(&self) {
        // A stopped region stays stopped.
        change_state(&self.state, OPENING, OPEN);
    }

    /// Returns whether operations are served, or were until the region was stopped.
    pub(crate) fn has_opened(&self) -> bool {
        self.state.load(Ordering::SeqCst) != OPENING
    }

    /// Stops the region. Operations that have not passed [`serving_state`](Self::serving_state)
    /// when this returns are never acknowledged.
    pub(crate) fn stop(&self) {
        self.state.store(STOPPED, Ordering::SeqCst);
    }

    /// Stops the region, but first waits a short time for operations in progress to be
    /// acknowledged.
    pub(crate) fn drain(&self) {
        self.begin_stop();
        let since = Instant::now();
        while self.has_running_operations() && since.elapsed() < DRAIN_TIME_MAX {
            thread::sleep(DRAIN_REST);
        }
        self.stop();
    }

    /// Stops new operations from beginning.
    pub(crate) fn begin_stop(&self) {
        // A region that is not open, or stopped, stays so.
        change_state(&self.state, OPEN, STOPPING);
    }

    /// Returns whether operations are in progress that may still be acknowledged.
    pub(crate) fn has_running_operations(&self) -> bool {
        let is_stopping = self.state.load(Ordering::SeqCst) == STOPPING;
        is_stopping && self.running_count.load(Ordering::SeqCst) > 0
    }

    /// Begins an operation, if the region is open.
    pub(crate) fn begin(&self) -> Result<RunningOperation<'_>, ServingState> {
        // In this order: a stop either is seen here or sees this operation.
        self.running_count.fetch_add(1, Ordering::SeqCst);
        let operation = RunningOperation(self);
        match self.state.load(Ordering::SeqCst) {
            STOPPING => Err(ServingState::Stopped),
            _ => match self.serving_state() {
                ServingState::Open => Ok(operation),
                serving_state => Err(serving_state),
            },
        }
    }

    /// Returns the state, after an operation took effect, to acknowledge it. If the state is
    /// `Open`, the operation took effect before a stop and before the lease's end.
    pub(crate) fn serving_state(&self) -> ServingState {
        match self.state.load(Ordering::SeqCst) {
            OPENING => ServingState::Opening,
            OPEN | STOPPING if self.shared.guard.may_acknowledge() => ServingState::Open,
            OPEN | STOPPING => ServingState::NoLease,
            _ => ServingState::Stopped,
        }
    }

    /// Locks the stripe of a key, so that no other write of the key comes between.
    pub(crate) fn stripe(&self, key: &[u8]) -> MutexGuard<'_, ()> {
        let Stripes { locks, hasher } = &*self.shared.stripes;
        let stripe = hasher.hash_one(key) as usize % STRIPE_COUNT;
        lock(&locks[stripe])
    }

    /// Sets the region being split off. When this returns, it gets all writes of its keys; earlier
    /// ones are in this region's log.
    pub(crate) fn set_split(&self, target: Option<SplitTarget>) {
        *write(&self.split) = target;
    }

    pub(crate) fn split(&self) -> Option<SplitTarget> {
        read(&self.split).clone()
    }

    /// Appends a record without waiting; the caller holds the key's stripe. After a stop nothing is
    /// appended, as another epoch may have begun. A record of the region being split off goes into
    /// that region first, so that whatever is read here is also there.
    pub(crate) fn append(
        &self,
        key: &[u8],
        value: Option<&[u8]>,
        written: &mut WrittenEnds,
    ) -> Result<(), ReplicaError> {
        let split = read(&self.split);
        if self.state.load(Ordering::SeqCst) == STOPPED {
            return Err(ReplicaError::Stopped);
        }
        if let Some(SplitTarget { at, child }) = &*split
            && key >= at.0.as_slice()
        {
            written.end_of_child = Some(child.primary.append(key, value)?);
        }
        written.end = Some(self.primary.append(key, value)?);
        Ok(())
    }

    /// Returns the end of the log of the region being split off, if it has one of these keys. A
    /// value read here is in that log before this end.
    pub(crate) fn end_of_child(&self, has_some: impl FnOnce(&Key) -> bool) -> Option<LogPosition> {
        let SplitTarget { at, child } = self.split()?;
        has_some(&at).then(|| child.primary.log_end())
    }

    /// Sets whether no other replica has everything that this one has.
    pub(crate) fn set_alone(&self, is_alone: bool) {
        self.is_alone.store(is_alone, Ordering::SeqCst);
    }

    pub(crate) fn is_alone(&self) -> bool {
        self.is_alone.load(Ordering::SeqCst)
    }

    pub(crate) fn has(&self, key: &[u8]) -> bool {
        let RegionOrder { from, to, .. } = &self.order;
        from.0.as_slice() <= key && to.as_ref().is_none_or(|to| key < to.0.as_slice())
    }

    /// Notes an error of the engine, as a full disk or as a failure, and returns its description.
    pub(crate) fn note_engine(&self, error: &LsmError) -> String {
        let failure = self.failure_of(error);
        let how = failure.how.clone();
        if error.is_out_of_space() {
            self.note_out_of_space(error);
        } else if self.note_failure(failure) && segment_of(error).is_some() {
            // Opening this log reads unflushed records again, and fails if they are damaged. A
            // flush reads no record, so it avoids that.
            self.primary.engine().freeze();
        }
        how
    }

    /// Notes an error of a replica, like [`note_engine`](Self::note_engine).
    pub(crate) fn note(&self, error: &ReplicaError) -> String {
        match error {
            ReplicaError::Engine(error) => self.note_engine(error),
            other => {
                self.note_failure(other.to_string().into());
                other.to_string()
            }
        }
    }

    /// Returns the failure of an engine's error, with the place on the disk of damaged data.
    pub(crate) fn failure_of(&self, error: &LsmError) -> EngineFailure {
        let place = self.primary.engine().corruption_place(error);
        EngineFailure {
            how: match place {
                Some(place) => format!("{error} ({place})"),
                None => error.to_string(),
            },
            segment: segment_of(error),
            is_corruption: error.is_corruption(),
        }
    }

    /// Returns whether another replica takes over because of this error, so that the client can
    /// soon read the same there.
    pub(crate) fn is_replaced_for(&self, error: &ReplicaError) -> bool {
        let is_everywhere = matches!(error, ReplicaError::Engine(it) if self.shared.damage.has(it));
        !is_everywhere && !self.is_alone()
    }

    /// Notes that nothing can be written until there is space.
    fn note_out_of_space(&self, error: &LsmError) {
        let server = self.shared.server;
        let how = format!(
            "the disk of {server} is full: {error}; free space on it or enlarge it; writes then \
             resume automatically, and reads continue meanwhile"
        );
        let mut out_of_space = lock(&self.out_of_space);
        if out_of_space.is_none() {
            tracing::error!("{} cannot accept writes: {how}", self.order.region);
        }
        let since = out_of_space.take().map_or_else(Instant::now, |it| it.1);
        *out_of_space = Some((how, since));
        self.is_full.store(true, Ordering::SeqCst);
    }

    /// Notes that there is space again.
    pub(crate) fn note_space(&self) {
        let mut out_of_space = lock(&self.out_of_space);
        self.is_full.store(false, Ordering::SeqCst);
        if out_of_space.take().is_some() {
            tracing::info!("{} accepts writes again", self.order.region);
        }
    }

    /// Returns why nothing can be written, and since when, if the disk is full.
    pub(crate) fn out_of_space(&self) -> Option<(String, Instant)> {
        if !self.is_full.load(Ordering::SeqCst) {
            return None;
        }
        lock(&self.out_of_space).clone()
    }

    /// Notes a failure. The first one counts, but one that not all copies have replaces one that
    /// all have. Returns whether the new one counts.
    pub(crate) fn note_failure(&self, new: EngineFailure) -> bool {
        let mut failure = lock(&self.failure);
        let is_everywhere = |it: &EngineFailure| self.shared.damage.has_segment(it.segment);
        let is_first = match &*failure {
            None => true,
            Some(before) => is_everywhere(before) && !is_everywhere(&new),
        };
        if is_first {
            let RegionOrder {
                region, replica, ..
            } = &self.order;
            tracing::error!("{replica} of {region} failed: {}", new.how);
            *failure = Some(new);
        }
        is_first
    }

    /// Returns the failure, and whether this replica should give up because of it if another one
    /// has everything: that one may have what is missing here.
    pub(crate) fn failure(&self) -> Option<(EngineFailure, bool)> {
        let failure = lock(&self.failure).clone()?;
        let is_everywhere = self.shared.damage.has_segment(failure.segment);
        Some((failure, !is_everywhere))
    }
}
