//! What a node's answer means to the batch that was posted.

use crate::batch::{Batch, Verb};
use crate::endpoint::BatchErrorKind;
use crate::network::{Part, PartFailure};
use crate::tcp::connection::Outcome;
use crate::tcp::frame::{self, Status, wire_verb_count};

/// Puts what the executed verbs of a node brought where the batch has room for it. Returns whether
/// all verbs that were posted to the node were executed, and brought exactly what they had to.
#[inline]
pub(super) fn scatter(batch: &mut Batch, part: Part, bytes: &[u8], executed_count: usize) -> bool {
    let (verbs, data, _) = batch.parts_mut();
    let mut brought = frame::words(bytes);
    let mut wire_count = 0;
    for (_, verb) in part.own(verbs) {
        wire_count += wire_verb_count(verb);
        if wire_count > executed_count {
            return false;
        }
        let room = verb.room();
        if room.len() > brought.len() {
            return false;
        }
        data[room]
            .iter_mut()
            .zip(&mut brought)
            .for_each(|(to, from)| *to = from);
    }
    wire_count == executed_count && brought.len() == 0
}

/// A verb that was not executed, or not wholly.
struct FailedVerb {
    verb_index: usize,
    /// N2: of the pieces it was cut into, those that were executed.
    executed_piece_count: usize,
}

/// Of the verbs to a node, the one that was under way after so many verbs on the wire; `None`:
/// they were all executed.
fn first_verb_beyond(part: Part, verbs: &[Verb], executed_count: usize) -> Option<FailedVerb> {
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

/// Why a part of a batch failed.
#[cold]
pub(super) fn failure_of(
    outcome: Outcome,
    part: Part,
    verbs: &[Verb],
    region_word_count: u64,
) -> PartFailure {
    let (status, executed_verb_count) = match outcome {
        Outcome::Lost(loss) => {
            return PartFailure {
                verb_index: part.first_index(verbs),
                may_be_lost: loss.may_be_the_nodes(),
                kind: loss.while_under_way(),
            };
        }
        Outcome::Answered {
            status,
            executed_verb_count,
        } => (status, executed_verb_count),
    };
    let (verb_index, kind) = match first_verb_beyond(part, verbs, executed_verb_count) {
        Some(failed) if status != Status::Done => {
            let is_torn = failed.executed_piece_count > 0
                || status == Status::Fenced && executed_verb_count > 0;
            let kind = if is_torn {
                torn(status)
            } else {
                kind_of(status, &verbs[failed.verb_index], Some(region_word_count))
            };
            (failed.verb_index, kind)
        }
        // It contradicts itself, so its count is not to be believed either.
        _ => (0, contradiction()),
    };
    PartFailure {
        verb_index,
        kind,
        // A guest that stops closes its gates, which says nothing of the session.
        may_be_lost: status == Status::Fenced,
    }
}

/// F5: part of a large WRITE took effect, or of a batch of several frames, before the rest was
/// refused. The kinds that promise that nothing did are not for it.
#[cold]
fn torn(status: Status) -> BatchErrorKind {
    let why = match status {
        Status::Forbidden => "goes beyond this session's rights",
        Status::Fenced => "came after the session had been fenced",
        _ => "was refused",
    };
    BatchErrorKind::Unknown {
        reason: format!("the memory node has executed a part of it; the rest {why}"),
    }
}

/// The answer cannot be one to the batch.
#[cold]
fn contradiction() -> BatchErrorKind {
    BatchErrorKind::Unknown {
        reason:
            "the memory node's answer does not fit the verbs; is it a farleaf of the same version?"
                .to_owned(),
    }
}

/// Why a verb was refused of which nothing took effect.
#[cold]
fn kind_of(status: Status, verb: &Verb, region_word_count: Option<u64>) -> BatchErrorKind {
    let (addr, word_count) = (verb.addr, u64::from(verb.word_count));
    match status {
        Status::OutOfRegion => BatchErrorKind::Refused {
            addr,
            word_count,
            region_word_count,
        },
        Status::Forbidden => BatchErrorKind::Forbidden { addr, word_count },
        Status::Fenced => BatchErrorKind::Fenced,
        Status::Done | Status::Malformed | Status::Skipped | Status::Window => {
            BatchErrorKind::Unknown {
                reason: "the memory node could not read it; is it a farleaf of the same version?"
                    .to_owned(),
            }
        }
    }
}
