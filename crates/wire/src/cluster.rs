//! To which cluster a process belongs, as greetings compare it (W16).

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Identifier of a cluster: 128 bits, never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterTag(u128);

impl ClusterTag {
    /// The identifier with these bits; none for 0, which stands for "no cluster" in greetings.
    pub const fn new(bits: u128) -> Option<Self> {
        if bits == 0 { None } else { Some(Self(bits)) }
    }

    /// The bits.
    pub const fn bits(self) -> u128 {
        self.0
    }
}

impl fmt::Display for ClusterTag {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "cluster {:032x}", self.0)
    }
}

/// A cluster in an error, or that there is none.
pub(crate) fn shown(cluster: Option<ClusterTag>) -> String {
    cluster.map_or_else(|| "no cluster".to_owned(), |it| it.to_string())
}

/// The cluster that a process belongs to, once that is known. Clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct Membership(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    own: Option<ClusterTag>,
    /// Whom a peer took this process for, last.
    mistaken_for: Option<ClusterTag>,
}

impl Membership {
    /// One of this cluster.
    pub fn of(cluster: ClusterTag) -> Self {
        let membership = Self::default();
        membership.set(cluster);
        membership
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cluster; none: it is not known yet.
    pub fn cluster(&self) -> Option<ClusterTag> {
        self.known().own
    }

    /// Belongs to this cluster from now on: greetings that come say so.
    pub fn set(&self, cluster: ClusterTag) {
        self.known().own = Some(cluster);
    }

    /// The cluster that a peer, which has proven to know the secret, expected here last, if that is
    /// another one.
    pub fn mistaken_for(&self) -> Option<ClusterTag> {
        self.known().mistaken_for
    }

    pub(crate) fn note_mistaken(&self, cluster: ClusterTag) {
        self.known().mistaken_for = Some(cluster);
    }
}
