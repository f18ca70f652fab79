//! Numbers that mean different things, as different types.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::coordinator::Revision;
pub use crate::identity::{ClusterId, StartNonce, TableIncarnation};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $shown:literal) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, concat!($shown, " {}"), self.0)
            }
        }
    };
}

number!(
    /// A table, numbered from 1 on, never again.
    TableId,
    "table"
);
number!(
    /// A region, numbered from 1 on over all tables, never again.
    RegionId,
    "region"
);
number!(
    /// A server, that is, a data directory: the same after a restart.
    ServerId,
    "server"
);
number!(
    /// Who may write to a region: whoever is its primary at the newest one. Each change of the
    /// primary, or of what it is primary of, raises it by one (CP13).
    Epoch,
    "epoch"
);
number!(
    /// One copy of a region on one server, from when it is ordered until it leaves the record.
    /// Numbered within the region, never again (CP14).
    ReplicaNumber,
    "replica"
);

impl Epoch {
    /// The next one.
    ///
    /// # Panics
    /// There is none: a record with such an epoch is refused when it is decoded.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.checked_add(1).expect("epochs are below 2^53"))
    }
}

/// One life of a server: from its registration to the end of its lease. It is the revision at which
/// its key came into being, so a life that is over never comes back (CP8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Life(pub Revision);

impl fmt::Display for Life {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "life {}", self.0.0)
    }
}
