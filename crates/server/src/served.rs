//! A region as clients see it, at one epoch, and when an operation may be acknowledged (RS2).

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use farleaf_cluster::agent::host::RegionOrder;
use farleaf_cluster::ids::Epoch;
use farleaf_cluster::lease::LeaseGuard;
use farleaf_fabric::tcp::TcpEndpoint;
use farleaf_replica::Primary;

/// Exchanges, and writes of the same keys, are one after the other: of so many parts of all keys.
const STRIPE_COUNT: usize = 64;

const OPENING: u8 = 0;
const OPEN: u8 = 1;
const STOPPED: u8 = 2;

/// A region of which this server is primary, at one epoch.
pub(crate) struct Served {
    pub(crate) order: RegionOrder,
    pub(crate) primary: Primary<TcpEndpoint>,
    guard: LeaseGuard,
    state: AtomicU8,
    stripes: Box<[Mutex<()>]>,
    hasher: BuildHasherDefault<DefaultHasher>,
    pub(crate) operation_count: AtomicU64,
    /// Why an engine's answer was none, the first time (RS8).
    failure: Mutex<Option<String>>,
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
            stripes: (0..STRIPE_COUNT).map(|_| Mutex::default()).collect(),
            hasher: BuildHasherDefault::default(),
            operation_count: AtomicU64::new(0),
            failure: Mutex::default(),
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

    /// RS2: looked at before an operation, to refuse it, and after it took effect, to acknowledge
    /// it. What took effect before it says `Open` was in its place before a stop, and before the
    /// lease's end.
    pub(crate) fn standing(&self) -> Standing {
        match self.state.load(Ordering::SeqCst) {
            OPENING => Standing::Opening,
            OPEN if self.guard.may_acknowledge() => Standing::Open,
            OPEN => Standing::NoLease,
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
