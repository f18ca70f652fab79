//! Checks that can be left out, to see that the simulation notices: a judge who never finds anybody
//! guilty is no judge. Nothing but tests makes an [`Omission`] other than [`Omission::NONE`].

/// A check of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// A lease counts from when it was asked for, and not from when the answer came (CP9).
    LeaseCountsFromRequest,
    /// Only a backup in sync is promoted (CP13).
    PromotedWasInSync,
    /// A transaction of the master compares that it still is master (CP11).
    MasterIsCompared,
    /// A transaction of the master compares the record that it was made for (CP11).
    RecordIsCompared,
    /// A primary is replaced only when its life is over, or it has said that it stopped (CP13).
    PrimaryIsOver,
    /// The epoch is raised when the primary changes (CP13).
    EpochIsRaised,
    /// A region goes on after all were lost when all its members are back (CP18).
    AllMembersAreBack,
    /// A backup in sync whose life is over leaves when its primary says that it has failed (CP14).
    LossIsTold,
    /// A backup counts as in sync when the primary of this epoch says so (CP14).
    InSyncIsReported,
    /// A replica that broke for want of room is opened again only by a record that names it so
    /// (CP16).
    OpenedAgainIsNamed,
    /// Which cluster the coordinator has is compared on every contact, and not once (ID2).
    ClusterIsCompared,
}

/// At most one check that is left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Omission(Option<Check>);

impl Omission {
    /// All checks are done.
    pub const NONE: Self = Self(None);

    /// This one is left out.
    #[doc(hidden)]
    pub const fn of(check: Check) -> Self {
        Self(Some(check))
    }

    /// Whether it is this one.
    pub fn leaves_out(self, check: Check) -> bool {
        self.0 == Some(check)
    }
}
