//! The verbs trait: what every backend offers to one session.

use core::fmt;
use core::future::Future;
use core::time::Duration;

use farleaf_executor::{Completions, Wait};
use farleaf_types::{NodeId, WordAddr};
use thiserror::Error;

use crate::batch::Batch;
use crate::cost::Counters;
use crate::phase::ProtocolPhase;

/// One session's way to the regions of a pool; used by one thread.
///
/// The contract is F1 to F10 of the crate's documentation; the conformance suite holds every
/// backend to it.
pub trait Endpoint {
    /// Posts the batch and waits until it is complete: one round trip (F1, F2). Completed effects
    /// are visible to every verb posted later by anyone (F8). An empty batch is not posted at all:
    /// it succeeds and costs nothing. A verb of no words is posted, checked and counted like any
    /// other, and touches nothing.
    ///
    /// A backend in mapped memory completes at the first poll. The future may be dropped at any
    /// time without harm to memory; the verbs take effect or not, as after a failure (F5).
    ///
    /// # Errors
    /// What took effect is told by F5. Nothing is ever retried inside.
    fn execute<'a>(
        &'a self,
        batch: &'a mut Batch,
    ) -> impl Future<Output = Result<(), BatchError>> + 'a;

    /// Whether [`read_at_once`](Self::read_at_once) can do anything.
    #[inline]
    fn reads_at_once(&self) -> bool {
        false
    }

    /// Does what a batch of one READ does, from `from` on into all of `to`, if this processor can
    /// do it by itself: without batch, future and count. One round trip, which the caller records
    /// ([`Counters::record`]). `false`: it cannot, and nothing has been read; the batch can, or
    /// tells why not.
    #[inline]
    fn read_at_once(&self, from: WordAddr, to: &mut [u64]) -> bool {
        let _ = (from, to);
        false
    }

    /// A READ of these words, or of others near them, will probably follow soon. Costs no verb; a
    /// backend in mapped memory brings them nearer to the processor, others ignore it.
    #[inline]
    fn prepare(&self, from: WordAddr, word_count: usize) {
        let _ = (from, word_count);
    }

    /// Whether the protocol is to leave a check out. No: only a simulated endpoint says yes, to
    /// see that somebody notices. Costs nothing where it is not overridden.
    #[inline]
    fn leaves_out(&self, check: ProtocolCheck) -> bool {
        let _ = check;
        false
    }

    /// How far this session is in what it does. Only a simulated endpoint wants to know, to let
    /// sessions die there. Costs nothing where it is not overridden.
    #[inline]
    fn enters(&self, phase: ProtocolPhase) {
        let _ = phase;
    }

    /// Models have just been trained on so many leaves with so many records. Where code runs in the
    /// system's time, that has taken its time; a modelled world, whose time stands still
    /// meanwhile, lets it pass before the next batch.
    #[inline]
    fn note_training(&self, leaf_count: u64, record_count: u64) {
        let _ = (leaf_count, record_count);
    }

    /// What something that was read referred to was not there when it was read next, within one
    /// operation. Where nothing is written anew before all have passed that does not happen, so a
    /// simulated endpoint tells the judge. Costs nothing where it is not overridden.
    #[inline]
    fn note_stale_string(&self) {}

    /// What is searched by was read of a root that is in force no more. Nobody does that, so a
    /// simulated endpoint tells the judge. Costs nothing where it is not overridden.
    #[inline]
    fn note_stale_part(&self) {}

    /// F10: from now on this session has a window of so many zeroed words, if it had none, and if
    /// the backend has windows; false: it has not, and nothing has changed.
    #[inline]
    fn open_window(&self, word_count: usize) -> bool {
        let _ = word_count;
        false
    }

    /// F10: looks at words of the session's window, from `index` on: no verb. `false`: they are not
    /// all in a window, or nothing comes any more; then the next batch to the home tells why.
    #[inline]
    fn read_window(&self, index: u64, to: &mut [u64]) -> bool {
        let _ = (index, to);
        false
    }

    /// F10: whether something is awaited in the window. While it is, what comes is taken by
    /// [`poll_completions`](Self::poll_completions), which counts it, and waited for.
    #[inline]
    fn await_window(&self, is_awaited: bool) {
        let _ = is_awaited;
    }

    /// F10: whether the task that is being polled is polled again when the window's word of this
    /// index is written, or never will be: then it need not look before. Only a modelled endpoint
    /// says yes, for which each look in vain is a step.
    #[inline]
    fn wakes_when_written(&self, index: u64) -> bool {
        let _ = index;
        false
    }

    /// Delivers completions that have arrived, and returns how many. Executors call this.
    fn poll_completions(&self) -> usize;

    /// Waits until there may be a completion, or for `at_most`. Unable where a backend completes by
    /// itself, or nothing is on its way.
    #[inline]
    fn wait_for_completions(&self, at_most: Duration) -> Wait {
        let _ = at_most;
        Wait::Unable
    }

    /// This endpoint's completions, for whoever drives futures that wait for them.
    #[inline]
    fn completions(&self) -> EndpointCompletions<'_, Self> {
        EndpointCompletions(self)
    }

    /// Batches that were posted and are not complete, those of dropped futures among them. A
    /// session is closed only when there are none (F6). None where batches complete at the first
    /// poll.
    #[inline]
    fn in_flight_count(&self) -> usize {
        0
    }

    /// Costs so far per kind of operation (F9).
    fn counters(&self) -> &Counters;

    /// Size of a node's region in words; `None` when there is no such node.
    fn region_word_count(&self, node: NodeId) -> Option<u64>;
}

/// The completions of an endpoint; see [`Endpoint::completions`].
#[derive(Debug)]
pub struct EndpointCompletions<'a, E: ?Sized>(&'a E);

impl<E: Endpoint + ?Sized> Completions for EndpointCompletions<'_, E> {
    #[inline]
    fn poll(&mut self) -> usize {
        self.0.poll_completions()
    }

    #[inline]
    fn wait(&mut self, at_most: Duration) -> Wait {
        self.0.wait_for_completions(at_most)
    }
}

/// A check of the protocols above, which the simulator can have left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolCheck {
    /// D4: an image is believed only if its checksum matches.
    LeafIsIntact,
    /// D4: a torn leaf is never "not found".
    TornIsNotAbsent,
    /// D4: a retired leaf is not believed.
    LeafIsNotRetired,
    /// M1: both leaves that become one are locked.
    MergedLeavesAreLocked,
    /// D7: what was moved is freed only when every session has published a late enough number (T3).
    MovedIsUnnamed,
    /// D7: every session that is not fenced counts, whether it does anything or not.
    EverySessionCounts,
    /// D7: who sees a new number looks for new roots before going on (P4).
    RootsAreFollowed,
    /// R4: what links to a leaf that was moved is linked to where that went.
    LinksAreRedirected,
    /// R9: a retrainer passes leaves on a lost node.
    LostLeafIsPassed,
    /// X9: chunks of leaves that a leaf table names are no garbage.
    LeafTableIsNamed,
    /// R8: no leaf is locked while models are trained and published.
    TrainingHoldsNoLock,
    /// R5: a run is filled before a snapshot names it.
    RunIsFilledFirst,
    /// D7: memory is freed only when every session has published a late enough number (G2).
    GracePeriodIsOver,
    /// D7: who sees a new number looks for dropped tables before going on (P4).
    DropsAreFollowed,
    /// L3.4: pages of models and residuals are dropped with the root that they were read by.
    PagesBelongToRoot,
    /// D5: who has got a lock looks again whether the key belongs to the leaf.
    KeyBelongsToLockedLeaf,
    /// M4: a leaf is whole on its new node before it is retired on the old one.
    MovedIsWholeElsewhere,
    /// D3: a sibling is whole on its node before a leaf on another one links to it.
    SiblingIsWholeElsewhere,
    /// I3: a child is listed only when it is linked to.
    ChildIsLinkedFirst,
    /// H3: a lock is handed over only by a batch that is known to be executed.
    HandOverIsConfirmed,
    /// I7: a cache is searched only when all that can be read of its level has been.
    CacheIsWhole,
    /// BT2: a page that is listed counts only if the load that listed it has committed.
    ListedLoadHasCommitted,
    /// E9: rings are free only when nobody writes replies into them any more.
    RingsAreLetGo,
    /// E3: the place of a call is used again when its reply has come.
    PlaceIsAnswered,
    /// Y1: a leaf that does not cover a key says nothing of it, whatever model led there.
    ModelsAreHints,
    /// Y4: a sub-model covers the leaves at either end of its keys.
    ModelsOverlap,
    /// Y4: a leaf that splits makes the sub-models due that cover it.
    SplitsAreTold,
    /// Y5: a sub-model whose writing failed is trained again.
    FailedTrainingIsDue,
    /// BV4: what was unlinked is written anew only when every session has published a late enough
    /// number.
    BlockGraceIsOver,
    /// BV3: who unlinks a value block is its holder before.
    UnlinkedBlockIsHeld,
    /// BV4: who has unlinked a value block keeps it in limbo.
    UnlinkedBlockIsRetired,
    /// BV1: a value block is whole before a page refers to it.
    BlockIsWholeFirst,
    /// BP2: who recovers a torn page finishes its split.
    TornSplitIsFinished,
    /// J8: what goes in parts has a number that nothing else of its session has.
    PartsAreNumbered,
    /// E4: a tag at the rendezvous point is a request's only if it has the next number.
    RequestIsNext,
}

/// Why a batch failed, and how far it came.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct BatchError(Box<BatchFailure>);

#[derive(Debug)]
struct BatchFailure {
    kind: BatchErrorKind,
    executed_verb_count: usize,
}

/// Why a batch failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BatchErrorKind {
    /// F7: the verb is outside of the region or of the session's rights. Nothing of it took effect.
    Refused {
        /// Where the verb was aimed at.
        addr: WordAddr,
        /// How many words it meant.
        word_count: u64,
        /// Size of the region in words, `None` when the pool has no such node.
        region_word_count: Option<u64>,
    },
    /// F7: the session's rights do not go so far. Nothing of the verb took effect.
    Forbidden {
        /// Where the verb was aimed at.
        addr: WordAddr,
        /// How many words it meant.
        word_count: u64,
    },
    /// F6: the session has been fenced. Nothing of the batch took effect on that node.
    Fenced,
    /// The node was lost before the batch was posted. Nothing of the batch took effect.
    Unreachable {
        /// Which node.
        node: NodeId,
        /// What the backend knows.
        reason: String,
    },
    /// A node of the pool is gone for good, and what was on it: the pool's home node says so. What
    /// the batch's verbs to other nodes did is told by F5.
    NodeLost {
        /// Which node.
        node: NodeId,
    },
    /// F5: the verb may or may not have taken effect, wholly or (a WRITE) in part.
    Unknown {
        /// What the backend knows.
        reason: String,
    },
}

impl BatchError {
    /// A failure of verb number `executed_verb_count`, counted from 0.
    #[cold]
    pub fn new(kind: BatchErrorKind, executed_verb_count: usize) -> Self {
        Self(Box::new(BatchFailure {
            kind,
            executed_verb_count,
        }))
    }

    /// Why.
    pub fn kind(&self) -> &BatchErrorKind {
        &self.0.kind
    }

    /// F7: whether the session's rights are what is lacking. Nothing of the verb took effect.
    pub fn is_forbidden(&self) -> bool {
        matches!(self.0.kind, BatchErrorKind::Forbidden { .. })
    }

    /// The node that is gone for good, if that is why.
    pub fn lost_node(&self) -> Option<NodeId> {
        match self.0.kind {
            BatchErrorKind::NodeLost { node } => Some(node),
            _ => None,
        }
    }

    /// How many verbs certainly took effect before the one that failed.
    pub fn executed_verb_count(&self) -> usize {
        self.0.executed_verb_count
    }
}

impl fmt::Display for BatchFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = self.executed_verb_count;
        match &self.kind {
            BatchErrorKind::Refused {
                addr,
                word_count,
                region_word_count: Some(size),
            } => write!(
                f,
                "verb {verb} of the batch refused: {} bytes at offset {:#x} of {} are outside \
                 its region of {} bytes",
                word_count * 8,
                addr.index() * 8,
                addr.node(),
                size * 8
            ),
            BatchErrorKind::Refused {
                addr,
                word_count,
                region_word_count: None,
            } => write!(
                f,
                "verb {verb} of the batch refused: {} bytes at offset {:#x} of {}, which the pool \
                 does not have",
                word_count * 8,
                addr.index() * 8,
                addr.node()
            ),
            BatchErrorKind::Forbidden { addr, word_count } => write!(
                f,
                "this session has not the right to do that; connect with a secret, or with \
                 rights, for more than it was let in for (verb {verb} of the batch would change {} \
                 bytes at offset {:#x} of {})",
                word_count * 8,
                addr.index() * 8,
                addr.node()
            ),
            BatchErrorKind::Fenced => f.write_str(
                "the memory node has fenced this session: it was silent for too long, or an \
                 operator asked for it; open the pool again",
            ),
            BatchErrorKind::Unreachable { node, reason } => {
                write!(f, "{node} of the pool cannot be reached: {reason}")
            }
            BatchErrorKind::NodeLost { node } => write!(
                f,
                "{node} of the pool has been lost, and what was on it; what other nodes hold and \
                 lead to can still be used"
            ),
            BatchErrorKind::Unknown { reason } => {
                write!(
                    f,
                    "verb {verb} of the batch has an unknown outcome: {reason}"
                )
            }
        }
    }
}
