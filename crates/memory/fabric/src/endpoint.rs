//! The verbs trait: what every backend offers to a session.

use core::fmt;
use core::future::Future;
use core::time::Duration;

use farleaf_base::{NodeId, WordAddr};
use farleaf_executor::{Completions, Wait};
use thiserror::Error;

use crate::batch::Batch;
use crate::cost::Counters;
use crate::phase::ProtocolPhase;

/// A session's access to the memories of a pool; used by one thread.
///
/// The contract is FABRIC-1 to FABRIC-10 in the crate's documentation. The conformance suite checks
/// it for every backend.
pub trait Endpoint {
    /// Posts the batch and waits until it is complete: one round trip (FABRIC-1, FABRIC-2).
    ///
    /// Completed effects are visible to every verb posted later by any session (FABRIC-8). An empty
    /// batch is not posted: it succeeds and costs nothing. A verb of no words is posted, checked
    /// and counted like any other, and accesses nothing.
    ///
    /// A backend on mapped memory completes at the first poll. The future may be dropped at any
    /// time without harm to memory; the verbs take effect or not, as after a failure (FABRIC-5).
    ///
    /// # Errors
    /// FABRIC-5 defines what took effect. The endpoint never retries.
    fn execute<'a>(
        &'a self,
        batch: &'a mut Batch,
    ) -> impl Future<Output = Result<(), BatchError>> + 'a;

    /// Returns true if [`read_at_once`](Self::read_at_once) is supported.
    #[inline]
    fn reads_at_once(&self) -> bool {
        false
    }

    /// Does the work of a batch with one READ, from `from` into all of `to`, if this processor can
    /// do it alone. It uses no batch, no future and no counter; the caller records one round trip
    /// ([`Counters::record`]).
    ///
    /// Returns `false` if nothing was read; the caller then executes the batch, which reads or
    /// returns the error.
    #[inline]
    fn read_at_once(&self, from: WordAddr, to: &mut [u64]) -> bool {
        let _ = (from, to);
        false
    }

    /// Announces that a READ of these or nearby words will probably follow soon. Costs no verb. A
    /// backend on mapped memory prefetches them into the processor's cache; others do nothing.
    #[inline]
    fn prepare(&self, from: WordAddr, word_count: usize) {
        let _ = (from, word_count);
    }

    /// Returns true if the protocol must skip a check. Only simulated endpoints do, to test that
    /// the skipped check is noticed. The default costs nothing.
    #[inline]
    fn skips_check(&self, check: ProtocolCheck) -> bool {
        let _ = check;
        false
    }

    /// Notifies the endpoint of the session's protocol phase. Only simulated endpoints use this, to
    /// let sessions die in that phase. The default costs nothing.
    #[inline]
    fn enters(&self, phase: ProtocolPhase) {
        let _ = phase;
    }

    /// Notifies the endpoint that models were trained on `leaf_count` leaves with `record_count`
    /// records. A simulator, whose virtual time stands still during training, adds the time before
    /// the next batch.
    #[inline]
    fn note_training(&self, leaf_count: u64, record_count: u64) {
        let _ = (leaf_count, record_count);
    }

    /// Notifies the endpoint that an operation followed a reference to something that was no longer
    /// there. This cannot happen if memory is reused only after all sessions have passed, so a
    /// simulated endpoint reports it as an error. The default costs nothing.
    #[inline]
    fn note_stale_string(&self) {}

    /// Notifies the endpoint that an operation searches by a part of an outdated root. No session
    /// may do that, so a simulated endpoint reports it as an error. The default costs nothing.
    #[inline]
    fn note_stale_part(&self) {}

    /// Opens a window of `word_count` zeroed words for this session, if the backend has windows
    /// (FABRIC-10). A session keeps an existing window. Returns false if the backend has none;
    /// nothing changed then.
    #[inline]
    fn open_window(&self, word_count: usize) -> bool {
        let _ = word_count;
        false
    }

    /// Copies words of the session's window, starting at `index`, without a verb (FABRIC-10).
    /// Returns `false` if the words are not all in the window, or if no more writes arrive; the
    /// next batch to the main node then returns the error.
    #[inline]
    fn read_window(&self, index: u64, to: &mut [u64]) -> bool {
        let _ = (index, to);
        false
    }

    /// Announces whether the session awaits a write into its window (FABRIC-10). While it does,
    /// [`poll_completions`](Self::poll_completions) takes and counts arriving writes, and waits
    /// include them.
    #[inline]
    fn await_window(&self, is_awaited: bool) {
        let _ = is_awaited;
    }

    /// Returns true if the current task is polled again once the window's word at `index` is
    /// written, or never will be (FABRIC-10). The task then need not poll the word before. Only
    /// simulated endpoints return true, because each futile look is a simulation step.
    #[inline]
    fn wakes_when_written(&self, index: u64) -> bool {
        let _ = index;
        false
    }

    /// Delivers completions that have arrived, and returns their number. Executors call this.
    fn poll_completions(&self) -> usize;

    /// Waits until there may be a completion, but at most for `at_most`. Returns [`Wait::Unable`]
    /// if the backend completes batches by itself, or if none is in flight.
    #[inline]
    fn wait_for_completions(&self, at_most: Duration) -> Wait {
        let _ = at_most;
        Wait::Unable
    }

    /// Returns this endpoint's completions, for drivers of futures that wait for them.
    #[inline]
    fn completions(&self) -> EndpointCompletions<'_, Self> {
        EndpointCompletions(self)
    }

    /// Returns the number of posted batches that are not complete, including those of dropped
    /// futures.
    ///
    /// A session is closed only when there are none (FABRIC-6). The number is 0 if batches complete
    /// at the first poll.
    #[inline]
    fn in_flight_count(&self) -> usize {
        0
    }

    /// Returns the costs so far per kind of operation (FABRIC-9).
    fn counters(&self) -> &Counters;

    /// Returns the size of a node's memory in words; `None` if the pool has no such node.
    fn memory_word_count(&self, node: NodeId) -> Option<u64>;
}

/// Completions of an endpoint; see [`Endpoint::completions`].
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

/// Check of a higher protocol that the simulator can have skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolCheck {
    /// LEAF-4: an image is accepted only if its checksum matches.
    LeafIsIntact,
    /// LEAF-4: a torn leaf is never reported as "not found".
    TornIsNotAbsent,
    /// LEAF-4: the content of a retired leaf is not used.
    LeafIsNotRetired,
    /// Both source leaves of a merge are locked.
    MergedLeavesAreLocked,
    /// LEAF-7: moved leaves are freed only when every session has published a late enough number.
    MovedIsUnnamed,
    /// LEAF-7: every unfenced session counts, whether active or not.
    EverySessionCounts,
    /// LEAF-7: a session that sees a new number reads the roots of its tables before it continues.
    RootsAreFollowed,
    /// After leaves are moved, the link to the first of them is redirected to the new run.
    LinksAreRedirected,
    /// A retrainer passes leaves on a lost node.
    LostLeafIsPassed,
    /// Chunks of leaves that a leaf table names are not garbage.
    LeafTableIsNamed,
    /// No leaf is locked while models are trained and published.
    TrainingHoldsNoLock,
    /// A run is filled before a snapshot names it.
    RunIsFilledFirst,
    /// LEAF-7: memory is freed only when every session has published a late enough number.
    GracePeriodIsOver,
    /// LEAF-7: a session that sees a new number looks for dropped tables before it continues.
    DropsAreFollowed,
    /// Pages of models and residuals are dropped with the root by which they were read.
    PagesBelongToRoot,
    /// LEAF-5: after acquiring a lock, a session checks again whether the key belongs to the leaf.
    KeyBelongsToLockedLeaf,
    /// A leaf is complete on its new node before it is retired on the old one.
    MovedIsCompleteElsewhere,
    /// LEAF-3: a sibling is complete on its node before a leaf on another node links to it.
    SiblingIsCompleteElsewhere,
    /// A child is listed in its inner node only after a leaf links to it.
    ChildIsLinkedFirst,
    /// A lock is handed over only by a batch that is known to have executed.
    HandOverIsConfirmed,
    /// A cache of a tree level is searched only if it holds everything readable of that level.
    CacheIsComplete,
    /// A listed page counts only if the load that listed it has committed.
    ListedLoadHasCommitted,
    /// Rings are free only when no thread writes replies into them any more.
    RingsAreReleased,
    /// The ring space of a call is reused only after its reply has arrived.
    PlaceIsAnswered,
    /// A leaf that does not cover a key does not answer for it, whatever model led there.
    ModelsAreHints,
    /// A sub-model also covers the leaves at both ends of its keys.
    ModelsOverlap,
    /// A leaf split makes the sub-models that cover the leaf due for training.
    SplitsAreReported,
    /// A sub-model whose writing failed is trained again.
    FailedTrainingIsDue,
    /// Unlinked blocks are reused only when every session has published a late enough number.
    BlockGraceIsOver,
    /// A session becomes a value block's holder before it unlinks the block.
    UnlinkedBlockIsHeld,
    /// A session that unlinked a value block keeps it until the grace period has ended.
    UnlinkedBlockIsRetired,
    /// A value block is complete before a page refers to it.
    BlockIsCompleteFirst,
    /// A session that recovers a torn page finishes its split.
    TornSplitIsFinished,
    /// A value sent in parts has a number that nothing else of its session has.
    PartsAreNumbered,
    /// A tag at the rendezvous point is a request only if it has the next number.
    RequestIsNext,
}

/// Error of a batch: the reason, and the number of verbs executed before it.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct BatchError(Box<BatchFailure>);

#[derive(Debug)]
struct BatchFailure {
    kind: BatchErrorKind,
    executed_verb_count: usize,
}

/// Reason why a batch failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BatchErrorKind {
    /// The verb is outside of the memory (FABRIC-7). It had no effect.
    Refused {
        /// First word that the verb addressed.
        addr: WordAddr,
        /// Number of words that the verb addressed.
        word_count: u64,
        /// Size of the memory in words; `None` if the pool has no such node.
        memory_word_count: Option<u64>,
    },
    /// The session's rights do not allow the verb (FABRIC-7). It had no effect.
    Forbidden {
        /// First word that the verb addressed.
        addr: WordAddr,
        /// Number of words that the verb addressed.
        word_count: u64,
    },
    /// The session has been fenced (FABRIC-6). The batch had no effect on that node.
    Fenced,
    /// The node was lost before the batch was posted. The batch had no effect.
    Unreachable {
        /// The unreachable node.
        node: NodeId,
        /// Description of the failure by the backend.
        reason: String,
    },
    /// A node of the pool is lost for good with its content, as the pool's main node reports.
    /// FABRIC-5 defines the effects of the batch's verbs to other nodes.
    NodeLost {
        /// The lost node.
        node: NodeId,
    },
    /// The verb may or may not have taken effect, completely or (a WRITE) in part (FABRIC-5).
    Unknown {
        /// Description of the failure by the backend.
        reason: String,
    },
}

impl BatchError {
    /// Returns the failure of verb number `executed_verb_count`, counted from 0.
    #[cold]
    pub fn new(kind: BatchErrorKind, executed_verb_count: usize) -> Self {
        Self(Box::new(BatchFailure {
            kind,
            executed_verb_count,
        }))
    }

    /// Returns the reason of the failure.
    pub fn kind(&self) -> &BatchErrorKind {
        &self.0.kind
    }

    /// Returns true if the session's rights do not allow the verb (FABRIC-7). It had no effect.
    pub fn is_forbidden(&self) -> bool {
        matches!(self.0.kind, BatchErrorKind::Forbidden { .. })
    }

    /// Returns the node that is lost for good, if that is the reason.
    pub fn lost_node(&self) -> Option<NodeId> {
        match self.0.kind {
            BatchErrorKind::NodeLost { node } => Some(node),
            _ => None,
        }
    }

    /// Returns the number of verbs that certainly took effect before the failed one.
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
                memory_word_count: Some(size),
            } => write!(
                f,
                "verb {verb} of the batch refused: {} bytes at offset {:#x} of {} are outside \
                 its memory of {} bytes",
                word_count * 8,
                addr.index() * 8,
                addr.node(),
                size * 8
            ),
            BatchErrorKind::Refused {
                addr,
                word_count,
                memory_word_count: None,
            } => write!(
                f,
                "verb {verb} of the batch refused: {} bytes at offset {:#x} of {}, which is not in \
                 the pool",
                word_count * 8,
                addr.index() * 8,
                addr.node()
            ),
            BatchErrorKind::Forbidden { addr, word_count } => write!(
                f,
                "permission denied: this session's rights do not allow the operation's writes; use \
                 a secret or key that grants more, and no lower --rights (verb {verb} of the batch: \
                 {} bytes at offset {:#x} of {})",
                word_count * 8,
                addr.index() * 8,
                addr.node()
            ),
            BatchErrorKind::Fenced => f.write_str(
                "the memory node has fenced this session: it was silent for too long, or an \
                 operator requested it; open the pool again",
            ),
            BatchErrorKind::Unreachable { node, reason } => {
                write!(f, "{node} of the pool cannot be reached: {reason}")
            }
            BatchErrorKind::NodeLost { node } => write!(
                f,
                "{node} of the pool is lost, with the data on it; data that is on other nodes, and \
                 reachable through them, remains available"
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
