//! A region as clients see it, at one epoch, and when an operation may be acknowledged (RS2).

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
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

use crate::replica::{SharedDamage, segment_of};

/// Exchanges, and writes of the same keys, are one after the other: of so many parts of all keys.
const STRIPE_COUNT: usize = 64;

const OPENING: u8 = 0;
const OPEN: u8 = 1;
/// What has begun is acknowledged, and nothing else begins.
const STOPPING: u8 = 2;
const STOPPED: u8 = 3;

/// For how long a stop waits for operations that have begun: their clients would not know what
/// became of them.
pub(crate) const DRAIN_TIME_MAX: Duration = Duration::from_millis(200);
pub(crate) const DRAIN_REST: Duration = Duration::from_micros(100);

/// RS3: what keeps writes of a key apart: the same at all epochs of a replica, and in a region that
/// is split off it, so that an operation which began before cannot come between later ones.
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

/// A region of which this server is primary, at one epoch.
pub(crate) struct Served {
    pub(crate) order: RegionOrder,
    pub(crate) primary: Primary<TcpEndpoint>,
    guard: LeaseGuard,
    state: AtomicU8,
    /// Operations that have begun and are not over.
    begun_count: AtomicU64,
    stripes: Arc<Stripes>,
    /// RS2: nobody else has what it has, so nothing is acknowledged that is not on its disk.
    is_alone: AtomicBool,
    pub(crate) operation_count: AtomicU64,
    /// Why an engine's answer was none, the first time (RS8).
    failure: Mutex<Option<Failure>>,
    /// RS8: what is no reason to give up.
    damage: Arc<SharedDamage>,
    /// RS10: the disk is full, and nothing can be written.
    is_full: AtomicBool,
    /// How that was found out, for who asks, and when.
    no_room: Mutex<Option<(String, Instant)>>,
    server: ServerId,
    /// RS9: where the writes of some keys go, too.
    split: RwLock<Option<SplitTarget>>,
}

/// Why an engine's answer was none (RS8).
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) how: String,
    /// Which segment of the log is damaged, if it is that.
    pub(crate) segment: Option<LogNumber>,
    /// Whether what it has is damaged, and it could go on.
    is_damage: bool,
}

impl From<String> for Failure {
    fn from(how: String) -> Self {
        Self {
            how,
            segment: None,
            is_damage: false,
        }
    }
}

impl From<Failure> for ReplicaFailure {
    fn from(failure: Failure) -> Self {
        Self {
            how: failure.how,
            lacked_room: false,
            is_damaged: failure.is_damage,
        }
    }
}

/// The region that is being split off: it gets all writes of its keys, too (RS9).
#[derive(Clone)]
pub(crate) struct SplitTarget {
    pub(crate) at: Key,
    pub(crate) child: Arc<Served>,
}

/// Where what was written ends: in the log of the region, and of the one that is split off.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Written {
    pub(crate) end: Option<LogPosition>,
    pub(crate) end_of_child: Option<LogPosition>,
}

/// An operation that has begun, until this is dropped.
pub(crate) struct Begun<'s>(&'s Served);

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.0.begun_count.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Whether a client's operation may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Open,
    /// Not yet: a backup that is needed is being filled.
    Opening,
    /// Never again at this epoch.
    Stopped,
    /// The server's lease may be over.
    NoLease,
}

impl Served {
    pub(crate) fn new(
        order: RegionOrder,
        primary: Primary<TcpEndpoint>,
        (guard, stripes, server): (LeaseGuard, Arc<Stripes>, ServerId),
        damage: Arc<SharedDamage>,
    ) -> Self {
        Self {
            order,
            primary,
            guard,
            state: AtomicU8::new(OPENING),
            begun_count: AtomicU64::new(0),
            stripes,
            is_alone: AtomicBool::new(true),
            operation_count: AtomicU64::new(0),
            failure: Mutex::default(),
            damage,
            is_full: AtomicBool::new(false),
            no_room: Mutex::default(),
            server,
            split: RwLock::default(),
        }
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.order.epoch
    }

    /// Everything that must be there is there: operations are served.
    pub(crate) fn open(&self) {
        let exchange = (OPENING, OPEN);
        // One that has stopped stays so.
        let _ =
            self.state
                .compare_exchange(exchange.0, exchange.1, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Operations are served, or were until it was stopped.
    pub(crate) fn has_opened(&self) -> bool {
        self.state.load(Ordering::SeqCst) != OPENING
    }

    /// RH4: what has not been looked at by [`standing`](Self::standing) when this returns is not
    /// acknowledged, ever.
    pub(crate) fn stop(&self) {
        self.state.store(STOPPED, Ordering::SeqCst);
    }

    /// The same, but operations that have begun are acknowledged, if they are over soon.
    pub(crate) fn drain(&self) {
        self.begin_stop();
        let since = Instant::now();
        while self.is_at_work() && since.elapsed() < DRAIN_TIME_MAX {
            thread::sleep(DRAIN_REST);
        }
        self.stop();
    }

    /// Nothing else begins.
    pub(crate) fn begin_stop(&self) {
        let exchange = (OPEN, STOPPING);
        let state = &self.state;
        // One that is not open, or has stopped, stays so.
        let _ = state.compare_exchange(exchange.0, exchange.1, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Whether operations have begun that are not over and may be acknowledged.
    pub(crate) fn is_at_work(&self) -> bool {
        let is_stopping = self.state.load(Ordering::SeqCst) == STOPPING;
        is_stopping && self.begun_count.load(Ordering::SeqCst) > 0
    }

    /// RS2: an operation begins, if the region is open.
    pub(crate) fn begin(&self) -> Result<Begun<'_>, Standing> {
        // In this order: a stop that does not see it is seen by it.
        self.begun_count.fetch_add(1, Ordering::SeqCst);
        let begun = Begun(self);
        match self.state.load(Ordering::SeqCst) {
            STOPPING => Err(Standing::Stopped),
            _ => match self.standing() {
                Standing::Open => Ok(begun),
                standing => Err(standing),
            },
        }
    }

    /// RS2: looked at after an operation took effect, to acknowledge it. What took effect before it
    /// says `Open` was in its place before a stop, and before the lease's end.
    pub(crate) fn standing(&self) -> Standing {
        match self.state.load(Ordering::SeqCst) {
            OPENING => Standing::Opening,
            OPEN | STOPPING if self.guard.may_acknowledge() => Standing::Open,
            OPEN | STOPPING => Standing::NoLease,
            _ => Standing::Stopped,
        }
    }

    /// RS3: keeps other writes of a key, and of some others, from coming between.
    pub(crate) fn stripe(&self, key: &[u8]) -> MutexGuard<'_, ()> {
        let Stripes { locks, hasher } = &*self.stripes;
        let stripe = hasher.hash_one(key) as usize % STRIPE_COUNT;
        locks[stripe].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// RS9: from when this returns, all writes of the child's keys go to it, too; and those that
    /// did not are in this region's log.
    pub(crate) fn set_split(&self, target: Option<SplitTarget>) {
        *self.split.write().unwrap_or_else(PoisonError::into_inner) = target;
    }

    pub(crate) fn split(&self) -> Option<SplitTarget> {
        let split = self.split.read();
        split.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Writes a record, that nobody waits for yet; whoever calls it has the key's stripe. RS3: what
    /// comes behind a stop is not written, as another epoch may have begun. RS9: into the child
    /// first, so that who sees it here finds it there.
    pub(crate) fn append(
        &self,
        key: &[u8],
        value: Option<&[u8]>,
        written: &mut Written,
    ) -> Result<(), ReplicaError> {
        let split = self.split.read().unwrap_or_else(PoisonError::into_inner);
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

    /// RS9: where the log of the region that is split off ends, if it has one of these keys: what
    /// was read here is there before.
    pub(crate) fn end_of_child(&self, has_some: impl FnOnce(&Key) -> bool) -> Option<LogPosition> {
        let SplitTarget { at, child } = self.split()?;
        has_some(&at).then(|| child.primary.log_end())
    }

    /// RS2: whether somebody else has all that this one has.
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

    /// What an error of the engine means: RS10 where there is no room, RS8 else. Says it in words.
    pub(crate) fn note_engine(&self, error: &LsmError) -> String {
        let failure = self.failure_of(error);
        let how = failure.how.clone();
        if error.is_no_room() {
            self.note_no_room(error);
        } else if self.note_failure(failure) && segment_of(error).is_some() {
            // Who opens this log reads again what was not flushed, and serves nothing where that is
            // damaged (VL6). No record is read to flush it.
            self.primary.engine().freeze();
        }
        how
    }

    /// What an error of a replica means, as of [`note_engine`](Self::note_engine).
    pub(crate) fn note(&self, error: &ReplicaError) -> String {
        match error {
            ReplicaError::Engine(error) => self.note_engine(error),
            other => {
                self.note_failure(other.to_string().into());
                other.to_string()
            }
        }
    }

    /// RS8: an engine's error, with the place on the disk of what is damaged.
    pub(crate) fn failure_of(&self, error: &LsmError) -> Failure {
        let place = self.primary.engine().place_of_damage(error);
        Failure {
            how: match place {
                Some(place) => format!("{error} ({place})"),
                None => error.to_string(),
            },
            segment: segment_of(error),
            is_damage: error.is_damage(),
        }
    }

    /// RS8: whether another replica takes over because of this error: soon, the same can be read
    /// there.
    pub(crate) fn gives_up_for(&self, error: &ReplicaError) -> bool {
        let is_everywhere = matches!(error, ReplicaError::Engine(it) if self.damage.has(it));
        !is_everywhere && !self.is_alone()
    }

    /// RS10: nothing can be written until there is room.
    fn note_no_room(&self, error: &LsmError) {
        let server = self.server;
        let how = format!(
            "the disk of {server} is full: {error}; make room on it, or enlarge it: writes go on \
             then by themselves, and reads go on meanwhile"
        );
        let mut no_room = self.no_room.lock().unwrap_or_else(PoisonError::into_inner);
        if no_room.is_none() {
            tracing::error!("{} cannot be written: {how}", self.order.region);
        }
        let since = no_room.take().map_or_else(Instant::now, |it| it.1);
        *no_room = Some((how, since));
        self.is_full.store(true, Ordering::SeqCst);
    }

    /// RS10: there is room again.
    pub(crate) fn note_room(&self) {
        let mut no_room = self.no_room.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_full.store(false, Ordering::SeqCst);
        if no_room.take().is_some() {
            tracing::info!("{} can be written again", self.order.region);
        }
    }

    /// RS10: why nothing can be written, if the disk is full, and since when.
    pub(crate) fn no_room(&self) -> Option<(String, Instant)> {
        if !self.is_full.load(Ordering::SeqCst) {
            return None;
        }
        let no_room = self.no_room.lock();
        no_room.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The first one counts; one that all copies have does not, when there is another. Whether this
    /// is it.
    pub(crate) fn note_failure(&self, new: Failure) -> bool {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        let is_everywhere = |it: &Failure| self.damage.has_segment(it.segment);
        let is_first = match &*failure {
            None => true,
            Some(before) => is_everywhere(before) && !is_everywhere(&new),
        };
        if is_first {
            let RegionOrder {
                region, replica, ..
            } = &self.order;
            tracing::error!("{replica} of {region} fails: {}", new.how);
            *failure = Some(new);
        }
        is_first
    }

    /// Why an engine's answer was none, and whether it is a reason to give up when another replica
    /// has everything: that one may have what is lacking here.
    pub(crate) fn failure(&self) -> Option<(Failure, bool)> {
        let failure = self.failure.lock();
        let failure = failure.unwrap_or_else(PoisonError::into_inner).clone()?;
        let is_everywhere = self.damage.has_segment(failure.segment);
        Some((failure, !is_everywhere))
    }
}
