//! Calls to the memory node through rings in far memory (see `farleaf_fabric::message`).

use std::cell::Cell;
use std::rc::Rc;

use farleaf_base::WordAddr;
use farleaf_executor::backoff;
use farleaf_fabric::message::{CallError, Caller, CallerRings};
use farleaf_fabric::{Batch, Endpoint};
use farleaf_node::calls::ring_registry::{WINDOW_SIZE_WORDS, rings_of};
use farleaf_pool::layout::ChunkIndex;
use farleaf_pool::session::{RINGS_REFUSED, ReplyPlace, ring_request_addr, rings_addr};

use super::base::SessionCore;
use crate::host::SessionHost;
use crate::{Error, ErrorKind};

impl<H: SessionHost> SessionCore<H> {
    /// Sends a request to the main node and stores the answer in `reply`, for which it reserves
    /// `reply_size_bytes`. Costs one batch of two WRITEs, then polls of the reply ring, which are
    /// READs unless the ring is in this process's memory or in the session's window.
    pub(crate) async fn call(
        &self,
        batch: &mut Batch,
        request: &[u8],
        reply_size_bytes: usize,
        reply: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let rings = self.rings().await?;
        let caller = Caller::new(&self.endpoint, &self.endpoint, &rings);
        reply.clear();
        let is_gone = self.node_watch();
        let called = caller.call(batch, request, reply_size_bytes, reply, is_gone);
        match called.await {
            Ok(()) => Ok(()),
            Err(CallError::Fabric(error)) => Err(error.into()),
            Err(CallError::Broken) => {
                self.mark_broken();
                Err(ErrorKind::SessionBroken.into())
            }
            Err(error) => {
                if rings.is_broken() {
                    self.mark_broken();
                }
                Err(ErrorKind::Call(error).into())
            }
        }
    }

    /// Returns a function that a waiting call polls to learn whether the node is gone.
    fn node_watch(&self) -> impl Fn() -> bool {
        let poll_count = Cell::new(0_u32);
        move || {
            poll_count.update(|count| count.wrapping_add(1));
            self.host.is_node_gone(self.owner, poll_count.get())
        }
    }

    /// Returns the session's rings; the node assigns them at the first call.
    async fn rings(&self) -> Result<Rc<CallerRings>, Error> {
        if let Some(rings) = self.known_rings() {
            return Ok(rings);
        }
        let Some((session, incarnation)) = self.owner.holder() else {
            return Err(ErrorKind::SessionUnknown.into());
        };
        let main_node = self.layout().main_node();
        let mut batch = Batch::new();
        let ring_request = if self.endpoint.open_window(WINDOW_SIZE_WORDS) {
            ReplyPlace::InWindow
        } else {
            ReplyPlace::InNodeMemory
        };
        batch.write_word(
            ring_request_addr(main_node, session),
            ring_request.word(incarnation),
        );
        batch.fetch_add(main_node.ring_request_count(), 1);
        self.control(&mut batch).await?;
        let is_gone = self.node_watch();
        for attempt in 0.. {
            let place = rings_addr(main_node, session);
            if self.read_word(place.offset(1)).await? == incarnation.number() {
                return self.take_rings(ring_request, self.read_word(place).await?);
            }
            if is_gone() {
                return Err(ErrorKind::Call(CallError::Gone).into());
            }
            backoff(attempt).await;
        }
        unreachable!("it goes on")
    }

    async fn read_word(&self, from: WordAddr) -> Result<u64, Error> {
        let mut batch = Batch::new();
        let read = batch.read(from, 1);
        self.control(&mut batch).await?;
        Ok(batch.words(read)[0])
    }

    /// Opens the rings that the node has assigned.
    fn take_rings(&self, ring_request: ReplyPlace, word: u64) -> Result<Rc<CallerRings>, Error> {
        // Another future may have opened the rings first; they share one state.
        if let Some(rings) = self.known_rings() {
            return Ok(rings);
        }
        if word == RINGS_REFUSED {
            return Err(ErrorKind::NoRings.into());
        }
        let chunk_count = self.layout().main_node().superblock.chunk_count;
        let number = word.checked_sub(1).filter(|number| *number < chunk_count);
        let number = number.ok_or(ErrorKind::BadReply("rings outside the pool's memory"))?;
        let chunk = ChunkIndex::new(self.layout().main_node().node, number);
        let (requests, replies) = rings_of(self.layout(), chunk, ring_request);
        let rings = match ring_request {
            ReplyPlace::InNodeMemory => CallerRings::new(requests, replies),
            ReplyPlace::InWindow => CallerRings::in_window(requests, replies),
        };
        let rings = Rc::new(rings);
        *self.rings.borrow_mut() = Some(Rc::clone(&rings));
        Ok(rings)
    }

    fn known_rings(&self) -> Option<Rc<CallerRings>> {
        self.rings.borrow().clone()
    }
}
