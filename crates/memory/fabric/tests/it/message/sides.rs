//! Memories of a caller and a server, and a server that replies.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use farleaf_base::{NodeId, WordAddr};
use farleaf_executor::block_on;
use farleaf_fabric::Batch;
use farleaf_fabric::mapped::{MappedEndpoint, MappedMemory};
use farleaf_fabric::message::{Caller, CallerRings, Mailbox, Replies, Request, Ring};

/// Start of each ring: different from the other one's, and from that of the memory.
const REQUESTS_START_WORD: u64 = 64;
const REPLIES_START_WORD: u64 = 192;
/// Limit of kept bytes: more than any test needs, except tests of the limit.
pub(crate) const KEPT_SIZE_BYTES_MAX: usize = 4 << 20;

/// Two memories, each with a ring that the other side writes into.
pub(crate) struct Sides {
    pub(crate) server_memory: Arc<MappedMemory>,
    caller_memory: Arc<MappedMemory>,
    pub(crate) to_server: MappedEndpoint,
    pub(crate) to_caller: MappedEndpoint,
    pub(crate) requests: Ring,
    pub(crate) replies: Ring,
    pub(crate) caller_rings: CallerRings,
}

impl Sides {
    /// Creates zeroed rings of these numbers of segments.
    pub(crate) fn new(request_segment_count: u32, reply_segment_count: u32) -> Self {
        let memory = || Arc::new(MappedMemory::anonymous(2 << 20).expect("memory"));
        let (server_memory, caller_memory) = (memory(), memory());
        let at = |word| WordAddr::new(NodeId(0), word);
        let requests = Ring::new(at(REQUESTS_START_WORD), request_segment_count);
        let replies = Ring::new(at(REPLIES_START_WORD), reply_segment_count);
        Self {
            to_server: MappedEndpoint::new(Arc::clone(&server_memory)),
            to_caller: MappedEndpoint::new(Arc::clone(&caller_memory)),
            server_memory,
            caller_memory,
            requests,
            replies,
            caller_rings: CallerRings::new(requests, replies),
        }
    }

    pub(crate) fn caller(&self) -> Caller<'_, MappedEndpoint, MappedEndpoint> {
        Caller::new(&self.to_server, &self.to_caller, &self.caller_rings)
    }

    pub(crate) fn mailbox(&self) -> Mailbox {
        Mailbox::new(self.requests, self.replies, KEPT_SIZE_BYTES_MAX)
    }

    /// Returns the next request, if there is one.
    pub(crate) fn next(&self, mailbox: &mut Mailbox) -> Option<Request> {
        let mut batch = Batch::new();
        let next = mailbox.next(&self.to_server, &self.to_caller, &mut batch);
        block_on(next, || 0).expect("it is a request")
    }

    pub(crate) fn reply(&self, replies: &Replies, request: Request, payload: &[u8]) {
        let mut batch = Batch::new();
        let reply = replies.reply(&self.to_caller, &mut batch, request.reply, payload);
        block_on(reply, || 0).expect("nothing fails");
    }

    /// Returns a server, for another thread.
    pub(crate) fn server(&self) -> Server {
        Server {
            near: Arc::clone(&self.server_memory),
            to_caller: Arc::clone(&self.caller_memory),
            mailbox: self.mailbox(),
        }
    }
}

/// Server that reads the requests of one caller and replies.
pub(crate) struct Server {
    near: Arc<MappedMemory>,
    to_caller: Arc<MappedMemory>,
    mailbox: Mailbox,
}

impl Server {
    /// Serves until stopped and idle. `answer` may hold replies back, and is called once more when
    /// no request is there.
    pub(crate) fn serve(
        self,
        is_over: &AtomicBool,
        mut answer: impl FnMut(Option<Request>) -> Vec<(Request, Vec<u8>)>,
    ) -> u64 {
        let near = MappedEndpoint::new(self.near);
        let to_caller = MappedEndpoint::new(self.to_caller);
        let (mut mailbox, mut batch, mut served_count) = (self.mailbox, Batch::new(), 0);
        loop {
            let was_over = is_over.load(Ordering::Acquire);
            let next = mailbox.next(&near, &to_caller, &mut batch);
            let next = block_on(next, || 0).expect("it is a request");
            let is_idle = next.is_none();
            for (request, payload) in answer(next) {
                let replies = mailbox.replies();
                let reply = replies.reply(&to_caller, &mut batch, request.reply, &payload);
                block_on(reply, || 0).expect("nothing fails");
                served_count += 1;
            }
            if is_idle {
                if was_over {
                    assert_eq!(mailbox.replies().kept_size_bytes(), 0, "all was fetched");
                    return served_count;
                }
                std::thread::yield_now();
            }
        }
    }
}

/// Returns bytes that differ by seed and by position.
pub(crate) fn bytes(seed: u64, size_bytes: usize) -> Vec<u8> {
    let seed = seed.wrapping_mul(31);
    let byte = |index: u64| seed.wrapping_add(index * 7 + (index >> 8)) as u8;
    (0..size_bytes as u64).map(byte).collect()
}
