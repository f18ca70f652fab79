//! What a node's answer means to the batch that was posted.

use farleaf_types::NodeId;

use crate::batch::{Batch, Verb};
use crate::endpoint::BatchErrorKind;
use crate::tcp::frame::{self, Status, wire_verb_count};

/// Puts what the executed verbs of a node brought where the batch has room for it. Returns whether
/// all verbs that were posted to the node were executed, and brought exactly what they had to.
#[inline]
pub(super) fn scatter(
    batch: &mut Batch,
    posted_count: usize,
    node: NodeId,
    bytes: &[u8],
    executed_count: usize,
) -> bool {
    let (verbs, data, _) = batch.parts_mut();
    let verbs = &verbs[..posted_count];
    let mut brought = frame::words(bytes);
    let mut wire_count = 0;
    for verb in verbs.iter().filter(|verb| verb.addr.node() == node) {
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

/// F5: part of a large WRITE took effect, or of a batch of several frames, before the rest was
/// refused. The kinds that promise that nothing did are not for it.
#[cold]
pub(super) fn torn(status: Status) -> BatchErrorKind {
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
pub(super) fn contradiction() -> BatchErrorKind {
    BatchErrorKind::Unknown {
        reason:
            "the memory node's answer does not fit the verbs; is it a farleaf of the same version?"
                .to_owned(),
    }
}

/// Why a verb was refused of which nothing took effect.
#[cold]
pub(super) fn kind_of(
    status: Status,
    verb: &Verb,
    region_word_count: Option<u64>,
) -> BatchErrorKind {
    let (addr, word_count) = (verb.addr, u64::from(verb.word_count));
    match status {
        Status::OutOfRegion => BatchErrorKind::Refused {
            addr,
            word_count,
            region_word_count,
        },
        Status::Forbidden => BatchErrorKind::Forbidden { addr, word_count },
        Status::Fenced => BatchErrorKind::Fenced,
        Status::Done | Status::Malformed | Status::Skipped => BatchErrorKind::Unknown {
            reason: "the memory node could not read it; is it a farleaf of the same version?"
                .to_owned(),
        },
    }
}
