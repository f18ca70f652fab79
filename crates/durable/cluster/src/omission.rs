//! Checks of the protocol that tests can leave out, to prove that the simulation notices. Only
//! tests create an [`Omission`] other than [`Omission::NONE`].

/// A check of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// A lease counts from its request, not from the reply (CONTROL-9).
    LeaseCountsFromRequest,
    /// Only a backup in sync is promoted (CONTROL-13).
    PromotedWasInSync,
    /// A transaction of the master compares that it still is master (CONTROL-11).
    MasterIsCompared,
    /// A transaction of the master compares the record that it was planned on (CONTROL-11).
    RecordIsCompared,
    /// A primary is replaced only when its life is over, or it has reported that it stopped
    /// (CONTROL-13).
    PrimaryIsOver,
    /// The epoch is raised when the primary changes (CONTROL-13).
    EpochIsRaised,
    /// A region that lost all members continues only when all of them are back (CONTROL-18).
    AllMembersAreBack,
    /// An in-sync backup whose life is over is removed only when its primary reports that it has
    /// failed (CONTROL-14).
    LossIsReported,
    /// A backup counts as in sync only when the primary of this epoch reports it (CONTROL-14).
    InSyncIsReported,
    /// A replica that broke on a full disk is opened again only by a record that names the
    /// reopening (CONTROL-16).
    OpenedAgainIsNamed,
    /// The coordinator's cluster is compared on every contact, not only once.
    ClusterIsCompared,
}

/// At most one check that is left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Omission(Option<Check>);

impl Omission {
    /// All checks are done.
    pub const NONE: Self = Self(None);

    /// Leaves out one check.
    #[doc(hidden)]
    pub const fn of(check: Check) -> Self {
        Self(Some(check))
    }

    /// Returns whether this check is left out.
    pub fn skips_check(self, check: Check) -> bool {
        self.0 == Some(check)
    }
}
