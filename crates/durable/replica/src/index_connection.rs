//! Sends trees, edits and the base to one backup (REPLICATION-3): a WRITE into its buffer for
//! trees, and a call.

use std::future::poll_fn;
use std::pin::pin;
use std::thread;
use std::time::{Duration, Instant};

use farleaf_executor::{block_on, is_resting};
use farleaf_fabric::message::{CallError, Caller, CallerRings};
use farleaf_fabric::{Batch, BatchError, Endpoint};
use thiserror::Error;

use crate::layout::{Layout, words_of};
use crate::request::{ReplicationReply, ReplicationRequest};

/// Upper bound of a reply's size.
pub(crate) const REPLY_SIZE_BYTES_MAX: usize = 80;

/// Longest sleep between two polls for a reply.
const REPLY_POLL_INTERVAL_MAX: Duration = Duration::from_millis(1);

/// Waits for a reply with polls at growing intervals, of an eighth of the time waited so far. The
/// reply arrives when the backup's disk has the data, and each poll is a READ. Polling every 100 us
/// would take more processor time than the rest of sending. This thread polls nothing else
/// meanwhile.
async fn poll_with_backoff<F: Future>(call: F) -> F::Output {
    let mut call = pin!(call);
    let since = Instant::now();
    poll_fn(|context| {
        let polled = call.as_mut().poll(context);
        if polled.is_pending() && is_resting() {
            thread::sleep((since.elapsed() / 8).min(REPLY_POLL_INTERVAL_MAX));
        }
        polled
    })
    .await
}

/// Connection to one backup's buffer for trees. One thread at a time uses it.
#[derive(Debug)]
pub(crate) struct IndexConnection<E> {
    endpoint: E,
    layout: Layout,
    lines: CallerRings,
    batch: Batch,
    words: Vec<u64>,
}

/// Reason why a backup did not execute a request.
#[derive(Debug, Error)]
pub(crate) enum IndexConnectionError {
    #[error("{0}")]
    Batch(#[from] BatchError),
    #[error("{0}")]
    Call(#[from] CallError),
    #[error("another primary has already used this connection; restart the backup")]
    Used,
    #[error("invalid reply: {0}")]
    Answer(String),
    #[error("cannot start a thread to read the segments to offer: {0}")]
    NoThread(std::io::Error),
}

impl<E: Endpoint> IndexConnection<E> {
    pub(crate) fn new(endpoint: E, layout: Layout) -> Self {
        let (requests, replies) = layout.rings();
        Self {
            endpoint,
            layout,
            lines: CallerRings::new(requests, replies),
            batch: Batch::new(),
            words: Vec::new(),
        }
    }

    /// Returns whether nothing has called over these rings. An earlier caller has left replies that
    /// would pass for new ones. In that case the backup must be created anew before it is filled
    /// again.
    pub(crate) fn is_unused(&mut self) -> Result<bool, IndexConnectionError> {
        let (requests, replies) = self.layout.rings();
        self.batch.clear();
        let slots = [requests, replies].map(|ring| self.batch.read(ring.at(0), 1));
        let execution = self.endpoint.execute(&mut self.batch);
        block_on(execution, self.endpoint.completions())?;
        Ok(slots.iter().all(|slot| self.batch.words(*slot) == [0]))
    }

    /// Puts bytes into the buffer for trees, sends the request that uses them, and returns the
    /// reply.
    pub(crate) fn put(
        &mut self,
        bytes: &[u8],
        request: &ReplicationRequest,
        is_gone: impl Fn() -> bool,
    ) -> Result<ReplicationReply, IndexConnectionError> {
        let words = words_of(bytes, &mut self.words);
        self.batch.clear();
        self.batch.write(self.layout.staging(), words);
        let written = self.endpoint.execute(&mut self.batch);
        block_on(written, self.endpoint.completions())?;
        self.ask(request, is_gone)
    }

    /// Sends a request that has an empty reply.
    pub(crate) fn call(
        &mut self,
        request: &ReplicationRequest,
        is_gone: impl Fn() -> bool,
    ) -> Result<(), IndexConnectionError> {
        self.exchange(request, 0, is_gone).map(drop)
    }

    /// Sends a request that has a reply with a result.
    pub(crate) fn ask(
        &mut self,
        request: &ReplicationRequest,
        is_gone: impl Fn() -> bool,
    ) -> Result<ReplicationReply, IndexConnectionError> {
        let reply = self.exchange(request, REPLY_SIZE_BYTES_MAX, is_gone)?;
        ReplicationReply::decode(&reply).map_err(IndexConnectionError::Answer)
    }

    fn exchange(
        &mut self,
        request: &ReplicationRequest,
        reply_size_bytes: usize,
        is_gone: impl Fn() -> bool,
    ) -> Result<Vec<u8>, IndexConnectionError> {
        // Replies lie in the backup's memory, on every fabric.
        let caller = Caller::new(&self.endpoint, &self.endpoint, &self.lines);
        let (request, mut reply) = (request.encode(), Vec::new());
        let batch = &mut self.batch;
        let called = caller.call(batch, &request, reply_size_bytes, &mut reply, is_gone);
        block_on(poll_with_backoff(called), self.endpoint.completions())?;
        Ok(reply)
    }
}
