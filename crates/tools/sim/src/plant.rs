//! Planted bugs, which prove that the checks find bugs.
//!
//! Five of them reorder WRITEs, against LEAF-2, LEAF-3 or the order of a page's WRITEs; the
//! simulated endpoint posts batches in that order. The others omit a check. For these the protocol
//! code asks its endpoint ([`Endpoint::skips_check`](farleaf_fabric::Endpoint::skips_check)), and
//! every other endpoint answers no.

use core::fmt;
use core::str::FromStr;

use farleaf_fabric::{ProtocolCheck, Verb, VerbKind};

use crate::profile::Profile;

/// Number of runs of [`Profile::Crashes`] from seed 1 within which every
/// planted bug is found.
pub const FOUND_WITHIN_RUN_COUNT: u64 = 8000;

/// Planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Plant {
    /// Torn images are accepted (LEAF-4).
    CrcIgnored,
    /// A writer with the lock does not check again where the key belongs (LEAF-5).
    FencesNotRevalidated,
    /// A torn leaf counts as one without the key (LEAF-4).
    TornLeafAsAbsent,
    /// The state is written before the slots that it lists (LEAF-2).
    StateBeforeSlots,
    /// The lock is released before the state is written (LEAF-2).
    UnlockBeforeState,
    /// The left leaf shrinks before its new sibling is written (LEAF-3).
    HighBeforeSibling,
    /// A split writes a record into a slot that the old state lists (LEAF-3).
    SplitReusesListedSlot,
    /// A dropped table's memory is freed before all sessions have passed (LEAF-7).
    FreedTooEarly,
    /// A process that sees a new sequence number keeps its old tables (LEAF-7).
    DropsNotFollowed,
    /// A process that sees a new sequence number keeps its old directories (LEAF-7).
    RootsNotFollowed,
    /// Leaves that retraining has moved are freed before all sessions have passed (LEAF-7).
    RunFreedEarly,
    /// Reclamation does not wait for a session that lags behind (LEAF-7).
    IdleSessionIgnored,
    /// A retired leaf is read and written like any other (LEAF-4).
    RetiredLeafTrusted,
    /// Pages of models and residuals are kept when the root changes.
    PagesKept,
    /// One of two leaves that are merged is not locked.
    MergeUnlocked,
    /// The leaf to the left of a new run still links to the moved leaves.
    NeighbourLinkKept,
    /// Runs count as garbage although a leaf table names their leaves.
    LeafTableUnnamed,
    /// A leaf is locked while models are trained and published.
    LockHeldWhileTraining,
    /// New models are published before the run that they name is filled.
    SnapshotBeforeRuns,
    /// A leaf moves to another node in one batch.
    MovedAtOnce,
    /// One batch writes a sibling on another node and the link to it (LEAF-3).
    SiblingAtOnce,
    /// A retrainer fails at a leaf on a lost node.
    LossNotPassed,
    /// A new leaf is listed in the tree before its left neighbor links to it.
    ListedBeforeLinked,
    /// A leaf is handed over although the batch that promised it has failed, since its session is
    /// fenced.
    HandedOverPastFence,
    /// A cache of a tree is searched when half of it has been read.
    CacheHalfBuilt,
    /// Pages of a failed load count as the table's.
    FailedLoadListed,
    /// A dead session's rings are freed while replies are still written into them.
    RingsFreedEarly,
    /// A key counts as absent if an old model leads to a leaf without it.
    StaleModelTrusted,
    /// Sub-models do not cover the leaves that begin before their keys.
    NoBoundary,
    /// The node does not inform the models of a leaf that was split.
    SplitUntold,
    /// A sub-model whose write failed is not trained again.
    TrainingLost,
    /// A value block is overwritten before all sessions have passed.
    BlockReusedEarly,
    /// A session that unlinks a value block does not become its holder.
    BlockNotHeld,
    /// An unlinked value block is never freed.
    BlockForgotten,
    /// A value block is written after the page that refers to it.
    BlockAfterPage,
    /// A page's state is written before what it lists.
    PageStateFirst,
    /// Recovery does not finish a page's split.
    TornSplitLeft,
    /// All parts of messages between session and node have the same number.
    PartsUnnumbered,
    /// Parts of a snapshot are kept when the root changes.
    PartsKept,
}

impl Plant {
    /// All planted bugs.
    pub const ALL: [Self; 39] = [
        Self::CrcIgnored,
        Self::FencesNotRevalidated,
        Self::TornLeafAsAbsent,
        Self::StateBeforeSlots,
        Self::UnlockBeforeState,
        Self::HighBeforeSibling,
        Self::SplitReusesListedSlot,
        Self::FreedTooEarly,
        Self::DropsNotFollowed,
        Self::RootsNotFollowed,
        Self::RunFreedEarly,
        Self::IdleSessionIgnored,
        Self::RetiredLeafTrusted,
        Self::PagesKept,
        Self::MergeUnlocked,
        Self::NeighbourLinkKept,
        Self::LeafTableUnnamed,
        Self::LockHeldWhileTraining,
        Self::SnapshotBeforeRuns,
        Self::MovedAtOnce,
        Self::SiblingAtOnce,
        Self::LossNotPassed,
        Self::ListedBeforeLinked,
        Self::HandedOverPastFence,
        Self::CacheHalfBuilt,
        Self::RingsFreedEarly,
        Self::StaleModelTrusted,
        Self::NoBoundary,
        Self::SplitUntold,
        Self::TrainingLost,
        Self::BlockReusedEarly,
        Self::BlockNotHeld,
        Self::BlockForgotten,
        Self::BlockAfterPage,
        Self::PageStateFirst,
        Self::TornSplitLeft,
        Self::FailedLoadListed,
        Self::PartsUnnumbered,
        Self::PartsKept,
    ];

    /// Returns the name that users write.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CrcIgnored => "crc-ignored",
            Self::FencesNotRevalidated => "fences-not-revalidated",
            Self::TornLeafAsAbsent => "torn-leaf-as-absent",
            Self::StateBeforeSlots => "state-before-slots",
            Self::UnlockBeforeState => "unlock-before-state",
            Self::HighBeforeSibling => "high-before-sibling",
            Self::SplitReusesListedSlot => "split-reuses-listed-slot",
            Self::FreedTooEarly => "freed-too-early",
            Self::DropsNotFollowed => "drops-not-followed",
            Self::RootsNotFollowed => "roots-not-followed",
            Self::RunFreedEarly => "run-freed-early",
            Self::IdleSessionIgnored => "idle-session-ignored",
            Self::RetiredLeafTrusted => "retired-leaf-trusted",
            Self::PagesKept => "pages-kept",
            Self::MergeUnlocked => "merge-unlocked",
            Self::NeighbourLinkKept => "neighbour-link-kept",
            Self::LeafTableUnnamed => "leaf-table-unnamed",
            Self::LockHeldWhileTraining => "lock-held-while-training",
            Self::SnapshotBeforeRuns => "snapshot-before-runs",
            Self::MovedAtOnce => "moved-at-once",
            Self::SiblingAtOnce => "sibling-at-once",
            Self::LossNotPassed => "loss-not-passed",
            Self::ListedBeforeLinked => "listed-before-linked",
            Self::HandedOverPastFence => "handed-over-past-fence",
            Self::CacheHalfBuilt => "cache-half-built",
            Self::FailedLoadListed => "failed-load-listed",
            Self::RingsFreedEarly => "rings-freed-early",
            Self::StaleModelTrusted => "stale-model-trusted",
            Self::NoBoundary => "no-boundary",
            Self::SplitUntold => "split-untold",
            Self::TrainingLost => "training-lost",
            Self::BlockReusedEarly => "block-reused-early",
            Self::BlockNotHeld => "block-not-held",
            Self::BlockForgotten => "block-forgotten",
            Self::BlockAfterPage => "block-after-page",
            Self::PageStateFirst => "page-state-first",
            Self::TornSplitLeft => "torn-split-left",
            Self::PartsUnnumbered => "parts-unnumbered",
            Self::PartsKept => "parts-kept",
        }
    }

    /// Returns the profile that finds the bug.
    pub const fn profile(self) -> Profile {
        match self {
            Self::RootsNotFollowed
            | Self::RunFreedEarly
            | Self::IdleSessionIgnored
            | Self::RetiredLeafTrusted
            | Self::PagesKept
            | Self::MergeUnlocked
            | Self::NeighbourLinkKept
            | Self::LeafTableUnnamed
            | Self::LockHeldWhileTraining
            | Self::SnapshotBeforeRuns
            | Self::MovedAtOnce
            | Self::SiblingAtOnce
            | Self::LossNotPassed => Profile::Retraining,
            Self::ListedBeforeLinked | Self::HandedOverPastFence | Self::CacheHalfBuilt => {
                Profile::Trees
            }
            Self::RingsFreedEarly => Profile::Calls,
            Self::StaleModelTrusted | Self::NoBoundary | Self::SplitUntold | Self::TrainingLost => {
                Profile::Xstore
            }
            Self::BlockReusedEarly
            | Self::BlockNotHeld
            | Self::BlockForgotten
            | Self::BlockAfterPage
            | Self::PageStateFirst
            | Self::FailedLoadListed
            | Self::TornSplitLeft
            | Self::PartsUnnumbered
            | Self::PartsKept => Profile::Bytes,
            _ => Profile::Crashes,
        }
    }

    /// Returns the check that is omitted, if that is the bug.
    pub(crate) fn left_out(self) -> Option<ProtocolCheck> {
        match self {
            Self::CrcIgnored => Some(ProtocolCheck::LeafIsIntact),
            Self::FencesNotRevalidated => Some(ProtocolCheck::KeyBelongsToLockedLeaf),
            Self::TornLeafAsAbsent => Some(ProtocolCheck::TornIsNotAbsent),
            Self::FreedTooEarly => Some(ProtocolCheck::GracePeriodIsOver),
            Self::DropsNotFollowed => Some(ProtocolCheck::DropsAreFollowed),
            Self::RootsNotFollowed => Some(ProtocolCheck::RootsAreFollowed),
            Self::RunFreedEarly => Some(ProtocolCheck::MovedIsUnnamed),
            Self::IdleSessionIgnored => Some(ProtocolCheck::EverySessionCounts),
            Self::RetiredLeafTrusted => Some(ProtocolCheck::LeafIsNotRetired),
            Self::PagesKept | Self::PartsKept => Some(ProtocolCheck::PagesBelongToRoot),
            Self::MergeUnlocked => Some(ProtocolCheck::MergedLeavesAreLocked),
            Self::NeighbourLinkKept => Some(ProtocolCheck::LinksAreRedirected),
            Self::LeafTableUnnamed => Some(ProtocolCheck::LeafTableIsNamed),
            Self::LockHeldWhileTraining => Some(ProtocolCheck::TrainingHoldsNoLock),
            Self::SnapshotBeforeRuns => Some(ProtocolCheck::RunIsFilledFirst),
            Self::MovedAtOnce => Some(ProtocolCheck::MovedIsCompleteElsewhere),
            Self::SiblingAtOnce => Some(ProtocolCheck::SiblingIsCompleteElsewhere),
            Self::LossNotPassed => Some(ProtocolCheck::LostLeafIsPassed),
            Self::ListedBeforeLinked => Some(ProtocolCheck::ChildIsLinkedFirst),
            Self::HandedOverPastFence => Some(ProtocolCheck::HandOverIsConfirmed),
            Self::CacheHalfBuilt => Some(ProtocolCheck::CacheIsComplete),
            Self::FailedLoadListed => Some(ProtocolCheck::ListedLoadHasCommitted),
            Self::RingsFreedEarly => Some(ProtocolCheck::RingsAreReleased),
            Self::StaleModelTrusted => Some(ProtocolCheck::ModelsAreHints),
            Self::NoBoundary => Some(ProtocolCheck::ModelsOverlap),
            Self::SplitUntold => Some(ProtocolCheck::SplitsAreReported),
            Self::TrainingLost => Some(ProtocolCheck::FailedTrainingIsDue),
            Self::BlockReusedEarly => Some(ProtocolCheck::BlockGraceIsOver),
            Self::BlockNotHeld => Some(ProtocolCheck::UnlinkedBlockIsHeld),
            Self::BlockForgotten => Some(ProtocolCheck::UnlinkedBlockIsRetired),
            Self::BlockAfterPage => Some(ProtocolCheck::BlockIsCompleteFirst),
            Self::TornSplitLeft => Some(ProtocolCheck::TornSplitIsFinished),
            Self::PartsUnnumbered => Some(ProtocolCheck::PartsAreNumbered),
            _ => None,
        }
    }

    /// Reorders the verbs of a batch, if that is the bug.
    pub(crate) fn reorder(self, verbs: &mut [Verb], words: &[u64]) {
        let Some(commit) = Commit::of(verbs, words) else {
            return;
        };
        match self {
            // A page's slots and bitmap are among the words of a leaf's slots.
            Self::StateBeforeSlots | Self::PageStateFirst => {
                let first = verbs.iter().position(|verb| commit.is_slot(verb));
                if let Some(first) = first.filter(|first| *first < commit.state) {
                    verbs[first..=commit.state].rotate_right(1);
                }
            }
            Self::UnlockBeforeState => verbs.swap(commit.state, commit.state + 1),
            Self::HighBeforeSibling if is_whole_leaf(&verbs[0]) => {
                verbs[..=commit.state].rotate_left(1);
            }
            Self::SplitReusesListedSlot => {
                // The split's own state; after it follows a record with a state of its own.
                let place = verbs[commit.state].addr;
                let own = verbs[..commit.state]
                    .iter()
                    .position(|verb| verb.addr == place);
                if let Some(own) = own {
                    verbs[own..commit.state].rotate_left(1);
                }
            }
            _ => {}
        }
    }
}

/// End of a change of a leaf: its state, and right after it the unlock.
struct Commit {
    /// Index of the verb that writes the state.
    state: usize,
    /// Address of the leaf's first word, its lock.
    leaf: u64,
}

/// Words of the largest leaf.
const LEAF_SIZE_WORDS_MAX: u64 = 37;
/// Words of the smallest leaf.
pub(crate) const LEAF_SIZE_WORDS_MIN: u32 = 21;
/// Words of a leaf before its slots.
const SLOTS_WORD: u64 = 5;

impl Commit {
    fn of(verbs: &[Verb], words: &[u64]) -> Option<Self> {
        let is_word = |verb: &Verb| verb.kind == VerbKind::Write && verb.word_count == 1;
        let is_unlock = |index: usize| {
            let (state, lock) = (&verbs[index], &verbs[index + 1]);
            is_word(state)
                && is_word(lock)
                && words[lock.start as usize] == 0
                && lock.addr.offset(1) == state.addr
        };
        let state = (0..verbs.len().checked_sub(1)?)
            .rev()
            .find(|index| is_unlock(*index))?;
        let leaf = verbs[state + 1].addr.index();
        Some(Self { state, leaf })
    }

    fn is_slot(&self, verb: &Verb) -> bool {
        let first = self.leaf + SLOTS_WORD;
        let slots = first..self.leaf + LEAF_SIZE_WORDS_MAX;
        verb.kind == VerbKind::Write && slots.contains(&verb.addr.index())
    }
}

fn is_whole_leaf(verb: &Verb) -> bool {
    verb.kind == VerbKind::Write && verb.word_count >= LEAF_SIZE_WORDS_MIN
}

impl fmt::Display for Plant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// No planted bug has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a bug that can be planted; `farleaf sim check --help` lists them")]
pub struct UnknownPlant(pub String);

impl FromStr for Plant {
    type Err = UnknownPlant;

    fn from_str(name: &str) -> Result<Self, UnknownPlant> {
        Self::ALL
            .into_iter()
            .find(|plant| plant.name() == name)
            .ok_or_else(|| UnknownPlant(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_base::{NodeId, WordAddr};
    use farleaf_fabric::Batch;

    fn at(index: u64) -> WordAddr {
        WordAddr::new(NodeId(0), index)
    }

    /// Returns the offsets of the words that a planted batch writes, in its order.
    fn order(plant: Plant, offsets: &[u64]) -> Vec<u64> {
        let mut batch = Batch::new();
        for offset in offsets {
            let value = u64::from(*offset != 0);
            match offset {
                1000 => batch.write(at(1000), &[1; 21]),
                offset => batch.write_word(at(80 + offset), value),
            }
        }
        let (verbs, words, _) = batch.parts_mut();
        let (mut verbs, words) = (verbs.to_vec(), words.to_vec());
        plant.reorder(&mut verbs, &words);
        let offsets = verbs.iter().map(|verb| verb.addr.index());
        offsets
            .map(|index| if index < 1000 { index - 80 } else { index })
            .collect()
    }

    #[test]
    fn plants_change_the_order_that_they_are_named_after() {
        let insert = [5, 13, 1, 0];
        assert_eq!(order(Plant::StateBeforeSlots, &insert), [1, 5, 13, 0]);
        assert_eq!(order(Plant::UnlockBeforeState, &insert), [5, 13, 0, 1]);
        assert_eq!(order(Plant::HighBeforeSibling, &insert), insert);
        let split = [1000, 4, 3, 1, 5, 13, 1, 0];
        assert_eq!(
            order(Plant::HighBeforeSibling, &split),
            [4, 3, 1, 5, 13, 1, 1000, 0]
        );
        assert_eq!(
            order(Plant::SplitReusesListedSlot, &split),
            [1000, 4, 3, 5, 13, 1, 1, 0]
        );
        assert_eq!(order(Plant::CrcIgnored, &split), split);
    }

    #[test]
    fn names_lead_back() {
        for plant in Plant::ALL {
            assert_eq!(plant.name().parse(), Ok(plant));
        }
        assert!("no-such-bug".parse::<Plant>().is_err());
    }
}
