//! How far all sessions have followed (D7).

use farleaf_fabric::{Batch, ReadSlot};
use farleaf_region::RegionLayout;
use farleaf_region::session::{SESSION_COUNT, SESSION_SIZE_WORDS, SessionRecord, session_ids};
use farleaf_types::{BLOCK_SIZE_WORDS, OwnerWord, SequenceNumber};

const _: () = assert!(SESSION_SIZE_WORDS as u64 == BLOCK_SIZE_WORDS);

/// A READ of all sessions' blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PostedSessions(ReadSlot);

/// The sessions that are not fenced, at the time of a READ, and what they had published.
#[derive(Clone, Debug, Default)]
pub(crate) struct Alive(Vec<(OwnerWord, SequenceNumber)>);

/// Posts a READ of the blocks of all sessions: one verb, 65,472 bytes. They lie side by side, and
/// each of the two words that count is atomic; that they are read at different moments does no
/// harm: a session that registers meanwhile began after whatever this is asked for.
pub(crate) fn post(batch: &mut Batch, layout: &RegionLayout) -> PostedSessions {
    let number_zero = layout.sessions();
    let word_count = (SESSION_COUNT - 1) as usize * SESSION_SIZE_WORDS;
    PostedSessions(batch.read(number_zero.offset(BLOCK_SIZE_WORDS), word_count))
}

impl PostedSessions {
    /// What has been read.
    pub(crate) fn alive(self, batch: &Batch) -> Alive {
        let (blocks, _) = batch.words(self.0).as_chunks::<SESSION_SIZE_WORDS>();
        let alive = session_ids().zip(blocks).filter_map(|(session, words)| {
            let record = SessionRecord::decode(words);
            let owner = OwnerWord::new(session, record.alive()?);
            Some((owner, record.published))
        });
        Alive(alive.collect())
    }
}

impl Alive {
    /// The number that all of them have published, but for one.
    pub(crate) fn passed(&self, but_for: Option<OwnerWord>) -> SequenceNumber {
        let others = self.0.iter();
        let others = others.filter(|(owner, _)| Some(*owner) != but_for);
        let least = others.map(|(_, published)| *published).min();
        least.unwrap_or(SequenceNumber(u64::MAX))
    }
}
