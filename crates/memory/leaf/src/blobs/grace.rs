//! Progress of all sessions (LEAF-7).

use farleaf_base::{BLOCK_SIZE_WORDS, OwnerWord, SequenceNumber};
use farleaf_fabric::{Batch, ReadSlot};
use farleaf_pool::NodeLayout;
use farleaf_pool::session::{SESSION_COUNT, SESSION_SIZE_WORDS, SessionRecord, session_ids};

const _: () = assert!(SESSION_SIZE_WORDS as u64 == BLOCK_SIZE_WORDS);

/// Posted READ of all sessions' blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PostedSessions(ReadSlot);

/// Sessions that were not fenced at the time of a READ, and the numbers that they had published.
#[derive(Clone, Debug, Default)]
pub(crate) struct LiveSessions(Vec<(OwnerWord, SequenceNumber)>);

/// Posts a READ of all sessions' blocks: one verb, 65,472 bytes. The blocks are adjacent, and each
/// of the two relevant words is atomic. Reading them at different moments is harmless: a session
/// that registers meanwhile began after the event in question.
pub(crate) fn post(batch: &mut Batch, layout: &NodeLayout) -> PostedSessions {
    let number_zero = layout.sessions();
    let word_count = (SESSION_COUNT - 1) as usize * SESSION_SIZE_WORDS;
    PostedSessions(batch.read(number_zero.offset(BLOCK_SIZE_WORDS), word_count))
}

impl PostedSessions {
    /// Returns the sessions that were read.
    pub(crate) fn alive(self, batch: &Batch) -> LiveSessions {
        let (blocks, _) = batch.words(self.0).as_chunks::<SESSION_SIZE_WORDS>();
        let alive = session_ids().zip(blocks).filter_map(|(session, words)| {
            let record = SessionRecord::decode(words);
            let owner = OwnerWord::new(session, record.alive()?);
            Some((owner, record.published))
        });
        LiveSessions(alive.collect())
    }
}

impl LiveSessions {
    /// Returns the number that all these sessions but one have published.
    pub(crate) fn passed(&self, but_for: Option<OwnerWord>) -> SequenceNumber {
        let others = self.0.iter();
        let others = others.filter(|(owner, _)| Some(*owner) != but_for);
        let least = others.map(|(_, published)| *published).min();
        least.unwrap_or(SequenceNumber(u64::MAX))
    }
}
