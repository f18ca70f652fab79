//! Applies a node's reply to the batch that was posted.

use crate::batch::{Batch, Verb};
use crate::endpoint::BatchErrorKind;
use crate::network::{BatchPart, PartFailure};
use crate::tcp::connection::FrameOutcome;
use crate::tcp::frame::{self, FrameStatus, wire_verb_count};

/// Copies the results of a node's executed verbs into the batch. Returns true if all verbs posted
/// to the node were executed, and their results have exactly the expected size.
#[inline]
pub(super) fn scatter(
    batch: &mut Batch,
    part: BatchPart,
    bytes: &[u8],
    executed_count: usize,
) -> bool {
    let (verbs, data, _) = batch.parts_mut();
    let mut brought = frame::words(bytes);
    let mut wire_count = 0;
    for (_, verb) in part.own(verbs) {
        wire_count += wire_verb_count(verb);
        if wire_count > executed_count {
            return false;
        }
        let range = verb.result_range();
        if range.len() > brought.len() {
            return false;
        }
        data[range]
            .iter_mut()
            .zip(&mut brought)
            .for_each(|(to, from)| *to = from);
    }
    wire_count == executed_count && brought.len() == 0
}

/// A verb that was not executed, or not completely.
struct FailedVerb {
    verb_index: usize,
    /// Number of executed pieces, if the verb was split.
    executed_piece_count: usize,
}

/// Returns the verb of a part that contains wire verb number `executed_count`; `None` if all were
/// executed.
fn first_verb_beyond(part: BatchPart, verbs: &[Verb], executed_count: usize) -> Option<FailedVerb> {
    let mut wire_count = 0;
    part.own(verbs).find_map(|(verb_index, verb)| {
        let before = wire_count;
        wire_count += wire_verb_count(verb);
        (wire_count > executed_count).then(|| FailedVerb {
            verb_index,
            executed_piece_count: executed_count - before,
        })
    })
}

/// Returns the reason why a part of a batch failed.
#[cold]
pub(super) fn failure_of(
    outcome: FrameOutcome,
    part: BatchPart,
    verbs: &[Verb],
    memory_word_count: u64,
) -> PartFailure {
    let (status, executed_verb_count) = match outcome {
        FrameOutcome::Lost(loss) => {
            return PartFailure {
                verb_index: part.first_index(verbs),
                may_be_lost: loss.may_be_node_loss(),
                kind: loss.while_in_flight(),
            };
        }
        FrameOutcome::Answered {
            status,
            executed_verb_count,
        } => (status, executed_verb_count),
    };
    let (verb_index, kind) = match first_verb_beyond(part, verbs, executed_verb_count) {
        Some(failed) if status != FrameStatus::Done => {
            let is_torn = failed.executed_piece_count > 0
                || status == FrameStatus::Fenced && executed_verb_count > 0;
            let kind = if is_torn {
                torn(status)
            } else {
                kind_of(status, &verbs[failed.verb_index], Some(memory_word_count))
            };
            (failed.verb_index, kind)
        }
        // The reply contradicts itself, so its count cannot be trusted either.
        _ => (0, contradiction()),
    };
    PartFailure {
        verb_index,
        kind,
        // A node that stops also closes its gates, which proves nothing about the session.
        may_be_lost: status == FrameStatus::Fenced,
    }
}

/// Returns the error after part of a large WRITE, or of a batch of several frames, took effect
/// before the rest was refused (FABRIC-5). Kinds that promise no effect do not apply.
#[cold]
fn torn(status: FrameStatus) -> BatchErrorKind {
    let why = match status {
        FrameStatus::Forbidden => "exceeds this session's rights",
        FrameStatus::Fenced => "arrived after the session was fenced",
        _ => "was refused",
    };
    BatchErrorKind::Unknown {
        reason: format!("the memory node executed only part of the request; the rest {why}"),
    }
}

/// Returns the error for a reply that cannot belong to the batch.
#[cold]
fn contradiction() -> BatchErrorKind {
    BatchErrorKind::Unknown {
        reason: "the memory node's reply does not match the verbs; check that it runs the same \
                 version of farleaf"
            .to_owned(),
    }
}

/// Returns the error for a refused verb that had no effect.
#[cold]
fn kind_of(status: FrameStatus, verb: &Verb, memory_word_count: Option<u64>) -> BatchErrorKind {
    let (addr, word_count) = (verb.addr, u64::from(verb.word_count));
    match status {
        FrameStatus::OutOfBounds => BatchErrorKind::Refused {
            addr,
            word_count,
            memory_word_count,
        },
        FrameStatus::Forbidden => BatchErrorKind::Forbidden { addr, word_count },
        FrameStatus::Fenced => BatchErrorKind::Fenced,
        FrameStatus::Done | FrameStatus::Malformed | FrameStatus::Skipped | FrameStatus::Window => {
            BatchErrorKind::Unknown {
                reason:
                    "the memory node could not decode the request; check that it runs the same \
                         version of farleaf"
                        .to_owned(),
            }
        }
    }
}
