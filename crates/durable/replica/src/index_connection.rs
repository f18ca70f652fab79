//! The way of trees, edits and the base to one backup (RP3): a WRITE into its buffer for trees, and
//! a call.

use std::future::poll_fn;
use std::pin::pin;
use std::thread;
use std::time::{Duration, Instant};

use farleaf_executor::{block_on, is_resting};
use farleaf_fabric::{Batch, BatchError, Endpoint};
use farleaf_message::{CallError, Caller, Lines};
use thiserror::Error;

use crate::layout::{Layout, words_of};
use crate::request::{Reply, Request};

/// No answer is longer.
pub(crate) const REPLY_SIZE_BYTES_MAX: usize = 80;

/// Between two looks for a reply at the most.
const REPLY_REST_MAX: Duration = Duration::from_millis(1);

/// Waits for a reply by looking for it at longer and longer intervals, of an eighth of the time
/// that was waited. It comes when the backup's disk has what it is about, and each look is a READ:
/// to look every 100 us would take more of the processor than the rest of sending. Nothing else is
/// polled by this thread meanwhile.
async fn patiently<F: Future>(call: F) -> F::Output {
    let mut call = pin!(call);
    let since = Instant::now();
    poll_fn(|context| {
        let polled = call.as_mut().poll(context);
        if polled.is_pending() && is_resting() {
            thread::sleep((since.elapsed() / 8).min(REPLY_REST_MAX));
        }
        polled
    })
    .await
}

/// The way to one backup's buffer for trees. Used by one thread at a time.
#[derive(Debug)]
pub(crate) struct IndexWay<E> {
    endpoint: E,
    layout: Layout,
    lines: Lines,
    batch: Batch,
    words: Vec<u64>,
}

/// Why a backup did not do what it was asked for.
#[derive(Debug, Error)]
pub(crate) enum IndexWayError {
    #[error("{0}")]
    Batch(#[from] BatchError),
    #[error("{0}")]
    Call(#[from] CallError),
    #[error("a primary has called it before: it has to begin anew")]
    Used,
    #[error("its answer cannot be understood: {0}")]
    Answer(String),
    #[error("no thread reads what it may have already: {0}")]
    NoThread(std::io::Error),
}

impl<E: Endpoint> IndexWay<E> {
    pub(crate) fn new(endpoint: E, layout: Layout) -> Self {
        Self {
            endpoint,
            layout,
            lines: Lines::new(layout.rings()),
            batch: Batch::new(),
            words: Vec::new(),
        }
    }

    /// E9: whether nobody has called by these rings. Who did has left replies, which would pass for
    /// those to come; the backup has to begin anew before it is filled again.
    pub(crate) fn is_unused(&mut self) -> Result<bool, IndexWayError> {
        let (requests, replies) = self.layout.rings();
        self.batch.clear();
        let slots = [requests, replies].map(|ring| self.batch.read(ring.at(0), 1));
        let looked = self.endpoint.execute(&mut self.batch);
        block_on(looked, self.endpoint.completions())?;
        Ok(slots.iter().all(|slot| self.batch.words(*slot) == [0]))
    }

    /// Puts bytes into the buffer for trees, and has them taken from there; what it answers.
    pub(crate) fn put(
        &mut self,
        bytes: &[u8],
        request: &Request,
        is_gone: impl Fn() -> bool,
    ) -> Result<Reply, IndexWayError> {
        let words = words_of(bytes, &mut self.words);
        self.batch.clear();
        self.batch.write(self.layout.staging(), words);
        let written = self.endpoint.execute(&mut self.batch);
        block_on(written, self.endpoint.completions())?;
        self.ask(request, is_gone)
    }

    /// Has a request done.
    pub(crate) fn call(
        &mut self,
        request: &Request,
        is_gone: impl Fn() -> bool,
    ) -> Result<(), IndexWayError> {
        self.exchange(request, 0, is_gone).map(drop)
    }

    /// Has a request done that is answered by something.
    pub(crate) fn ask(
        &mut self,
        request: &Request,
        is_gone: impl Fn() -> bool,
    ) -> Result<Reply, IndexWayError> {
        let reply = self.exchange(request, REPLY_SIZE_BYTES_MAX, is_gone)?;
        Reply::decode(&reply).map_err(IndexWayError::Answer)
    }

    fn exchange(
        &mut self,
        request: &Request,
        reply_size_bytes: usize,
        is_gone: impl Fn() -> bool,
    ) -> Result<Vec<u8>, IndexWayError> {
        // Replies lie in the backup's memory, on every fabric.
        let caller = Caller::new(&self.endpoint, &self.endpoint, &self.lines);
        let (request, mut reply) = (request.encode(), Vec::new());
        let room = (reply_size_bytes, &mut reply);
        let called = caller.call(&mut self.batch, &request, room, is_gone);
        block_on(patiently(called), self.endpoint.completions())?;
        Ok(reply)
    }
}
