//! Registry of the sessions that have rings.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use farleaf_base::locks::lock;
use farleaf_base::{OwnerWord, WordAddr};
use farleaf_fabric::message::segment::{
    REPLY_HEAD_SIZE_WORDS, REQUEST_HEAD_SIZE_WORDS, capacity_bytes,
};
use farleaf_fabric::message::{Mailbox, Ring, SEGMENT_SIZE_BYTES};
use farleaf_index::rpc::bytes::MESSAGE_SIZE_BYTES_MAX;
use farleaf_index::rpc::{MULTI_GET_COUNT_MAX, SCAN_COUNT_MAX, WordReply};
use farleaf_pool::PoolLayout;
use farleaf_pool::layout::{CHUNK_SIZE_BYTES, ChunkIndex};
use farleaf_pool::session::ReplyPlace;

/// Segments of each of a session's two rings: half a chunk.
pub const RING_SEGMENT_COUNT: u32 = (CHUNK_SIZE_BYTES / SEGMENT_SIZE_BYTES / 2) as u32;
/// Maximum bytes of replies that are kept for a session until it has fetched them. No request needs
/// more, unless its sender announces less space than the reply takes.
const KEPT_SIZE_BYTES_MAX: usize = 256 << 10;

const _: () = assert!(
    WordReply::size_bytes(SCAN_COUNT_MAX as usize) <= LONGEST_REPLY_SIZE_BYTES
        && WordReply::size_bytes(MULTI_GET_COUNT_MAX) <= LONGEST_REPLY_SIZE_BYTES
        && MESSAGE_SIZE_BYTES_MAX <= LONGEST_REPLY_SIZE_BYTES
);
const _: () = assert!(
    MESSAGE_SIZE_BYTES_MAX <= capacity_bytes(RING_SEGMENT_COUNT / 2, REQUEST_HEAD_SIZE_WORDS)
);
const LONGEST_REPLY_SIZE_BYTES: usize =
    capacity_bytes(RING_SEGMENT_COUNT / 2, REPLY_HEAD_SIZE_WORDS);

/// Words of the window of a session: its ring of replies.
pub const WINDOW_SIZE_WORDS: usize = (CHUNK_SIZE_BYTES / 8 / 2) as usize;
const _: () =
    assert!(WINDOW_SIZE_WORDS as u64 * 8 == RING_SEGMENT_COUNT as u64 * SEGMENT_SIZE_BYTES);

/// Returns the rings of requests and replies. Requests are in a session's chunk; replies are behind
/// them, or in the session's window, whose words count from 0.
pub fn rings_of(layout: &PoolLayout, chunk: ChunkIndex, reply_place: ReplyPlace) -> (Ring, Ring) {
    let start = layout.chunk_start(chunk).word_at(0);
    let requests = Ring::new(start, RING_SEGMENT_COUNT);
    let replies = match reply_place {
        ReplyPlace::InNodeMemory => start.offset(requests.word_count()),
        ReplyPlace::InWindow => WordAddr::new(start.node(), 0),
    };
    (requests, Ring::new(replies, RING_SEGMENT_COUNT))
}

/// A session's rings. A thread that holds them may still write to them.
#[derive(Debug)]
pub struct SessionRings {
    /// Owner word of the session.
    pub owner: OwnerWord,
    /// Location where the session reads replies.
    pub reply_place: ReplyPlace,
    pub(super) chunk: ChunkIndex,
    requests: Ring,
    replies: Ring,
}

impl SessionRings {
    pub(super) fn new(
        layout: &PoolLayout,
        owner: OwnerWord,
        reply_place: ReplyPlace,
        chunk: ChunkIndex,
    ) -> Self {
        let (requests, replies) = rings_of(layout, chunk, reply_place);
        Self {
            owner,
            reply_place,
            chunk,
            requests,
            replies,
        }
    }

    /// Returns a reader of the requests, which starts at the beginning of the ring.
    pub(super) fn mailbox(&self) -> Mailbox {
        Mailbox::new(self.requests, self.replies, KEPT_SIZE_BYTES_MAX)
    }
}

/// Registry of all rings.
#[derive(Debug, Default)]
pub struct RingRegistry {
    places: Mutex<Places>,
    /// Number of times the list of open sessions has changed.
    version: AtomicU64,
}

#[derive(Debug, Default)]
pub(super) struct Places {
    /// Rings of live sessions.
    pub(super) open: Vec<Arc<SessionRings>>,
    /// Rings of fenced sessions; threads may still hold them.
    pub(super) closing: Vec<Arc<SessionRings>>,
}

impl RingRegistry {
    pub(super) fn places(&self) -> MutexGuard<'_, Places> {
        lock(&self.places)
    }

    /// Records that the list of open sessions has changed.
    pub(super) fn note_change(&self) {
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Returns the number of times the list of open sessions has changed.
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Returns the rings of live sessions.
    pub fn open(&self) -> Vec<Arc<SessionRings>> {
        self.places().open.clone()
    }

    /// Returns whether no session has rings and none are being taken back.
    pub fn is_empty(&self) -> bool {
        let places = self.places();
        places.open.is_empty() && places.closing.is_empty()
    }
}
