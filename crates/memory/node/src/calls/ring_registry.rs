//! Which sessions have rings.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farleaf_index::rpc::bytes::{KEY_SIZE_BYTES_MAX, MESSAGE_SIZE_BYTES_MAX, VALUE_SIZE_BYTES_MAX};
use farleaf_index::rpc::{MULTI_GET_COUNT_MAX, Reply, SCAN_COUNT_MAX};
use farleaf_message::segment::{REPLY_HEAD_SIZE_WORDS, REQUEST_HEAD_SIZE_WORDS, capacity_bytes};
use farleaf_message::{Mailbox, Ring, SEGMENT_SIZE_BYTES};
use farleaf_region::PoolLayout;
use farleaf_region::layout::{CHUNK_SIZE_BYTES, ChunkIndex};
use farleaf_region::session::Wish;
use farleaf_types::{OwnerWord, WordAddr};

/// Segments of each of a session's two rings: half a chunk.
pub const RING_SEGMENT_COUNT: u32 = (CHUNK_SIZE_BYTES / SEGMENT_SIZE_BYTES / 2) as u32;
/// Bytes of replies that are kept for a session until it has fetched them (E6). No request needs
/// that, unless its sender announces less room than it takes.
const KEPT_SIZE_BYTES_MAX: usize = 256 << 10;

const _: () = assert!(
    Reply::size_bytes(SCAN_COUNT_MAX as usize) <= LONGEST_REPLY_SIZE_BYTES
        && Reply::size_bytes(MULTI_GET_COUNT_MAX) <= LONGEST_REPLY_SIZE_BYTES
        && MESSAGE_SIZE_BYTES_MAX <= LONGEST_REPLY_SIZE_BYTES
);
const _: () = assert!(
    MESSAGE_SIZE_BYTES_MAX <= capacity_bytes(RING_SEGMENT_COUNT / 2, REQUEST_HEAD_SIZE_WORDS)
);
// What goes over rings is what pages have.
const _: () = assert!(
    KEY_SIZE_BYTES_MAX == farleaf_page::KEY_SIZE_BYTES_MAX
        && VALUE_SIZE_BYTES_MAX == farleaf_page::VALUE_SIZE_BYTES_MAX
);
const LONGEST_REPLY_SIZE_BYTES: usize =
    capacity_bytes(RING_SEGMENT_COUNT / 2, REPLY_HEAD_SIZE_WORDS);

/// Words of the window of a session that has one: its ring of replies.
pub const WINDOW_SIZE_WORDS: usize = (CHUNK_SIZE_BYTES / 8 / 2) as usize;
const _: () =
    assert!(WINDOW_SIZE_WORDS as u64 * 8 == RING_SEGMENT_COUNT as u64 * SEGMENT_SIZE_BYTES);

/// Requests and replies (S5): the requests in a session's chunk; the replies behind them or in its
/// window, whose words are counted from 0.
pub fn rings_of(layout: &PoolLayout, chunk: ChunkIndex, wish: Wish) -> (Ring, Ring) {
    let start = layout.chunk_start(chunk).word_at(0);
    let requests = Ring::new(start, RING_SEGMENT_COUNT);
    let replies = match wish {
        Wish::InRegion => start.offset(requests.word_count()),
        Wish::InWindow => WordAddr::new(start.node(), 0),
    };
    (requests, Ring::new(replies, RING_SEGMENT_COUNT))
}

/// A session's rings. Whoever holds it may still write into them (J2).
#[derive(Debug)]
pub struct Line {
    /// The session.
    pub owner: OwnerWord,
    /// Where it looks for replies.
    pub wish: Wish,
    pub(super) chunk: ChunkIndex,
    rings: (Ring, Ring),
}

impl Line {
    pub(super) fn new(
        layout: &PoolLayout,
        (owner, wish): (OwnerWord, Wish),
        chunk: ChunkIndex,
    ) -> Self {
        Self {
            owner,
            wish,
            chunk,
            rings: rings_of(layout, chunk, wish),
        }
    }

    /// What reads them, from their beginning on.
    pub(super) fn mailbox(&self) -> Mailbox {
        Mailbox::new(self.rings, KEPT_SIZE_BYTES_MAX)
    }
}

/// All rings.
#[derive(Debug, Default)]
pub struct Desk {
    places: Mutex<Places>,
    /// How often the open ones have changed.
    version: AtomicU64,
}

#[derive(Debug, Default)]
pub(super) struct Places {
    /// Of sessions that are alive.
    pub(super) open: Vec<Arc<Line>>,
    /// Of sessions that are not; somebody may hold them still.
    pub(super) closing: Vec<Arc<Line>>,
}

impl Desk {
    pub(super) fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The open ones have changed.
    pub(super) fn note_change(&self) {
        self.version.fetch_add(1, Ordering::Release);
    }

    /// How often they have.
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The open ones.
    pub fn open(&self) -> Vec<Arc<Line>> {
        self.places().open.clone()
    }

    /// Whether no session has rings, and none is being taken back.
    pub fn is_empty(&self) -> bool {
        let places = self.places();
        places.open.is_empty() && places.closing.is_empty()
    }
}
