//! An operation on a table of byte strings, from its beginning to its end: with a root that is not
//! out of date, and again if there was no room and there is some by now.

use std::pin::Pin;

use farleaf_byte_index::operation::InHand;
use farleaf_byte_index::{ByteIndex, ByteIndexError};
use farleaf_executor::backoff;
use farleaf_fabric::{Batch, OperationKind};

use super::AsyncByteTable;
use crate::Error;
use crate::async_table::Rare;
use crate::host::Host;

/// So often who finds no room waits for what it has unlinked to be free, and so many of the longest
/// waits at a time: about a fifth of a second in all, if nothing else of the thread is in flight.
pub(super) const WAIT_COUNT_MAX: u32 = 64;
const REST_COUNT: u32 = 32;
/// So often it tries again when some of that was free: all that was unlinked before gets one
/// number, so there is more of it once or twice.
const TRY_COUNT_MAX: u32 = 4;

/// How an operation has waited for room.
#[derive(Debug, Default)]
struct Waited {
    wait_count: u32,
    try_count: u32,
}

/// One of the waits.
pub(super) async fn rest() {
    for _ in 0..REST_COUNT {
        backoff(u32::MAX).await;
    }
}

impl<H: Host> AsyncByteTable<H> {
    /// Does an operation; again if the session's root was out of date, or if there was no room and
    /// what the session has unlinked is room by now. It counts as one, whatever it took to find
    /// room.
    pub(super) async fn operate<R>(
        &self,
        kind: OperationKind,
        mut operation: impl AsyncFnMut(
            ByteIndex<'_, H::Endpoint>,
            &mut Batch,
        ) -> Result<R, ByteIndexError>,
    ) -> Result<R, Error> {
        let mut waited = Waited::default();
        let mut batch = self.session.take_batch();
        loop {
            let begun = self.session.begin_bytes(&self.state).await?;
            let in_hand = InHand::of(&self.state.index);
            let index = self.index().with_in_hand(in_hand.as_ref());
            let result = operation(index, &mut batch).await;
            drop(in_hand);
            if let Err(error) = &result
                && error.is_full()
            {
                drop(begun);
                if self.wait_for_room(&mut waited).await? {
                    continue;
                }
                self.session.finish(kind, batch);
            } else {
                self.session.finish(kind, batch);
                drop(begun);
            }
            if let Some(listing) = &self.state.listing
                && self.state.index.has_chores()
            {
                let chores: Pin<Box<dyn Future<Output = ()> + '_>> =
                    Box::pin(self.do_chores(listing));
                chores.await;
            }
            match result {
                Ok(done) => return Ok(done),
                Err(error) => self.refresh_after(error).await?,
            }
            batch = self.session.take_batch();
        }
    }

    /// After an operation that found no room and has changed nothing: waits until some of what the
    /// session has unlinked is room (BV4). The operation is over, as the session does not pass what
    /// was unlinked before it has begun another one. False: there is nothing to wait for, or that
    /// was waited for long enough.
    #[cold]
    fn wait_for_room<'a>(&'a self, waited: &'a mut Waited) -> Rare<'a, bool> {
        Box::pin(async {
            // What the operation itself has put aside is no room that was not there before.
            let has_unlinked = || self.state.index.block_store().held().unlinked_count > 0;
            while waited.try_count < TRY_COUNT_MAX
                && waited.wait_count < WAIT_COUNT_MAX
                && has_unlinked()
            {
                waited.wait_count += 1;
                let begun = self.session.begin_bytes(&self.state).await?;
                let recycled = self.index().recycle().await;
                drop(begun);
                match recycled {
                    Ok(recycled) if recycled.passed_count > 0 => {
                        waited.try_count += 1;
                        return Ok(true);
                    }
                    Ok(_) => {}
                    Err(error) => return Err(Error::from(error).of_table(&self.state.info.name)),
                }
                rest().await;
            }
            Ok(false)
        })
    }

    /// After an operation that failed. `Ok`: the session's root was out of date, and is no more.
    #[cold]
    fn refresh_after(&self, error: ByteIndexError) -> Rare<'_, ()> {
        if error.is_outdated() {
            return Box::pin(async {
                let _begun = self.session.begin_bytes(&self.state).await?;
                self.session.refresh_bytes(&self.state).await
            });
        }
        let error = Error::from(error).of_table(&self.state.info.name);
        Box::pin(std::future::ready(Err(error)))
    }
}
