//! A session's block: whether the session is alive, and its progress.
//!
//! | word | meaning | written by |
//! |---|---|---|
//! | 0 | life (16 bits: 1 = alive, 2 = fenced), incarnation (48 bits) | the node |
//! | 1 | heartbeat: grows while its process runs; all ones: drained, holds nothing | the process |
//! | 2 | published sequence number (LEAF-7) | the process |
//! | 3 | request for rings, or 0 | the session |
//! | 4 | process number | the node |
//! | 5 | sequence number that the node waits for | the node |
//! | 6 | its rings: their chunk's number, plus 1; all ones: refused, no space | the node |
//! | 7 | the incarnation that word 6 is for | the node |
//!
//! - **Registration.** The node writes words 1 to 7 (zeros, except for the process) before word 0
//!   says "alive". By LEAF-7, a new session may hold anything.
//! - **Fencing.** The node writes "fenced" only when no verb of that incarnation can take effect
//!   any more (FABRIC-6). Only then it gives the number to a new incarnation.
//! - **Recovery.** If the incarnation of an owner word is not alive in its session's block, that
//!   session is fenced. Any session may recover what it holds.
//! - **Slow sessions.** While memory reuse waits long for a session, word 5 has the awaited number.
//!   The session's process, which publishes for idle sessions anyway, sees it and warns that an
//!   operation that began earlier is stuck. Only dead sessions are fenced, never silent ones.
//! - **Rings.** A session that makes calls (see `farleaf_fabric::message`) requests rings with
//!   word 3, which has its incarnation and the place for replies ([`ReplyPlace`]): the node's
//!   memory, or the session's window if it has opened one. The word does not change while the
//!   session lives. It names the incarnation because a READ of the block may return an earlier
//!   session's word 3 (FABRIC-3). The session then increments the memory's count of such requests.
//! - **Answer.** The node answers in word 6, and then writes to word 7 which incarnation the answer
//!   is for. The session number may have passed to another session meanwhile. A session that reads
//!   its own incarnation in word 7 reads word 6. If there was no space, it may repeat the request;
//!   the node retries at every request. Otherwise word 6 names a zeroed chunk. Its first half is
//!   the ring of requests, its second half that of replies unless they go to the window.
//! - **Return of rings.** The chunk stays the session's until the session is fenced and the node
//!   has written its last reply to it. Then the node takes it back.

use farleaf_base::{Incarnation, OwnerWord, SequenceNumber, SessionId, WordAddr};
use farleaf_fabric::{Batch, BatchError, Endpoint};

use crate::layout::NodeLayout;

/// Number of session numbers in a node's memory, including 0, which names no session.
pub const SESSION_COUNT: u64 = 1024;
/// Heartbeat of a session that is about to close, has drained and holds neither locks nor chunks,
/// so that its end needs no sweep.
pub const HEARTBEAT_DRAINED: u64 = u64::MAX;
/// Number of used words of a session's block.
pub const SESSION_SIZE_WORDS: usize = 8;
/// Word 6 of a session whose rings were refused for lack of space.
pub const RINGS_REFUSED: u64 = u64::MAX;

const LIFE_ALIVE: u64 = 1 << 48;
const LIFE_FENCED: u64 = 2 << 48;

/// Place of the replies to a session's calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyPlace {
    /// The node's memory, behind the requests.
    InNodeMemory,
    /// The session's window (FABRIC-10).
    InWindow,
}

impl ReplyPlace {
    /// Returns word 3 of the session of this incarnation.
    pub const fn word(self, incarnation: Incarnation) -> u64 {
        let reply_place = match self {
            Self::InNodeMemory => 1,
            Self::InWindow => 2,
        };
        incarnation.number() << 2 | reply_place
    }
}

/// Contents of a session's block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionRecord {
    life: u64,
    /// Heartbeat, which grows while the session's process runs.
    pub heartbeat: u64,
    /// Smallest sequence number at which an unfinished operation of the session began.
    pub published: SequenceNumber,
    /// Process number of the session.
    pub pid: u32,
    /// Sequence number that the node waits for.
    pub asked: SequenceNumber,
    /// Word 3: request for rings.
    reply_place: u64,
    /// Word 6: the session's rings.
    rings: u64,
    rings_for: u64,
}

impl SessionRecord {
    /// Decodes a session's block.
    pub fn decode(words: &[u64; SESSION_SIZE_WORDS]) -> Self {
        Self {
            life: words[0],
            heartbeat: words[1],
            published: SequenceNumber(words[2]),
            pid: words[4] as u32,
            asked: SequenceNumber(words[5]),
            reply_place: words[3],
            rings: words[6],
            rings_for: words[7],
        }
    }

    /// Returns the live incarnation; `None` if the session is not alive.
    pub fn alive(&self) -> Option<Incarnation> {
        let number = self.life & Incarnation::MAX;
        (self.life & !Incarnation::MAX == LIFE_ALIVE).then(|| Incarnation::new(number))
    }

    /// Returns where the live session wants replies, if it has requested rings.
    pub fn reply_place(&self) -> Option<ReplyPlace> {
        let alive = self.alive()?;
        let places = [ReplyPlace::InNodeMemory, ReplyPlace::InWindow].into_iter();
        let mut own = places.filter(|reply_place| reply_place.word(alive) == self.reply_place);
        own.next()
    }

    /// Returns word 6, the node's answer to the live session's request; `None` if there is none
    /// yet.
    pub fn rings(&self) -> Option<u64> {
        let alive = self.alive()?;
        (self.rings_for == alive.number()).then_some(self.rings)
    }

    /// Returns the last incarnation that is fenced, as are all earlier ones; `None` if there is
    /// none. If a session is alive, the result precedes it and may have belonged to another session
    /// number.
    pub fn last_fenced(&self) -> Option<Incarnation> {
        let number = self.life & Incarnation::MAX;
        let last = number - u64::from(self.alive().is_some());
        (last > 0).then(|| Incarnation::new(last))
    }
}

/// Returns word 0 of a live session.
pub const fn alive_word(incarnation: Incarnation) -> u64 {
    LIFE_ALIVE | incarnation.number()
}

/// Returns word 0 of a fenced session.
pub const fn fenced_word(incarnation: Incarnation) -> u64 {
    LIFE_FENCED | incarnation.number()
}

/// Returns whether an owner is fenced, given word 0 of its session's block.
pub fn is_fenced(owner_incarnation: Incarnation, life_word: u64) -> bool {
    life_word != alive_word(owner_incarnation)
}

/// Iterates over all session numbers that can be given.
pub fn session_ids() -> impl Iterator<Item = SessionId> {
    (1..SESSION_COUNT as u16).filter_map(SessionId::new)
}

/// Reads the blocks of all sessions. One round trip.
///
/// # Errors
/// The fabric failed.
pub async fn read_sessions<E: Endpoint>(
    endpoint: &E,
    layout: &NodeLayout,
    batch: &mut Batch,
) -> Result<Vec<(SessionId, SessionRecord)>, BatchError> {
    batch.clear();
    let reads = session_ids().map(|session| {
        let block = layout.session(session);
        (session, batch.read(block, SESSION_SIZE_WORDS))
    });
    let reads: Vec<_> = reads.collect();
    endpoint.execute(batch).await?;
    let records = reads.into_iter().map(|(session, read)| {
        let mut words = [0; SESSION_SIZE_WORDS];
        words.copy_from_slice(batch.words(read));
        (session, SessionRecord::decode(&words))
    });
    Ok(records.collect())
}

/// Returns word 0 of the block of an owner's session, and its incarnation; `None` if the word names
/// no session of this memory, so that no live session can hold it.
pub fn life_of(layout: &NodeLayout, owner: OwnerWord) -> Option<(WordAddr, Incarnation)> {
    let (session, incarnation) = owner.holder()?;
    let known = u64::from(session.number()) < SESSION_COUNT;
    known.then(|| (layout.session(session), incarnation))
}

/// Reads whether an owner is fenced, according to its session's block. One round trip.
///
/// # Errors
/// The fabric failed.
pub async fn is_owner_fenced<E: Endpoint>(
    endpoint: &E,
    layout: &NodeLayout,
    batch: &mut Batch,
    owner: OwnerWord,
) -> Result<bool, BatchError> {
    let Some((life, incarnation)) = life_of(layout, owner) else {
        return Ok(true);
    };
    batch.clear();
    let read = batch.read(life, 1);
    endpoint.execute(batch).await?;
    Ok(is_fenced(incarnation, batch.words(read)[0]))
}

/// Returns the address of a session's published sequence number.
pub fn published_addr(layout: &NodeLayout, session: SessionId) -> WordAddr {
    layout.session(session).offset(2)
}

/// Returns the address of the sequence number that the node waits for.
pub fn awaited_sequence_addr(layout: &NodeLayout, session: SessionId) -> WordAddr {
    layout.session(session).offset(5)
}

/// Returns the address of a session's request for rings ([`ReplyPlace`]).
pub fn ring_request_addr(layout: &NodeLayout, session: SessionId) -> WordAddr {
    layout.session(session).offset(3)
}

/// Returns the address of the node's answer to the request; the next word has its incarnation.
pub fn rings_addr(layout: &NodeLayout, session: SessionId) -> WordAddr {
    layout.session(session).offset(6)
}

/// Returns the address of a session's heartbeat.
pub fn heartbeat_addr(layout: &NodeLayout, session: SessionId) -> WordAddr {
    layout.session(session).offset(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn life_words_are_golden_and_decide_fencing() {
        let (old, new) = (Incarnation::new(7), Incarnation::new(8));
        assert_eq!(alive_word(new), 0x0001_0000_0000_0008);
        assert_eq!(fenced_word(new), 0x0002_0000_0000_0008);
        assert!(!is_fenced(new, alive_word(new)));
        assert!(is_fenced(new, fenced_word(new)));
        assert!(
            is_fenced(old, alive_word(new)),
            "a later incarnation implies the earlier is fenced"
        );
        assert!(is_fenced(new, 0), "a session that never was is fenced");
        let (own, others) = (
            ReplyPlace::InWindow.word(new),
            ReplyPlace::InWindow.word(old),
        );
        assert_eq!((own, ReplyPlace::InNodeMemory.word(new)), (0x22, 0x21));
        let record = SessionRecord::decode(&[alive_word(new), 3, 4, own, 5, 6, 9, 8]);
        assert_eq!((record.alive(), record.heartbeat), (Some(new), 3));
        assert_eq!((record.published, record.pid), (SequenceNumber(4), 5));
        assert_eq!(record.asked, SequenceNumber(6));
        assert_eq!(
            (record.reply_place(), record.rings()),
            (Some(ReplyPlace::InWindow), Some(9))
        );
        let late = SessionRecord::decode(&[alive_word(new), 3, 4, others, 5, 6, 9, 7]);
        assert_eq!(
            (late.reply_place(), late.rings()),
            (None, None),
            "another session's"
        );
        assert_eq!(
            SessionRecord::decode(&[fenced_word(new), 0, 0, 0, 0, 0, 0, 0]).alive(),
            None
        );
        let last_fenced = |life| SessionRecord::decode(&[life, 0, 0, 0, 0, 0, 0, 0]).last_fenced();
        assert_eq!(last_fenced(fenced_word(new)), Some(new));
        assert_eq!(last_fenced(alive_word(new)), Some(old), "all before it");
        assert_eq!(last_fenced(alive_word(Incarnation::new(1))), None);
        assert_eq!(last_fenced(0), None, "it never was");
    }
}
