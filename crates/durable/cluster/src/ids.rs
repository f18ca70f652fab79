//! Identifiers and epochs, each as a type of its own.

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
    /// Number of a table, from 1 on, never reused.
    TableId,
    "table"
);
number!(
    /// Number of a region, from 1 on over all tables, never reused.
    RegionId,
    "region"
);
number!(
    /// Number of a server's data directory, unchanged by restarts.
    ServerId,
    "server"
);
number!(
    /// Epoch of a region's configuration: only the primary of the newest epoch may write. Each
    /// change of the primary or of its range raises it by one (CONTROL-13).
    Epoch,
    "epoch"
);
number!(
    /// Number of one copy of a region on one server, from its order until it leaves the record.
    /// Numbers are per region and never reused (CONTROL-14).
    ReplicaNumber,
    "replica"
);

impl Epoch {
    /// Returns the next epoch.
    ///
    /// # Panics
    /// If the epoch is the highest number. No record has it: decoding refuses such an epoch.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.checked_add(1).expect("epochs are below 2^53"))
    }
}

/// One life of a server, from its registration to the end of its lease. It is the creation revision
/// of the server's key, so a life that is over never comes back (CONTROL-8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Life(pub Revision);

impl fmt::Display for Life {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "life {}", self.0.0)
    }
}
