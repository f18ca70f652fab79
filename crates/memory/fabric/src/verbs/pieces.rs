//! Verbs of a batch as requests to a card, split if they are too large.

use std::collections::VecDeque;

use crate::batch::{Verb, VerbKind};
use crate::verbs::sys::{QueuePair, RegisteredRange, RequestKind};

/// A request that waits to be posted, or is in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) slot: u32,
    pub(super) ordinal: u32,
    pub(super) is_first_of_verb: bool,
    pub(super) is_last_of_operation: bool,
    pub(super) fence: bool,
    pub(super) kind: RequestKind,
    pub(super) place: RegisteredRange,
    pub(super) word_count: u32,
    /// Index of the first word in the node's memory.
    pub(super) remote_index: u64,
}

/// Converts verbs to requests, and copies the data of WRITEs into registered memory. Returns false
/// if there is no request, as for verbs of no words, so that there is nothing to wait for.
#[inline]
pub(super) fn cut<'a>(
    waiting: &mut VecDeque<Piece>,
    queue: &QueuePair,
    slot: u32,
    mut place: RegisteredRange,
    message_word_count_max: u32,
    verbs: impl Iterator<Item = &'a Verb>,
    data: &[u64],
) -> bool {
    let first_new = waiting.len();
    let mut ordinal = 0;
    let mut change = None;
    for verb in verbs {
        let start = verb.start as usize;
        let count = verb.word_count;
        let kind = match verb.kind {
            VerbKind::Read => RequestKind::Read,
            VerbKind::Write => {
                let words = &data[start..start + count as usize];
                copy_in(queue, place, words);
                RequestKind::Write
            }
            VerbKind::CompareSwap => RequestKind::CompareSwap {
                expected: data[start],
                desired: data[start + 1],
            },
            VerbKind::FetchAdd => RequestKind::FetchAdd { delta: data[start] },
        };
        if count > 0 {
            change = (kind != RequestKind::Read).then_some(verb.addr.index());
        }
        let mut done = 0;
        while done < count {
            let word_count = (count - done).min(message_word_count_max);
            waiting.push_back(Piece {
                slot,
                ordinal,
                is_first_of_verb: done == 0,
                is_last_of_operation: false,
                fence: verb.fence && done == 0,
                kind,
                place,
                word_count,
                remote_index: verb.addr.index() + u64::from(done),
            });
            place.first_word += word_count;
            done += word_count;
        }
        ordinal += 1;
    }
    if let Some(remote_index) = change {
        // The final READ, which proves that the changes have reached memory.
        waiting.push_back(Piece {
            slot,
            ordinal,
            is_first_of_verb: true,
            is_last_of_operation: false,
            fence: false,
            kind: RequestKind::Read,
            place,
            word_count: 1,
            remote_index,
        });
    }
    match waiting.range_mut(first_new..).last() {
        Some(last) => {
            last.is_last_of_operation = true;
            true
        }
        None => false,
    }
}

/// Returns the number of words for the data of a batch's verbs to a node, plus one for the final
/// READ.
#[inline]
pub(super) fn buffer_word_count<'a>(verbs: impl Iterator<Item = &'a Verb>) -> usize {
    verbs.map(|verb| verb.word_count as usize).sum::<usize>() + 1
}

#[inline]
fn copy_in(queue: &QueuePair, place: RegisteredRange, words: &[u64]) {
    let memory = queue.memory(place.memory_index).memory();
    let start = place.first_word as usize;
    for (to, word) in memory.words()[start..].iter().zip(words) {
        to.store(*word, core::sync::atomic::Ordering::Relaxed);
    }
}
