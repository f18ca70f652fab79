//! Execution of an operation on a table of byte strings: retried if its root was outdated, or if
//! the pool was full and memory has become free since.

use std::pin::Pin;

use farleaf_executor::backoff;
use farleaf_fabric::{Batch, OperationKind};
use farleaf_index::strings::operation::PinnedPart;
use farleaf_index::strings::{ByteIndex, ByteIndexError};

use super::AsyncByteTable;
use crate::Error;
use crate::async_table::SlowPathFuture;
use crate::host::SessionHost;

/// Number of times that an operation which finds the pool full waits for its unlinked memory to
/// become free, and number of backoffs per wait. The waits take about a fifth of a second in all if
/// the thread has nothing else in flight.
pub(super) const WAIT_COUNT_MAX: u32 = 64;
const BACKOFFS_PER_WAIT: u32 = 32;
/// Number of retries after some of the unlinked memory has become free. All memory that was
/// unlinked before gets one sequence number, so more of it becomes free only once or twice.
const TRY_COUNT_MAX: u32 = 4;

/// Waits and retries of an operation for free memory.
#[derive(Debug, Default)]
struct RetryCounts {
    wait_count: u32,
    try_count: u32,
}

/// Waits once.
pub(super) async fn rest() {
    for _ in 0..BACKOFFS_PER_WAIT {
        backoff(u32::MAX).await;
    }
}

impl<H: SessionHost> AsyncByteTable<H> {
    /// Executes an operation. Retries it if the session's root was outdated, or if the pool was
    /// full and memory that the session has unlinked is free by now. It counts as one operation,
    /// whatever the waits cost.
    pub(super) async fn operate<R>(
        &self,
        kind: OperationKind,
        mut operation: impl AsyncFnMut(
            ByteIndex<'_, H::Endpoint>,
            &mut Batch,
        ) -> Result<R, ByteIndexError>,
    ) -> Result<R, Error> {
        let mut retry_counts = RetryCounts::default();
        let mut batch = self.session.take_batch();
        loop {
            let guard = self.session.begin_bytes(&self.state).await?;
            let pinned_part = PinnedPart::of(&self.state.index);
            let index = self.index().with_pinned_part(pinned_part.as_ref());
            let result = operation(index, &mut batch).await;
            drop(pinned_part);
            if let Err(error) = &result
                && error.is_full()
            {
                drop(guard);
                if self.wait_for_free_memory(&mut retry_counts).await? {
                    continue;
                }
                self.session.finish(kind, batch);
            } else {
                self.session.finish(kind, batch);
                drop(guard);
            }
            if let Some(listing) = &self.state.listing
                && self.state.index.has_listing_work()
            {
                let chores: Pin<Box<dyn Future<Output = ()> + '_>> =
                    Box::pin(self.update_listing(listing));
                chores.await;
            }
            match result {
                Ok(done) => return Ok(done),
                Err(error) => self.refresh_after(error).await?,
            }
            batch = self.session.take_batch();
        }
    }

    /// Waits until some of the memory that the session has unlinked is free, after an operation
    /// that found the pool full and has changed nothing. That operation has ended, because the
    /// session passes the grace period only by beginning another one. Returns false if there is
    /// nothing to wait for, or the wait has been long enough.
    #[cold]
    fn wait_for_free_memory<'a>(
        &'a self,
        retry_counts: &'a mut RetryCounts,
    ) -> SlowPathFuture<'a, bool> {
        Box::pin(async {
            // Blocks that the operation itself has prepared were free before it, so they do not
            // count.
            let has_unlinked = || self.state.index.block_store().held().unlinked_count > 0;
            while retry_counts.try_count < TRY_COUNT_MAX
                && retry_counts.wait_count < WAIT_COUNT_MAX
                && has_unlinked()
            {
                retry_counts.wait_count += 1;
                let guard = self.session.begin_bytes(&self.state).await?;
                let recycled = self.index().recycle().await;
                drop(guard);
                match recycled {
                    Ok(recycled) if recycled.passed_count > 0 => {
                        retry_counts.try_count += 1;
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

    /// Handles a failed operation. `Ok` means that the session's root was outdated and has been
    /// refreshed.
    #[cold]
    fn refresh_after(&self, error: ByteIndexError) -> SlowPathFuture<'_, ()> {
        if error.is_outdated() {
            return Box::pin(async {
                let _guard = self.session.begin_bytes(&self.state).await?;
                self.session.refresh_bytes(&self.state).await
            });
        }
        let error = Error::from(error).of_table(&self.state.info.name);
        Box::pin(std::future::ready(Err(error)))
    }
}
