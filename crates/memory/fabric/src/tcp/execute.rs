//! Execution of a frame: the soft NIC's verbs.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::tcp::frame::{self, BadFrame, FrameRequest, FrameStatus, ReplyWriter, WireVerb};
use crate::tcp::gate::ClientState;

/// Result of executing a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Executed {
    pub(super) status: FrameStatus,
    /// True if a store may still be in this processor's buffer, so that FABRIC-8 requires a fence.
    pub(super) fence_due: bool,
}

/// Executes the verbs of a whole frame in posting order, and appends the reply.
#[inline]
pub(super) fn execute_frame(
    memory: &[AtomicU64],
    client: &ClientState,
    mut request: FrameRequest<'_>,
    out: &mut Vec<u8>,
) -> Executed {
    let mut reply = ReplyWriter::begin(out, request.tag);
    let mut status = FrameStatus::Done;
    let mut fence_due = false;
    let mut executed_count = 0;
    while executed_count < request.verb_count {
        let outcome = match request.next_verb() {
            Ok(verb) => {
                fence_due |= !matches!(verb, WireVerb::Read { .. });
                execute_verb(memory, client, &verb, &mut reply)
            }
            Err(BadFrame(_)) => FrameStatus::Malformed,
        };
        if outcome != FrameStatus::Done {
            status = outcome;
            break;
        }
        executed_count += 1;
    }
    if status == FrameStatus::Done && !request.is_at_end() {
        status = FrameStatus::Malformed;
    }
    reply.end(status, executed_count);
    Executed { status, fence_due }
}

/// Replies to a frame of which nothing is executed.
pub(super) fn refuse_frame(request: &FrameRequest<'_>, status: FrameStatus, out: &mut Vec<u8>) {
    ReplyWriter::begin(out, request.tag).end(status, 0);
}

#[inline]
fn execute_verb(
    memory: &[AtomicU64],
    client: &ClientState,
    verb: &WireVerb<'_>,
    reply: &mut ReplyWriter<'_>,
) -> FrameStatus {
    let (index, word_count, brings) = match verb {
        WireVerb::Read { index, word_count } => (*index, *word_count, *word_count),
        WireVerb::Write { index, words } => (*index, words.len() / 8, 0),
        WireVerb::CompareSwap { index, .. } | WireVerb::FetchAdd { index, .. } => (*index, 1, 1),
    };
    let Some(target) = target(memory, index, word_count) else {
        return FrameStatus::OutOfBounds;
    };
    if !reply.has_space(brings) {
        return FrameStatus::Malformed;
    }
    let changes = !matches!(verb, WireVerb::Read { .. });
    if changes && !client.may_change(&(index..index + word_count as u64)) {
        return FrameStatus::Forbidden;
    }
    match verb {
        WireVerb::Read { .. } => {
            let space = reply.space(word_count);
            for (out, word) in space.chunks_exact_mut(8).zip(target) {
                out.copy_from_slice(&word.load(Ordering::Acquire).to_le_bytes());
            }
        }
        WireVerb::Write { words, .. } => {
            for (word, value) in target.iter().zip(frame::words(words)) {
                // Release keeps this word behind those of earlier WRITEs, in posting order.
                word.store(value, Ordering::Release);
            }
        }
        WireVerb::CompareSwap {
            expected, desired, ..
        } => {
            let order = Ordering::SeqCst;
            let outcome = target[0].compare_exchange(*expected, *desired, order, order);
            reply.put(outcome.unwrap_or_else(|previous| previous));
        }
        WireVerb::FetchAdd { delta, .. } => {
            reply.put(target[0].fetch_add(*delta, Ordering::SeqCst));
        }
    }
    FrameStatus::Done
}

/// Returns the words that a verb addresses; `None` if they are not all in the memory (FABRIC-7).
#[inline]
fn target(memory: &[AtomicU64], index: u64, word_count: usize) -> Option<&[AtomicU64]> {
    let start = usize::try_from(index).ok()?;
    memory.get(start..start.checked_add(word_count)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::frame::FrameReply;
    use crate::tcp::gate::Grant;
    use farleaf_net::secret::Rights;

    const REGION_SIZE_WORDS: usize = 64;

    fn memory() -> Vec<AtomicU64> {
        (0..REGION_SIZE_WORDS as u64).map(AtomicU64::new).collect()
    }

    fn execute(
        memory: &[AtomicU64],
        client: &ClientState,
        words: &[u64],
    ) -> (FrameStatus, Vec<u64>) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut out = Vec::new();
        let executed = execute_frame(memory, client, FrameRequest::decode(&bytes), &mut out);
        let reply = FrameReply::decode(&out).expect("a reply");
        assert_eq!(reply.status, executed.status);
        assert_eq!(reply.tag, words[1]);
        let mut brought = vec![reply.executed_verb_count as u64];
        brought.extend(frame::words(reply.data));
        (executed.status, brought)
    }

    fn client() -> ClientState {
        ClientState::new(Rights::Admin, Grant::everything())
    }

    /// Promise (FABRIC-5): verbs are executed in order up to the first refused one, and their
    /// results are returned.
    #[test]
    fn a_refused_verb_ends_the_frame() {
        let memory = memory();
        let (read, write) = (0, 1 << 56);
        let words = [
            0,
            7,
            write | 5,
            1,
            99,
            read | 4,
            2,
            read | 63,
            2,
            write | 6,
            1,
            1,
        ];
        let mut words = words.to_vec();
        words[0] = words.len() as u64 | 4 << 32;
        let (status, brought) = execute(&memory, &client(), &words);
        assert_eq!(
            (status, brought),
            (FrameStatus::OutOfBounds, vec![2, 4, 99])
        );
        assert_eq!(memory[6].load(Ordering::Relaxed), 6, "nothing after it");
    }

    /// Promise: a frame that contradicts itself is malformed, and so is one whose reply would
    /// exceed a frame.
    #[test]
    fn lying_frames_are_malformed() {
        let large: Vec<AtomicU64> = (0..40_000).map(AtomicU64::new).collect();
        let read = 32_768;
        for words in [
            vec![3 | 1 << 32, 1, 9 << 56],
            vec![3 | 1 << 32, 1, 1 << 48],
            vec![3 | 1 << 32, 1, 0],
            vec![4 | 1 << 32, 1, 1 << 56, 1],
            vec![4 | 1 << 32, 1, 0, u64::MAX],
            vec![3, 1, 0],
            vec![6 | 2 << 32, 1, 0, read, 0, read],
        ] {
            let (status, _) = execute(&large, &client(), &words);
            assert_eq!(status, FrameStatus::Malformed, "{words:?}");
        }
    }

    /// Promise (FABRIC-7): a session that may only read changes nothing, by any verb.
    #[test]
    fn readers_change_nothing() {
        let memory = memory();
        let reader = ClientState::new(Rights::Read, Grant::nothing());
        for verb in [
            vec![1 << 56 | 5, 1, 1],
            vec![2 << 56 | 5, 5, 1],
            vec![3 << 56 | 5, 1],
        ] {
            let mut words = vec![(verb.len() as u64 + 2) | 1 << 32, 3];
            words.extend(verb);
            let (status, brought) = execute(&memory, &reader, &words);
            assert_eq!((status, brought), (FrameStatus::Forbidden, vec![0]));
        }
        let (status, brought) = execute(&memory, &reader, &[4 | 1 << 32, 3, 5, 1]);
        assert_eq!((status, brought), (FrameStatus::Done, vec![1, 5]));
    }
}
