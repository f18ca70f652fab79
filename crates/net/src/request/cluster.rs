//! Cluster of a process, as greetings compare it.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Identifier of a cluster: 128 bits, never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterTag(u128);

impl ClusterTag {
    /// Creates an identifier from its bits; `None` for 0, which stands for "no cluster" in
    /// greetings.
    pub const fn new(bits: u128) -> Option<Self> {
        if bits == 0 { None } else { Some(Self(bits)) }
    }

    /// Returns the bits.
    pub const fn bits(self) -> u128 {
        self.0
    }
}

impl fmt::Display for ClusterTag {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "cluster {:032x}", self.0)
    }
}

/// Formats a cluster, or its absence, for an error.
pub(crate) fn name_of(cluster: Option<ClusterTag>) -> String {
    cluster.map_or_else(|| "no cluster".to_owned(), |it| it.to_string())
}

/// Cluster to which a process belongs, once it is known. Clones share the same value.
#[derive(Clone, Debug, Default)]
pub struct Membership(Arc<Mutex<MembershipState>>);

#[derive(Debug, Default)]
struct MembershipState {
    own: Option<ClusterTag>,
    /// Other cluster that a peer last expected of this process.
    expected_by_peer: Option<ClusterTag>,
}

impl Membership {
    /// Creates the membership of a process that belongs to this cluster.
    pub fn of(cluster: ClusterTag) -> Self {
        let membership = Self::default();
        membership.set(cluster);
        membership
    }

    fn known(&self) -> MutexGuard<'_, MembershipState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the cluster; `None` if it is not known yet.
    pub fn cluster(&self) -> Option<ClusterTag> {
        self.known().own
    }

    /// Sets the cluster; later greetings present it.
    pub fn set(&self, cluster: ClusterTag) {
        self.known().own = Some(cluster);
    }

    /// Returns the other cluster that an authenticated peer last expected of this process, if any.
    pub fn expected_by_peer(&self) -> Option<ClusterTag> {
        self.known().expected_by_peer
    }

    pub(crate) fn note_expected_by_peer(&self, cluster: ClusterTag) {
        self.known().expected_by_peer = Some(cluster);
    }
}
