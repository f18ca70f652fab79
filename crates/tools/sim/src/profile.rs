//! Profiles of runs: which faults happen, on which tables.

use core::fmt;
use core::str::FromStr;

/// Profile: the kinds of faults of a run, and what it must survive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// No faults, only the fabric's freedoms.
    Calm,
    /// Clients die, pause, return as zombies and lose their connections; the agent pauses. The run
    /// must survive all of it: no acknowledged write is lost, no dead client keeps a lock or leaf,
    /// and no client waits forever (LEAF-8, FABRIC-6). In pools of several nodes, one may be lost
    /// with its data, and nothing else.
    #[default]
    Crashes,
    /// Faults of `Crashes`, on a table that is retrained continuously, in memory that is reused at
    /// once. Retrainers die in the middle of it, and nodes are drained. Nothing may be lost.
    Retraining,
    /// Faults of `Crashes`, and the node restarts empty. Its data is lost, as there are no
    /// replicas. Every operation that notices must report it: no answer may come from empty memory.
    NodeLoss,
    /// Faults of `Crashes`, on tables with a tree, whose nodes are so small that they split often.
    Trees,
    /// Faults of `Trees`, on tables that lose most of their records and are compacted continuously;
    /// retrainers die in the middle of it, and nodes are drained.
    Compaction,
    /// Faults of `Crashes`, on tables whose records the memory node holds: every operation is a
    /// call.
    Calls,
    /// Faults of `Calls`, on tables whose leaves the node changes, and whose models it trains
    /// continuously. Workers and trainers lose their connections, and other nodes of the pool are
    /// lost.
    Xstore,
    /// Faults of `Crashes`, on tables of byte strings, with values inside and outside of pages.
    Bytes,
}

impl Profile {
    /// All profiles.
    pub const ALL: [Self; 9] = [
        Self::Calm,
        Self::Crashes,
        Self::Retraining,
        Self::NodeLoss,
        Self::Trees,
        Self::Compaction,
        Self::Calls,
        Self::Xstore,
        Self::Bytes,
    ];

    /// Returns the name that users write.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Calm => "calm",
            Self::Crashes => "crashes",
            Self::Retraining => "retraining",
            Self::NodeLoss => "node-loss",
            Self::Trees => "trees",
            Self::Compaction => "compaction",
            Self::Calls => "calls",
            Self::Xstore => "xstore",
            Self::Bytes => "bytes",
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// No profile has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is not a profile; choose from 'calm', 'crashes', 'retraining', 'node-loss', 'trees', \
     'compaction', 'calls', 'xstore' and 'bytes'"
)]
pub struct UnknownProfile(pub String);

impl FromStr for Profile {
    type Err = UnknownProfile;

    fn from_str(name: &str) -> Result<Self, UnknownProfile> {
        Self::ALL
            .into_iter()
            .find(|profile| profile.name() == name)
            .ok_or_else(|| UnknownProfile(name.to_owned()))
    }
}
