//! Applies completions to the batch that was posted.

use crate::batch::{Verb, VerbKind};
use crate::endpoint::BatchErrorKind;
use crate::network::{BatchPart, Loss, PartFailure};

/// The verb of a batch that the node's card refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// Index of the verb among those posted to the node.
    pub(super) ordinal: usize,
    /// True if pieces of the verb had been executed.
    pub(super) is_torn: bool,
}

/// The outcome of a batch's verbs to one node.
#[derive(Debug)]
pub(super) enum QueueOutcome {
    /// All verbs were executed.
    Done,
    /// The node's card refused a verb, and executed none after it.
    Refused(Refusal),
    /// Unknown: the connection was lost.
    Lost(Loss),
}

/// Returns the reason why a part of a batch failed.
#[cold]
pub(super) fn failure_of(
    outcome: QueueOutcome,
    part: BatchPart,
    verbs: &[Verb],
    memory_word_count: u64,
) -> PartFailure {
    let refusal = match outcome {
        QueueOutcome::Refused(refusal) => refusal,
        QueueOutcome::Lost(loss) => {
            return PartFailure {
                verb_index: part.first_index(verbs),
                // A node that stops also ends its queue pairs, which proves nothing about the
                // session.
                may_be_lost: loss.may_be_node_loss(),
                kind: loss.while_in_flight(),
            };
        }
        QueueOutcome::Done => unreachable!("what is done has not failed"),
    };
    let refused = part.own(verbs).nth(refusal.ordinal);
    PartFailure {
        verb_index: refused.map_or(0, |(index, _)| index),
        kind: kind_of(refused.map(|(_, verb)| verb), refusal, memory_word_count),
        may_be_lost: false,
    }
}

/// Returns the reason why the card refused a verb that this side considered valid. `None` stands
/// for the final READ of a batch that changes something.
fn kind_of(verb: Option<&Verb>, refusal: Refusal, memory_word_count: u64) -> BatchErrorKind {
    let Some(verb) = verb.filter(|_| !refusal.is_torn) else {
        let reason = "the memory node's RDMA device executed part of it and refused the rest";
        return BatchErrorKind::Unknown {
            reason: reason.to_owned(),
        };
    };
    let (addr, word_count) = (verb.addr, u64::from(verb.word_count));
    if verb.kind == VerbKind::Read {
        return BatchErrorKind::Refused {
            addr,
            word_count,
            memory_word_count: Some(memory_word_count),
        };
    }
    BatchErrorKind::Forbidden { addr, word_count }
}
