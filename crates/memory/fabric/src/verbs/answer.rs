//! What completions mean to the batch that was posted.

use crate::batch::{Verb, VerbKind};
use crate::endpoint::BatchErrorKind;
use crate::network::{Loss, Part, PartFailure};

/// The verb of a batch that the node's card refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// Its place among the verbs that were posted to the node.
    pub(super) ordinal: usize,
    /// Pieces of it had been executed.
    pub(super) is_torn: bool,
}

/// How a batch's verbs to one node ended.
#[derive(Debug)]
pub(super) enum Outcome {
    /// All of them were executed.
    Done,
    /// The node's card refused one, and executed none after it.
    Refused(Refusal),
    /// Nobody knows.
    Lost(Loss),
}

/// Why a part of a batch failed.
#[cold]
pub(super) fn failure_of(
    outcome: Outcome,
    part: Part,
    verbs: &[Verb],
    region_word_count: u64,
) -> PartFailure {
    let refusal = match outcome {
        Outcome::Refused(refusal) => refusal,
        Outcome::Lost(loss) => {
            return PartFailure {
                verb_index: part.first_index(verbs),
                // A guest that stops ends its queue pairs, which says nothing of the session.
                may_be_lost: loss.may_be_the_nodes(),
                kind: loss.while_under_way(),
            };
        }
        Outcome::Done => unreachable!("what is done has not failed"),
    };
    let refused = part.own(verbs).nth(refusal.ordinal);
    PartFailure {
        verb_index: refused.map_or(0, |(index, _)| index),
        kind: kind_of(refused.map(|(_, verb)| verb), refusal, region_word_count),
        may_be_lost: false,
    }
}

/// Why the card refused a verb that this side took for good. `None` stands for the READ behind all
/// of them (K2).
fn kind_of(verb: Option<&Verb>, refusal: Refusal, region_word_count: u64) -> BatchErrorKind {
    let Some(verb) = verb.filter(|_| !refusal.is_torn) else {
        let reason = "the memory node's RDMA device has executed a part of it and refused the rest";
        return BatchErrorKind::Unknown {
            reason: reason.to_owned(),
        };
    };
    let (addr, word_count) = (verb.addr, u64::from(verb.word_count));
    if verb.kind == VerbKind::Read {
        return BatchErrorKind::Refused {
            addr,
            word_count,
            region_word_count: Some(region_word_count),
        };
    }
    BatchErrorKind::Forbidden { addr, word_count }
}
