//! A region as clients see it, at one epoch, and when an operation may be acknowledged (RS2).

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use farleaf_cluster::agent::host::RegionOrder;
use farleaf_cluster::ids::Epoch;
use farleaf_cluster::lease::LeaseGuard;
use farleaf_cluster::record::region::Key;
use farleaf_fabric::tcp::TcpEndpoint;
use farleaf_lsm::place::LogPosition;
use farleaf_replica::{Primary, ReplicaError};

/// Exchanges, and writes of the same keys, are one after the other: of so many parts of all keys.
const STRIPE_COUNT: usize = 64;

const OPENING: u8 = 0;
const OPEN: u8 = 1;
/// What has begun is acknowledged, and nothing else begins.
const STOPPING: u8 = 2;
const STOPPED: u8 = 3;

/// For how long a stop waits for operations that have begun: their clients would not know what
/// became of them.
const DRAIN_TIME_MAX: Duration = Duration::from_millis(200);
const DRAIN_REST: Duration = Duration::from_micros(100);

/// A region of which this server is primary, at one epoch.
pub(crate) struct Served {
    pub(crate) order: RegionOrder,
    pub(crate) primary: Primary<TcpEndpoint>,
    guard: LeaseGuard,
    state: AtomicU8,
    /// Operations that have begun and are not over.
    begun_count: AtomicU64,
    stripes: Box<[Mutex<()>]>,
    hasher: BuildHasherDefault<DefaultHasher>,
    pub(crate) operation_count: AtomicU64,
    /// Why an engine's answer was none, the first time (RS8).
    failure: Mutex<Option<String>>,
    /// RS9: where the writes of some keys go, too.
    split: RwLock<Option<SplitTarget>>,
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
        guard: LeaseGuard,
    ) -> Self {
        Self {
            order,
            primary,
            guard,
            state: AtomicU8::new(OPENING),
            begun_count: AtomicU64::new(0),
            stripes: (0..STRIPE_COUNT).map(|_| Mutex::default()).collect(),
            hasher: BuildHasherDefault::default(),
            operation_count: AtomicU64::new(0),
            failure: Mutex::default(),
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

    /// RH4: what has not been looked at by [`standing`](Self::standing) when this returns is not
    /// acknowledged, ever.
    pub(crate) fn stop(&self) {
        self.state.store(STOPPED, Ordering::SeqCst);
    }

    /// The same, but operations that have begun are acknowledged, if they are over soon.
    pub(crate) fn drain(&self) {
        let exchange = (OPEN, STOPPING);
        let was_open =
            self.state
                .compare_exchange(exchange.0, exchange.1, Ordering::SeqCst, Ordering::SeqCst);
        let since = Instant::now();
        while was_open.is_ok()
            && self.begun_count.load(Ordering::SeqCst) > 0
            && since.elapsed() < DRAIN_TIME_MAX
        {
            thread::sleep(DRAIN_REST);
        }
        self.stop();
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
        let stripe = self.hasher.hash_one(key) as usize % STRIPE_COUNT;
        self.stripes[stripe]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
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

    /// Writes a record, that nobody waits for yet; whoever calls it has the key's stripe.
    pub(crate) fn append(
        &self,
        key: &[u8],
        value: Option<&[u8]>,
        written: &mut Written,
    ) -> Result<(), ReplicaError> {
        let split = self.split.read().unwrap_or_else(PoisonError::into_inner);
        written.end = Some(self.primary.append(key, value)?);
        if let Some(SplitTarget { at, child }) = &*split
            && key >= at.0.as_slice()
        {
            written.end_of_child = Some(child.primary.append(key, value)?);
        }
        Ok(())
    }

    pub(crate) fn has(&self, key: &[u8]) -> bool {
        let RegionOrder { from, to, .. } = &self.order;
        from.0.as_slice() <= key && to.as_ref().is_none_or(|to| key < to.0.as_slice())
    }

    pub(crate) fn note_failure(&self, how: String) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert(how);
    }

    pub(crate) fn failure(&self) -> Option<String> {
        let failure = self.failure.lock();
        failure.unwrap_or_else(PoisonError::into_inner).clone()
    }
}
