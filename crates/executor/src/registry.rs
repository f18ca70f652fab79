//! All executor ids of the process, with one inbox each.
//!
//! A waker knows its executor only by id, so an id must always lead to an inbox. Inboxes are
//! therefore in chunks that are allocated on demand, each twice as large as the previous one, and
//! never freed; looking one up takes no lock. Ids of dropped executors are reused, so memory is
//! bounded by the largest number of executors that existed at once.

use std::sync::{Mutex, OnceLock, PoisonError};

use crate::inbox::Inbox;
use crate::waker::ExecutorId;

const FIRST_CHUNK_COUNT: usize = 64;
const CHUNK_COUNT: usize = 10;

/// Maximum number of executors ([`TaskSet`](crate::TaskSet), [`Executor`](crate::Executor), pending
/// [`block_on`](crate::block_on)) that a process can have at once.
// 64 * (1 + 2 + 4 + .. + 512)
pub const EXECUTOR_COUNT_MAX: usize = FIRST_CHUNK_COUNT * ((1 << CHUNK_COUNT) - 1);

const _: () = assert!(EXECUTOR_COUNT_MAX <= 1 << u16::BITS);

static CHUNKS: [OnceLock<Box<[Inbox]>>; CHUNK_COUNT] = [const { OnceLock::new() }; CHUNK_COUNT];
static IDS: Mutex<Ids> = Mutex::new(Ids {
    free: Vec::new(),
    used_count: 0,
});

struct Ids {
    free: Vec<ExecutorId>,
    /// Number of ids assigned so far; ids from here on are unused.
    used_count: usize,
}

/// Makes the calling thread the owner of an unused id; returns its inbox and first generation.
pub(crate) fn register() -> (ExecutorId, &'static Inbox, u32) {
    let id = {
        let mut ids = IDS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(id) = ids.free.pop() {
            id
        } else {
            assert!(
                ids.used_count < EXECUTOR_COUNT_MAX,
                "more than {EXECUTOR_COUNT_MAX} executors at once"
            );
            let id = ExecutorId(ids.used_count as u16);
            ids.used_count += 1;
            id
        }
    };
    let (chunk, offset) = place(id);
    let inboxes = CHUNKS[chunk].get_or_init(|| {
        (0..FIRST_CHUNK_COUNT << chunk)
            .map(|_| Inbox::new())
            .collect()
    });
    let inbox = &inboxes[offset];
    (id, inbox, inbox.attach())
}

/// Releases an id. Later wakes for it have no effect.
pub(crate) fn release(id: ExecutorId, next_generation: u32) {
    if let Some(inbox) = inbox(id) {
        inbox.detach(next_generation);
        IDS.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .free
            .push(id);
    }
}

/// Returns the inbox of an id that was registered at some time.
pub(crate) fn inbox(id: ExecutorId) -> Option<&'static Inbox> {
    let (chunk, offset) = place(id);
    CHUNKS.get(chunk)?.get()?.get(offset)
}

/// Returns the chunk of an inbox and the index within the chunk.
fn place(id: ExecutorId) -> (usize, usize) {
    let index = usize::from(id.0);
    let chunk = (index / FIRST_CHUNK_COUNT + 1).ilog2() as usize;
    (chunk, index - FIRST_CHUNK_COUNT * ((1 << chunk) - 1))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "plain arithmetic on 65,000 ids")]
    fn chunks_cover_all_ids_without_gap_or_overlap() {
        let mut expected = (0..CHUNK_COUNT)
            .flat_map(|chunk| (0..FIRST_CHUNK_COUNT << chunk).map(move |offset| (chunk, offset)));
        for index in 0..EXECUTOR_COUNT_MAX {
            assert_eq!(Some(place(ExecutorId(index as u16))), expected.next());
        }
        assert_eq!(expected.next(), None);
    }

    #[test]
    fn an_id_that_was_never_registered_has_no_inbox() {
        assert!(inbox(ExecutorId(u16::MAX)).is_none());
    }
}
