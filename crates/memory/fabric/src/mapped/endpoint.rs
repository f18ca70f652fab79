//! Batches executed by this processor.

use core::future::{Future, ready};
use core::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::Arc;

use farleaf_types::{NodeId, WordAddr};

use crate::batch::{Batch, Verb, VerbKind};
use crate::cost::{Cost, Counters};
use crate::endpoint::{BatchError, BatchErrorKind, Endpoint};
use crate::mapped::MappedRegion;

/// A cache line, in words.
const LINE_SIZE_WORDS: usize = 8;
/// Longer READs are left to the processor's own prefetcher after this many lines.
const PREFETCH_LINE_COUNT_MAX: usize = 6;

/// An endpoint to one mapped region, which it knows as node 0.
#[derive(Debug)]
pub struct MappedEndpoint {
    region: Arc<MappedRegion>,
    counters: Counters,
}

impl MappedEndpoint {
    /// An endpoint with counters of its own.
    pub fn new(region: Arc<MappedRegion>) -> Self {
        Self {
            region,
            counters: Counters::default(),
        }
    }

    /// The mapping that verbs go to.
    pub fn region(&self) -> &Arc<MappedRegion> {
        &self.region
    }

    /// Executes the batch at once; what [`Endpoint::execute`] does behind a future.
    ///
    /// # Errors
    /// F7: a verb outside of the region. The verbs before it took effect.
    #[inline]
    pub fn execute_now(&self, batch: &mut Batch) -> Result<(), BatchError> {
        let words = self.region.words();
        let (verbs, data, cost) = batch.parts_mut();
        if verbs.is_empty() {
            return Ok(());
        }
        cost.round_trips += 1;
        cost.doorbells += 1;
        cost.verbs += verbs.len() as u64;
        if verbs.len() > 1 {
            prefetch_reads(words, verbs);
        }
        if let [verb] = verbs
            && verb.kind == VerbKind::Read
            && let Some(target) = target_of(words, verb)
        {
            // What a get is: nothing to order and nothing to fence.
            read(verb, target, data, cost);
            return Ok(());
        }
        let mut fence_due = false;
        let mut outcome = Ok(());
        for (index, verb) in verbs.iter().enumerate() {
            let Some(target) = target_of(words, verb) else {
                outcome = Err(refusal(verb, words.len() as u64, index));
                break;
            };
            fence_due |= execute_verb(verb, target, data, cost);
        }
        if fence_due {
            // F8: a store may sit in this processor's store buffer after the batch is reported
            // complete, where another processor's verb, posted later, would not see it.
            fence(Ordering::SeqCst);
        }
        outcome
    }
}

impl MappedEndpoint {
    /// Executes verbs of a batch that goes to other nodes, too. They are inside of the region, and
    /// are counted by who posts the batch.
    pub(crate) fn execute_part<'v>(&self, verbs: impl Iterator<Item = &'v Verb>, data: &mut [u64]) {
        let (words, mut cost) = (self.region.words(), Cost::default());
        let mut fence_due = false;
        for verb in verbs {
            let target = target_of(words, verb).expect("who posts has checked the bounds (F7)");
            fence_due |= execute_verb(verb, target, data, &mut cost);
        }
        if fence_due {
            // F8, as in `execute_now`.
            fence(Ordering::SeqCst);
        }
    }
}

#[inline]
fn read(verb: &Verb, target: &[AtomicU64], data: &mut [u64], cost: &mut Cost) {
    let start = verb.start as usize;
    MappedRegion::copy_out(target, &mut data[start..start + target.len()]);
    cost.bytes_read += u64::from(verb.word_count) * 8;
}

/// True when F8 needs a fence after it.
#[inline]
fn execute_verb(verb: &Verb, target: &[AtomicU64], data: &mut [u64], cost: &mut Cost) -> bool {
    // An x86 atomic is a full fence by itself. Elsewhere, and in the language's memory model, only
    // among sequentially consistent accesses: a later READ could overtake its store.
    const ATOMIC_NEEDS_FENCE: bool = !cfg!(any(target_arch = "x86_64", target_arch = "x86"));
    let start = verb.start as usize;
    let bytes = u64::from(verb.word_count) * 8;
    match verb.kind {
        VerbKind::Read => {
            read(verb, target, data, cost);
            false
        }
        VerbKind::Write => {
            for (word, value) in target.iter().zip(&data[start..]) {
                // Release keeps posting order among the words of earlier WRITEs and this.
                word.store(*value, Ordering::Release);
            }
            cost.bytes_written += bytes;
            true
        }
        VerbKind::CompareSwap => {
            let (expected, desired) = (data[start], data[start + 1]);
            let outcome =
                target[0].compare_exchange(expected, desired, Ordering::SeqCst, Ordering::SeqCst);
            data[start + 2] = outcome.unwrap_or_else(|previous| previous);
            cost.atomics += 1;
            ATOMIC_NEEDS_FENCE
        }
        VerbKind::FetchAdd => {
            data[start + 1] = target[0].fetch_add(data[start], Ordering::SeqCst);
            cost.atomics += 1;
            ATOMIC_NEEDS_FENCE
        }
    }
}

/// The words a verb is aimed at; `None` when they are not all in the region (F7).
#[inline]
fn target(words: &[AtomicU64], addr: WordAddr, word_count: usize) -> Option<&[AtomicU64]> {
    if addr.node() != NodeId(0) {
        return None;
    }
    let start = usize::try_from(addr.index()).ok()?;
    words.get(start..start.checked_add(word_count)?)
}

/// [`target`] of a verb.
#[inline]
fn target_of<'a>(words: &'a [AtomicU64], verb: &Verb) -> Option<&'a [AtomicU64]> {
    target(words, verb.addr, verb.word_count as usize)
}

/// Starts all READs before the first is waited for, as a NIC would.
#[inline]
fn prefetch_reads(words: &[AtomicU64], verbs: &[Verb]) {
    for verb in verbs.iter().filter(|verb| verb.kind == VerbKind::Read) {
        if let Some(target) = target_of(words, verb) {
            prefetch(target);
        }
    }
}

/// Asks for the lines of some words, without waiting for them.
#[inline]
fn prefetch(target: &[AtomicU64]) {
    let lines = target.chunks(LINE_SIZE_WORDS).take(PREFETCH_LINE_COUNT_MAX);
    lines.for_each(|line| MappedRegion::prefetch(&line[0]));
    if let Some(last) = target.last() {
        MappedRegion::prefetch(last);
    }
}

#[cold]
fn refusal(verb: &Verb, region_word_count: u64, index: usize) -> BatchError {
    let known = verb.addr.node() == NodeId(0);
    let kind = BatchErrorKind::Refused {
        addr: verb.addr,
        word_count: u64::from(verb.word_count),
        region_word_count: known.then_some(region_word_count),
    };
    BatchError::new(kind, index)
}

impl Endpoint for MappedEndpoint {
    #[inline]
    fn execute<'a>(
        &'a self,
        batch: &'a mut Batch,
    ) -> impl Future<Output = Result<(), BatchError>> + 'a {
        ready(self.execute_now(batch))
    }

    #[inline]
    fn reads_at_once(&self) -> bool {
        true
    }

    #[inline]
    fn read_at_once(&self, from: WordAddr, to: &mut [u64]) -> bool {
        let Some(target) = target(self.region.words(), from, to.len()) else {
            return false;
        };
        MappedRegion::copy_out(target, to);
        true
    }

    #[inline]
    fn prepare(&self, from: WordAddr, word_count: usize) {
        if let Some(target) = target(self.region.words(), from, word_count) {
            prefetch(target);
        }
    }

    #[inline]
    fn poll_completions(&self) -> usize {
        0
    }

    #[inline]
    fn counters(&self) -> &Counters {
        &self.counters
    }

    #[inline]
    fn region_word_count(&self, node: NodeId) -> Option<u64> {
        (node == NodeId(0)).then(|| self.region.word_count())
    }
}
