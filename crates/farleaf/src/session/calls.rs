//! Calls of the memory node, by rings in far memory (S5; E1 to E9 of `farleaf-message`).

use std::cell::Cell;
use std::rc::Rc;

use farleaf_executor::backoff;
use farleaf_fabric::{Batch, Endpoint};
use farleaf_message::{CallError, Caller, Lines};
use farleaf_node::calls::desk::{WINDOW_SIZE_WORDS, rings_of};
use farleaf_region::layout::ChunkIndex;
use farleaf_region::session::{RINGS_REFUSED, Wish, rings_addr, wants_rings_addr};
use farleaf_types::WordAddr;

use super::base::SessionCore;
use crate::host::Host;
use crate::{Error, ErrorKind};

impl<H: Host> SessionCore<H> {
    /// Sends a request to the home node and replaces `reply` by what it answers, for which room of
    /// `reply_size_bytes` is announced. One batch of two WRITEs; then looks at the ring of replies,
    /// which are READs where that is neither this process's memory nor the session's window.
    pub(crate) async fn call(
        &self,
        batch: &mut Batch,
        request: &[u8],
        (reply_size_bytes, reply): (usize, &mut Vec<u8>),
    ) -> Result<(), Error> {
        let lines = self.lines().await?;
        let caller = Caller::new(&self.endpoint, &self.endpoint, &lines);
        reply.clear();
        let is_gone = self.node_watch();
        let called = caller.call(batch, request, (reply_size_bytes, reply), is_gone);
        match called.await {
            Ok(()) => Ok(()),
            Err(CallError::Fabric(error)) => Err(error.into()),
            Err(CallError::Broken) => {
                self.mark_broken();
                Err(ErrorKind::SessionBroken.into())
            }
            Err(error) => {
                if lines.is_broken() {
                    self.mark_broken();
                }
                Err(ErrorKind::Call(error).into())
            }
        }
    }

    /// Asks now and then whether the node is gone, while it is waited for.
    fn node_watch(&self) -> impl Fn() -> bool {
        let look_count = Cell::new(0_u32);
        move || {
            look_count.update(|count| count.wrapping_add(1));
            self.host.is_node_gone(self.owner, look_count.get())
        }
    }

    /// The session's rings; the node gives it some when it makes its first call.
    async fn lines(&self) -> Result<Rc<Lines>, Error> {
        if let Some(lines) = self.known_lines() {
            return Ok(lines);
        }
        let Some((session, incarnation)) = self.owner.holder() else {
            return Err(ErrorKind::SessionUnknown.into());
        };
        let home = self.layout().home();
        let mut batch = Batch::new();
        let wish = if self.endpoint.open_window(WINDOW_SIZE_WORDS) {
            Wish::InWindow
        } else {
            Wish::InRegion
        };
        batch.write_word(wants_rings_addr(home, session), wish.word(incarnation));
        batch.fetch_add(home.rings_wanted(), 1);
        self.control(&mut batch).await?;
        let is_gone = self.node_watch();
        for attempt in 0.. {
            let place = rings_addr(home, session);
            if self.read_word(place.offset(1)).await? == incarnation.number() {
                return self.take_rings(wish, self.read_word(place).await?);
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

    /// What the node has answered.
    fn take_rings(&self, wish: Wish, word: u64) -> Result<Rc<Lines>, Error> {
        // Another future may have come first: there is one state of the rings.
        if let Some(lines) = self.known_lines() {
            return Ok(lines);
        }
        if word == RINGS_REFUSED {
            return Err(ErrorKind::NoRings.into());
        }
        let chunk_count = self.layout().home().superblock.chunk_count;
        let number = word.checked_sub(1).filter(|number| *number < chunk_count);
        let number = number.ok_or(ErrorKind::BadReply("rings outside of its region"))?;
        let chunk = ChunkIndex::new(self.layout().home().node, number);
        let rings = rings_of(self.layout(), chunk, wish);
        let lines = match wish {
            Wish::InRegion => Lines::new(rings),
            Wish::InWindow => Lines::in_window(rings),
        };
        let lines = Rc::new(lines);
        *self.lines.borrow_mut() = Some(Rc::clone(&lines));
        Ok(lines)
    }

    fn known_lines(&self) -> Option<Rc<Lines>> {
        self.lines.borrow().clone()
    }
}
