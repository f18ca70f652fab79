//! Execution of batches by this processor.

use core::future::{Future, ready};
use core::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::Arc;

use farleaf_base::{NodeId, WordAddr};

use crate::batch::{Batch, Verb, VerbKind};
use crate::cost::{Cost, Counters};
use crate::endpoint::{BatchError, BatchErrorKind, Endpoint};
use crate::mapped::MappedMemory;

/// Size of a cache line in words.
const LINE_SIZE_WORDS: usize = 8;
/// Number of lines of a READ that are prefetched; the rest is left to the hardware prefetcher.
const PREFETCH_LINE_COUNT_MAX: usize = 6;

/// Endpoint to one mapped memory, addressed as node 0.
#[derive(Debug)]
pub struct MappedEndpoint {
    memory: Arc<MappedMemory>,
    counters: Counters,
}

impl MappedEndpoint {
    /// Returns an endpoint with its own counters.
    pub fn new(memory: Arc<MappedMemory>) -> Self {
        Self {
            memory,
            counters: Counters::default(),
        }
    }

    /// Returns the memory that verbs access.
    pub fn memory(&self) -> &Arc<MappedMemory> {
        &self.memory
    }

    /// Executes the batch at once, as [`Endpoint::execute`] does behind a future.
    ///
    /// # Errors
    /// A verb is outside of the memory (FABRIC-7). The verbs before it took effect.
    #[inline]
    pub fn execute_now(&self, batch: &mut Batch) -> Result<(), BatchError> {
        let words = self.memory.words();
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
            // A single READ is a get: it needs no order and no fence.
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
            // FABRIC-8: a store may still be in this processor's store buffer after the batch is
            // reported complete. A verb that another processor posts later would not see it.
            fence(Ordering::SeqCst);
        }
        outcome
    }
}

impl MappedEndpoint {
    /// Executes the verbs of a batch that go to this memory. They are inside the memory; the poster
    /// of the batch counts them.
    pub(crate) fn execute_part<'v>(&self, verbs: impl Iterator<Item = &'v Verb>, data: &mut [u64]) {
        let (words, mut cost) = (self.memory.words(), Cost::default());
        let mut fence_due = false;
        for verb in verbs {
            let target =
                target_of(words, verb).expect("the poster has checked the bounds (FABRIC-7)");
            fence_due |= execute_verb(verb, target, data, &mut cost);
        }
        if fence_due {
            // FABRIC-8, as in `execute_now`.
            fence(Ordering::SeqCst);
        }
    }
}

#[inline]
fn read(verb: &Verb, target: &[AtomicU64], data: &mut [u64], cost: &mut Cost) {
    let start = verb.start as usize;
    MappedMemory::copy_out(target, &mut data[start..start + target.len()]);
    cost.bytes_read += u64::from(verb.word_count) * 8;
}

/// Executes a verb; returns true if FABRIC-8 requires a fence after it.
#[inline]
fn execute_verb(verb: &Verb, target: &[AtomicU64], data: &mut [u64], cost: &mut Cost) -> bool {
    // On x86 an atomic is a full fence. Elsewhere, and in the language's memory model, it is one
    // only among sequentially consistent accesses: a later READ could overtake its store.
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
                // Release keeps this word behind those of earlier WRITEs, in posting order.
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

/// Returns the words that a verb addresses; `None` if they are not all in the memory (FABRIC-7).
#[inline]
fn target(words: &[AtomicU64], addr: WordAddr, word_count: usize) -> Option<&[AtomicU64]> {
    if addr.node() != NodeId(0) {
        return None;
    }
    let start = usize::try_from(addr.index()).ok()?;
    words.get(start..start.checked_add(word_count)?)
}

/// Returns the words that `verb` addresses; see [`target`].
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

/// Prefetches the cache lines of some words.
#[inline]
fn prefetch(target: &[AtomicU64]) {
    let lines = target.chunks(LINE_SIZE_WORDS).take(PREFETCH_LINE_COUNT_MAX);
    lines.for_each(|line| MappedMemory::prefetch(&line[0]));
    if let Some(last) = target.last() {
        MappedMemory::prefetch(last);
    }
}

#[cold]
fn refusal(verb: &Verb, memory_word_count: u64, index: usize) -> BatchError {
    let known = verb.addr.node() == NodeId(0);
    let kind = BatchErrorKind::Refused {
        addr: verb.addr,
        word_count: u64::from(verb.word_count),
        memory_word_count: known.then_some(memory_word_count),
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
        let Some(target) = target(self.memory.words(), from, to.len()) else {
            return false;
        };
        MappedMemory::copy_out(target, to);
        true
    }

    #[inline]
    fn prepare(&self, from: WordAddr, word_count: usize) {
        if let Some(target) = target(self.memory.words(), from, word_count) {
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
    fn memory_word_count(&self, node: NodeId) -> Option<u64> {
        (node == NodeId(0)).then(|| self.memory.word_count())
    }
}
