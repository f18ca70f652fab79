//! A session's block: whether it lives, and how far it has followed.
//!
//! | word | meaning | written by |
//! |---|---|---|
//! | 0 | life (16 bits: 1 = alive, 2 = fenced), incarnation (48 bits) | the node |
//! | 1 | heartbeat: grows while its process runs; all ones: drained, holds nothing | the process |
//! | 2 | published sequence number (D7) | the process |
//! | 3 | 1: the session wants to make calls | the session |
//! | 4 | process number | the node |
//! | 5 | sequence number that the node waits for | the node |
//! | 6 | its rings: their chunk's number, plus 1; all ones: there is no room | the node |
//! | 7 | the incarnation that word 6 is for | the node |
//!
//! - **S1.** The node writes words 1 to 7 (zeros, but for the process) before word 0 says "alive"
//!   (D7: a new session may hold everything).
//! - **S2.** The node writes "fenced" only when no verb of that incarnation can take effect any
//!   more (F6), and a number is given to a new incarnation only after that.
//! - **S3.** Hence an owner word whose incarnation is not alive in its session's block belongs to
//!   a session that is fenced, and what it holds may be recovered by anyone.
//! - **S4.** While what the node wants to reuse waits for a session for long, word 5 says for which
//!   number. The session's process, which publishes for idle sessions anyhow, sees it and tells
//!   its users that an operation that began before does not go on. Nobody is fenced for being
//!   silent: only for being dead.
//! - **S5.** A session that wants to make calls (E1 to E9 of `farleaf-message`) writes word 3: who
//!   it is, and where it wants the replies, in the region or, if it has opened one before, in its
//!   window ([`Wish`]), which does not change while it lives. (A READ of the block may find word 3
//!   as an earlier session left it, F3: so it says whose wish it is.) Then it makes the region's
//!   count of such wishes grow. The node answers in word 6, and then in word 7 for whom: an answer
//!   may come so late that the number is another session's. Who has seen its own incarnation there
//!   reads word 6. If there was no room, it may wish again: the node tries again whenever somebody
//!   wishes. Else word 6 names a chunk of zeros, the first half of which is the ring of requests,
//!   the second that of replies unless they go into the window. It stays the session's until that
//!   is fenced and the node has written its last reply to it (E9); then the node takes it back.

use farleaf_fabric::{Batch, BatchError, Endpoint};
use farleaf_types::{Incarnation, OwnerWord, SequenceNumber, SessionId, WordAddr};

use crate::layout::RegionLayout;

/// Session numbers of a region, 0 among them, which stands for nobody.
pub const SESSION_COUNT: u64 = 1024;
/// Heartbeat of a session that is about to close, has drained and holds nothing: neither locks nor
/// chunks. Its end then needs no sweep.
pub const HEARTBEAT_DRAINED: u64 = u64::MAX;
/// Words of a session's block that are in use.
pub const SESSION_SIZE_WORDS: usize = 8;
/// Word 6 of a session for whose rings there is no room.
pub const RINGS_REFUSED: u64 = u64::MAX;

const LIFE_ALIVE: u64 = 1 << 48;
const LIFE_FENCED: u64 = 2 << 48;

/// Where a session that makes calls looks for the replies (S5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// In the region, behind the requests.
    InRegion,
    /// In its window (F10).
    InWindow,
}

impl Wish {
    /// Word 3 of the session of this incarnation.
    pub const fn word(self, incarnation: Incarnation) -> u64 {
        let wish = match self {
            Self::InRegion => 1,
            Self::InWindow => 2,
        };
        incarnation.number() << 2 | wish
    }
}

/// What a session's block says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionRecord {
    life: u64,
    /// Grows while the session's process runs.
    pub heartbeat: u64,
    /// The smallest sequence number at which an unfinished operation of the session began.
    pub published: SequenceNumber,
    /// Its process.
    pub pid: u32,
    /// What the node waits for (S4).
    pub asked: SequenceNumber,
    /// Word 3 (S5).
    wish: u64,
    /// Word 6 (S5).
    rings: u64,
    rings_for: u64,
}

impl SessionRecord {
    /// Reads a session's block.
    pub fn decode(words: &[u64; SESSION_SIZE_WORDS]) -> Self {
        Self {
            life: words[0],
            heartbeat: words[1],
            published: SequenceNumber(words[2]),
            pid: words[4] as u32,
            asked: SequenceNumber(words[5]),
            wish: words[3],
            rings: words[6],
            rings_for: words[7],
        }
    }

    /// The incarnation that is alive; `None` when the session is not.
    pub fn alive(&self) -> Option<Incarnation> {
        let number = self.life & Incarnation::MAX;
        (self.life & !Incarnation::MAX == LIFE_ALIVE).then(|| Incarnation::new(number))
    }

    /// Whether the session that is alive wants to make calls (S5), and where it looks for replies.
    pub fn wish(&self) -> Option<Wish> {
        let alive = self.alive()?;
        let wishes = [Wish::InRegion, Wish::InWindow].into_iter();
        let mut own = wishes.filter(|wish| wish.word(alive) == self.wish);
        own.next()
    }

    /// What the node has answered the session that is alive (S5): word 6; `None`: nothing yet.
    pub fn rings(&self) -> Option<u64> {
        let alive = self.alive()?;
        (self.rings_for == alive.number()).then_some(self.rings)
    }

    /// The last incarnation that is fenced, and so is what was before it (S2); `None`: none is.
    /// Before one that is alive, that may be one which another session has had.
    pub fn last_fenced(&self) -> Option<Incarnation> {
        let number = self.life & Incarnation::MAX;
        let last = number - u64::from(self.alive().is_some());
        (last > 0).then(|| Incarnation::new(last))
    }
}

/// Word 0 of a session that is alive.
pub const fn alive_word(incarnation: Incarnation) -> u64 {
    LIFE_ALIVE | incarnation.number()
}

/// Word 0 of a session that is fenced.
pub const fn fenced_word(incarnation: Incarnation) -> u64 {
    LIFE_FENCED | incarnation.number()
}

/// S3: whether an owner is fenced, given word 0 of its session's block.
pub fn is_fenced(owner_incarnation: Incarnation, life_word: u64) -> bool {
    life_word != alive_word(owner_incarnation)
}

/// All session numbers that can be given.
pub fn session_ids() -> impl Iterator<Item = SessionId> {
    (1..SESSION_COUNT as u16).filter_map(SessionId::new)
}

/// What the blocks of all sessions say. One round trip.
///
/// # Errors
/// The fabric failed.
pub async fn read_sessions<E: Endpoint>(
    endpoint: &E,
    layout: &RegionLayout,
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

/// Word 0 of the block of an owner's session, and its incarnation; `None` when the word names no
/// session of this region, so that nobody alive can hold it.
pub fn life_of(layout: &RegionLayout, owner: OwnerWord) -> Option<(WordAddr, Incarnation)> {
    let (session, incarnation) = owner.holder()?;
    let known = u64::from(session.number()) < SESSION_COUNT;
    known.then(|| (layout.session(session), incarnation))
}

/// S3: whether an owner is fenced, as its session's block says now. One round trip.
///
/// # Errors
/// The fabric failed.
pub async fn is_owner_fenced<E: Endpoint>(
    endpoint: &E,
    layout: &RegionLayout,
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

/// The published sequence number of a session.
pub fn published_addr(layout: &RegionLayout, session: SessionId) -> WordAddr {
    layout.session(session).offset(2)
}

/// The sequence number that the node waits for (S4).
pub fn asked_addr(layout: &RegionLayout, session: SessionId) -> WordAddr {
    layout.session(session).offset(5)
}

/// Where a session says that it wants to make calls, by a [`Wish`] (S5).
pub fn wants_rings_addr(layout: &RegionLayout, session: SessionId) -> WordAddr {
    layout.session(session).offset(3)
}

/// Where the node answers that, and behind it for whom (S5).
pub fn rings_addr(layout: &RegionLayout, session: SessionId) -> WordAddr {
    layout.session(session).offset(6)
}

/// The heartbeat of a session.
pub fn heartbeat_addr(layout: &RegionLayout, session: SessionId) -> WordAddr {
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
        let (own, others) = (Wish::InWindow.word(new), Wish::InWindow.word(old));
        assert_eq!((own, Wish::InRegion.word(new)), (0x22, 0x21));
        let record = SessionRecord::decode(&[alive_word(new), 3, 4, own, 5, 6, 9, 8]);
        assert_eq!((record.alive(), record.heartbeat), (Some(new), 3));
        assert_eq!((record.published, record.pid), (SequenceNumber(4), 5));
        assert_eq!(record.asked, SequenceNumber(6));
        assert_eq!(
            (record.wish(), record.rings()),
            (Some(Wish::InWindow), Some(9))
        );
        let late = SessionRecord::decode(&[alive_word(new), 3, 4, others, 5, 6, 9, 7]);
        assert_eq!(
            (late.wish(), late.rings()),
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
